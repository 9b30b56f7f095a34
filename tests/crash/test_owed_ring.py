"""A reader that dies when it was about to wake those who wait for what it has just shown."""

from __future__ import annotations

import select
from collections.abc import Callable
from pathlib import Path

import pytest

from gantrymq.clients.consumer import ConsumeFrom, PullConsumer
from gantrymq.clients.producer import Producer
from gantrymq.shm.codes import Role
from gantrymq.temporary import Broker
from tests.support import reached
from tests.support.agents import restarts_of
from tests.support.watchdog import PATIENCE_S, poll_until

MARK = "reader.before_ring"


def test_the_next_reader_rings_who_was_owed_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start_broker: Callable[..., Broker]
) -> None:
    """The consumer's program sleeps on the descriptor alone, so it doesn't look by itself."""
    monkeypatch.setenv("GANTRYMQ_MARK", f"{MARK}:2")
    monkeypatch.setenv("GANTRYMQ_MARKS_REACHED", str(tmp_path))
    home = start_broker().home
    with (
        Producer(home=home, timeout=PATIENCE_S) as producer,
        PullConsumer("g", ["owed"], home=home, consume_from=ConsumeFrom.FIRST_OFFSET) as consumer,
    ):
        for body in (b"first", b"second"):
            assert not len(consumer.poll(timeout=0))
            descriptor = consumer.fileno()
            producer.send("owed", body)
            found: list[bytes] = []
            while not found:
                assert select.select([descriptor], [], [], PATIENCE_S)[0], "it was rung"
                found = [bytes(row) for row in consumer.poll(timeout=0).bodies]
            assert found == [body]
        assert (tmp_path / MARK).exists()
        reached.record(MARK)
        poll_until(lambda: restarts_of(home)[Role.READER] == 1, "the reader was replaced")
