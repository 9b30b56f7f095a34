"""The demo's second story: a message that waits, one that is cancelled, a retry and a dead letter.

RocketMQ's ladder begins with ten seconds; the listener asks for less by `retry_after`.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from gantrymq.clients.consumer import ConsumeFrom, PullConsumer
from gantrymq.clients.message import Message, SendReceipt
from gantrymq.clients.producer import Producer
from gantrymq.clients.push.consumer import PushConsumer
from gantrymq.clients.recalloutcome import RecallOutcome
from gantrymq.shm.properties import DLQ_PREFIX

TOPIC = "demo-orders"
GROUP = "demo-billing"
DEAD_LETTERS = f"{DLQ_PREFIX}{GROUP}"
RETRY_MS = 800
DELAY_MS = 1500
MAX_ATTEMPTS = 3
PATIENCE_S = 60.0
LATER, CANCELLED, LAST = "later", "cancelled", "last"
SHAKY, NONSENSE = "fails once", "nonsense"


class Delivery(NamedTuple):
    """A call of the listener; times are Unix milliseconds."""

    order: str
    attempt: int
    stored_ms: int  # in the topic it was sent to, or in the group's retry topic
    seen_ms: int


class DeadLetter(NamedTuple):
    """What the dead-letter queue has."""

    order: str
    reason: str


class Story(NamedTuple):
    """All that happened."""

    sent_ms: int  # just before the delayed message was sent
    deliveries: list[Delivery]
    letters: list[DeadLetter]
    in_time: RecallOutcome
    too_late: RecallOutcome

    def of(self, order: str) -> list[Delivery]:
        """An order's deliveries."""
        return [delivery for delivery in self.deliveries if delivery.order == order]


def now_ms() -> int:
    """The wall clock, as the broker reads it."""
    return time.time_ns() // 1_000_000


class Billing:
    """The listener: one order fails once, one always."""

    def __init__(self) -> None:
        self.deliveries: list[Delivery] = []
        self.last_seen = threading.Event()

    def __call__(self, message: Message) -> None:
        """Note the delivery; an exception sends the message back."""
        order = bytes(message.body).decode()
        attempt, stored_ms = message.delivery_attempt, message.store_timestamp
        assert attempt is not None, "a received message has it"
        assert stored_ms is not None, "a received message has it"
        self.deliveries.append(Delivery(order, attempt, stored_ms, now_ms()))
        if order == LAST:
            self.last_seen.set()
        if order == SHAKY and attempt == 1:
            message.retry_after(RETRY_MS / 1000)
            raise TimeoutError("the bank does not answer")
        if order == NONSENSE:
            message.retry_after(RETRY_MS / 1000)
            raise ValueError("no order at all")


def _send(producer: Producer, order: str, delay_ms: int = 0) -> SendReceipt:
    # One message group, so one queue: what is due later can't be seen earlier.
    return producer.send(
        TOPIC, order.encode(), delay=delay_ms / 1000, message_group="demo", timeout=PATIENCE_S
    )


def play(home: Path) -> Story:
    """Let it happen. Raises TimeoutError if something that was promised does not come."""
    billing = Billing()
    consumer = PushConsumer(
        GROUP, [TOPIC], billing, home=home,
        consume_from=ConsumeFrom.FIRST_OFFSET, concurrency=2, max_attempts=MAX_ATTEMPTS,
    )  # fmt: skip
    with Producer(home, timeout=PATIENCE_S) as producer, consumer:
        _send(producer, SHAKY)
        _send(producer, NONSENSE)
        sent_ms = now_ms()
        later = _send(producer, LATER, DELAY_MS)
        cancelled = _send(producer, CANCELLED, DELAY_MS + 300)
        in_time = producer.recall_message(TOPIC, cancelled.recall_handle or "")
        _send(producer, LAST, DELAY_MS + 600)
        if not billing.last_seen.wait(PATIENCE_S):
            raise TimeoutError(f"{LAST!r} did not come within {PATIENCE_S:.0f} s")
        too_late = producer.recall_message(TOPIC, later.recall_handle or "")
        letters = _dead_letters(home)
    return Story(sent_ms, billing.deliveries, letters, in_time, too_late)


def _dead_letters(home: Path) -> list[DeadLetter]:
    with PullConsumer(
        "demo-undertaker", [DEAD_LETTERS], home=home, consume_from=ConsumeFrom.FIRST_OFFSET
    ) as consumer:
        batch = consumer.poll(timeout=PATIENCE_S)
        return [DeadLetter(bytes(m.body).decode(), m.properties["DLQ_REASON"]) for m in batch]


def problems(story: Story) -> list[str]:
    """What is not as promised."""
    return [*_wrong_deliveries(story), *_early(story), *_wrong_ends(story)]


def _wrong_deliveries(story: Story) -> Iterator[str]:
    expected = {LATER: [1], CANCELLED: [], LAST: [1], SHAKY: [1, 2], NONSENSE: [1, 2, 3]}
    for order, attempts in expected.items():
        seen = [delivery.attempt for delivery in story.of(order)]
        if seen != attempts:
            yield f"{order!r} came as attempts {seen}, not {attempts}"


def _early(story: Story) -> Iterator[str]:
    due_ms = story.sent_ms + DELAY_MS
    if any(min(item.seen_ms, item.stored_ms) < due_ms for item in story.of(LATER)):
        yield f"{LATER!r} came before its time"
    for order in (SHAKY, NONSENSE):
        if any(wait < 0 for wait in _waits(story, order)):
            yield f"{order!r} came again too early"


def _wrong_ends(story: Story) -> Iterator[str]:
    if story.letters != [DeadLetter(NONSENSE, "ValueError: no order at all")]:
        yield f"dead letters: {story.letters}"
    if story.in_time is not RecallOutcome.CANCELLED:
        yield f"the recall in time was answered {story.in_time.value}"
    if story.too_late is not RecallOutcome.ALREADY_DELIVERED:
        yield f"the recall too late was answered {story.too_late.value}"


def _waits(story: Story, order: str) -> list[int]:
    """By how many ms each retry was later than asked for after the failure before it."""
    seen = [delivery.seen_ms for delivery in story.of(order)]
    return [after - before - RETRY_MS for before, after in itertools.pairwise(seen)]


def tell(story: Story, say: Callable[[str], None]) -> None:
    """Say what happened, in its own figures."""
    for first in story.of(LATER):
        say(
            f"delayed: asked for {DELAY_MS:,} ms after the send, in its topic after"
            f" {first.stored_ms - story.sent_ms:,} ms, in the listener"
            f" {first.seen_ms - story.sent_ms - DELAY_MS} ms late"
        )
    say(
        f"recalled before its time: {story.in_time.value}, and delivered"
        f" {len(story.of(CANCELLED))} times; recalled after its time: {story.too_late.value}"
    )
    for order in (SHAKY, NONSENSE):
        say(
            f"{order!r}: {len(story.of(order))} attempts; each retry {RETRY_MS:,} ms after its"
            f" failure, late by {', '.join(map(str, _waits(story, order)))} ms"
        )
    for letter in story.letters:
        say(f"dead letter in {DEAD_LETTERS}: {letter.order!r}, because of {letter.reason}")


def judge(home: Path, say: Callable[[str], None]) -> bool:
    """The whole story at a running broker: told, and as promised."""
    try:
        story = play(home)
    except TimeoutError as error:
        say(f"DOES NOT HOLD: {error}")
        return False
    tell(story, say)
    wrong = problems(story)
    say("delays and failures: " + ("; ".join(["DOES NOT HOLD", *wrong]) if wrong else "hold"))
    return not wrong
