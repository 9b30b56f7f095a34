"""`gantrymq group reset-offset` against a member at work, and `group describe` beside it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gantrymq.clients.consumer import ConsumeFrom, PullConsumer
from gantrymq.clients.message import MessageQueue
from gantrymq.clients.producer import Producer
from gantrymq.shm.errors import Evicted
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
