"""The command line in a fork of this process, which has loaded it already.

What is lost against a fresh interpreter is its start and imports: those have tests of their own
(what a command loads, the installed package). All else is a process: descriptors, exit code, end.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import faulthandler
import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Any, NoReturn

from shm import marks
from tests.support import leaks

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

    def enter(self) -> None:
        """Take this process there."""
        os.chdir(self.folder)
        os.environ.clear()
        os.environ.update(self.variables)
        if self.group:
            os.setpgid(0, self.group)


def run_forked(
    arguments: Sequence[str],
    stdin: str = "",
    timeout: float = 120.0,
    prepare: Callable[[], None] | None = None,
    place: Place | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run `gantrymq` with arguments to its end, as subprocess.run does.

    Its process calls `prepare` first, and goes to `place`.
    """
    with (
        tempfile.TemporaryFile("w+") as given,
        tempfile.TemporaryFile("w+") as out,
        tempfile.TemporaryFile("w+") as err,
    ):
        given.write(stdin)
        given.seek(0)
        descriptors = [file.fileno() for file in (given, out, err)]
        pid = _fork(descriptors, _command(arguments, place, prepare))
        code = _wait(pid, timeout)
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(["gantrymq", *arguments], code, out.read(), err.read())


def run_each(lines: Sequence[Sequence[object]]) -> list[subprocess.CompletedProcess[str]]:
    """Run commands one after the other in one process: a fork costs more than most of them."""
    with ExitStack() as stack:
        given, told = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(2))
        pairs = [[stack.enter_context(tempfile.TemporaryFile("w+")) for _ in "oe"] for _ in lines]

        def run() -> int:
            for line, pair in zip(lines, pairs, strict=True):
                for number, file in enumerate(pair, 1):
                    os.dup2(file.fileno(), number)
                code = _code_of(_command([*map(str, line)]))
                sys.stdout.flush()
                os.write(told.fileno(), bytes([code]))
            return 0

        pid = _fork([file.fileno() for file in (given, *pairs[0])], run)
        assert _wait(pid, 120.0) == 0
        told.seek(0)
        for file in (file for pair in pairs for file in pair):
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
        if not select.select([descriptor], [], [], timeout)[0]:
            os.kill(pid, signal.SIGKILL)
            raise AssertionError(f"it has not ended after {timeout:.0f} s")
    finally:
        _, status = os.waitpid(pid, 0)
        os.close(descriptor)
    return os.waitstatus_to_exitcode(status)


@cache
def _load_everything() -> None:
    """What brokers and commands load and make when they run, once in the parent."""
    import gantrymq.cli
    from brokerd.agents import load_all
    from gantrymq.cli.app import command_line

    command_line()
    for module in pkgutil.iter_modules(gantrymq.cli.__path__, "gantrymq.cli."):
        importlib.import_module(module.name)
    for name in _LOADED_LATE:
        with contextlib.suppress(ImportError):  # what a newer typer may do without
            importlib.import_module(name)
    load_all()


#: Modules that are loaded inside of functions, and that take their time.
_LOADED_LATE = (
    "brokerd.__main__", "brokerd.doctor", "brokerd.dump", "brokerd.handover.adoption",
    "brokerd.lags", "brokerd.metrics", "brokerd.rebuild", "brokerd.recovery", "brokerd.sample",
    "brokerd.serve", "brokerd.verify",
    "clients.consumer", "clients.producer", "clients.push.consumer",
    "clients.transactions.transaction", "encodings.ascii", "numpy.ma", "prometheus_client",
    "psutil", "workers.groups.ledgerreader",
    "pydantic.main", "pydantic.type_adapter", "typer._adapters", "typer.rich_utils",
    "rich.console", "rich.live", "rich.progress", "rich.table",
)  # fmt: skip


def _fork(descriptors: Sequence[int], run: Callable[[], int | None]) -> int:
    _load_everything()
    pid = os.fork()
    if pid == 0:
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
        _live(run)
    return pid


def _command(
    arguments: Sequence[str],
    place: Place | None = None,
    prepare: Callable[[], None] | None = None,
) -> Callable[[], int]:
    def run() -> int:
        if place is not None:
            place.enter()
        if prepare is not None:
            prepare()
        sys.argv = ["gantrymq", *arguments]
        return _call("gantrymq")

    return run


def start_forked(
    name: str,
    arguments: Sequence[str],
    **streams: Any,  # noqa: ANN401 - as Popen has them
) -> subprocess.Popen[Any]:
    """Start a program as subprocess.Popen does, without the interpreter's start.

    The program is `gantrymq`, `brokerd` or `faulty_broker`. It
    has its own descriptors only, as after an exec.
    """

    def run() -> int:
        sys.argv = [name, *arguments]
        return _call(name)

    return _start(name, run, streams)


def _start(
    name: str, run: Callable[[], int | None], streams: dict[str, Any]
) -> subprocess.Popen[Any]:
    _load_everything()

    def live() -> NoReturn:
        faulthandler.disable()  # its descriptor is gone
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # Popen's too, by which it sees the start
        leaks.mark_this_process()
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # as an interpreter has it
            signal.signal(number, signal.SIG_IGN)
        _live(run)

    return subprocess.Popen([name], preexec_fn=live, **streams)  # noqa: PLW1509


def start_program(
    program: str | Path,
    *arguments: object,
    strict: bool = False,
    **streams: Any,  # noqa: ANN401 - as Popen has them
) -> subprocess.Popen[Any]:
    """Start a program of Python, a file or its text, as `python program arguments` does.

    With `strict` warnings are errors.
    """

    def run() -> None:
        sys.argv = [str(program) if isinstance(program, Path) else "-c", *map(str, arguments)]
        if strict:
            warnings.simplefilter("error")
        if isinstance(program, Path):
            runpy.run_path(str(program), run_name="__main__")
        else:
            exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})

    return _start("python", run, streams)


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


def _live(run: Callable[[], int | None]) -> NoReturn:
    """The child: become the program, and never come back."""
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


def _call(name: str) -> int:
    from brokerd.__main__ import main as serve
    from gantrymq.cli import main

    if name == "brokerd":
        return serve()
    if name == "faulty_broker":
        from tests.support.faulty_broker import main as serve_faultily

        return serve_faultily()
    main()
    return 0


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
            pid = _fork(list(rights), _command(arguments, Place(*place)))
            for descriptor in rights:
                os.close(descriptor)
            _, status = os.waitpid(pid, 0)
            connection.sendall(b"%d" % os.waitstatus_to_exitcode(status))

    def close(self) -> None:
        """No more calls."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
