"""`Broker.temporary()` that is broken off, or fails, leaves no process and no file."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, NoReturn

import pytest

from gantrymq import temporary
from gantrymq.brokerd.config import run_of_tests
from gantrymq.brokerd.epoch import _board_prefix
from gantrymq.clients.home import store_of
from gantrymq.shm.board import create_region
from gantrymq.shm.errors import StoreFailed
from gantrymq.temporary import Broker
from tests.support.interrupts import Interrupt, interrupt_each
from tests.support.trials import mends


class Spawned:
    """Processes in place of brokers; `signals` come as each of them begins."""

    def __init__(self, homes: Path) -> None:
        self.homes = homes
        self.processes: list[subprocess.Popen[bytes]] = []
        self.boards: list[str] = []
        self.signals: list[int] = []
        self.is_ready = True

    def spawn(self, arguments: Sequence[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
        self._make_board(Path(arguments[arguments.index("--home") + 1]))
        process = subprocess.Popen(["sleep", "1000"], stdin=subprocess.PIPE, stdout=log)
        self.processes.append(process)
        for number in self.signals:
            os.kill(os.getpid(), number)
        return process

    def _make_board(self, home: Path) -> None:
        """As one that is not announced yet."""
        store_of(home).mkdir(exist_ok=True)
        name = f"{_board_prefix(home)}{len(self.boards):x}{run_of_tests()}"
        create_region(name, 4096)
        self.boards.append(name.removeprefix("/"))

    def require_none(self) -> None:
        assert all(process.returncode is not None for process in self.processes)
        assert all(process.stdin is None or process.stdin.closed for process in self.processes)
        assert os.listdir(self.homes) == []
        assert not set(self.boards) & set(os.listdir("/dev/shm"))
        self.processes.clear()


@pytest.fixture
def spawned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Spawned]:
    spawned = Spawned(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(temporary, "_spawn", spawned.spawn)
    monkeypatch.setattr(Broker, "_is_ready", lambda _broker: spawned.is_ready)
    yield spawned
    for process in spawned.processes:
        process.kill()
        process.wait()


@mends("S143")
def test_at_each_place(spawned: Spawned) -> None:
    def play(interrupt: Interrupt) -> None:
        broker = None
        with interrupt:
            broker = Broker.temporary()
        if broker is not None:
            broker.process.kill()
            broker.close()
        spawned.require_none()

    interrupt_each(play)
    interrupt_each(play, r"Broker\.|Event\.|Condition\.|_unbroken|start|take", 1)


@mends("S143")
def test_as_the_process_begins_and_amid_the_wait_for_it(spawned: Spawned) -> None:
    class Stop(BaseException):
        pass

    def stop(_number: int, _frame: object) -> NoReturn:
        raise Stop

    spawned.is_ready = False
    spawned.signals = [signal.SIGUSR1]
    before = signal.signal(signal.SIGUSR1, stop)
    try:
        with pytest.raises(Stop):
            Broker.temporary()
    finally:
        signal.signal(signal.SIGUSR1, before)
    spawned.require_none()


@mends("S143")
def test_a_start_that_is_broken_off_can_be_made_again(spawned: Spawned) -> None:
    broker = Broker.temporary()

    def play(interrupt: Interrupt) -> None:
        broker.process.kill()
        broker.stop()
        with interrupt:
            broker.start()
        *others, last = spawned.processes
        assert all(process.returncode is not None for process in others)
        if interrupt.was_hit:
            assert last.returncode is not None

    interrupt_each(play, r"Broker\.start|Event\.|Condition\.|_unbroken|start|take", 1)
    broker.process.kill()
    broker.close()
    spawned.require_none()


def test_one_that_is_never_ready_is_ended(
    spawned: Spawned, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(temporary, "_START_S", 0.0)
    spawned.is_ready = False
    with pytest.raises(StoreFailed, match="not ready"):
        Broker.temporary()
    spawned.require_none()
