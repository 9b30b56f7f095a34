"""Consumers whose session ends, as by a kill of the broker: what goes on, and what is told."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gantrymq.clients import consumer as pull_consumer
from gantrymq.clients.attachment import Attachment
from gantrymq.clients.batch import MessageBatch
from gantrymq.clients.consumer import PullConsumer
from gantrymq.clients.message import MessageQueue
from gantrymq.clients.push import dispatcher
from gantrymq.clients.push.consumer import PushConsumer
from gantrymq.clients.push.member import PushMember
from gantrymq.clients.push.messagemodel import MessageModel
from gantrymq.clients.session import Session, now_ns
from gantrymq.shm.errors import BrokerGone, DiskFull, Evicted, GantryError, GroupIllegal
from gantrymq.temporary import Broker
from tests.support.push import FIRST, PATIENCE_S, Seen, left_over, send
from tests.support.trials import mends
from tests.support.watchdog import poll_until

#: Messages that are taken one by one: less than a loop fetches at a time.
POLLS = 100


def end(session: Session, error: GantryError) -> None:
    """Let a session be over at its owner's next look; the broker goes on."""
    session._why_over = error


@mends("S62")
def test_a_pause_ends_where_another_has_had_the_queue_since_a_restart(unique_name: str) -> None:
    with (
        Broker.temporary() as broker,
        PullConsumer("g", [unique_name], home=broker.home, consume_from=FIRST) as consumer,
    ):
        queues = consumer.assignment()
        consumer.pause(queues)
        for _ in range(2):  # nobody else has had them, however often it restarts
            broker.stop()
            broker.start()
            assert not len(consumer.poll(timeout=0.1))
        send(broker, unique_name, range(4))
        assert not len(consumer.poll(timeout=0.1))
        broker.stop()
        broker.start()
        with PullConsumer("g", [unique_name], home=broker.home) as other:
            assert other.assignment() == queues
        poll_until(
            lambda: len(consumer.poll(timeout=0.1)), "a message of a queue that is paused no more"
        )


@mends("S51")
def test_a_restart_takes_no_commit_away_untold(unique_name: str) -> None:
    """Nor does a close come to nothing where nobody else has the queues."""
    topic = [unique_name]
    with Broker.temporary() as broker:
        home = broker.home
        send(broker, unique_name, range(10), queue_id=0)
        one = PullConsumer("g", topic, home=home, consume_from=FIRST, auto_commit=False)
        with one, PullConsumer("h", topic, home=home, consume_from=FIRST) as alone:
            assert len(one.poll(timeout=PATIENCE_S)) == len(alone.poll(timeout=PATIENCE_S)) == 10
            broker.process.kill()
            broker.process.wait()
            broker.start()
            with PullConsumer("g", topic, home=home) as other:
                with pytest.raises(BrokerGone):
                    one.commit()
                one.commit()
                assert one.lost_commits == 1
                assert len(other.poll(timeout=PATIENCE_S)) == 10
        assert left_over(broker, "h", unique_name) == 0


@mends("S86")
@pytest.mark.parametrize("loops", [False, True])
def test_who_never_waits_finds_the_next_broker(unique_name: str, loops: bool) -> None:
    """However much there is to read in the log of the one that it knows."""
    count = 5_000
    with Broker.temporary() as broker:
        send(broker, unique_name, range(count), queue_id=0)
        with PullConsumer("g", [unique_name], home=broker.home, consume_from=FIRST) as consumer:
            messages = iter(consumer)

            def take_one() -> int:
                if loops:
                    return next(messages).queue_offset
                return int(consumer.poll(1, timeout=PATIENCE_S).queue_offsets[0])

            assert take_one() == 0
            before = consumer._member.session
            broker.process.kill()
            broker.process.wait()
            broker.start()
            before.look_due = 0  # a moment later
            taken = [take_one() for _ in range(POLLS)]
            assert taken == list(range(1, POLLS + 1))
            assert consumer._member.session.epoch != before.epoch


WAITS: dict[str, Callable[[PullConsumer], bytes]] = {
    "poll, for ever": lambda c: bytes(c.poll(timeout=math.inf).bodies[0]),
    "poll, for days": lambda c: bytes(c.poll(timeout=9 * 86_400).bodies[0]),
    "poll, the consumer's own": lambda c: bytes(c.poll().bodies[0]),
    "loop": lambda c: bytes(next(iter(c)).body),
}


