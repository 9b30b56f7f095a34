"""Topics that are deleted, and made again, while clients that know them stay attached."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gantrymq.clients.consumer import ConsumeFrom, PullConsumer
from gantrymq.clients.control import look_at
from gantrymq.clients.message import ReceivedMessage, SendReceipt
from gantrymq.clients.producer import Producer
from gantrymq.clients.push.consumer import PushConsumer
from gantrymq.clients.push.consumeresult import ConsumeResult
from gantrymq.clients.push.messagemodel import MessageModel
from gantrymq.shm import wire
from gantrymq.shm.errors import MessageIllegal, Rejected, TopicNotFound
from gantrymq.temporary import Broker
from tests.support.applications import FIRST, PATIENCE_S
from tests.support.brokers import command
from tests.support.trials import mends
from tests.support.watchdog import poll_until


def make(broker: Broker, name: str, queues: int = 1, level: str = "written") -> None:
    with look_at(broker.home) as control:
        control.request(wire.CreateTopic(name, queues, level), wire.TopicOpened)


def delete(broker: Broker, name: str) -> None:
    with look_at(broker.home) as control:
        control.request(wire.DeleteTopic(name), wire.Done)


def is_there(broker: Broker, name: str) -> bool:
    try:
        with look_at(broker.home) as control:
            control.request(wire.OpenTopic(name, create=False), wire.TopicOpened)
    except TopicNotFound:
        return False
    return True


def is_member(broker: Broker, group: str) -> bool:
    with look_at(broker.home) as control:
        return bool(control.request(wire.ShowMembers(group), wire.Members).members)


def kill(broker: Broker) -> None:
    """As a crash ends it."""
    broker.process.kill()
    broker.process.wait()


@mends("S66")
@pytest.mark.parametrize("auto", [False, True])
def test_a_deleted_topic_neither_comes_back_nor_stops_others(auto: bool) -> None:
    """At the broker's next start: what waits is for a topic that is there, or is refused."""
    with (
        Broker.temporary(auto_create_topic_enable=auto) as broker,
        Producer(broker.home, timeout=PATIENCE_S) as producer,
    ):
        for name in ("gone", "keep"):
            make(broker, name)
            producer.send(name, b"1", tag="a")
        delete(broker, "gone")
        kill(broker)
        broker_away = producer.send_async("keep", b"2", tag="a")
        broker.start()
        assert producer.send("keep", b"3").queue_offset in (1, 2)
        assert broker_away.result(PATIENCE_S).message_queue.topic == "keep"
        assert not is_there(broker, "gone"), "nobody has sent to it"
        if auto:
            assert producer.send("gone", b"2", tag="a").queue_offset == 1
        else:
            with pytest.raises(TopicNotFound, match="gone"):
                producer.send("gone", b"2", tag="a")
            assert producer.send("keep", b"4").message_queue.topic == "keep"


@mends("S66")
def test_what_waits_for_a_deleted_topic_is_refused_by_its_name() -> None:
    """One that is made again is sent to, over any number of starts."""
    with (
        Broker.temporary(auto_create_topic_enable=False) as broker,
        Producer(broker.home, timeout=PATIENCE_S) as producer,
    ):
        make(broker, "keep")
        for turn in range(3):
            make(broker, "gone")
            assert producer.send("gone", b"x", tag="a").queue_offset == turn
            producer.send("keep", b"x")
            delete(broker, "gone")
            kill(broker)
            # Into the ring of the broker that is dead, as if nobody had missed it yet.
            producer._link.session.look_due = 1 << 62
            if producer._link.fast is not None:
                producer._link.fast.note_look()
            waiting = producer.send_async("gone", b"y", tag="a")
            kept = producer.send_async("keep", b"y")
            broker.start()
            assert kept.result(PATIENCE_S).message_queue.topic == "keep"
            with pytest.raises(MessageIllegal, match="topic gone does not exist any more"):
                waiting.result(PATIENCE_S)


@contextmanager
def consumer(
    broker: Broker, kind: str, topics: list[str], begin: ConsumeFrom = FIRST
) -> Iterator[Callable[[], list[bytes]]]:
    """A consumer; a call returns all that it has got by then, or raises what has ended it."""
    seen: list[bytes] = []

    def take() -> list[bytes]:
        seen.extend(map(bytes, pull.poll(timeout=0.1).bodies))
        return seen

    def listener(message: ReceivedMessage) -> None:
        seen.append(bytes(message.body))

    def look() -> list[bytes]:
        push.assignment()
        return seen

    home, since = broker.home, datetime(2001, 1, 1, tzinfo=UTC)
    if kind == "pull":
        with PullConsumer("g", topics, home=home, consume_from=FIRST) as pull:
            yield take
    elif kind == "pull by time":
        start = ConsumeFrom.TIMESTAMP
        with PullConsumer(
            "g", topics, home=home, consume_from=start, consume_timestamp=since
        ) as pull:
            yield take
    else:
        model = MessageModel[kind]
        with PushConsumer(
            "g", topics, listener, home=home, consume_from=begin, model=model
        ) as push:
            yield look


