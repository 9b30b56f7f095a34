"""Consuming from a real broker: columns, loops, groups, seeking, and restarts."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import threading
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gantrymq.clients.batch import MessageBatch
from gantrymq.clients.consumer import ConsumeFrom, PullConsumer
from gantrymq.clients.message import MessageQueue
from gantrymq.clients.producer import Producer
from gantrymq.clients.queries.client import Client
from gantrymq.shm.codes import Role
from gantrymq.shm.errors import Closed, FilterSyntaxError, GroupIllegal, Rejected
from gantrymq.temporary import Broker
from tests.support.brokers import ServingBroker
from tests.support.forked import start_program
from tests.support.watchdog import poll_until

FIRST = ConsumeFrom.FIRST_OFFSET
PATIENCE_S = 30.0


def send(broker: Broker | ServingBroker, topic: str, bodies: range, tag: str | None = None) -> None:
    with Producer(home=broker.home) as producer:
        for body in bodies:
            producer.send_oneway(topic, b"%d" % body, tag=tag)
        producer.flush(timeout=PATIENCE_S)


def take(consumer: PullConsumer, count: int, most: int = 10_000) -> list[int]:
    """Poll until there are so many bodies."""
    found: list[int] = []
    while len(found) < count:
        batch = consumer.poll(most, timeout=PATIENCE_S)
        assert len(batch), f"{len(found)} of {count} came"
        found += numbers(batch)
    return found


def numbers(batch: MessageBatch) -> list[int]:
    return [int(bytes(body)) for body in batch.bodies]


def test_columns_hold_every_message_once_and_in_order(broker: Broker, topic: str) -> None:
    send(broker, topic, range(3000), tag="x")
    with PullConsumer("g-" + topic, [topic], home=broker.home, consume_from=FIRST) as consumer:
        batches: list[MessageBatch] = []
        while sum(len(batch) for batch in batches) < 3000:
            batches.append(consumer.poll(700, timeout=PATIENCE_S))
            assert 0 < len(batches[-1]) <= 700
        assert len(consumer.poll(timeout=0)) == 0
    seen = Counter(number for batch in batches for number in numbers(batch))
    assert seen == Counter(range(3000))
    offsets: dict[MessageQueue, list[int]] = {}
    bodies: dict[MessageQueue, list[int]] = {}
    for batch in batches:
        for queue, offset, body in zip(
            batch.queues, batch.queue_offsets.tolist(), numbers(batch), strict=True
        ):
            offsets.setdefault(queue, []).append(offset)
            bodies.setdefault(queue, []).append(body)
    assert len(offsets) == 4
    for queue, found in offsets.items():
        assert found == list(range(len(found)))
        assert bodies[queue] == sorted(bodies[queue])


def test_a_batch_stays_what_it_is_while_it_is_held(broker: Broker, topic: str) -> None:
    send(broker, topic, range(1000))
    with PullConsumer("g-" + topic, [topic], home=broker.home, consume_from=FIRST) as consumer:
        kept = [consumer.poll(50, timeout=PATIENCE_S) for _ in range(10)]
        views = [body for batch in kept for body in batch.bodies]
        before = [bytes(view) for view in views]
        del kept
        take(consumer, 500, 50)
        assert [bytes(view) for view in views] == before


def test_a_received_message_has_all_its_fields(broker: Broker, topic: str) -> None:
    with Producer(home=broker.home) as producer:
        receipt = producer.send(topic, b"body", tag="paid", keys=["a", "b"], properties={"r": "eu"})
    with PullConsumer("g-" + topic, {topic: "*"}, home=broker.home, consume_from=FIRST) as consumer:
        message = consumer.poll(timeout=PATIENCE_S)[0]
    assert (message.topic, message.body, message.tag) == (topic, b"body", "paid")
    assert (message.keys, message.properties) == (("a", "b"), {"r": "eu"})
    assert message.message_id == receipt.message_id
    assert message.queue_id == receipt.message_queue.queue_id
    assert message.queue_offset == receipt.queue_offset
    assert message.delivery_attempt == 1
    assert message.born_timestamp
    assert message.store_timestamp
    assert message.store_timestamp >= message.born_timestamp


def test_arrow_shows_the_same(broker: Broker, topic: str) -> None:
    send(broker, topic, range(100))
    with PullConsumer("g-" + topic, [topic], home=broker.home, consume_from=FIRST) as consumer:
        batch = consumer.poll(timeout=PATIENCE_S)
    table = batch.to_arrow().to_pydict()
    assert table["body"] == [bytes(body) for body in batch.bodies]
    assert table["queue_offset"] == batch.queue_offsets.tolist()
    assert table["topic"] == [topic] * len(batch)


def test_tags_choose_exactly(broker: Broker, topic: str) -> None:
    """FL-3, FL-4: Aa and BB have the same hash."""
    send(broker, topic, range(10), tag="Aa")
    send(broker, topic, range(10, 20), tag="BB")
    send(broker, topic, range(20, 30))
    send(broker, topic, range(30, 40), tag="paid")
    for text, wanted in (("BB", range(10, 20)), ("Aa || paid", [*range(10), *range(30, 40)])):
        group = f"g-{text.strip(' |')[:2]}-{topic}"
        with PullConsumer(group, {topic: text}, home=broker.home, consume_from=FIRST) as consumer:
            assert sorted(take(consumer, len(wanted))) == sorted(wanted)
            assert len(consumer.poll(timeout=0.01)) == 0


def test_what_tags_keep_away_is_committed_all_the_same(broker: Broker, topic: str) -> None:
    """FL-4: a dropped message counts as consumed."""
    send(broker, topic, range(100), tag="no")
    with PullConsumer("g-" + topic, {topic: "yes"}, home=broker.home, consume_from=FIRST) as one:
        assert len(one.poll(timeout=0.01)) == 0
    with PullConsumer("g-" + topic, {topic: "*"}, home=broker.home) as other:
        assert len(other.poll(timeout=0.01)) == 0


def test_what_tags_keep_away_holds_no_queue_of_a_loop_that_commits_by_hand(
    broker: Broker, topic: str
) -> None:
    """FL-4: behind the last message of a batch, too, nobody is left who could commit it."""
    send(broker, topic, range(1), tag="no")
    with Client(broker.home) as client:
        queues = client.queues(topic)
    with Producer(home=broker.home) as producer:
        for queue in queues:
            for tag in ("yes", "no"):
                producer.send(topic, b"", tag=tag, queue_id=queue.queue_id)
    seen: list[bytes] = []

    def loop(consumer: PullConsumer) -> None:
        with contextlib.suppress(Closed):
            for message in consumer:
                seen.append(bytes(message.body))
                consumer.commit()

    group, wanted = "g-" + topic, {topic: "yes"}
    with PullConsumer(
        group, wanted, home=broker.home, consume_from=FIRST, auto_commit=False
    ) as first:
        thread = threading.Thread(target=loop, args=(first,))
        thread.start()
        poll_until(lambda: len(seen) == len(queues), "all that is wanted", PATIENCE_S)
        with PullConsumer(group, wanted, home=broker.home, auto_commit=False) as second:
            poll_until(
                lambda: not len(second.poll(timeout=0)) and second.assignment(), "a queue for two"
            )
        first.close()
        thread.join()


def test_a_loop_that_was_left_holds_no_queue_while_another_waits(
    broker: Broker, topic: str
) -> None:
    """What the first was left at is passed, as by a poll: nothing need come behind it."""
    send(broker, topic, range(1))
    with Client(broker.home) as client:
        queues = client.queues(topic)
    with Producer(home=broker.home) as producer:
        for queue in queues:
            producer.send(topic, b"", queue_id=queue.queue_id)
    seen: list[bytes] = []

    def loop_anew_for_each(consumer: PullConsumer) -> None:
        with contextlib.suppress(Closed):
            while True:
                for message in consumer:
                    seen.append(bytes(message.body))
                    break

    group = "g-" + topic
    with PullConsumer(group, [topic], home=broker.home, consume_from=FIRST) as first:
        thread = threading.Thread(target=loop_anew_for_each, args=(first,))
        thread.start()
        poll_until(lambda: len(seen) == len(queues) + 1, "all messages", PATIENCE_S)
        with PullConsumer(group, [topic], home=broker.home) as second:
            poll_until(
                lambda: not len(second.poll(timeout=0)) and second.assignment(), "a queue for two"
            )
        first.close()
        thread.join()


def test_a_loop_commits_what_it_has_passed(broker: Broker, topic: str) -> None:
    send(broker, topic, range(500))
    seen: list[int] = []
    consumer = PullConsumer("g-" + topic, [topic], home=broker.home, consume_from=FIRST)
    with contextlib.suppress(ZeroDivisionError), consumer:
        for message in consumer:
            seen.append(int(bytes(message.body)))
            if len(seen) == 200:
                raise ZeroDivisionError  # while the 200th is being worked on
    with PullConsumer("g-" + topic, [topic], home=broker.home) as again:
        rest = take(again, 301)
    assert sorted(rest) == sorted({*range(500)} - {*seen[:-1]})


def test_a_failed_batch_comes_again_as_a_second_attempt_only_after_a_death(
    broker: Broker, topic: str
) -> None:
    send(broker, topic, range(8))
    consumer = PullConsumer("g-" + topic, [topic], home=broker.home, consume_from=FIRST)
    with contextlib.suppress(ZeroDivisionError), consumer:
        consumer.poll(timeout=PATIENCE_S)
        raise ZeroDivisionError
    with PullConsumer("g-" + topic, [topic], home=broker.home) as again:
        first = again.poll(timeout=PATIENCE_S)
        assert set(first.delivery_attempts.tolist()) == {1}
        again._lose()  # the session ends without a word, as by kill -9
        again._closed = True
    with PullConsumer("g-" + topic, [topic], home=broker.home) as last:
        batch = last.poll(timeout=PATIENCE_S)
        assert set(batch.delivery_attempts.tolist()) == {2}
        assert {message.delivery_attempt for message in batch} == {2}


def test_without_auto_commit_only_commit_counts(broker: Broker, topic: str) -> None:
    send(broker, topic, range(100))
    group = "g-" + topic
    with PullConsumer(
        group, [topic], home=broker.home, consume_from=FIRST, auto_commit=False
    ) as consumer:
        first = numbers(consumer.poll(40, timeout=PATIENCE_S))
        consumer.commit()
        consumer.poll(40, timeout=PATIENCE_S)
    with PullConsumer(group, [topic], home=broker.home) as again:
        assert sorted(take(again, 100 - len(first))) == sorted({*range(100)} - {*first})


def test_a_new_group_begins_at_the_end_unless_told_otherwise(broker: Broker, topic: str) -> None:
    send(broker, topic, range(10))
    with PullConsumer("g-" + topic, [topic], home=broker.home) as consumer:
        assert len(consumer.poll(timeout=0)) == 0
        send(broker, topic, range(10, 20))
        assert sorted(take(consumer, 10)) == list(range(10, 20))


def test_a_group_can_begin_at_a_time(broker: Broker, topic: str) -> None:
    """CQ-33, CQ-62."""
    with Producer(home=broker.home) as producer:
        early = producer.send(topic, b"0", tag="early")
        with PullConsumer("look-" + topic, [topic], home=broker.home, consume_from=FIRST) as look:
            stored = look.poll(timeout=PATIENCE_S)[0].store_timestamp
            assert stored is not None
            now = stored
            while now == stored:  # another millisecond
                later = producer.send(topic, b"1")
                now = int(look.poll(timeout=PATIENCE_S).store_timestamps[0])
        assert early.message_id != later.message_id
    moment = datetime.fromtimestamp((stored + 1) / 1000, UTC)
    with PullConsumer(
        "g-" + topic,
        [topic],
        home=broker.home,
        consume_from=ConsumeFrom.TIMESTAMP,
        consume_timestamp=moment,
    ) as consumer:
        assert {*numbers(consumer.poll(timeout=PATIENCE_S))} == {1}


def test_seeking(broker: Broker, topic: str) -> None:
    send(broker, topic, range(80))
    with PullConsumer("g-" + topic, [topic], home=broker.home, consume_from=FIRST) as consumer:
        take(consumer, 80)
        queue = consumer.assignment()[0]
        assert consumer.position(queue) == 20
        consumer.seek(queue, 5)
        assert consumer.poll(timeout=PATIENCE_S).queue_offsets.tolist() == list(range(5, 20))
        consumer.seek(queue, "begin")
        batch = consumer.poll(timeout=PATIENCE_S)
        assert batch.queue_offsets.tolist() == list(range(20))
        moment = datetime.fromtimestamp(int(batch.store_timestamps[0]) / 1000, UTC)
        consumer.seek(queue, moment)
        assert consumer.poll(1, timeout=PATIENCE_S).queue_offsets.tolist() == [0]
        consumer.seek(queue, "end")
        assert len(consumer.poll(timeout=0)) == 0
        with pytest.raises(ValueError, match="offsets 0 to 20"):
            consumer.seek(queue, 21)
        with pytest.raises(GroupIllegal):
            consumer.seek(MessageQueue(topic, 77), 0)
        for place in ("soon", None, 1.5, True):
            with pytest.raises(Rejected, match="give an offset, a datetime"):
                consumer.seek(queue, place)  # type: ignore[arg-type]
        for count in (0, -1):
            with pytest.raises(Rejected, match="max_messages"):
                consumer.poll(max_messages=count)


def test_paused_queues_are_left_alone(broker: Broker, topic: str) -> None:
    send(broker, topic, range(80))
    with PullConsumer("g-" + topic, [topic], home=broker.home, consume_from=FIRST) as consumer:
        queues = consumer.assignment()
        consumer.pause(queues[1:])
        batch = consumer.poll(timeout=PATIENCE_S)
        assert set(batch.queues) == {queues[0]}
        consumer.resume(queues[1:])
        assert len(take(consumer, 60)) == 60


def test_a_waiting_poll_wakes_up(broker: Broker, topic: str) -> None:
    with PullConsumer("g-" + topic, [topic], home=broker.home, consume_from=FIRST) as consumer:
        found: list[int] = []
        waiting = threading.Thread(target=lambda: found.extend(take(consumer, 1)))
        waiting.start()
        send(broker, topic, range(7, 8))
        waiting.join(PATIENCE_S)
        assert found == [7]


def test_its_descriptor_tells_when_to_poll(broker: Broker, topic: str) -> None:
    with PullConsumer("g-" + topic, [topic], home=broker.home, consume_from=FIRST) as consumer:
        assert len(consumer.poll(timeout=0)) == 0
        descriptor = consumer.fileno()
        for number in range(3):
            send(broker, topic, range(number, number + 1))
            found: list[int] = []
            while not found:
                assert select.select([descriptor], [], [], PATIENCE_S)[0]
                found = numbers(consumer.poll(timeout=0))
            assert found == [number]
            assert len(consumer.poll(timeout=0)) == 0


def test_two_members_share_and_the_one_that_leaves_hands_over(broker: Broker, topic: str) -> None:
    group = "g-" + topic
    send(broker, topic, range(100))
    with PullConsumer(group, [topic], home=broker.home, consume_from=FIRST) as first:
        seen = take(first, 100)
        second = PullConsumer(group, [topic], home=broker.home)
        poll_until(
            lambda: (
                (not first.poll(timeout=0.01) and len(second.assignment()) == 2)
                or bool(second.poll(timeout=0.01))
            ),
            "two queues have moved",
        )
        assert not {*first.assignment()} & {*second.assignment()}
        send(broker, topic, range(100, 200))
        own: list[int] = []
        others: list[int] = []
        while len(own) + len(others) < 100:
            own += numbers(first.poll(timeout=0.01))
            others += numbers(second.poll(timeout=0.01))
        assert Counter(own + others) == Counter(range(100, 200))
        assert own
        assert others
        second.close()
        send(broker, topic, range(200, 300))
        assert Counter(take(first, 100)) == Counter(range(200, 300))
    assert Counter(seen) == Counter(range(100))


MEMBER = """
import sys
from gantrymq.clients.consumer import ConsumeFrom, PullConsumer
home, group, topic = sys.argv[1:]
with PullConsumer(group, [topic], home=home, consume_from=ConsumeFrom.FIRST_OFFSET) as consumer:
    while True:
        batch = consumer.poll(10, timeout=60)
        print(*(bytes(body).decode() for body in batch.bodies), sep="\\n", flush=True)
