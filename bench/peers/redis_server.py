"""A Redis server of our own: on a Unix socket in a temporary directory, nothing written to disk."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.crew import BenchError, Unavailable
from bench.harness import Bench
from bench.measure import CpuMeter

try:
    import hiredis  # the parser in C that redis-py uses if it is there: twice the rate of streams
    import redis
except ImportError:
    hiredis = redis = None  # type: ignore[assignment]

_START_S: Final = 20.0
_STOP_S: Final = 10.0


@dataclass(frozen=True)
class Server:
    """A running server: the path of its socket and its process id."""

    socket: str
    pid: int

    def meter(self) -> CpuMeter:
        """Return a meter of the server's processor time, running."""
        return CpuMeter(self.pid, "redis-server")


@contextmanager
def running(bench: Bench) -> Iterator[Server]:
    """Run a server with persistence off (no AOF, no snapshots), otherwise in its defaults."""
    program = _program(may_install=bench.may_install)
    with tempfile.TemporaryDirectory(prefix="redis-") as directory:
        socket = str(Path(directory) / "socket")
        command = [program, "--port", "0", "--unixsocket", socket, "--dir", directory]
        command += ["--save", "", "--appendonly", "no", "--daemonize", "no"]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            try:
                _wait_ready(process, socket)
                yield Server(socket, process.pid)
            finally:
                _stop(process)


def version() -> str:
    """Return what the installed server says of its version, or why there is none."""
    try:
        program = _program(may_install=False)
    except Unavailable as reason:
        return str(reason)
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    return said.stdout.strip()


def _program(*, may_install: bool) -> str:
    if redis is None or hiredis is None:
        raise Unavailable("redis-py with hiredis is not installed (pip install 'gantrymq[bench]')")
    found = shutil.which("redis-server")
    if found is None and may_install and os.geteuid() == 0 and shutil.which("apt-get"):
        _install()
        found = shutil.which("redis-server")
    if found is None:
        raise Unavailable("no redis-server on PATH (Debian: apt-get install redis-server)")
    return found


def _install() -> None:
    """Install by apt-get; RUNLEVEL=1 keeps the package from starting its own service."""
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    install = ["apt-get", "install", "-y", "--no-install-recommends", "redis-server"]
    for command in (["apt-get", "update"], install):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unavailable(f"apt-get could not install redis-server: {done.stderr[-200:]}")


def _wait_ready(process: subprocess.Popen[bytes], socket: str) -> None:
    deadline = time.monotonic() + _START_S
    with redis.Redis(unix_socket_path=socket) as client:
        while process.poll() is None and time.monotonic() < deadline:
            try:
                client.ping()
            except redis.RedisError:
                time.sleep(0.01)
            else:
                return
    raise BenchError(f"redis-server was not ready within {_START_S:.0f} s")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
