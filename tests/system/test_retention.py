"""Segments go under the eyes of a live broker's consumers, by the disk rule (F7, F17, F21)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from gantrymq import ConsumeFrom
from gantrymq.brokerd.verify import verify
from gantrymq.clients.consumer import PullConsumer
from gantrymq.clients.control import look_at
from gantrymq.clients.home import store_of
from gantrymq.clients.producer import Producer
from gantrymq.shm import layout, wire
from gantrymq.shm.board import Board
from gantrymq.shm.codes import ExitCode
from gantrymq.shm.errors import DiskFull
from tests.support.agents import restarts_of, wait_until_shown
from tests.support.brokers import command
from tests.support.faulty_broker import FaultyBroker, fault
from tests.support.trials import mends
from tests.support.watchdog import poll_until

SEGMENT = 1 << 16
SMALL = {
    "mapped_file_size_commit_log": SEGMENT, "mapped_file_size_consume_queue": 2000,
    "default_topic_queue_nums": 1, "log_level": "info",
    "max_hash_slot_num": 100, "max_index_num": 100,
}  # fmt: skip
COUNT = 2000


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[FaultyBroker]:
    with FaultyBroker(tmp_path / "home", **SMALL) as one:
        yield one.wait_until_ready()


def bodies_of(consumer: PullConsumer, last: bytes) -> list[bytes]:
    """All that it gets up to a body."""
    found: list[bytes] = []

    def is_there() -> bool:
        found.extend(bytes(m.body) for m in consumer.poll(max_messages=100, timeout=0.2))
        return last in found

    poll_until(is_there, f"{last!r} is read")
    return found


def first_offset(board: Board) -> int:
    """Of the only queue."""
    topic = board.topic_named("orders")
    assert topic is not None
    return board.word(board.queue_at(topic.queue_base) + layout.QUEUE_MIN_OFFSET)


def test_consumers_of_removed_segments_go_on_behind_them(broker: FaultyBroker) -> None:
    """SF-100, SF-102: no error, no gap behind the log's begin, losses are named, and it verifies.

    Above the warning level sends are refused and reading goes on; below it all is as before.
    """
    board, home = broker.board, broker.home
    sent = [b"%06d" % number + bytes(200) for number in range(COUNT)]
    first = ConsumeFrom.FIRST_OFFSET
    with (
        Producer(home) as producer,
        PullConsumer("slow", ["orders"], home=home, consume_from=first) as slow,
    ):
        for start in range(0, COUNT, 100):
            producer.send_batch("orders", sent[start : start + 100])
        wait_until_shown(home)
        assert [bytes(m.body) for m in slow.poll(max_messages=5, timeout=20)] == sent[:5]
        slow.commit()
        broker.fail(fault("used", 86, ""))
        poll_until(lambda: board.word(layout.BOARD_LOW) >= 2 * SEGMENT, "segments go")
        broker.fail(fault("used", 95, ""))
        poll_until(lambda: board.half(layout.BOARD_DISK_FULL), "the disk is full")
        poll_until(lambda: is_refused(producer), "sends are refused")
        read = bodies_of(slow, sent[-1])
        low_offset = first_offset(board)
        # It may have got something from a segment in the very moment that this was removed.
        assert [body for body in read if body >= sent[low_offset]] == sent[low_offset:], "no gap"
        assert read == sorted(set(read)), "in order, each once"
        broker.fail(fault("used", 40, ""))
        poll_until(lambda: not is_refused(producer), "there is room again")
        low = board.word(layout.BOARD_LOW)
        segments = store_of(home) / "commitlog"
        poll_until(lambda: min(map(int, names(segments))) == low, "the files are gone")
        poll_until(lambda: not names(store_of(home) / "gantry" / "expired"), "their blocks, too")
    assert set(restarts_of(home).values()) == {0}
    code, lines = broker.stop()
    assert code == ExitCode.OK
    lost = [line for line in lines if line["event"] == "removed_while_needed"]
    assert {line["who"] for line in lost} == {"group slow"}
    assert any(line["event"] == "disk_above_warning_level" for line in lines)
    report = verify(store_of(home))
    assert report.findings == []
    assert report.log_start == low
    broker.again().wait_until_ready()
    assert broker.board.word(layout.BOARD_LOW) == low
    with PullConsumer("new", ["orders"], home=home, consume_from=first) as consumer:
        again = bodies_of(consumer, sent[-1])
    kept = [body for body in again if body in set(sent)]
    assert kept == sent[COUNT - len(kept) :]
    assert len(kept) < COUNT


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.isdigit()]


def is_refused(producer: Producer) -> bool:
    try:
        producer.send("orders", b"probe")
    except DiskFull:
        return True
    return False


@mends("S47")
def test_a_deleted_topic_leaves_at_the_first_start_after_its_messages(
    broker: FaultyBroker,
) -> None:
    """Its place is free; one that is made again begins as one that never was, kills included."""
    home = broker.home
    with Producer(home) as producer:
        for _ in range(3):
            producer.send_batch("old", [bytes(200)] * 100)
        with look_at(home) as look:
            look.request(wire.DeleteTopic("old"), wire.Done)
        for _ in range(10):
            producer.send_batch("orders", [bytes(200)] * 100)
        wait_until_shown(home)
        broker.fail(fault("used", 86, ""))
        low = broker.board.word
        poll_until(lambda: low(layout.BOARD_LOW) >= 4 * SEGMENT, "its segments go")
        broker.fail(fault("used", 40, ""))
    assert places(home)["deleted_topics"] == 1
    broker.stop()
    broker.again().wait_until_ready()
    assert places(home)["deleted_topics"] == 0
    with Producer(home) as producer:
        assert producer.send("old", b"new").queue_offset == 0
        wait_until_shown(home)
        broker.kill_all()
        broker.again().wait_until_ready()
        assert producer.send("old", b"last").queue_offset == 1
    with PullConsumer("g", ["old"], home=home, consume_from=ConsumeFrom.FIRST_OFFSET) as consumer:
        assert bodies_of(consumer, b"last") == [b"new", b"last"]
    broker.stop()
    assert verify(store_of(home)).findings == []


def places(home: Path) -> dict[str, int]:
    done = command("status", "--json", "--home", home)
    found: dict[str, int] = json.loads(done.stdout)["places"]
    return found


def is_indexed(board: Board) -> bool:
    return board.word(layout.BOARD_INDEXED) == board.word(layout.BOARD_APPENDED)