@mends("S76")
@pytest.mark.parametrize("wait", WAITS)
def test_a_broker_that_is_away_for_long_is_waited_for_as_long_as_the_caller_wishes(
    wait: str, unique_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    away_ns = 0

    def pause(_seconds: float) -> None:
        nonlocal away_ns
        away_ns += 3600 * 10**9
        if away_ns == 5 * 3600 * 10**9:
            broker.start()
            send(broker, unique_name, range(1))

    with (
        Broker.temporary() as broker,
        PullConsumer(
            "g", [unique_name], home=broker.home, consume_from=FIRST, timeout=math.inf
        ) as consumer,
    ):
        broker.process.kill()
        broker.process.wait()
        monkeypatch.setattr(pull_consumer, "pause", pause)
        monkeypatch.setattr(pull_consumer, "now_ns", lambda: now_ns() + away_ns)
        assert WAITS[wait](consumer) == b"0"
        assert away_ns == 5 * 3600 * 10**9


def test_a_session_that_ends_within_a_poll_passes_nothing_unseen(
    broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a report finds no room in the ring, and so looks at the session."""
    send(broker, topic, range(10), queue_id=0)
    take = Attachment.take

    def last(attachment: Attachment, rows: int, mode: int) -> MessageBatch:
        batch = take(attachment, rows, mode)
        if len(batch):
            monkeypatch.setattr(Attachment, "take", take)
            end(attachment.session, Evicted("by a test"))
        return batch

    with PullConsumer("g-" + topic, [topic], home=broker.home, consume_from=FIRST) as consumer:
        monkeypatch.setattr(Attachment, "take", last)
        monkeypatch.setattr(Attachment, "report_untabled", lambda a: a.session.check())
        assert len(consumer.poll(timeout=PATIENCE_S)) == 10
        with pytest.raises(Evicted):
            consumer.poll(timeout=PATIENCE_S)
        send(broker, topic, range(10, 11), queue_id=0)
        assert [bytes(body) for body in consumer.poll(timeout=PATIENCE_S).bodies] == [b"10"]
        assert consumer.lost_commits == 0


def test_what_was_paused_stays_so_until_it_is_resumed(broker: Broker, topic: str) -> None:
    paused, other = MessageQueue(topic, 0), MessageQueue(topic, 1)

    def restart() -> None:
        assert consumer._attachment is not None
        end(consumer._attachment.session, BrokerGone("by a test"))
        for queue in (paused, other):
            send(broker, topic, range(1), queue_id=queue.queue_id)
        assert set(consumer.poll(timeout=PATIENCE_S).queues) == {other}

    with PullConsumer("g-" + topic, [topic], home=broker.home, consume_from=FIRST) as consumer:
        consumer.pause([paused])
        restart()
        restart()
        consumer.resume([paused, other])
        assert set(consumer.poll(timeout=PATIENCE_S).queues) == {paused}
        with pytest.raises(GroupIllegal):
            consumer.resume([MessageQueue(topic, 99)])


def test_who_chooses_queues_in_a_new_session_does_not_get_again_what_was_handed_out(
    broker: Broker, topic: str
) -> None:
    send(broker, topic, range(10), queue_id=0)
    with PullConsumer("g-" + topic, [topic], home=broker.home, consume_from=FIRST) as consumer:
        assert len(consumer.poll(timeout=PATIENCE_S)) == 10
        assert consumer._attachment is not None
        end(consumer._attachment.session, BrokerGone("by a test"))
        with pytest.raises(BrokerGone):
            consumer.poll(timeout=0)
        consumer.assign([MessageQueue(topic, 0)])
        send(broker, topic, range(10, 11), queue_id=0)
        assert [bytes(body) for body in consumer.poll(timeout=PATIENCE_S).bodies] == [b"10"]


def test_a_push_consumer_that_joins_again_waits_for_room_on_the_brokers_disk(
    broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatcher, "RETELL_NS", 0)
    join, seen = PushMember.join, Seen()

    def refused(*_given: Any) -> None:  # noqa: ANN401
        monkeypatch.setattr(PushMember, "join", join)
        raise DiskFull("no room for the ledger")

    with PushConsumer(
        "g-" + topic, [topic], seen, home=broker.home, consume_from=FIRST
    ) as consumer:
        assert consumer._dispatcher is not None
        monkeypatch.setattr(PushMember, "join", refused)
        end(consumer._dispatcher.member.session, BrokerGone("by a test"))
        send(broker, topic, range(3))
        seen.wait_for(3)
    assert PushMember.join is join


def test_a_broadcasting_consumer_whose_session_is_ended_goes_on_where_it_was(
    broker: Broker, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    send(broker, topic, range(3), queue_id=0)
    seen = Seen()
    with PushConsumer(
        "g-" + topic, [topic], seen, home=broker.home, consume_from=FIRST,
        model=MessageModel.BROADCASTING,
    ) as consumer:  # fmt: skip
        assert consumer._dispatcher is not None
        member = consumer._dispatcher.member
        (window,) = [w for w in member.windows.values() if w.queue.queue_id == 0]
        poll_until(lambda: window.committed == 3, "all is done with")
        end(member.session, Evicted("by a test"))
        send(broker, topic, range(3, 4), queue_id=0)
        poll_until(lambda: 3 in seen.bodies, "it goes on")
    assert sorted(seen.bodies) == [0, 1, 2, 3]
