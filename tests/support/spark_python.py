"""The interpreter of Spark's Python workers, loaded once: each later one is a fork of it.

Spark starts an interpreter for each kind of worker and for each stream, and a worker that has
failed is replaced; most of what these cost is their start and imports. The first call of the
program that `make_program` writes starts the server below itself, so that all of it is below
Spark's Java, as without it, and ends with it.
"""

from __future__ import annotations

import array
import contextlib
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import NoReturn

#: What Java calls: hands its descriptors to the server and stays until the fork has ended.
_PROGRAM = """#!{python} -ISu
import array, fcntl, json, os, socket, sys, time
if sys.argv[1] != "-m":
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
with open({address!r} + ".lock", "w") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    if not os.path.exists({address!r}):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind({address!r})
            listener.listen()
            end, alive = os.pipe()
            if os.fork() == 0:
                os.set_inheritable(end, True)
                os.set_inheritable(listener.fileno(), True)
                numbers = [str(end), str(listener.fileno())]
                os.execv({python!r}, [{python!r}, {source!r}, *numbers])
            os.close(end)
    server.connect({address!r})
call = json.dumps([sys.argv[2:], os.getcwd(), dict(os.environ)]).encode() + b"\\n"
rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))]
server.sendmsg([call[:1]], rights)
server.sendall(call[1:])
for number in (0, 1, 2):
    os.close(number)
os._exit(int(server.recv(16) or 1))
"""
#: All that workers of the tests load; none of it starts a thread that a fork would miss.
_MODULES = (
    "gantrymq.clients.spark.sink.sending",
    "gantrymq.clients.spark.source",
    "gantrymq.clients.spark.table.job",
    "pandas",
    "pyspark.daemon",
    "pyspark.sql.streaming.python_streaming_source_runner",
    "pyspark.sql.worker.commit_data_source_write",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.data_source_pushdown_filters",
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.sql.worker.python_streaming_sink_runner",
    "pyspark.sql.worker.write_into_data_source",
    "pyspark.worker",
)


def make_program(folder: Path) -> Path:
    """Write what is to be PYSPARK_PYTHON; return its place."""
    program = folder / "python"
    address, source = str(folder / "server"), str(Path(__file__).resolve())
    program.write_text(_PROGRAM.format(python=sys.executable, address=address, source=source))
    program.chmod(0o755)
    return program


class _Server:
    def __init__(self, end: int, listener: socket.socket) -> None:
        self._end, self._listener = end, listener
        self._selector = selectors.DefaultSelector()
        self._selector.register(end, selectors.EVENT_READ)
        self._selector.register(listener, selectors.EVENT_READ)

    def serve(self) -> None:
        """Until whoever has started it ends."""
        while True:
            for key, _ in self._selector.select():
                if key.fileobj == self._end:
                    return
                if key.fileobj is self._listener:
                    self._begin()
                else:
                    self._finish(key)

    def _begin(self) -> None:
        caller, _ = self._listener.accept()
        rights = array.array("i")
        first, ancillary, _flags, _address = caller.recvmsg(1, socket.CMSG_SPACE(12))
        for _level, _kind, data in ancillary:
            rights.frombytes(data)
        with caller.makefile("rb") as stream:
            arguments, folder, environment = json.loads(first + stream.readline())
        pid = os.fork()
        if pid == 0:
            self._selector.close()
            self._listener.close()
            caller.close()
            os.close(self._end)
            for number, descriptor in enumerate(rights):
                os.dup2(descriptor, number)
                os.close(descriptor)
            os.chdir(folder)
            os.environ.clear()
            os.environ.update(environment)
            _become(arguments)
        for descriptor in rights:
            os.close(descriptor)
        place = (pid, caller)
        self._selector.register(os.pidfd_open(pid), selectors.EVENT_READ, place)
        self._selector.register(caller, selectors.EVENT_READ, place)  # Java may kill the caller

    def _finish(self, key: selectors.SelectorKey) -> None:
        caller: socket.socket
        pid, caller = key.data
        if key.fileobj is caller:
            if caller.fileno() < 0:
                return  # its process has ended in the same look
            self._selector.unregister(caller)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
            return
        assert isinstance(key.fileobj, int)
        self._selector.unregister(key.fileobj)
        os.close(key.fileobj)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with contextlib.suppress(KeyError, OSError):
            self._selector.unregister(caller)
            caller.sendall(b"%d" % (code % 256))
        caller.close()


def _become(arguments: list[str]) -> NoReturn:
    """The fork: run a module as `python -m` does, and never come back."""
    module, *others = arguments
    sys.argv = [module, *others]
    sys.path[0] = os.getcwd()
    sys.stdin, sys.stdout, sys.stderr = (
        open(0, closefd=False),  # noqa: SIM115 - until the end
        open(1, "w", closefd=False),  # noqa: SIM115
        open(2, "w", closefd=False, buffering=1),  # noqa: SIM115
    )
    code = 1
    try:
        sys.modules.pop(module, None)
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
        os._exit(code % 256)


def main() -> None:
    """Load, then serve; the arguments are the descriptors that the program has opened."""
    end, listener = map(int, sys.argv[1:])
    for number in (end, listener):
        os.set_inheritable(number, False)
    sys.path[0] = os.getcwd()
    for name in _MODULES:
        importlib.import_module(name)
    gc.freeze()
    _Server(end, socket.socket(fileno=listener)).serve()


if __name__ == "__main__":
    main()