"""


def member(home: Path, group: str, topic: str) -> subprocess.Popen[str]:
    return start_program(MEMBER, home, group, topic, stdout=subprocess.PIPE, text=True)


def test_a_killed_members_queues_go_on_elsewhere_and_nothing_is_lost(
    broker: Broker, topic: str
) -> None:
    group = "g-" + topic
    send(broker, topic, range(2000))
    victim = member(broker.home, group, topic)
    assert victim.stdout is not None
    seen = [int(victim.stdout.readline()) for _ in range(300)]
    os.kill(victim.pid, signal.SIGKILL)
    seen += [int(line) for line in victim.communicate()[0].split()]
    with PullConsumer(group, [topic], home=broker.home) as heir:
        rest: list[int] = []
        while {*seen, *rest} != {*range(2000)}:
            batch = heir.poll(timeout=PATIENCE_S)
            assert len(batch), "messages were lost"
            rest += numbers(batch)
    # Only what the last poll had handed out, and nobody had acknowledged, comes twice.
    assert len(seen) + len(rest) - 2000 <= 10


def test_a_restarted_broker_finds_the_same_consumer_again(unique_name: str) -> None:
    with Broker.temporary() as own:
        send(own, unique_name, range(100))
        with PullConsumer("g", [unique_name], home=own.home, consume_from=FIRST) as consumer:
            seen = numbers(consumer.poll(60, timeout=PATIENCE_S))
            own.process.kill()
            own.process.wait()
            own.start()
            send(own, unique_name, range(100, 200))
            while len(seen) < 200:
                batch = consumer.poll(60, timeout=PATIENCE_S)
                assert len(batch), f"{len(seen)} of 200 came"
                seen += numbers(batch)
            assert Counter(seen) == Counter(range(200)), "passed messages need not come again"
        with PullConsumer("g", [unique_name], home=own.home) as again:
            assert len(again.poll(timeout=0.01)) == 0


def test_a_killed_groups_agent_is_replaced_under_its_members(tmp_path: Path, topic: str) -> None:
    with ServingBroker(tmp_path / "home") as serving:
        serving.wait_until_ready()
        send(serving, topic, range(100))
        with PullConsumer("g", [topic], home=serving.home, consume_from=FIRST) as consumer:
            seen = numbers(consumer.poll(50, timeout=PATIENCE_S))
            old = serving.pid_of(Role.GROUPS)
            os.kill(old, signal.SIGKILL)
            poll_until(lambda: serving.pid_of(Role.GROUPS) not in (0, old), "groups is there again")
            consumer.commit()
            while len(seen) < 100:
                seen += take(consumer, 1, 50)
            consumer.commit()
            assert Counter(seen) == Counter(range(100))
            assert consumer.lost_commits == 0
        with PullConsumer("g", [topic], home=serving.home) as again:
            assert len(again.poll(timeout=0.01)) == 0
        serving.stop()


def test_what_cannot_be_is_refused(broker: Broker, topic: str) -> None:
    with pytest.raises(GroupIllegal):
        PullConsumer("a b", [topic], home=broker.home)
    with pytest.raises(GroupIllegal):
        PullConsumer("g", topic, home=broker.home)  # type: ignore[arg-type]
    with pytest.raises(FilterSyntaxError):
        PullConsumer("g", {topic: "||"}, home=broker.home)
    consumer = PullConsumer("g-" + topic, [topic], home=broker.home)
    consumer.close()
    consumer.close()
    with pytest.raises(Closed):
        consumer.poll(timeout=0)
