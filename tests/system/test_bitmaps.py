"""Consumers pass over records by bits of their filters, and get just what they get without."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from gantrymq.brokerd.verify import verify
from gantrymq.clients.consumer import PullConsumer
from gantrymq.clients.control import look_at
from gantrymq.clients.home import store_of
from gantrymq.clients.message import Message
from gantrymq.clients.producer import Producer
from gantrymq.clients.push.consumer import PushConsumer
from gantrymq.clients.subscription import FilterExpression, FilterType
from gantrymq.shm import layout, wire
from gantrymq.shm.bitmapnote import read_covered
from gantrymq.shm.kernels import fetch
from gantrymq.shm.storage import PosixStorage
from gantrymq.temporary import Broker
from tests.support.brokers import ServingBroker, command
from tests.support.push import FIRST, PATIENCE_S, Seen
from tests.support.small_stores import flip
from tests.support.trials import mends
from tests.support.watchdog import poll_until

#: Small files of extensions: of 240 each.
BITMAPS = {
    "enable_consume_queue_ext": True,
    "enable_calc_filter_bit_map": True,
    "mapped_file_size_consume_queue_ext": 8192,
}
COUNT = 2000
RARE = FilterExpression("price = 7", FilterType.SQL92)
PASSING = [number for number in range(COUNT) if number % 100 == 7]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker.temporary(**BITMAPS) as running:
        yield running


def make(home: Path, topic: str) -> None:
    with look_at(home) as control:
        control.request(wire.CreateTopic(topic, 1, "written"), wire.TopicOpened)


def fill(home: Path, topic: str) -> None:
    with Producer(home=home) as producer:
        for start in range(0, COUNT, 500):
            numbers = range(start, start + 500)
            producer.send_batch([message(topic, number) for number in numbers])


def message(topic: str, number: int) -> Message:
    properties = {"price": str(number % 100)}
    return Message(topic, b"%d" % number, tag=f"t{number % 50}", properties=properties)


def starts(home: Path, group: str) -> list[int]:
    """Log position from which on the group's filter has its bits, once there is one."""
    return [c.start for c in read_covered(PosixStorage(str(store_of(home)))) if c.group == group]


def known(home: Path, topic: str, group: str, wanted: FilterExpression = RARE) -> None:
    """Let a member join, and wait until all messages there have its bits."""
    with PullConsumer(group, {topic: wanted}, home=home, consume_from=FIRST):
        poll_until(lambda: starts(home, group) == [0], "the reader has made the bits", PATIENCE_S)


def consume(
    home: Path, topic: str, group: str, wanted: FilterExpression, count: int = COUNT
) -> tuple[list[int], int]:
    """What comes of `count` messages, and how many records were looked at."""
    found: list[int] = []
    judged = 0
    with PullConsumer(group, {topic: wanted}, home=home, consume_from=FIRST) as consumer:
        (queue,) = consumer.assignment()
        consumer.seek(queue, "begin")
        while (before := consumer.position(queue)) < count:
            found += [int(bytes(body)) for body in consumer.poll(timeout=0.0).bodies]
            if consumer.position(queue) > before:
                judged += int(consumer._live()._fetcher._form[fetch.JUDGED])
    return found, judged


def test_records_that_a_filter_is_not_true_of_are_not_read(
    broker: Broker, unique_name: str
) -> None:
    """FL-64, FL-65: of a group that was there first, of one that came late, of tags."""
    home, topic = broker.home, unique_name
    make(home, topic)
    with PullConsumer("first-" + topic, {topic: RARE}, home=home, consume_from=FIRST):
        poll_until(lambda: bool(starts(home, "first-" + topic)), "the reader knows the filter")
        fill(home, topic)
        poll_until(lambda: starts(home, "first-" + topic) == [0], "what lay before has its bits")
    found, judged = consume(home, topic, "first-" + topic, RARE)
    assert found == PASSING
    assert judged <= 2 * len(PASSING)
    late = FilterExpression("price < 3 OR price = 50", FilterType.SQL92)
    passing = [n for n in range(COUNT) if n % 100 < 3 or n % 100 == 50]
    known(home, topic, "late-" + topic, late)
    found, judged = consume(home, topic, "late-" + topic, late)
    assert found == passing
    assert judged <= 2 * (len(passing) + len(PASSING))
    found, judged = consume(home, topic, "tags-" + topic, FilterExpression("t7 || t9"))
    assert found == [n for n in range(COUNT) if n % 50 in (7, 9)]
    assert judged < len(found) + 10, "the tag code is in the extension"
    seen = Seen()
    with PushConsumer("push-" + topic, {topic: late}, seen, home=home, consume_from=FIRST):
        seen.wait_for(len(passing))
    assert sorted(seen.bodies) == passing


