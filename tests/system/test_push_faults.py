"""A fault in a push consumer's own threads is told, and its queues go to others (P9, LW-50)."""

from __future__ import annotations

import errno
import logging
import os
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from gantrymq.clients.message import Message
from gantrymq.clients.push import broadcast
from gantrymq.clients.push.consumer import PushConsumer
from gantrymq.clients.push.messagemodel import MessageModel
from gantrymq.shm.errors import ConsumerFailed
from gantrymq.shm.ownfiles import replace_whole
from gantrymq.temporary import Broker
from tests.support.push import FIRST, PATIENCE_S, Seen, left_over, send
from tests.support.trials import mends
from tests.support.watchdog import poll_until

#: Of a topic that its first member's subscription makes.
QUEUES = 4


@pytest.fixture(name="broker", scope="module")
def fast_levels(retrying_broker: Broker) -> Broker:
    return retrying_broker


class BrokenFilter(logging.Filter):
    """A filter of the application's that fails at one line: the thread that writes it meets that.

    Python calls filters where a line is written, so a thread of ours fails as by a fault of its
    own.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text
        self.threads: list[str] = []

    def filter(self, record: logging.LogRecord) -> bool:
        if self._text in record.msg and not self.threads:
            self.threads.append(str(record.threadName))
            raise ZeroDivisionError("a filter that fails")
        return True

    def __enter__(self) -> Self:
        logging.getLogger("gantrymq").addFilter(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:  # fmt: skip
        logging.getLogger("gantrymq").removeFilter(self)


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Texts of what the log says with a traceback, of a fault."""
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno == logging.CRITICAL
        and record.exc_info
        and record.exc_info[0] is ZeroDivisionError
    ]


def require_told(consumer: PushConsumer, caplog: pytest.LogCaptureFixture) -> None:
    """By the log, and by each call until it is closed; the fault is the cause."""
    (text,) = told(caplog)
    assert "ZeroDivisionError: a filter that fails" in text
    assert "Traceback" in caplog.text
    for call in (consumer.assignment, consumer.run):
        with pytest.raises(ConsumerFailed, match="Make another consumer") as caught:
            call()
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
    consumer.stop()
    assert not consumer.is_running


def owned(consumer: PushConsumer, topic: str) -> int:
    """How many of a topic's queues a member has."""
    return sum(queue.topic == topic for queue in consumer.assignment())


def shared(one: PushConsumer, two: PushConsumer, topic: str) -> int:
    """A queue that the first of two members owns, once they have shared."""
    half = QUEUES // 2
    poll_until(lambda: owned(one, topic) == owned(two, topic) == half, "they share", PATIENCE_S)
    return min(queue.queue_id for queue in one.assignment() if queue.topic == topic)


