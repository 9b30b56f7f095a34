"""What a listener's failures tell: by default, on the log, to whoever runs it."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial

import pytest

from gantrymq.clients.message import Message
from gantrymq.clients.producer import Producer
from gantrymq.clients.push.consumer import PushConsumer
from gantrymq.clients.push.consumeresult import ConsumeResult
from gantrymq.shm.errors import GroupIllegal
from gantrymq.temporary import Broker
from tests.support.push import FIRST, PATIENCE_S, Seen, dead_letters, send
from tests.support.trials import mends
from tests.support.watchdog import poll_until

LOGGER = "gantrymq.listener"


@pytest.fixture(name="broker", scope="module")
def fast_levels(retrying_broker: Broker) -> Broker:
    return retrying_broker


def said(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [r.getMessage() for r in caplog.records if (r.name, r.levelno) == (LOGGER, level)]


@mends("A5.1")
def test_exceptions_of_a_listener_are_warnings_once_for_each_kind(
    broker: Broker, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """With the traceback; a hundred of one kind are one record."""

    def answer(message: Message) -> None:
        if int(bytes(message.body)) % 2:
            raise KeyError(bytes(message.body))
        raise ValueError(bytes(message.body))

    seen = Seen(answer)
    send(broker, topic, range(100))
    with (
        caplog.at_level(logging.WARNING),
        PushConsumer(f"g-{topic}", [topic], seen, home=broker.home, consume_from=FIRST),
    ):
        seen.wait_for(100)
        poll_until(lambda: len(said(caplog, logging.WARNING)) >= 2, "both are told", PATIENCE_S)
    told = said(caplog, logging.WARNING)
    assert sorted(text.partition(": ")[2][:8] for text in told) == ["KeyError", "ValueErr"]
    assert "Traceback" in caplog.text
    assert "in answer" in caplog.text


@mends("A5.1")
def test_dead_letters_are_errors(
    broker: Broker, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """With message id, topic, group, attempts and reason."""
    group = f"g-{topic}"
    seen = Seen(lambda _: ConsumeResult.DEAD_LETTER)
    with Producer(broker.home) as producer:
        receipt = producer.send(topic, b"0")
    with (
        caplog.at_level(logging.WARNING),
        PushConsumer(group, [topic], seen, home=broker.home, consume_from=FIRST),
    ):
        poll_until(lambda: said(caplog, logging.ERROR), "the dead letter is told", PATIENCE_S)
    (text,) = said(caplog, logging.ERROR)
    for part in (
        receipt.message_id, f"topic {topic}", f"group {group}", "1 attempts",
        f"%DLQ%{group}", "answered DEAD_LETTER",
    ):  # fmt: skip
        assert part in text


@mends("S53")
def test_dead_letters_that_come_together_are_told_together(
    broker: Broker, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Each with its message id; a thousand records would take longer than the thousand calls."""
    count = 150
    with Producer(broker.home) as producer:
        receipts = [producer.send(topic, b"0", queue_id=0) for _ in range(count)]
    seen = Seen(lambda _: ConsumeResult.DEAD_LETTER)

    def told() -> list[str]:
        return re.findall(r"\b[0-9A-F]{32}\b", "".join(said(caplog, logging.ERROR)))

    with (
        caplog.at_level(logging.WARNING),
        PushConsumer(f"g-{topic}", [topic], seen, home=broker.home, consume_from=FIRST),
    ):
        poll_until(lambda: len(told()) >= count, "all are told", PATIENCE_S)
    assert sorted(told()) == sorted(receipt.message_id for receipt in receipts)
    assert len(said(caplog, logging.ERROR)) < count // 2


PROGRAM = """
import sys, time
from gantrymq import ConsumeFrom, ConsumeResult, Producer, PushConsumer
home, topic = sys.argv[1:]
def listener(message):
    raise RuntimeError("no such order")
with Producer(home) as producer:
    producer.send(topic, b"x")
done = []
with PushConsumer("g-" + topic, [topic], listener, home=home, max_attempts=1,
                  consume_from=ConsumeFrom.FIRST_OFFSET):
    from gantrymq import PullConsumer
    dlq = "%DLQ%g-" + topic
    with PullConsumer("look-" + topic, [dlq], home=home,
                      consume_from=ConsumeFrom.FIRST_OFFSET) as consumer:
        assert len(consumer.poll(timeout=30.0)) == 1
"""


@mends("A5.1")
def test_a_program_without_logging_shows_them(broker: Broker, topic: str) -> None:
    """Python's last resort prints warnings and errors."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(broker.home), topic],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "RuntimeError: no such order" in done.stderr
    assert "dead letter: message" in done.stderr


class Service:
    async def __call__(self, message: Message) -> None:
        raise AssertionError(message)


async def handle(message: Message, more: int = 0) -> None:
    raise AssertionError(message, more)


@mends("A5.2")
@pytest.mark.parametrize("listener", [handle, partial(handle, more=1), Service()])
def test_an_async_listener_is_refused_when_the_consumer_is_made(listener: Callable) -> None:  # type: ignore[type-arg]
    with pytest.raises(GroupIllegal, match="run_coroutine_threadsafe"):
        PushConsumer("g", ["t"], listener)


@mends("A5.2")
def test_a_coroutine_as_an_answer_is_told(
    broker: Broker, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a plain function that makes one; Python does not warn of it besides."""
    group = f"g-{topic}"
    send(broker, topic, range(1))
    with (
        caplog.at_level(logging.WARNING),
        PushConsumer(
            group, [topic], lambda message: handle(message),  # type: ignore[arg-type, return-value] # noqa: PLW0108
            home=broker.home, consume_from=FIRST, max_attempts=1,
        ),
    ):  # fmt: skip
        poll_until(lambda: said(caplog, logging.ERROR), "the dead letter is told", PATIENCE_S)
    assert "coroutine, which nobody awaits" in said(caplog, logging.WARNING)[0]


@mends("A12.2")
def test_a_retry_that_ends_as_a_dead_letter_says_what_was_asked_for(
    broker: Broker, topic: str
) -> None:
    group = f"g-{topic}"
    send(broker, topic, range(1))
    seen = Seen(lambda message: message.retry_after(0.5))
    with PushConsumer(group, [topic], seen, home=broker.home, consume_from=FIRST, max_attempts=1):
        stored = dead_letters(broker, group, 1)[0]
    assert stored["DLQ_REASON"] == "the listener asked to be given it again after 0.5 s"
