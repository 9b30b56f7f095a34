"""`gantrymq group reset-offset` against a member at work, and `group describe` beside it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gantrymq.cli.group_reset import Wish, show_reset
from gantrymq.clients import groupreset
from gantrymq.clients.consumer import ConsumeFrom, PullConsumer
from gantrymq.clients.control import look_at
from gantrymq.clients.groupreset import offset_of, reset_offsets
from gantrymq.clients.message import MessageQueue
from gantrymq.clients.producer import Producer
from gantrymq.clients.running import find_board
from gantrymq.shm import wire
from gantrymq.shm.errors import BrokerGone, Evicted, GroupIllegal
from gantrymq.temporary import Broker
from tests.support.forked import run_forked
from tests.support.push import PATIENCE_S
from tests.support.trials import mends
from tests.support.watchdog import poll_until


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    with Broker.temporary() as broker:
        yield broker.home


def ask(home: Path, *arguments: str, code: int = 0) -> Any:  # noqa: ANN401 - JSON
    done = run_forked(["group", *arguments, "--home", str(home), "--json"])
    assert done.returncode == code, done
    return json.loads(done.stdout) if not code else done.stderr


def offsets(home: Path, group: str) -> dict[int, int]:
    return {row["queue"]: row["offset"] for row in ask(home, "describe", group)["queues"]}


def test_a_live_member_goes_on_where_the_group_was_set(home: Path) -> None:
    with Producer(home) as producer:
        bodies = [b"%d" % number for number in range(10)]
        for body in bodies:
            producer.send("resets", body)
    first = ConsumeFrom.FIRST_OFFSET
    with PullConsumer("mover", ["resets"], home=home, consume_from=first) as consumer:
        seen: list[bytes] = []

        def poll_more() -> bool:
            seen.extend(bytes(message.body) for message in consumer.poll(timeout=0.2))
            consumer.commit()
            return len(seen) >= 10

        poll_until(poll_more, "all messages")
        shown = ask(home, "describe", "mover")["queues"]
        assert {row["lag"] for row in shown} == {0}
        assert {row["oldest_ms"] for row in shown} == {None}
        dry = ask(home, "reset-offset", "mover", "--topic", "resets", "--to", "begin", "--dry-run")
        assert not dry["changed"]
        assert offsets(home, "mover") == {row["queue"]: row["before"] for row in dry["queues"]}
        place = ("mover", "--topic", "resets", "--to", "begin")
        done = run_reset_while_polling(home, consumer, seen, *place)
        assert [row["after"] for row in done["queues"]] == [0] * len(done["queues"])
        assert [row["before"] for row in done["queues"]] == [r["before"] for r in dry["queues"]]
        poll_until(lambda: (poll_more(), sorted(seen) == sorted(bodies * 2))[1], "all again")


def run_reset_while_polling(
    home: Path, consumer: PullConsumer, seen: list[bytes], *place: str
) -> Any:  # noqa: ANN401
    """The command in a thread: members give queues back while they poll."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask, home, "reset-offset", *place)
        while not asked.done():
            seen.extend(bytes(message.body) for message in consumer.poll(timeout=0.05))
            consumer.commit()
        return asked.result()


def test_a_group_without_members_is_set_by_time_end_and_offset(home: Path) -> None:
    with Producer(home) as producer:
        producer.send("times", b"old")
        time.sleep(0.002)  # another millisecond
        between = datetime.now(UTC)
        producer.send("times", b"new")
    with PullConsumer("lone", ["times"], home=home) as consumer:
        consumer.commit()

    def set_to(place: str, *more: str) -> dict[int, int]:
        done = ask(home, "reset-offset", "lone", "--topic", "times", "--to", place, *more)
        after = {row["queue"]: row["after"] for row in done["queues"]}
        assert {queue: offsets(home, "lone")[queue] for queue in after} == after
        return after

    ends = set_to("end")
    assert sum(ends.values()) == 2
    later = set_to(between.isoformat())
    assert sum(ends.values()) - sum(later.values()) == 1
    full = max(ends, key=lambda queue: ends[queue])
    assert set_to("0", "--queue", str(full)) == {full: 0}
    described = ask(home, "describe", "lone")["queues"]
    oldest = [row["oldest_ms"] for row in described if row["queue"] == full]
    assert 0 <= oldest[0] < 3_600_000
    assert {row["in_flight"] for row in described} == {0}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("nobody", "--topic", "times", "--to", "end"), "no group nobody"),
        (("lone", "--topic", "nothing", "--to", "end"), "no topic nothing"),
        (("lone", "--topic", "times", "--to", "99", "--queue", "0"), "not 99"),
        (("lone", "--topic", "times", "--to", "0"), "--queue"),
        (("lone", "--topic", "times", "--to", "noon"), "give begin, end"),
        (("lone", "--topic", "times", "--to", "end", "--queue", "99"), "no queue 99"),
    ],
)
def test_what_cannot_be_set_is_refused(home: Path, arguments: tuple[str, ...], text: str) -> None:
    with PullConsumer("lone", ["times"], home=home) as consumer:
        consumer.commit()
    assert text in ask(home, "reset-offset", *arguments, code=2)


