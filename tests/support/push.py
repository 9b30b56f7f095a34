"""Push consumers in tests: what listeners saw, what is left over, dead letters."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection

from gantrymq.clients.consumer import ConsumeFrom, PullConsumer
from gantrymq.clients.message import Message
from gantrymq.clients.producer import Producer
from gantrymq.clients.push.consumeresult import ConsumeResult
from gantrymq.shm.properties import parse_properties
from gantrymq.temporary import Broker
from tests.support.brokers import ServingBroker
from tests.support.watchdog import poll_until

FIRST = ConsumeFrom.FIRST_OFFSET
PATIENCE_S = 30.0
#: Retries after a second each.
LEVELS = "1s 1s 1s"


def send(broker: Broker | ServingBroker, topic: str, bodies: range, **parts: object) -> None:
    with Producer(home=broker.home) as producer:
        for body in bodies:
            producer.send_oneway(topic, b"%d" % body, **parts)  # type: ignore[call-overload]
        producer.flush(timeout=PATIENCE_S)


class Seen:
    """A listener that keeps what it was given; `answer` says what becomes of a body."""

    def __init__(self, answer: Callable[[Message], ConsumeResult | None] | None = None) -> None:
        self.messages: list[Message] = []
        self._answer = answer

    def __call__(self, message: Message) -> ConsumeResult | None:
        self.messages.append(message)
        return self._answer(message) if self._answer else None

    @property
    def bodies(self) -> list[int]:
        return [int(bytes(message.body)) for message in list(self.messages)]

    def wait_for(self, count: int) -> None:
        poll_until(lambda: len(self.messages) >= count, f"{count} messages came", PATIENCE_S)


def hold(message: Message, body: bytes, go_on: threading.Event) -> None:
    """A listener that is slow with one message."""
    if bytes(message.body) == body:
        assert go_on.wait(PATIENCE_S)


def left_over(broker: Broker | ServingBroker, group: str, topic: str) -> int:
    """Messages that the group's next member would get."""
    with PullConsumer(group, [topic], home=broker.home) as consumer:
        return len(consumer.poll(timeout=0))


def dead_letters(
    broker: Broker | ServingBroker, group: str, count: int, wanted: Collection[int] = ()
) -> dict[int, dict[str, str]]:
    """Bodies and stored properties in the group's dead-letter queue, once there are so many.

    With `wanted`, once these are among them.
    """
    found: dict[int, dict[str, str]] = {}
    with PullConsumer(
        f"dlq-{group}", [f"%DLQ%{group}"], home=broker.home, consume_from=FIRST
    ) as consumer:
        while len(found) < count or not found.keys() >= set(wanted):
            batch = consumer.poll(timeout=PATIENCE_S)
            assert len(batch), f"{len(found)} of {count} dead letters came"
            for body, stored in zip(batch.bodies, batch.raw_properties, strict=True):
                found[int(bytes(body))] = parse_properties(bytes(stored))
    return found
