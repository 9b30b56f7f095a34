"""The command line, brokers and programs in forks of a process that has loaded them already.

What is lost against a fresh interpreter is its start and imports: those have tests of their own
(what a command loads, the installed package). All else is a process: descriptors, exit code, end.
The process that is forked is tests/support/nursery.py's, not pytest's own, which is large.
"""

from __future__ import annotations

import array
import atexit
import inspect
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any

import gantrymq.temporary
from tests.support import leaks, nursery
from tests.support.tree import ROOT

#: The program that stands for `gantrymq` in a shell: hands its descriptors to a CommandServer.
_PROGRAM = """#!{python} -ISu
import array, json, os, signal, socket, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)  # ^C is for what it stands for
with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
    server.connect({address!r})
    place = [os.getcwd(), dict(os.environ), os.getpgrp()]
    call = json.dumps([sys.argv[1:], *place]).encode() + b"\\n"
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))]
    server.sendmsg([call[:1]], rights)
    server.sendall(call[1:])
    os.close(1)
    answer = server.recv(16)
sys.exit(int(answer or 1))
"""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a command runs: its folder, its variables, the process group that hears ^C."""

    folder: str
    variables: Mapping[str, str]
    group: int = 0


@dataclass(frozen=True, slots=True)
class _Call:
    """What a child is to be."""

    name: str
    arguments: Sequence[str] = ()
    #: Commands that run one after the other, instead of one.
    lines: Sequence[Sequence[str]] | None = None
    #: Whether it is a program of Python, a file unless its text is given.
    is_program: bool = False
    text: str | None = None
    strict: bool = False
    #: Whether brokers that a program starts are forks of it.
    warm: bool = False


class _Nursery:
    """The process that makes the children."""

    def __init__(self) -> None:
        self._channel, theirs = socket.socketpair()
        with theirs:
            number = theirs.fileno()
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "tests.support.nursery", str(number)],
                pass_fds=[number], cwd=ROOT, stdin=subprocess.DEVNULL,
                env=os.environ | {"PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"},
            )  # fmt: skip
        self._lock = threading.Lock()
        leaks.excuse(self._process.pid)  # what it makes is below this process, not below it
        atexit.register(self.close)

    def start(self, call: _Call, place: Place | None, descriptors: Sequence[int]) -> int:
        """Start a child with these descriptors from 0 on, and no other; its number."""
        place = place or Place(os.getcwd(), dict(os.environ))
        where = {"folder": place.folder, "variables": dict(place.variables)}
        with self._lock:
            mask = os.umask(0)
            os.umask(mask)
            group = {"group": place.group, "umask": mask}
            nursery.send(self._channel, asdict(call) | where | group, descriptors)
            answer = self._channel.recv(8)
        assert answer, "the nursery has ended; what it said is in pytest's output"
        return int.from_bytes(answer, "little")

    def close(self) -> None:
        """It ends when nobody can call it, though forks of this process may hold the channel."""
        self._channel.shutdown(socket.SHUT_RDWR)
        self._channel.close()
        self._process.wait()


@cache
def _nursery() -> _Nursery:
    """Made by a thread that never ends: what it starts is killed as its maker's thread ends."""
    made: SimpleQueue[_Nursery] = SimpleQueue()

    def make() -> None:
        made.put(_Nursery())
        threading.Event().wait()

    threading.Thread(target=make, name="nursery", daemon=True).start()
    return made.get()


