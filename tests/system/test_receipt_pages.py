"""A receipt finds its completion, whatever other threads or handlers send and take meanwhile.

Completions are kept in pages, of which old ones are forgotten. Behind each put of a message, at
each of the calls that follow it, three pages of others are sent and taken.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import FrameType

import pytest

from gantrymq.clients.message import Message
from gantrymq.clients.producer import Producer
from gantrymq.clients.receipts import PAGE_ROWS
from gantrymq.shm.kernels import frames
from gantrymq.temporary import Broker
from tests.support.trials import mends
from tests.system.test_send import PATIENCE_S

Way = Callable[[Producer, str], object]


@pytest.fixture
def producer(broker: Broker, unique_name: str) -> Iterator[Producer]:
    with Producer(home=broker.home, timeout=PATIENCE_S, producer_group=unique_name) as made:
        yield made


def in_a_transaction(producer: Producer, topic: str) -> None:
    with producer.transaction() as tx:
        producer.send(topic, b"half", transaction=tx)


def large_in_a_transaction(producer: Producer, topic: str) -> None:
    with producer.transaction() as tx:
        producer.send(Message(topic, b"half", keys=("k",)), tx)


WAYS: dict[str, Way] = {
    "send": lambda producer, topic: producer.send(topic, b"x"),
    "durable": lambda producer, topic: producer.send(topic, b"x", durability="durable"),
    "send in Python": lambda producer, topic: producer.send(Message(topic, b"x", keys=("k",))),
    "async": lambda producer, topic: producer.send_async(topic, b"x").result(),
    "async in Python": lambda producer, topic: producer.send_async(
        Message(topic, b"x", keys=("k",))
    ).result(),
    "batch": lambda producer, topic: list(producer.send_batch(topic, [b"x", b"y"])),
    "batch in Python": lambda producer, topic: list(
        producer.send_batch([Message(topic, b"x", keys=("k",))] * 2)
    ),
    "half": in_a_transaction,
    "half in Python": large_in_a_transaction,
}


def amid(producer: Producer, topic: str, way: Way, number: int) -> bool:
    """Send so; at a call behind the put, by its number, let others come. Whether there was one."""
    words, behind = producer._link.lane.words, 0
    before = int(words[frames.SEQ])

    def look(_frame: FrameType, _event: str, _arg: object) -> None:
        nonlocal behind
        behind += int(words[frames.SEQ]) > before
        if behind == number:
            sys.setprofile(None)
            for _ in range(3):
                producer.send_batch_async(topic, [b""] * PAGE_ROWS)
            producer.flush()

    sys.setprofile(look)
    try:
        way(producer, topic)
    finally:
        sys.setprofile(None)
    return behind >= number


@mends("S145")
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_receipt_has_its_page_however_many_come_between(
    producer: Producer, unique_name: str, way: Way
) -> None:
    way(producer, unique_name)  # routes are learned
    assert all(amid(producer, unique_name, way, number) for number in range(1, 6))


@mends("S145")
def test_a_receipt_at_the_end_of_a_page_has_its_page(producer: Producer, unique_name: str) -> None:
    """Where the native put leaves a message to Python."""
    for way in (WAYS["send"], WAYS["async"], WAYS["half"]):
        way(producer, unique_name)
        seq = producer._link.lane.seq
        left = -(seq + 1) % PAGE_ROWS
        if left:
            producer.send_batch(unique_name, [b""] * left)
        assert amid(producer, unique_name, way, 3)


@mends("S153")
def test_who_is_late_does_not_turn_a_page_back(producer: Producer, unique_name: str) -> None:
    """Another thread may have turned to the next one since it looked."""
    link = producer._link
    fast, seq = link.fast, producer.send_async(unique_name, b"")._seq
    assert fast is not None
    link._turn_page(fast, seq + PAGE_ROWS)
    assert not fast.is_beyond_page(seq + PAGE_ROWS)
    link._turn_page(fast, seq)
    assert not fast.is_beyond_page(seq + PAGE_ROWS)
    assert fast._page is link.pages.page_of(seq + PAGE_ROWS)