@mends("S61")
def test_a_member_that_a_reset_ended_does_not_undo_it(home: Path) -> None:
    """It was idle, so it did not give its queue back."""
    with Producer(home) as producer:
        producer.send_batch("undone", [b"%d" % number for number in range(10)], queue_id=0)
    first = ConsumeFrom.FIRST_OFFSET
    with PullConsumer("idle", ["undone"], home=home, consume_from=first) as consumer:
        assert len(consumer.poll(timeout=PATIENCE_S)) == 10
        place = ("--topic", "undone", "--queue", "0", "--to", "4", "--patience", "0")
        ask(home, "reset-offset", "idle", *place)
        with pytest.raises(Evicted):
            consumer.poll(timeout=PATIENCE_S)
        again = consumer.poll(timeout=PATIENCE_S)
        assert [bytes(body) for body in again.bodies] == [b"%d" % number for number in range(4, 10)]


@mends("S83")
def test_a_reset_leaves_a_queue_paused(home: Path) -> None:
    with Producer(home) as producer:
        for queue_id in (0, 1):
            producer.send_batch("paused", [b"%d" % queue_id], queue_id=queue_id)
    first = ConsumeFrom.FIRST_OFFSET
    with PullConsumer("pauser", ["paused"], home=home, consume_from=first) as consumer:
        consumer.pause([MessageQueue("paused", 0)])
        assert list(consumer.poll(timeout=PATIENCE_S).bodies) == [b"1"]
        seen: list[bytes] = []
        place = ("pauser", "--topic", "paused", "--to", "begin")
        run_reset_while_polling(home, consumer, seen, *place)
        while not seen:
            seen.extend(bytes(body) for body in consumer.poll(timeout=PATIENCE_S).bodies)
        assert len(consumer.poll(timeout=0)) == 0
        assert seen == [b"1"]
        consumer.resume([MessageQueue("paused", 0)])
        assert list(consumer.poll(timeout=PATIENCE_S).bodies) == [b"0"]


def consume(home: Path, group: str, *topics: str) -> None:
    """Make topics of a queue, each with a message, of which the group has consumed none."""
    with Producer(home) as producer:
        for topic in topics:
            make(home, topic)
            producer.send(topic, topic.encode())
    first = ConsumeFrom.FIRST_OFFSET
    with PullConsumer(group, topics, home=home, consume_from=first) as consumer:
        consumer.commit()


def make(home: Path, *topics: str) -> None:
    with look_at(home) as control:
        for topic in topics:
            control.request(wire.CreateTopic(topic, 1), wire.TopicOpened)


def delete(home: Path, *topics: str) -> None:
    with look_at(home) as control:
        for topic in topics:
            control.request(wire.DeleteTopic(topic), wire.Done)


def reset_amid(home: Path, group: str, topic: str, place: str, happens: Callable[[], None]) -> None:
    """The command, and what happens while it works out where the group is to go."""

    def plan(*asked: Any) -> int:  # noqa: ANN401 - as `offset_of`
        offset = offset_of(*asked)
        happens()
        return offset

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(groupreset, "offset_of", plan)
        wish = Wish(group, topic, None, place, PATIENCE_S)
        show_reset(wish, home=home, dry_run=False, as_json=True)


def places(home: Path, group: str) -> dict[str, int]:
    """Where a group goes on, by topic."""
    return {row["topic"]: row["offset"] for row in ask(home, "describe", group)["queues"]}


@mends("S196")
def test_a_reset_that_is_planned_in_one_life_is_not_done_in_another() -> None:
    """The board's numbers mean other queues there: a start has topics by name."""
    with Broker.temporary() as broker:
        consume(broker.home, "g", "zebras", "apes")

        def restart() -> None:
            broker.stop()
            broker.start()

        with pytest.raises(BrokerGone):
            reset_amid(broker.home, "g", "zebras", "end", restart)
        assert places(broker.home, "g") == {"zebras": 0, "apes": 0}


@mends("S196")
def test_a_topic_that_is_deleted_amid_a_reset_leaves_its_place_to_no_other(home: Path) -> None:
    """Topics without a message: one beside it, of which nobody plans anything, does leave."""
    make(home, "meant", "beside")
    with PullConsumer("meaner", ["meant"], home=home) as consumer:
        consumer.commit()
    board = find_board(home)
    assert board is not None

    def delete_and_make_others() -> None:
        delete(home, "meant", "beside")
        poll_until(lambda: board.topic_named("beside") is None, "a place is free")
        make(home, "other", "another")

    with pytest.raises(GroupIllegal, match="topic meant was deleted"):
        reset_amid(home, "meaner", "meant", "end", delete_and_make_others)
    assert places(home, "meaner").keys() <= {"meant"}


def test_a_topic_that_is_made_again_amid_a_reset_is_set_to_nothing_of_old(home: Path) -> None:
    consume(home, "anew", "remade")

    def plan(*_: object) -> dict[int, int]:
        delete(home, "remade")
        make(home, "remade")
        return {0: 0}

    with pytest.raises(GroupIllegal, match="holds 1 to 1, not 0"):
        reset_offsets(home, "anew", "remade", plan, PATIENCE_S)


@mends("S261")
def test_a_place_that_went_away_amid_a_reset_is_looked_for_again(home: Path) -> None:
    """As retention moves the begin; who gave a number means that one."""
    consume(home, "mover-on", "moved")
    delete(home, "moved")
    make(home, "moved")
    plans = [{0: 0}, {0: 1}]
    reset_offsets(home, "mover-on", "moved", lambda *_: plans.pop(0), PATIENCE_S)
    assert not plans
    assert places(home, "mover-on") == {"moved": 1}
    with pytest.raises(GroupIllegal, match="holds 1 to 1, not 0"):
        reset_offsets(home, "mover-on", "moved", lambda *_: {0: 0}, PATIENCE_S)
    with pytest.raises(GroupIllegal, match="holds 1 to 1, not 2"):
        reset_offsets(home, "mover-on", "moved", lambda *_: {0: 2}, PATIENCE_S)