@mends("S75")
@pytest.mark.parametrize("auto", [False, True])
@pytest.mark.parametrize("has_records", [False, True])
@pytest.mark.parametrize("kind", ["pull", "pull by time", "CLUSTERING", "BROADCASTING"])
def test_consumers_of_a_deleted_topic_do_not_make_it_again_and_go_on_with_others(
    kind: str, has_records: bool, auto: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Over any number of starts. Once it is made again they get what is sent to it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with Broker.temporary(auto_create_topic_enable=auto) as broker:
        make(broker, "gone")
        make(broker, "keep")
        with (
            Producer(broker.home, timeout=PATIENCE_S) as producer,
            consumer(broker, kind, ["gone", "keep"]) as seen,
        ):
            sent = [b"first"]
            producer.send("gone" if has_records else "keep", b"first")
            poll_until(lambda: seen() == sent, "the first message has come")
            delete(broker, "gone")
            for body in (b"second", b"third"):
                kill(broker)
                broker.start()
                producer.send("keep", body)
                sent.append(body)
                poll_until(lambda: seen() == sent, "the other topic goes on")
                assert not is_there(broker, "gone"), "nobody has sent to it"
            make(broker, "gone")
            producer.send("gone", b"last")
            poll_until(lambda: seen() == [*sent, b"last"], "the topic is followed again")


@mends("S224")
@pytest.mark.parametrize("kind", ["pull", "BROADCASTING", "away"])
def test_queues_that_a_topic_gains_as_it_is_made_again_are_consumed_too(
    kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Also where a broadcasting consumer was away, and joins as if it began."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    model = "BROADCASTING" if kind == "away" else kind
    with Broker.temporary() as broker, Producer(broker.home, timeout=PATIENCE_S) as producer:
        make(broker, "gone")
        sent = [b"first"]
        producer.send("gone", b"first")
        with consumer(broker, model, ["gone"]) as seen:
            poll_until(lambda: seen() == sent, "the first message has come")
            if kind != "away":
                _made_with_more(broker, producer, sent)
                poll_until(lambda: sorted(seen()) == sorted(sent), "all queues are followed")
        if kind == "away":
            _made_with_more(broker, producer, sent)
            late = consumer(broker, model, ["gone"], begin=ConsumeFrom.LAST_OFFSET)
            with late as seen:
                poll_until(lambda: sorted(seen()) == sorted(sent[1:]), "all queues are followed")


def _made_with_more(broker: Broker, producer: Producer, sent: list[bytes]) -> None:
    delete(broker, "gone")
    make(broker, "gone", 4)
    bodies = [b"%d" % number for number in range(4)]
    queues = {producer.send("gone", body).message_queue.queue_id for body in bodies}
    assert queues == set(range(4))
    sent += bodies


@mends("S75")
@pytest.mark.parametrize("kind", ["pull", "CLUSTERING"])
def test_a_consumer_of_nothing_but_a_deleted_topic_waits_for_it(kind: str) -> None:
    """One that begins then is told that the topic is not there."""
    with Broker.temporary(auto_create_topic_enable=False) as broker:
        make(broker, "gone")
        with consumer(broker, kind, ["gone"]) as seen:
            delete(broker, "gone")
            kill(broker)
            broker.start()
            poll_until(lambda: seen() or is_member(broker, "g"), "it has attached again")
            with pytest.raises(TopicNotFound, match="gone"):
                PullConsumer("h", ["gone"], home=broker.home)
            make(broker, "gone", 4)
            with Producer(broker.home, timeout=PATIENCE_S) as producer:
                producer.send("gone", b"last")
            poll_until(lambda: seen() == [b"last"], "the topic is followed again")


@mends("S67")
@pytest.mark.parametrize("name", ["%DLQ%g", "%RETRY%g"])
def test_failed_messages_of_a_group_at_work_outlive_its_deleted_topic(name: str) -> None:
    """The topic is made again; what fails after that is found there."""
    seen: list[bytes] = []
    is_dead = name == "%DLQ%g"

    def listener(message: ReceivedMessage) -> ConsumeResult:
        seen.append(bytes(message.body))
        if is_dead:
            return ConsumeResult.DEAD_LETTER
        return ConsumeResult.FAILURE if seen.count(seen[-1]) == 1 else ConsumeResult.SUCCESS

    with (
        Broker.temporary(message_delay_level="1s 1s 1s") as broker,
        Producer(broker.home, timeout=PATIENCE_S) as producer,
    ):
        make(broker, "t")
        with PushConsumer("g", ["t"], listener, home=broker.home, consume_from=FIRST):
            producer.send("t", b"before")
            poll_until(lambda: b"before" in seen, "the first message has come")
            delete(broker, name)
            producer.send("t", b"after")
            poll_until(lambda: b"after" in seen, "the second message has come")
            poll_until(lambda: is_there(broker, name), "the topic is there again")
            if is_dead:
                with PullConsumer("u", [name], home=broker.home, consume_from=FIRST) as dead:
                    poll_until(lambda: b"after" in dead.poll(timeout=0.1).bodies, "it is dead")
            else:
                poll_until(lambda: seen.count(b"after") == 2, "it has come again")


SENDS: dict[str, Callable[[Producer], SendReceipt]] = {
    "send": lambda p: p.send("t", b"x"),
    "send, the Python way": lambda p: p.send("t", b"x", keys=["k"]),
    "async": lambda p: p.send_async("t", b"x").result(PATIENCE_S),
    "batch": lambda p: p.send_batch("t", [b"x"])[0],
    "batch, async": lambda p: p.send_batch_async("t", [b"x"]).result(PATIENCE_S)[0],
}


@mends("S69")
def test_a_topic_made_again_is_sent_to_as_it_is_now() -> None:
    """By its level, from the first send on, and message groups to the queues that it has."""
    with Broker.temporary() as broker, Producer(broker.home, timeout=PATIENCE_S) as producer:
        make(broker, "t", 8)
        for level in ("written", "durable", "written"):
            for send in SENDS.values():
                send(producer)  # by now the native put knows the topic, with the level before
            delete(broker, "t")
            make(broker, "t", 4, level)
            for name, send in SENDS.items():
                producer._link.session.look_due = 1 << 62
                assert send(producer).durability == level, name
        with Producer(broker.home) as fresh:
            for number in range(20):
                group = f"customer-{number}"
                queues = [
                    each.send("t", b"x", message_group=group).message_queue.queue_id
                    for each in (producer, fresh)
                ]
                assert queues[0] == queues[1]


@mends("S69")
@pytest.mark.parametrize("first", SENDS)
def test_each_kind_of_send_learns_of_a_new_level_by_itself(first: str) -> None:
    with Broker.temporary() as broker, Producer(broker.home, timeout=PATIENCE_S) as producer:
        make(broker, "t")
        for _ in range(2):
            assert SENDS[first](producer).durability == "written"
        delete(broker, "t")
        make(broker, "t", 1, "durable")
        assert SENDS[first](producer).durability == "durable"


@mends("S68")
def test_a_send_to_a_topic_that_is_new_waits_for_the_next_broker() -> None:
    with Broker.temporary() as broker, Producer(broker.home, timeout=PATIENCE_S) as producer:
        make(broker, "new")
        producer.send("known", b"1")
        kill(broker)
        producer._link.session.look_due = 1 << 62  # it has looked at the connection just now
        broker.start()
        assert producer.send("new", b"2").queue_offset == 0
        assert producer.send_async("known", b"2").result(PATIENCE_S).queue_offset == 1


@mends("S297")
@pytest.mark.parametrize("kind", ["pull", "CLUSTERING"])
def test_who_holds_a_deleted_topic_still_gets_what_falls_due_in_it(kind: str) -> None:
    """As docs/clients.md says; who comes when it was made again does not."""
    with Broker.temporary() as broker, Producer(broker.home, timeout=PATIENCE_S) as producer:
        make(broker, "gone")
        with consumer(broker, kind, ["gone"]) as seen:
            producer.send("gone", b"first")
            poll_until(lambda: seen() == [b"first"], "it holds the queue")
            producer.send("gone", b"due", delay=0.5)
            delete(broker, "gone")
            poll_until(lambda: seen() == [b"first", b"due"], "it came")
        make(broker, "gone")
        with PullConsumer("h", ["gone"], home=broker.home, consume_from=FIRST) as late:
            producer.send("gone", b"second")
            batch = late.poll(timeout=PATIENCE_S)
            assert [bytes(body) for body in batch.bodies] == [b"second"]


def places(broker: Broker) -> dict[str, int]:
    ran = command("status", "--json", "--home", broker.home)
    found: dict[str, int] = json.loads(ran.stdout)["places"]
    return found


@mends("S298")
def test_places_of_deleted_topics_are_free_again_and_who_finds_none_in_a_row_hears_that() -> None:
    with Broker.temporary(board_queues_max=256, topics_max=64) as broker:
        before = places(broker)["queues_used"]
        free = 256 - before
        for number in range(3):
            make(broker, f"t{number}", free // 4)
        assert places(broker)["queues_used"] == before + 3 * (free // 4)
        for number in (0, 2):
            delete(broker, f"t{number}")
        poll_until(lambda: places(broker)["deleted_topics"] == 0, "they have left")
        now = places(broker)
        assert now["queues_used"] == before + free // 4
        wanted = 256 - now["queues_used"]
        with pytest.raises(Rejected, match=f"{wanted} free queues, but no {wanted} in a row"):
            make(broker, "wide", wanted)
        kill(broker)
        broker.start()
        make(broker, "wide", wanted)
        assert places(broker)["queues_used"] == 256


@mends("S299")
def test_topic_create_tells_how_many_queues_get_messages() -> None:
    """Of a topic made again with fewer the others are still there to be read."""
    with Broker.temporary() as broker, Producer(broker.home) as producer:
        make(broker, "again", 5)
        producer.send("again", b"x")
        delete(broker, "again")
        for _ in range(2):
            ran = command("topic", "create", "again", "--queues", "1", "--home", broker.home)
            assert ran.stdout == "topic again: 1 queues, written\n"
