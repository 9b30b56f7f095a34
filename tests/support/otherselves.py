"""Processes of another user, and in namespaces of their own, for tests as root and as anybody."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.support.adversary import Victim

#: A uid that no file here belongs to: "nobody".
OTHER_UID: Final = 65_534
_NEW_USER, _NEW_PID, _NEW_MOUNT = 0x1000_0000, 0x2000_0000, 0x0002_0000
_MS_PRIVATE_REC: Final = 0x4_0000 | 0x4000
_MS_REMOUNT, _MS_BIND = 0x20, 0x1000
_libc = ctypes.CDLL(None, use_errno=True)


def is_root() -> bool:
    """True if this process may become another user."""
    return os.geteuid() == 0


def become_nobody() -> None:
    """Give up root for good, and all its rights; who is not root stays who he is."""
    if is_root():
        os.setgroups([])
        os.setresgid(OTHER_UID, OTHER_UID, OTHER_UID)
        os.setresuid(OTHER_UID, OTHER_UID, OTHER_UID)


def enter_namespaces(*, pids: bool = False) -> None:
    """From here on mounts are this process's own, with `pids` its children's numbers too.

    Root needs no user namespace; anybody else gets one in which he is root.
    """
    uid, gid = os.geteuid(), os.getegid()
    _call(_libc.unshare, _NEW_MOUNT | (_NEW_PID if pids else 0) | (0 if uid == 0 else _NEW_USER))
    if uid:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
        Path("/proc/self/gid_map").write_text(f"0 {gid} 1")
    _call(_libc.mount, None, b"/", None, _MS_PRIVATE_REC, None)


def mount(kind: str, at: str, options: str = "") -> None:
    """Mount a file system of the kernel's own."""
    _call(_libc.mount, kind.encode(), at.encode(), kind.encode(), 0, options.encode())


def mount_fixed(folder: Path, at: Path) -> None:
    """From here on this process alone sees a folder at another path, where nothing can be written.

    Its mount keeps the flags that a user namespace may not take away.
    """
    enter_namespaces()
    where = str(at).encode()
    _call(_libc.mount, str(folder).encode(), where, None, _MS_BIND, None)
    flags = os.statvfs(at).f_flag & (os.ST_NOSUID | os.ST_NODEV | os.ST_NOEXEC)
    _call(_libc.mount, None, where, None, _MS_REMOUNT | _MS_BIND | os.ST_RDONLY | flags, None)


def fork_as(pid: int, work: Callable[[], None]) -> Victim:
    """A child with just that number, in a namespace of numbers that is ours."""
    Path("/proc/sys/kernel/ns_last_pid").write_text(str(pid - 1))
    child = Victim(work)
    assert child.pid == pid
    return child


def _call(function: Callable[..., int], *arguments: object) -> None:
    if function(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, f"{function.__name__}: {os.strerror(number)}")
