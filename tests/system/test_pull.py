"""Loops over a consumer that are left, and queues chosen by hand."""

from __future__ import annotations

import contextlib
from collections import Counter

import pytest

from gantrymq.clients.batch import MessageBatch
from gantrymq.clients.consumer import ConsumeFrom, PullConsumer
from gantrymq.clients.message import MessageQueue
from gantrymq.clients.producer import Producer
from gantrymq.shm.errors import GroupIllegal
from gantrymq.temporary import Broker

FIRST = ConsumeFrom.FIRST_OFFSET
PATIENCE_S = 30.0


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


def test_queues_are_chosen_by_hand(broker: Broker, topic: str) -> None:
    """No balancing; the offsets are the group's, for whoever reads the queue next."""
    group = "g-" + topic
    send(broker, topic, range(80))
    chosen = [MessageQueue(topic, 1), MessageQueue(topic, 3)]
    with PullConsumer(group, [topic], home=broker.home, consume_from=FIRST) as consumer:
        consumer.assign(chosen)
        assert consumer.assignment() == chosen
        first = consumer.poll(timeout=PATIENCE_S)
        assert set(first.queues) == set(chosen)
        assert len(first) == 40
        assert len(consumer.poll(timeout=0)) == 0
        with PullConsumer(group, [topic], home=broker.home) as other:
            assert other.assignment() == [MessageQueue(topic, 0), MessageQueue(topic, 2)]
        consumer.assign([MessageQueue(topic, 0)])
        rest = consumer.poll(5, timeout=PATIENCE_S)
        assert consumer.assignment() == [MessageQueue(topic, 0)]
        assert rest.queue_offsets.tolist() == [0, 1, 2, 3, 4]
        with pytest.raises(GroupIllegal, match="no queue of a topic subscribed"):
            consumer.assign([MessageQueue(topic, 4)])
        assert consumer.assignment() == [MessageQueue(topic, 0)]
        consumer.assign(None)
        assert len(consumer.assignment()) == 4
        assert consumer.position(chosen[0]) == 20
        assert consumer.position(MessageQueue(topic, 0)) == 5
        found = numbers(first) + numbers(rest) + take(consumer, 35)
    assert Counter(found) == Counter(range(80))


def test_a_choice_outlives_the_broker(topic: str) -> None:
    with (
        Broker.temporary() as broker,
        PullConsumer("g", [topic], home=broker.home, consume_from=FIRST) as consumer,
    ):
        consumer.assign([MessageQueue(topic, 2)])
        broker.stop()
        broker.start()
        send(broker, topic, range(40))
        assert len(take(consumer, 10)) == 10
        assert len(consumer.poll(timeout=0)) == 0
        assert consumer.assignment() == [MessageQueue(topic, 2)]
