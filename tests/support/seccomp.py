"""systemd's `SystemCallFilter=@system-service` for a program of a test, by a filter of the kernel.

A call that is not in the set fails with EPERM, as with `SystemCallErrorNumber=EPERM`.
"""

from __future__ import annotations

import ctypes
import platform
import struct
from typing import Final

#: First and last number of the calls in the set on x86-64, as systemd 252 expands it
#: (`systemd-analyze syscall-filter`).
ALLOWED: Final = (
    (0, 26), (28, 100), (102, 102), (104, 133), (135, 135), (137, 138), (140, 152), (157, 158),
    (160, 160), (162, 162), (186, 211), (213, 226), (228, 235), (237, 245), (247, 297),
    (299, 299), (302, 303), (306, 312), (314, 316), (318, 319), (322, 328), (332, 334),
    (424, 427), (434, 437), (439, 441), (449, 450),
)  # fmt: skip

_ARCH_X86_64: Final = 0xC000003E
_LOAD, _JUMP_EQUAL, _JUMP_GREATER, _JUMP_AT_LEAST, _RETURN = 0x20, 0x15, 0x25, 0x35, 0x06
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000 | 1  # EPERM
_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _MODE_FILTER = 22, 38, 2


def _program() -> bytes:
    """BPF: each range is tested by two jumps to the RETURN behind them."""
    steps = [(_LOAD, 0, 0, 4), (_JUMP_EQUAL, 1, 0, _ARCH_X86_64), (_RETURN, 0, 0, _FAIL)]
    steps.append((_LOAD, 0, 0, 0))
    for first, last in ALLOWED:
        steps += [
            (_JUMP_AT_LEAST, 0, 2, first),
            (_JUMP_GREATER, 1, 0, last),
            (_RETURN, 0, 0, _ALLOW),
        ]
    steps.append((_RETURN, 0, 0, _FAIL))
    return b"".join(struct.pack("<HBBI", *step) for step in steps)


def only_system_service() -> None:
    """Apply it to this process and what it starts, for `preexec_fn`; x86-64 only."""
    if platform.machine() != "x86_64":
        return
    code = ctypes.create_string_buffer(_program())
    count = len(_program()) // 8

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))

    filter_ = Program(count, ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_NO_NEW_PRIVS)")
    if libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(filter_), 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_SECCOMP)")
