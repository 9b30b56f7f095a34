"""Ends of push consumers and of slow listeners, broadcasting, and mistakes."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from gantrymq.clients.consumer import PullConsumer
from gantrymq.clients.message import Message
from gantrymq.clients.push.consumer import PushConsumer
from gantrymq.clients.push.consumeresult import ConsumeResult
from gantrymq.clients.push.messagemodel import MessageModel
from gantrymq.clients.session import _sessions as sessions
from gantrymq.clients.subscription import FilterExpression, FilterType
from gantrymq.shm.errors import BrokerGone, Closed, FilterSyntaxError, GroupIllegal, Rejected
from gantrymq.temporary import Broker
from tests.support.push import FIRST, PATIENCE_S, Seen, dead_letters, hold, left_over, send
from tests.support.trials import mends
from tests.support.watchdog import poll_until


@pytest.fixture(name="broker", scope="module")
def fast_levels(retrying_broker: Broker) -> Broker:
    return retrying_broker


def test_stop_finishes_what_runs_and_nothing_else(broker: Broker, topic: str) -> None:
    send(broker, topic, range(50), queue_id=1)
    entered, go_on = threading.Event(), threading.Event()

    def wait(_message: Message) -> None:
        entered.set()
        assert go_on.wait(PATIENCE_S)

    seen = Seen(wait)
    group = "g-" + topic
    consumer = PushConsumer(
        group, [topic], seen, home=broker.home, consume_from=FIRST, concurrency=1
    )
    consumer.start()
    assert entered.wait(PATIENCE_S)
    with pytest.raises(TimeoutError):
        consumer.stop(timeout=0.05)
    go_on.set()
    consumer.stop()
    assert not consumer.is_running
    assert seen.bodies == [0]
    with PullConsumer(group, [topic], home=broker.home) as rest:
        batch = rest.poll(timeout=PATIENCE_S)
        assert [int(bytes(body)) for body in batch.bodies] == list(range(1, 50))
        assert set(batch.delivery_attempts.tolist()) == {1}


def test_a_listener_that_never_ends_is_reported_and_its_message_sent_back(
    broker: Broker, topic: str
) -> None:
    """RD-43; what it says later counts for nothing more."""
    go_on = threading.Event()
    group = "g-" + topic
    send(broker, topic, range(3), queue_id=0)
    seen = Seen(lambda m: hold(m, b"1", go_on))
    with PushConsumer(
        group, [topic], seen, home=broker.home, consume_from=FIRST, concurrency=2,
        consume_timeout=0.2, max_attempts=1,
    ):  # fmt: skip
        try:
            # Another may take that long, too, if its thread gets no processor.
            dead = dead_letters(broker, group, 1, wanted=[1])
        finally:
            go_on.set()
    assert "consume_timeout" in dead[1]["DLQ_REASON"]
    assert left_over(broker, group, topic) == 0


@mends("S42")
def test_stop_leaves_to_others_what_waits_behind_a_call_that_hangs(
    broker: Broker, topic: str
) -> None:
    """Its message was sent back: nothing holds the queue any more."""
    go_on = threading.Event()
    group = "g-" + topic
    send(broker, topic, range(2), queue_id=0)
    consumer = PushConsumer(
        group, [topic], lambda m: hold(m, b"1", go_on), home=broker.home, consume_from=FIRST,
        consume_timeout=0.2, max_attempts=1,
    )  # fmt: skip
    with consumer:
        try:
            assert dead_letters(broker, group, 1, wanted=[1])
            with pytest.raises(TimeoutError, match="still at work"):
                consumer.stop(timeout=0)
            send(broker, topic, range(2, 3), queue_id=0)
            with PullConsumer(group, [topic], home=broker.home) as other:
                assert bytes(other.poll(timeout=PATIENCE_S)[0].body) == b"2"
            poll_until(lambda: not consumer.is_running, "it has left")
            with pytest.raises(TimeoutError, match="still at work"):
                consumer.stop(timeout=0)
        finally:
            go_on.set()


def test_broadcasting_gives_all_to_each_and_goes_on_where_it_was(
    broker: Broker, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RD-44, CQ-35: a failed message is dropped; offsets are the user's."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    group = "g-" + topic
    send(broker, topic, range(20))

    def make(seen: Seen, instance: str) -> PushConsumer:
        return PushConsumer(
            group, [topic], seen, home=broker.home, consume_from=FIRST,
            model=MessageModel.BROADCASTING, instance=instance,
        )  # fmt: skip

    one, two = Seen(lambda _: ConsumeResult.FAILURE), Seen()
    with make(one, "one"), make(two, "two"):
        with pytest.raises(GroupIllegal, match="instance"):
            make(Seen(), "two").start()
        one.wait_for(20)
        two.wait_for(20)
    send(broker, topic, range(20, 30))
    again = Seen()
    with make(again, "two"):
        again.wait_for(10)
    assert sorted(one.bodies) == sorted(two.bodies) == list(range(20))
    assert sorted(again.bodies) == list(range(20, 30))


def test_a_listener_may_stop_its_consumer(broker: Broker, topic: str) -> None:
    send(broker, topic, range(1))
    consumer = PushConsumer(
        "g-" + topic, [topic], lambda _: consumer.stop(), home=broker.home, consume_from=FIRST
    )
    consumer.run()
    assert not consumer.is_running


@mends("S168")
@pytest.mark.parametrize("orderly", [False, True])
def test_behind_a_stop_in_a_listener_nothing_is_begun(
    broker: Broker, topic: str, orderly: bool
) -> None:
    send(broker, topic, range(2000))
    begun: list[Message] = []

    def listener(message: Message) -> None:
        begun.append(message)
        consumer.stop()

    group = "g-" + topic
    consumer = PushConsumer(
        group, [topic], listener, home=broker.home, consume_from=FIRST, orderly=orderly,
        concurrency=1,
    )  # fmt: skip
    consumer.run()
    assert len(begun) == 1
    with PullConsumer(group, [topic], home=broker.home) as others:
        assert len(others.poll(2000, timeout=PATIENCE_S)) == 1999, "that one is acknowledged"


def test_a_forked_child_is_told(broker: Broker, topic: str) -> None:
    send(broker, topic, range(1))
    with PushConsumer("g-" + topic, [topic], Seen(), home=broker.home) as consumer:
        child = os.fork()
        if child == 0:
            try:
                consumer.stop()
            except Closed:
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        with pytest.raises(Closed, match="started before"):
            consumer.start()


def test_mistakes_are_named(broker: Broker, tmp_path: Path) -> None:
    seen = Seen()
    for group in ("", "a b", "x" * 121, "CID_RMQ_SYS_TRANS"):
        with pytest.raises(GroupIllegal):
            PushConsumer(group, ["t"], seen)
    with pytest.raises(GroupIllegal, match="empty"):
        PushConsumer("g", [], seen)
    with pytest.raises(GroupIllegal, match="list of topics"):
        PushConsumer("g", None, seen)  # type: ignore[arg-type]
    with pytest.raises(GroupIllegal, match="listener"):
        PushConsumer("g", ["t"], None)  # type: ignore[arg-type]
    with pytest.raises(GroupIllegal, match="max_attempts"):
        PushConsumer("g", ["t"], seen, max_attempts=0)
    with pytest.raises(GroupIllegal, match="concurrency"):
        PushConsumer("g", ["t"], seen, concurrency=0)
    wrong = {
        "orderly": "yes",
        "consume_timeout": float("inf"),
        "consume_timestamp": 1_700_000_000_000,
    }
    for name, value in wrong.items():
        with pytest.raises(GroupIllegal, match=name):
            PushConsumer("g", ["t"], seen, **{name: value})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="threads"):
        PushConsumer("g", ["t"], seen, threads=3)  # type: ignore[call-arg]
    with pytest.raises(FilterSyntaxError, match="position 4"):
        PushConsumer("g", {"t": FilterExpression("a > ", FilterType.SQL92)}, seen)
    with pytest.raises(BrokerGone):
        PushConsumer("g", ["t"], seen, home=tmp_path).start()


def test_retry_after_is_for_listeners(broker: Broker, topic: str) -> None:
    send(broker, topic, range(1))
    with PullConsumer("g-" + topic, [topic], home=broker.home, consume_from=FIRST) as consumer:
        message = consumer.poll(timeout=PATIENCE_S)[0]
    with pytest.raises(Rejected, match="listener"):
        message.retry_after(1)
    for wrong in (-1, float("nan"), float("inf"), 10**20, 253_402_300_000, "soon", True):
        with pytest.raises(Rejected, match="1,000 years"):
            message.retry_after(wrong)  # type: ignore[arg-type]


@mends("H10.1")
def test_a_start_that_fails_leaves_nothing_and_may_be_tried_again(
    broker: Broker, topic: str
) -> None:
    """The system has no room for a thread's stack."""
    seen = Seen()
    consumer = PushConsumer("g-" + topic, [topic], seen, home=broker.home, consume_from=FIRST)
    open_before = {session for session in sessions if session.is_open}
    usual = threading.stack_size(1 << 46)
    try:
        with pytest.raises(RuntimeError, match="start new thread"):
            consumer.start()
    finally:
        threading.stack_size(usual)
    assert {session for session in sessions if session.is_open} == open_before
    assert not [thread for thread in threading.enumerate() if topic in thread.name]
    assert not consumer.is_running
    send(broker, topic, range(3))
    with consumer:
        seen.wait_for(3)
