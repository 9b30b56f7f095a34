"""Each flood that there is, for some rounds: all agents live, and others are answered."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from gantrymq import ConsumeFrom, Message, Producer, PullConsumer
from gantrymq.shm import groupwire, schedulerwire, transactionwire, wire
from gantrymq.shm.codes import EntryKind
from tests.support.brokers import ServingBroker
from tests.support.extremes import kinds_of
from tests.support.floods import EXCUSED, floods
from tests.support.watchdog import PATIENCE_S
from tests.system.floods import BOUND_MS, Row, middle, rows_of

ROUNDS = 12


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServingBroker]:
    home = tmp_path_factory.mktemp("floods") / "home"
    broker = ServingBroker(home, topics_max=1024, board_queues_max=16_384)
    yield broker.wait_until_ready()
    broker.stop()


def test_no_request_frame_or_entry_is_forgotten() -> None:
    """A flood for each struct of the unions, or a reason why there is none."""
    unions = {
        "groups": groupwire.AnyRequest,
        "scheduler": schedulerwire.Recall,
        "transactions": transactionwire.AnyRequest,
        "frames": wire.AnyFrame,
    }
    wanted = {f"{lane}.{kind.__name__}" for lane, of in unions.items() for kind in kinds_of(of)}
    wanted |= {f"writer.{kind.name}" for kind in EntryKind}
    assert wanted - floods().keys() == EXCUSED.keys()


@pytest.mark.parametrize("name", floods())
def test_others_are_answered_beside_a_flood(
    broker: ServingBroker, name: str, unique_name: str
) -> None:
    """Send, consume, commit, recall, a transaction; no agent has died."""
    lives = {role: broker.board.process(role)["restarts"] for role in broker.pids()}
    topic = unique_name
    with (
        closing(floods()[name](broker.home)) as rounds,
        Producer(home=broker.home, producer_group=topic, timeout=PATIENCE_S) as producer,
        PullConsumer(
            topic, [topic], home=broker.home, consume_from=ConsumeFrom.FIRST_OFFSET
        ) as consumer,
    ):
        for _ in range(ROUNDS):
            next(rounds)
        producer.send(topic, b"x", durability="durable")
        with producer.transaction() as transaction:
            producer.send(Message(topic, b"y"), transaction)
        due_ms = int(time.time() + 3600) * 1000
        handle = producer.send(Message(topic, b"z", delivery_timestamp=due_ms)).recall_handle
        assert handle is not None
        producer.recall_message(topic, handle)
        bodies = [message.body for _ in range(2) for message in consumer.poll(1, PATIENCE_S)]
        assert sorted(map(bytes, bodies)) == [b"x", b"y"]
        consumer.commit()
        next(rounds)
    assert {role: broker.board.process(role)["restarts"] for role in broker.pids()} == lives


def test_a_row_is_over_when_its_excess_is() -> None:
    """What was not answered beside the flood is over any bound."""
    rows = rows_of("f", {"a": 7.0, "b": 2.0}, {"a": 7.0 + BOUND_MS})
    assert [row.excess for row in rows] == [BOUND_MS, math.inf]
    assert ["OVER" in str(row) for row in rows] == [False, True]
    three = [[Row("f", "a", 0.0, excess)] for excess in (90.0, 10.0, 60.0)]
    assert middle(three)[0].excess == 60.0
