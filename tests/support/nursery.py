"""A small process that has loaded what brokers and commands need, and makes children for pytest.

A fork copies the tables of all memory of whom it is made from, and a broker forks its agents again:
from pytest, which holds every test's modules and what tests have left, one costs several times as
much as from here. The children are pytest's all the same (CLONE_PARENT): it waits for them, their
processor time is counted with the test's, and they end with it where they ask for that.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import pkgutil
import platform
import runpy
import signal
import socket
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import IO, Any, Final, NoReturn

import gantrymq.temporary
from gantrymq.shm import jit, marks
from tests.support import leaks
from tests.support.interned import settle_interned

#: Descriptors that one call may hand over.
RIGHTS_MAX: Final = 250
_LENGTH_BYTES: Final = 8
#: Modules that are loaded inside of functions, and that take their time.
_LOADED_LATE = (
    "gantrymq.brokerd.__main__", "gantrymq.brokerd.doctor", "gantrymq.brokerd.dump",
    "gantrymq.brokerd.handover.adoption", "gantrymq.brokerd.lags", "gantrymq.brokerd.metrics",
    "gantrymq.brokerd.rebuild", "gantrymq.brokerd.recovery", "gantrymq.brokerd.sample",
    "gantrymq.brokerd.serve", "gantrymq.brokerd.verify", "gantrymq.clients.consumer",
    "gantrymq.clients.producer", "gantrymq.clients.push.consumer",
    "gantrymq.clients.transactions.transaction", "encodings.ascii", "numpy.ma", "prometheus_client",
    "psutil", "gantrymq.workers.groups.ledgerreader", "pydantic.main", "pydantic.type_adapter",
    "typer._adapters", "typer.rich_utils", "rich.console", "rich.live", "rich.progress",
    "rich.table", "asyncio", "concurrent.futures.thread", "gantrymq.temporary", "sqlite3",
    "tests.support.faulty_broker",
)  # fmt: skip
#: linux/sched.h and linux/prctl.h.
_CLONE_PARENT: Final = 0x00008000
_CLONE_CHILD_CLEARTID: Final = 0x00200000
_CLONE_CHILD_SETTID: Final = 0x01000000
_PR_GET_TID_ADDRESS: Final = 40
_PR_SET_PDEATHSIG: Final = 1
_SYS_CLONE: Final = {"x86_64": 56, "aarch64": 220}


def load_everything() -> None:
    """What brokers and commands load and make when they run."""
    import gantrymq.cli
    from gantrymq.brokerd.agents import load_all
    from gantrymq.cli.app import command_line

    command_line()
    for module in pkgutil.iter_modules(gantrymq.cli.__path__, "gantrymq.cli."):
        importlib.import_module(module.name)
    for name in _LOADED_LATE:
        with contextlib.suppress(ImportError):  # what a newer typer may do without
            importlib.import_module(name)
    load_all()
    settle_interned()


def live(run: Callable[[], int | None]) -> NoReturn:
    """A child: become the program, and never come back."""
    gc.freeze()  # the parent's objects stay as they are
    atexit._clear()  # what the parent wants to do at its end
    warnings.resetwarnings()
    sys.stdin, sys.stdout, sys.stderr = (
        open(0, closefd=False),  # noqa: SIM115 - until the end
        open(1, "w", closefd=False),  # noqa: SIM115
        open(2, "w", closefd=False, buffering=1),  # noqa: SIM115
    )
    marks.set_hook(marks._from_environment())  # as its import does
    code = _code_of(run)
    try:
        threading._shutdown()  # type: ignore[attr-defined] # as an interpreter ends
        atexit._run_exitfuncs()
        sys.stdout.flush()
    finally:
        os._exit(code)


def run_command(name: str, arguments: Sequence[str]) -> int:
    """Run `gantrymq`, `brokerd` or `faulty_broker`."""
    from gantrymq.brokerd.__main__ import main as serve
    from gantrymq.cli import main

    sys.argv = [name, *arguments]
    if name == "brokerd":
        return serve()
    if name == "faulty_broker":
        from tests.support.faulty_broker import main as serve_faultily

        return serve_faultily()
    main()
    return 0


def _run_each(lines: Sequence[Sequence[str]]) -> int:
    """Run commands one after the other, each with two descriptors; their codes go to the last."""
    told = 3 + 2 * len(lines)
    for number, line in enumerate(lines):
        os.dup2(3 + 2 * number, 1)
        os.dup2(4 + 2 * number, 2)
        code = _code_of(partial(run_command, "gantrymq", line))
        sys.stdout.flush()
        os.write(told, bytes([code]))
    return 0


def _run_program(name: str, arguments: Sequence[str], text: str | None, strict: bool) -> None:
    """Run a file, or the text that is given, as `python` does."""
    sys.argv = [name, *arguments]
    if strict:
        warnings.simplefilter("error")
    if text is None:
        runpy.run_path(name, run_name="__main__")
    else:
        exec(compile(text, "<string>", "exec"), {"__name__": "__main__"})


def _code_of(run: Callable[[], int | None]) -> int:
    try:
        return run() or 0
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1


def _become(call: dict[str, Any], descriptors: Sequence[int]) -> NoReturn:
    """The child of a call: go to its place with its descriptors, and run what it names."""
    high = [os.dup(descriptor) for descriptor in descriptors]  # above all that they go to
    for number, descriptor in enumerate(high):
        os.dup2(descriptor, number)
    os.closerange(len(high), os.sysconf("SC_OPEN_MAX"))
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # pytest may be killed
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(call["folder"])
    os.umask(call["umask"])
    ours = leaks.this_run()
    os.environ.clear()
    os.environ.update({leaks.MARK: ours} | call["variables"])
    if call["group"]:
        os.setpgid(0, call["group"])
    leaks.mark_this_process()
    jit.cache_directory.cache_clear()  # the variables may say another
    if call["warm"]:
        gantrymq.temporary._spawn = _spawn_here

    def run() -> int:
        if call["lines"] is not None:
            return _run_each(call["lines"])
        if call["is_program"]:
            _run_program(call["name"], call["arguments"], call["text"], call["strict"])
            return 0
        return run_command(call["name"], call["arguments"])

    live(run)


def _spawn_here(arguments: Sequence[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
    """What gantrymq.temporary._spawn does, by a fork of the program that asks for a broker."""

    def become_broker() -> NoReturn:
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # Popen's too, by which it sees the start
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # as an interpreter has it
            signal.signal(number, signal.SIG_IGN)
        live(lambda: run_command("brokerd", arguments))

    streams: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": log, "stderr": log}
    return subprocess.Popen(["brokerd"], preexec_fn=become_broker, **streams)  # noqa: PLW1509


class _Cloning:
    """os.fork(), but the child is the parent's."""

    def __init__(self) -> None:
        self._python = ctypes.pythonapi
        self._libc = ctypes.PyDLL(None, use_errno=True)
        address = ctypes.c_void_p()
        told = self._libc.prctl(_PR_GET_TID_ADDRESS, ctypes.byref(address), 0, 0, 0) == 0
        flags = _CLONE_PARENT | signal.SIGCHLD
        if told:  # what libc's own fork asks for: the thread's number is where libc keeps it
            flags |= _CLONE_CHILD_SETTID | _CLONE_CHILD_CLEARTID
        place = ctypes.c_void_p(address.value if told else None)
        none = ctypes.c_void_p(None)
        # Of the last two, one machine has the child's number first and another its thread area.
        last = (place, none) if platform.machine() == "x86_64" else (none, place)
        number = ctypes.c_long(_SYS_CLONE[platform.machine()])
        self._arguments = (number, ctypes.c_long(flags), none, none, *last)

    def fork(self) -> int:
        """0 in the child, its number here."""
        self._python.PyOS_BeforeFork()
        pid: int = self._libc.syscall(*self._arguments)
        if pid == 0:
            self._python.PyOS_AfterFork_Child()
            return 0
        self._python.PyOS_AfterFork_Parent()
        if pid < 0:
            raise OSError(ctypes.get_errno(), "clone")
        return pid