@mends("S276")
def test_a_kill_of_the_broker_takes_no_message_from_a_filter(tmp_path: Path) -> None:
    """Extensions go on behind those of the last units, and the store verifies."""
    with ServingBroker(tmp_path, **BITMAPS) as broker:
        broker.wait_until_ready()
        make(tmp_path, "orders")
        known(tmp_path, "orders", "billing")
        fill(tmp_path, "orders")
        epoch = broker.board.epoch
        broker.kill_all()
        broker.again().wait_until_ready(epoch)
        fill(tmp_path, "orders")
        found, judged = consume(tmp_path, "orders", "billing", RARE, 2 * COUNT)
        assert found == PASSING * 2
        assert judged <= 3 * len(PASSING)
        broker.stop()
        report = verify(store_of(tmp_path))
        assert report.ok, str(report)
        assert report.units == 2 * COUNT
        shutil.rmtree(store_of(tmp_path) / "consumequeue_ext")
        broker.again().wait_until_ready(epoch)
        fill(tmp_path, "orders")
        found, _judged = consume(tmp_path, "orders", "billing", RARE, 3 * COUNT)
        assert found == PASSING * 3, "no address comes twice"
        broker.stop()
        assert len(verify(store_of(tmp_path)).findings) > 1, "extensions are missing"
        assert command("store", "rebuild", store_of(tmp_path)).returncode == 0
        assert verify(store_of(tmp_path)).ok


def test_a_flipped_bit_of_an_extension_is_found() -> None:
    with Broker.temporary(**BITMAPS) as broker:
        make(broker.home, "orders")
        fill(broker.home, "orders")
        broker.stop()
        assert verify(store_of(broker.home)).ok
        path = sorted((store_of(broker.home) / "consumequeue_ext/orders/0").iterdir())[0]
        flip(path, layout.CQ_EXT_TAGS + 7)
        (finding,) = verify(store_of(broker.home)).findings
        assert "extension" in finding.what


@mends("S253")
@pytest.mark.parametrize("again", [False, True])
def test_what_a_deleted_topic_hides_needs_no_bits(*, again: bool) -> None:
    """A filter that is met later gets bits of what can be consumed; verify asks for no others."""
    with Broker.temporary(**BITMAPS) as broker, look_at(broker.home) as control:
        make(broker.home, "orders")
        fill(broker.home, "orders")
        if not again:
            known(broker.home, "orders", "billing")
        control.request(wire.DeleteTopic("orders"), wire.Done)
        if again:
            make(broker.home, "orders")
            known(broker.home, "orders", "billing")
            fill(broker.home, "orders")
            found, _judged = consume(broker.home, "orders", "billing", RARE, 2 * COUNT)
            assert found == PASSING
        assert verify(store_of(broker.home)).ok
        broker.stop()
        assert verify(store_of(broker.home)).ok
        if again:
            zero_bits(broker.home, "orders", COUNT + 7)
            (finding,) = verify(store_of(broker.home)).findings
            assert "bits of group billing" in finding.what


def zero_bits(home: Path, topic: str, offset: int) -> None:
    """Take all bits of a message's extension away."""
    unit = layout.CQ_UNIT_BYTES * offset
    queue = (store_of(home) / f"consumequeue/{topic}/0/{0:020d}").read_bytes()
    address = layout.CQ_UNIT.unpack(queue, unit)["tags_code"] - layout.CQ_EXT_ADDRESS_BASE
    base = address // 8192 * 8192
    path = store_of(home) / f"consumequeue_ext/{topic}/0/{base:020d}"
    data = bytearray(path.read_bytes())
    size = layout.CQ_EXT_UNIT.unpack(data, address - base)["bitmap_bytes"]
    at = address - base + layout.CQ_EXT_BITMAP
    data[at : at + size] = bytes(size)
    path.write_bytes(data)
