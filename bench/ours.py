"""A broker of ours for one measurement: on a disk, on a fresh home, gone afterwards."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil

from bench.crew import BenchError, Unavailable
from bench.harness import Bench
from bench.measure import CpuMeter

if TYPE_CHECKING:
    from gantrymq.shm.board import Board

TOPIC: Final = "t"
_STOP_S: Final = 30.0
_LOOK_S: Final = 0.05


@dataclass(frozen=True)
class Serving:
    """A running broker: its home, its process, and how long it took to be ready."""

    home: Path
    pid: int
    ready_s: float = 0.0

    def meter(self) -> CpuMeter:
        """Return a meter of the processor time of all processes of the broker, running."""
        return CpuMeter(self.pid, "broker", self.roles)

    def board(self) -> Board:
        """Return the broker's board, mapped read-only."""
        from gantrymq.clients.home import read_board_file
        from gantrymq.shm.board import attach_board

        return attach_board(read_board_file(self.home)["board"])

    def wait_for(self, what: str, timeout_s: float) -> None:
        """Wait until the `disk`, the `queues` or the key `index` have all that is in the log."""
        from gantrymq.shm import layout

        board = self.board()
        at = {
            "disk": layout.BOARD_DURABLE,
            "queues": layout.BOARD_DISPATCHED,
            "index": layout.BOARD_INDEXED,
        }[what]
        deadline = time.monotonic() + timeout_s
        while board.word(at) < board.word(layout.BOARD_APPENDED):
            if time.monotonic() > deadline:
                raise BenchError(f"the {what} did not come up with the log")
            time.sleep(_LOOK_S)

    def roles(self) -> dict[int, str]:
        """Return what each process of the broker is, as its board says: agents, or several."""
        from gantrymq.shm.codes import Role

        board = self.board()
        found: dict[int, list[str]] = {}
        for role in Role:
            if pid := board.process(role)["pid"]:
                found.setdefault(pid, []).append(role.name.lower())
        return {pid: "+".join(names) for pid, names in found.items()}


@contextmanager
def scratch(bench: Bench) -> Iterator[Path]:
    """Make a directory on the bench's disk for one measurement, and remove it."""
    bench.directory.mkdir(parents=True, exist_ok=True)
    path = Path(tempfile.mkdtemp(prefix="run-", dir=bench.directory))
    try:
        yield path
    finally:
        shutil.rmtree(path)


@contextmanager
def broker(bench: Bench, **settings: object) -> Iterator[Serving]:
    """Run a broker on a fresh home, in the way that the bench was told to."""
    if importlib.util.find_spec("gantrymq") is None:
        raise Unavailable("gantrymq is not importable: run from a checkout that is set up")
    with scratch(bench) as directory:
        run = serving if bench.broker == "serve" else _temporary
        with run(directory, settings, bench.sizes.timeout_s) as server:
            yield server


@contextmanager
def serving(
    directory: Path,
    settings: Mapping[str, object],
    timeout_s: float,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Serving]:
    """Run `gantrymq serve` on `directory`/home until the end of the block, ready at its start.

    A home that is there already is gone on with.
    """
    home = directory / "home"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bell, _short_path() as notify:
        bell.bind(notify)
        command = [sys.executable, "-m", "gantrymq", "serve", "--home", str(home)]
        for key, setting in settings.items():
            command += ["--set", f"{key}={setting}"]
        inherited = {**os.environ, "NOTIFY_SOCKET": notify, **(environment or {})}
        log_path = directory / "serve.log"
        with log_path.open("ab") as log:
            started = time.monotonic()
            process = subprocess.Popen(command, env=inherited, stdout=log, stderr=log)
        try:
            _wait_ready(bell, process, log_path, timeout_s)
            yield Serving(home, process.pid, time.monotonic() - started)
        finally:
            stop(process, "serve")


def stop_hard(server: Serving) -> None:
    """Kill every process of a broker at once, as a crash would."""
    root = psutil.Process(server.pid)
    processes = [root, *root.children(recursive=True)]
    for process in processes:
        process.send_signal(signal.SIGKILL)
    psutil.wait_procs(processes, _STOP_S)


def make_topic(server: Serving, queues: int, topic: str = TOPIC) -> None:
    """Make the topic, or another one, with so many queues."""
    from gantrymq.clients.control import look_at
    from gantrymq.shm import wire

    with look_at(server.home) as control:
        control.request(wire.CreateTopic(topic, queues, "written"), wire.TopicOpened)


@contextmanager
def _temporary(
    directory: Path, settings: Mapping[str, object], timeout_s: float
) -> Iterator[Serving]:
    """Run `Broker.temporary`, with its home on the bench's disk."""
    from gantrymq import Broker

    before = {child.pid for child in psutil.Process().children()}
    usual, tempfile.tempdir = tempfile.tempdir, str(directory)
    started = time.monotonic()
    try:
        with Broker.temporary(**settings) as running:
            tempfile.tempdir = usual
            ready_s = time.monotonic() - started
            found = [each for each in psutil.Process().children() if each.pid not in before]
            yield Serving(Path(running.home), found[0].pid, ready_s)
    finally:
        tempfile.tempdir = usual


@contextmanager
def _short_path() -> Iterator[str]:
    """Give a path for a socket: short, since socket addresses are, whatever the bench's disk is."""
    with tempfile.TemporaryDirectory(prefix="notify-") as directory:
        yield str(Path(directory) / "socket")


def _wait_ready(
    bell: socket.socket, process: subprocess.Popen[bytes], log: Path, timeout_s: float
) -> None:
    """Wait for READY=1 of sd_notify, and notice a broker that ends instead."""
    deadline = time.monotonic() + timeout_s
    bell.settimeout(0.1)
    while time.monotonic() < deadline:
        try:
            if b"READY=1" in bell.recv(4096):
                return
        except TimeoutError:
            if process.poll() is not None:
                break
    said = log.read_text(errors="replace")[-2000:]
    raise BenchError(f"serve was not ready (exit code {process.poll()}):\n{said}")


def stop(process: subprocess.Popen[bytes], name: str) -> None:
    """Stop cleanly; a process that does not is killed, and said to be at fault."""
    process.terminate()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise BenchError(f"{name} did not stop within {_STOP_S:.0f} s of SIGTERM") from None