def send(channel: socket.socket, call: dict[str, Any], descriptors: Sequence[int]) -> None:
    """Ask for a child: its descriptors come with the length, then what it is to be."""
    text = json.dumps(call).encode()
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
    channel.sendmsg([len(text).to_bytes(_LENGTH_BYTES, "little")], rights)
    channel.sendall(text)


def _receive(channel: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """The next call; None when pytest has ended."""
    room = socket.CMSG_SPACE(RIGHTS_MAX * array.array("i").itemsize)
    length, ancillary, _flags, _address = channel.recvmsg(_LENGTH_BYTES, room)
    if not length:
        return None
    rights = array.array("i")
    for _level, _kind, data in ancillary:
        rights.frombytes(data)
    left = int.from_bytes(length, "little")
    text = b""
    while len(text) < left:
        text += channel.recv(left - len(text))
    return json.loads(text), list(rights)


def main() -> None:
    """Serve on the descriptor that is the first argument, until its other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # pytest decides
    load_everything()
    gc.collect()
    gc.freeze()
    cloning = _Cloning()
    with socket.socket(fileno=int(sys.argv[1])) as channel:
        while (received := _receive(channel)) is not None:
            call, descriptors = received
            pid = cloning.fork()
            if pid == 0:
                _become(call, descriptors)
            for descriptor in descriptors:
                os.close(descriptor)
            channel.sendall(pid.to_bytes(_LENGTH_BYTES, "little"))


if __name__ == "__main__":
    main()
