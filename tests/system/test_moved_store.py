"""A store that is moved away under its broker, with another one put in its place."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from gantrymq.brokerd.backup import backup
from gantrymq.brokerd.verify import verify
from gantrymq.clients.consumer import ConsumeFrom, PullConsumer
from gantrymq.clients.home import board_file, store_of
from gantrymq.clients.producer import Producer
from gantrymq.clients.session import Session
from gantrymq.shm.codes import ExitCode
from gantrymq.shm.errors import STORE_LOST, StoreFailed
from gantrymq.shm.indexnote import NOTE_FILE
from tests.support.brokers import ServingBroker
from tests.support.folders import files_below
from tests.support.trials import mends
from tests.support.watchdog import poll_until


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[ServingBroker]:
    with ServingBroker(tmp_path / "home", lock_timeout=1) as one:
        yield one.wait_until_ready()


def send(home: Path, count: int) -> None:
    with Producer(home) as producer:
        for _ in range(count):
            producer.send("t", b"x", durability="durable")


def read(home: Path, count: int) -> None:
    with PullConsumer("g", ["t"], home=home, consume_from=ConsumeFrom.FIRST_OFFSET) as consumer:
        got = 0

        def is_there() -> bool:
            nonlocal got
            got += len(consumer.poll(timeout=0.2).bodies)
            return got >= count

        poll_until(is_there, f"{count} messages")
        consumer.commit()


def hold_agents(broker: ServingBroker) -> None:
    """Let them write nothing in the moment before their supervisor notices."""
    for pid in set(broker.pids().values()) - {broker.process.pid, 0}:
        os.kill(pid, signal.SIGSTOP)


@mends("S20", "S79", "S305")
@pytest.mark.parametrize("replaced", [False, True])
def test_a_broker_whose_store_is_moved_ends_and_touches_nothing(
    broker: ServingBroker, tmp_path: Path, replaced: bool
) -> None:
    """Groups' offsets are still to be written by then."""
    send(broker.home, 3)
    copy = store_of(Path(backup(broker.home, tmp_path / "copy").home))
    read(broker.home, 3)
    store, board = store_of(broker.home), broker.board.name
    noted = board_file(broker.home).read_bytes()
    before = files_below(copy) if replaced else {}
    if replaced:
        shutil.copytree(copy, store.with_name("new"))
        for name in ("lock", NOTE_FILE):  # as a store has them that was in use
            (store.with_name("new") / name).touch()
            before[name] = b""
    hold_agents(broker)
    store.rename(store.with_name("store.bad"))
    if replaced:
        store.with_name("new").rename(store)
    code, lines = broker.end()
    assert code == ExitCode.STORE_BUSY
    (told,) = [line for line in lines if line["event"] == "failed"]
    assert str(store) in told["why"]
    assert files_below(store) == before
    assert not Path(f"/dev/shm{board}").exists()
    assert board_file(broker.home).read_bytes() == noted  # it may be another broker's by then
    if replaced:
        broker.again().wait_until_ready()
        read(broker.home, 3)
        assert broker.stop()[0] == ExitCode.OK
        report = verify(store)
        assert report.ok, str(report)


@mends("S130")
def test_clients_are_told_that_the_home_was_moved(broker: ServingBroker, tmp_path: Path) -> None:
    """Not that their disk, or a file on it, is damaged."""
    with closing(Session(broker.home)) as session:
        hold_agents(broker)
        broker.home.rename(tmp_path / "elsewhere")
        assert broker.end()[0] == ExitCode.STORE_BUSY
        with pytest.raises(StoreFailed, match=r"was moved or removed.*put it back") as failed:
            session.check()
    assert failed.value.fields["errno"] == STORE_LOST
    assert "damage" not in str(failed.value)
    (tmp_path / "elsewhere").rename(broker.home)


@mends("S20")
def test_a_start_waits_for_a_broker_that_has_not_noticed(
    broker: ServingBroker, tmp_path: Path
) -> None:
    """It stands still here; the newcomer keeps its socket and board as they are."""
    send(broker.home, 3)
    backup(broker.home, tmp_path / "copy")
    store = store_of(broker.home)
    hold_agents(broker)
    broker.process.send_signal(signal.SIGSTOP)
    try:
        store.rename(store.with_name("store.bad"))
        shutil.copytree(store_of(tmp_path / "copy"), store)
        with ServingBroker(broker.home, lock_timeout=1) as second:
            code, lines = second.end()
        assert code == ExitCode.STORE_BUSY
        assert "on a store that was moved away" in lines[-1]["why"]
        second = ServingBroker(broker.home, lock_timeout=60)
    finally:
        broker.process.send_signal(signal.SIGCONT)
    with second:
        assert broker.end()[0] == ExitCode.STORE_BUSY
        second.wait_until_ready()
        read(broker.home, 3)
        assert second.stop()[0] == ExitCode.OK
    report = verify(store)
    assert report.ok, str(report)
