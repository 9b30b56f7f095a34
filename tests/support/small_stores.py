"""Stores of small files by a real broker, for tests that look at files afterwards."""

from __future__ import annotations

import shutil
from pathlib import Path

from gantrymq import Broker, ConsumeFrom, Message, Producer, PullConsumer
from gantrymq.clients.control import look_at
from gantrymq.clients.subscription import FilterExpression, FilterType
from gantrymq.shm import wire
from gantrymq.shm.bitmapnote import read_covered
from gantrymq.shm.storage import PosixStorage
from tests.support.watchdog import poll_until

SEGMENT_BYTES = 64 * 1024
QUEUE_FILE_BYTES = 1000
INDEX_SLOTS = 100
INDEX_ENTRIES = 700
RECORDS = 900


def send(broker: Broker, count: int = RECORDS) -> None:
    """Messages to three topics, all to queue 0, tags and keys among them."""
    with Producer(broker.home) as producer:
        for number in range(count):
            topic = ("orders", "audit", "other")[number % 3]
            body, tag = b"%06d" % number * 40, f"t{number % 5}"
            producer.send_oneway(Message(topic, body, tag=tag, keys=(f"k{number}",), queue_id=0))
        producer.flush()


def filtered_store(target: Path) -> Path:
    """A stopped store with bits of a filter that was there first."""
    wanted = FilterExpression("price < 30", FilterType.SQL92)
    bitmaps = {"enable_consume_queue_ext": True, "enable_calc_filter_bit_map": True}
    with small_broker(mapped_file_size_consume_queue_ext=8192, **bitmaps) as broker:
        store = PosixStorage(str(broker.home / "store"))
        with (
            PullConsumer("cheap", {"orders": wanted}, home=broker.home),
            Producer(broker.home) as producer,
        ):
            poll_until(lambda: bool(read_covered(store)), "the reader knows the filter")
            for number in range(600):
                price = {"price": str(number % 100)}
                producer.send_oneway(Message("orders", b"x", properties=price, queue_id=0))
            producer.flush()
        broker.stop()
        return Path(shutil.copytree(store.root, target))


def small_broker(**more: int) -> Broker:
    """A temporary broker with many files."""
    return Broker.temporary(
        mapped_file_size_commit_log=SEGMENT_BYTES,
        mapped_file_size_consume_queue=QUEUE_FILE_BYTES,
        max_hash_slot_num=INDEX_SLOTS,
        max_index_num=INDEX_ENTRIES,
        **more,
    )


def flip(path: Path, position: int, bits: int = 0x10) -> None:
    """Change bits of one byte."""
    data = bytearray(path.read_bytes())
    data[position] ^= bits
    path.write_bytes(data)


def write_settings(home: Path) -> None:
    """What the store does not say of itself: a start, or a rebuild, makes such index files."""
    text = f"max_hash_slot_num = {INDEX_SLOTS}\nmax_index_num = {INDEX_ENTRIES}\n"
    (home / "gantrymq.toml").write_text(text)


def plain_store(target: Path) -> Path:
    """The stopped store of a broker that got `send`."""
    with small_broker() as broker:
        send(broker)
        broker.stop()
        return Path(shutil.copytree(broker.home / "store", target))


def varied_store(target: Path) -> Path:
    """A stopped store with every kind of file that a broker of ours makes; two lives of it."""
    with small_broker() as broker:
        send(broker)
        with look_at(broker.home) as control:
            control.request(wire.CreateTopic("gone", 2, "durable"), wire.Frame)
            control.request(wire.CreateTopic("unused", 3, "durable"), wire.Frame)
        with Producer(broker.home) as producer:
            for number in range(10):
                producer.send("gone", b"%d" % number)
        with look_at(broker.home) as control:
            control.request(wire.DeleteTopic("gone"), wire.Frame)
        for group in ("early", "late"):
            with PullConsumer(
                group, ["orders", "audit"], home=broker.home, consume_from=ConsumeFrom.FIRST_OFFSET
            ) as consumer:
                consumer.poll(100, timeout=30.0)
                consumer.commit()
        broker.stop()
        broker.start()
        send(broker, 30)
        broker.stop()
        return Path(shutil.copytree(broker.home / "store", target))
