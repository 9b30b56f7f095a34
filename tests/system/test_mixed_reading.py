"""A consumer that is read in several ways at once: loops, loops inside loops, and polls."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from gantrymq.clients.consumer import ConsumeFrom, PullConsumer
from gantrymq.clients.message import ReceivedMessage
from gantrymq.clients.producer import Producer
from gantrymq.temporary import Broker
from tests.support.trials import mends

PATIENCE_S = 5.0
QUEUES = 2
STEPS = 60


@dataclass
class Reader:
    """Does what a generator of steps says, and notes what it was given, by queue."""

    consumer: PullConsumer
    producer: Producer
    topic: str
    sent: list[int] = field(default_factory=lambda: [0] * QUEUES)
    given: list[list[int]] = field(default_factory=lambda: [[] for _ in range(QUEUES)])
    loops: list[Iterator[ReceivedMessage]] = field(default_factory=list)

    def send(self, count: int) -> None:
        for number in range(count):
            queue = number % QUEUES
            self.producer.send(self.topic, b"%d" % self.sent[queue], queue_id=queue)
            self.sent[queue] += 1

    @property
    def left(self) -> int:
        return sum(self.sent) - sum(len(bodies) for bodies in self.given)

    def step(self, chance: random.Random) -> None:
        act = chance.choice(["send", "poll", "poll", "loop", "next", "next", "next", "break"])
        if act == "send":
            self.send(chance.randint(1, 6))
        elif act == "poll":
            self.poll(chance.choice([1, 2, 100]))
        elif act == "loop":
            self.loops.append(iter(self.consumer))
            self.next(self.loops[-1])
        elif act == "next" and self.loops:
            # Not the innermost one always: a generator may be asked whenever one likes.
            self.next(chance.choice(self.loops))
        elif act == "break" and self.loops:
            self.loops.pop(chance.randrange(len(self.loops))).close()  # type: ignore[attr-defined]

    def poll(self, most: int) -> None:
        batch = self.consumer.poll(most, timeout=PATIENCE_S if self.left else 0)
        assert bool(len(batch)) == bool(self.left), f"{self.left} were left"
        for row in range(len(batch)):
            self.note(batch[row])

    def next(self, loop: Iterator[ReceivedMessage]) -> None:
        if not self.left:
            self.send(1)
        self.note(next(loop))

    def note(self, message: ReceivedMessage) -> None:
        given = self.given[message.queue_id]
        given.append(int(bytes(message.body)))
        assert given[-1] == len(given) - 1, f"queue {message.queue_id} gave {given}"


def opened(broker: Broker, topic: str, auto_commit: bool) -> PullConsumer:
    return PullConsumer(
        "g-" + topic,
        [topic],
        home=broker.home,
        consume_from=ConsumeFrom.FIRST_OFFSET,
        auto_commit=auto_commit,
    )


@mends("S34")
@pytest.mark.parametrize("auto_commit", [True, False])
@pytest.mark.parametrize("seed", range(12))
def test_each_message_is_handed_out_once_however_it_is_asked_for(
    broker: Broker, topic: str, auto_commit: bool, seed: int
) -> None:
    """In the order of its queue; and what is committed was handed out, no more and no less."""
    chance = random.Random(seed)
    with Producer(home=broker.home) as producer:
        with opened(broker, topic, auto_commit) as consumer:
            reader = Reader(consumer, producer, topic)
            reader.send(10)
            for _ in range(STEPS):
                reader.step(chance)
                if chance.random() < 0.1:
                    consumer.commit()
            if not auto_commit:
                consumer.commit()
        with opened(broker, topic, auto_commit) as consumer:
            reader.consumer = consumer
            while reader.left:
                reader.poll(100)
            assert len(consumer.poll(timeout=0)) == 0
    assert reader.given == [list(range(count)) for count in reader.sent]


@mends("S34")
@pytest.mark.parametrize("auto_commit", [True, False])
def test_a_poll_inside_a_loop_does_not_pass_what_the_loop_holds(
    broker: Broker, topic: str, auto_commit: bool
) -> None:
    """The poll goes on behind the loop's message, and the loop behind the poll's."""
    with (
        Producer(home=broker.home) as producer,
        opened(broker, topic, auto_commit) as consumer,
    ):
        reader = Reader(consumer, producer, topic)
        reader.send(20)
        for message in consumer:
            reader.note(message)
            if len(reader.given[message.queue_id]) == 1:
                reader.send(2)
                reader.poll(4)
                for inner in consumer:
                    reader.note(inner)
                    break
            if not reader.left:
                break
    assert reader.given == [list(range(count)) for count in reader.sent]
