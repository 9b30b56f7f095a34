"""Loops over a consumer that are left, and queues chosen by hand."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from clients.batch import MessageBatch
from clients.consumer import ConsumeFrom, PullConsumer
from clients.producer import Producer
from gantrymq.temporary import Broker

FIRST = ConsumeFrom.FIRST_OFFSET
PATIENCE_S = 30.0


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker.temporary() as running:
        yield running


@pytest.fixture
def topic(unique_name: str) -> str:
    return unique_name


def send(broker: Broker, topic: str, bodies: range) -> None:
    with Producer(home=broker.home) as producer:
        for body in bodies:
            producer.send_oneway(topic, b"%d" % body)
        producer.flush(timeout=PATIENCE_S)


def take(consumer: PullConsumer, count: int) -> list[int]:
    """Poll until there are so many bodies."""
    found: list[int] = []
    while len(found) < count:
        batch = consumer.poll(timeout=PATIENCE_S)
        assert len(batch), f"{len(found)} of {count} came"
        found += numbers(batch)
    return found


def numbers(batch: MessageBatch) -> list[int]:
    return [int(bytes(body)) for body in batch.bodies]


def test_a_loop_that_was_left_goes_on_where_it_was(broker: Broker, topic: str) -> None:
    """By `break` or an exception; `poll` goes on there, too."""
    send(broker, topic, range(100))
    found: list[int] = []
    with PullConsumer("g-" + topic, [topic], home=broker.home, consume_from=FIRST) as consumer:
        for message in consumer:
            found.append(int(bytes(message.body)))
            if len(found) == 10:
                break
        with contextlib.suppress(RuntimeError):
            for message in consumer:
                found.append(int(bytes(message.body)))
                if len(found) == 20:
                    raise RuntimeError
        found += take(consumer, 80)
        assert len(consumer.poll(timeout=0)) == 0
    assert sorted(found) == list(range(100))