def test_a_fault_of_the_fetching_thread_is_told_and_its_queues_go_to_others(
    broker: Broker, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What its listeners have begun they finish, and that counts; what has failed comes again."""
    group, entered, go_on = "g-" + topic, threading.Event(), threading.Event()

    def answer(message: Message) -> None:
        if bytes(message.body) == b"0":
            assert entered.wait(PATIENCE_S)
            raise ValueError("once")
        entered.set()
        assert go_on.wait(PATIENCE_S)

    options = {"home": broker.home, "consume_from": FIRST}
    mine, others = Seen(answer), Seen()
    one = PushConsumer(group, [topic], mine, concurrency=2, **options)  # type: ignore[arg-type]
    two = PushConsumer(group, [topic], others, **options)  # type: ignore[arg-type]
    with (
        caplog.at_level(logging.INFO, logger="gantrymq"),
        BrokenFilter("%s %d: %s: %s") as fault,
        two,
    ):
        one.start()
        send(broker, topic, range(2), queue_id=shared(one, two, topic))
        poll_until(lambda: told(caplog), "the fault is told", PATIENCE_S)
        assert fault.threads == [f"gantrymq-push-{group}"]
        go_on.set()
        poll_until(lambda: owned(two, topic) == QUEUES, "they are the other's", PATIENCE_S)
        others.wait_for(1)
        require_told(one, caplog)
    assert (others.bodies, others.messages[0].delivery_attempt) == ([0], 2)
    assert left_over(broker, group, topic) == 0


def test_a_fault_of_a_listener_thread_is_told_and_counts_as_an_attempt(
    broker: Broker, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """P9: the others of its chunk are done with; the message itself comes again, to another."""
    group = "g-" + topic

    def answer(message: Message) -> None:
        if bytes(message.body) == b"2":
            raise ValueError("told by a line that fails")

    send(broker, topic, range(3), queue_id=0)
    seen, others = Seen(answer), Seen()
    consumer = PushConsumer(
        group, [topic], seen, home=broker.home, consume_from=FIRST, concurrency=1
    )
    with caplog.at_level(logging.INFO, logger="gantrymq"), BrokenFilter("failed: %s") as fault:
        consumer.start()
        poll_until(lambda: not consumer.is_running, "it has ended", PATIENCE_S)
    assert fault.threads == [f"gantrymq-listener-{group}-0"]
    require_told(consumer, caplog)
    assert seen.bodies == [0, 1, 2]
    with PushConsumer(group, [topic], others, home=broker.home):
        others.wait_for(1)
    assert [(m.body, m.delivery_attempt) for m in others.messages] == [(b"2", 2)]


@mends("S24")
def test_a_full_disk_of_the_clients_ends_no_broadcasting_consumer(
    broker: Broker, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """It goes on, says so once, and saves its offsets when there is room."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(broadcast, "SAVE_NS", 1_000_000)
    refused = [errno.ENOSPC]
    tries: list[int] = []

    def replace(*given: Any, **options: Any) -> None:  # noqa: ANN401
        tries.append(1)
        if refused:
            raise OSError(refused[0], os.strerror(refused[0]))
        replace_whole(*given, **options)

    monkeypatch.setattr(broadcast, "replace_whole", replace)
    seen = Seen()
    with PushConsumer(
        "g-" + topic, [topic], seen, home=broker.home, consume_from=FIRST,
        model=MessageModel.BROADCASTING,
    ) as consumer:  # fmt: skip
        send(broker, topic, range(5), queue_id=0)
        seen.wait_for(5)
        poll_until(lambda: len(tries) > 3, "some commits", PATIENCE_S)
        assert consumer.is_running
        assert len([text for text in caplog.messages if "no room for" in text]) == 1
        refused.clear()
        poll_until(lambda: list(tmp_path.rglob("*.json")), "it is saved", PATIENCE_S)
        send(broker, topic, range(5, 8), queue_id=0)
        seen.wait_for(8)
        refused.append(errno.EDQUOT)
        tries.clear()
        send(broker, topic, range(8, 10), queue_id=0)
        seen.wait_for(10)
    assert [text for text in caplog.messages if "last offsets are not stored" in text]


@mends("S24")
def test_another_error_of_the_clients_disk_is_final(
    broker: Broker, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not pass by itself."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(broadcast, "SAVE_NS", 1_000_000)

    def replace(*given: object, **options: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(broadcast, "replace_whole", replace)
    consumer = PushConsumer(
        "g-" + topic, [topic], Seen(), home=broker.home, model=MessageModel.BROADCASTING
    )
    consumer.start()
    poll_until(lambda: not consumer.is_running, "it has ended", PATIENCE_S)
    with pytest.raises(ConsumerFailed, match="Input/output error"):
        consumer.stop()


def test_a_broadcasting_consumer_keeps_its_offsets_through_a_fault(
    broker: Broker, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """CQ-35: it goes on behind what was finished."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    def answer(message: Message) -> None:
        if bytes(message.body) == b"2":
            raise ValueError("dropped")

    def make(seen: Seen) -> PushConsumer:
        return PushConsumer(
            "g-" + topic, [topic], seen, home=broker.home, consume_from=FIRST, concurrency=1,
            model=MessageModel.BROADCASTING,
        )  # fmt: skip

    send(broker, topic, range(5), queue_id=0)
    consumer = make(Seen(answer))
    with BrokenFilter("is dropped"):
        consumer.start()
        poll_until(lambda: not consumer.is_running, "it has ended", PATIENCE_S)
        require_told(consumer, caplog)
    again = Seen()
    with make(again):
        again.wait_for(3)
    assert again.bodies == [2, 3, 4]