def run_forked(
    arguments: Sequence[str],
    stdin: str = "",
    timeout: float = 120.0,
    prepare: Callable[[], None] | None = None,
    place: Place | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run `gantrymq` with arguments to its end, as subprocess.run does.

    It runs at `place`. With `prepare`, which its process calls first, it is a fork of this one.
    """
    with (
        tempfile.TemporaryFile("w+") as given,
        tempfile.TemporaryFile("w+") as out,
        tempfile.TemporaryFile("w+") as err,
    ):
        given.write(stdin)
        given.seek(0)
        descriptors = [file.fileno() for file in (given, out, err)]
        if prepare is None:
            pid = _nursery().start(_Call("gantrymq", arguments), place, descriptors)
        else:
            assert place is None, "a fork of this process is where this process is"
            pid = _fork_here(descriptors, prepare, arguments)
        code = _wait(pid, timeout)
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(["gantrymq", *arguments], code, out.read(), err.read())


def _fork_here(
    descriptors: Sequence[int], prepare: Callable[[], None], arguments: Sequence[str]
) -> int:
    def run() -> int:
        prepare()
        return nursery.run_command("gantrymq", arguments)

    nursery.load_everything()  # what prepare forbids may be needed for that
    pid = os.fork()
    if pid == 0:
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # what earlier tests have left open
        nursery.live(run)
    return pid


def run_each(lines: Sequence[Sequence[object]]) -> list[subprocess.CompletedProcess[str]]:
    """Run commands one after the other in one process: a fork costs more than most of them."""
    with ExitStack() as stack:
        given, told = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(2))
        pairs = [[stack.enter_context(tempfile.TemporaryFile("w+")) for _ in "oe"] for _ in lines]
        files = [file for pair in pairs for file in pair]
        call = _Call("gantrymq", lines=[[*map(str, line)] for line in lines])
        numbers = [file.fileno() for file in (given, *pairs[0], *files, told)]
        assert _wait(_nursery().start(call, None, numbers), 120.0) == 0
        told.seek(0)
        for file in files:
            file.seek(0)
        return [
            subprocess.CompletedProcess(
                ["gantrymq", *map(str, line)], code, *(file.read() for file in pair)
            )
            for line, code, pair in zip(lines, told.read(), pairs, strict=True)
        ]


def _wait(pid: int, timeout: float) -> int:
    descriptor = os.pidfd_open(pid)
    try:
        end = select.poll()  # unlike `select`, for descriptors of any number
        end.register(descriptor, select.POLLIN)
        if not end.poll(1000 * timeout):
            os.kill(pid, signal.SIGKILL)
            raise AssertionError(f"it has not ended after {timeout:.0f} s")
    finally:
        _, status = os.waitpid(pid, 0)
        os.close(descriptor)
    return os.waitstatus_to_exitcode(status)


class _Forked(subprocess.Popen[Any]):
    """Popen of a child that the nursery makes."""

    def __init__(
        self,
        call: _Call,
        **streams: Any,  # noqa: ANN401 - as Popen has them
    ) -> None:
        self._what = call
        super().__init__([call.name], **streams)

    def _execute_child(self, *arguments: Any) -> None:  # noqa: ANN401 - Popen's own
        """In place of Popen's own: it has opened the pipes, and waits for `pid` afterwards."""
        given = inspect.signature(subprocess.Popen._execute_child).bind(self, *arguments).arguments  # type: ignore[attr-defined]
        pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        theirs = (given["p2cread"], given["c2pwrite"], given["errwrite"])
        descriptors = [n if n != -1 else usual for usual, n in enumerate(theirs)]
        variables = os.environ if given["env"] is None else given["env"]
        place = Place(str(given["cwd"] or os.getcwd()), dict(variables))
        self.pid = _nursery().start(self._what, place, descriptors)
        self._child_created = True
        self._close_pipe_fds(*(given[name] for name in pipes))  # type: ignore[attr-defined]


def start_forked(
    name: str,
    arguments: Sequence[str],
    **streams: Any,  # noqa: ANN401 - as Popen has them
) -> subprocess.Popen[Any]:
    """Start a program as subprocess.Popen does, without the interpreter's start.

    The program is `gantrymq`, `brokerd` or `faulty_broker`. It
    has its own descriptors only, as after an exec.
    """
    return _Forked(_Call(name, arguments), **streams)


def start_program(
    program: str | Path,
    *arguments: object,
    strict: bool = False,
    **streams: Any,  # noqa: ANN401 - as Popen has them
) -> subprocess.Popen[Any]:
    """Start a program of Python, a file or its text, as `python program arguments` does.

    With `strict` warnings are errors.
    """
    is_file = isinstance(program, Path)
    call = _Call(
        str(program) if is_file else "-c", [*map(str, arguments)],
        is_program=True, text=None if is_file else str(program), strict=strict,
        warm=gantrymq.temporary._spawn is spawn_forked,
    )  # fmt: skip
    return _Forked(call, **streams)


def run_program(
    program: str | Path, *arguments: object, strict: bool = False, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """The same to its end, with what it printed."""
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with start_program(program, *arguments, strict=strict, cwd=cwd, **pipes) as started:
        try:
            out, err = started.communicate(timeout=120.0)
        except BaseException:
            started.kill()
            raise
    return subprocess.CompletedProcess(["python", str(program)], started.returncode, out, err)


def spawn_forked(arguments: Sequence[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
    """What gantrymq.temporary._spawn does, without the interpreter's start."""
    return start_forked("brokerd", arguments, stdin=subprocess.PIPE, stdout=log, stderr=log)


class CommandServer:
    """Runs the command line for shells: `program` is what they call instead of `gantrymq`."""

    def __init__(self, folder: Path) -> None:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        address = str(folder / "server")
        self._listener.bind(address)
        self._listener.listen()
        self.program = folder / "gantrymq"
        self.program.write_text(_PROGRAM.format(python=sys.executable, address=address))
        self.program.chmod(0o755)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=[connection], daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        rights = array.array("i")
        with connection:
            first, ancillary, _flags, _address = connection.recvmsg(1, socket.CMSG_SPACE(12))
            for _level, _kind, data in ancillary:
                rights.frombytes(data)
            with connection.makefile("rb") as stream:
                arguments, *place = json.loads(first + stream.readline())
            pid = _nursery().start(_Call("gantrymq", arguments), Place(*place), list(rights))
            for descriptor in rights:
                os.close(descriptor)
            _, status = os.waitpid(pid, 0)
            connection.sendall(b"%d" % os.waitstatus_to_exitcode(status))

    def close(self) -> None:
        """No more calls."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
