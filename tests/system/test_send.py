"""Sending to a real broker: receipts, their order, all-or-nothing batches, and refusals."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from gantrymq.clients.consumer import ConsumeFrom, PullConsumer
from gantrymq.clients.home import read_board_file
from gantrymq.clients.message import Message, SendReceipt
from gantrymq.clients.producer import Producer
from gantrymq.shm import layout
from gantrymq.shm.board import Board, attach_board
from gantrymq.shm.codes import Role
from gantrymq.shm.errors import Closed, MessageIllegal
from gantrymq.shm.messageid import parse_offset_message_id
from gantrymq.temporary import Broker
from tests.support.stores import read_log
from tests.support.watchdog import poll_until

FIRST = ConsumeFrom.FIRST_OFFSET
PATIENCE_S = 30.0
BIG = bytes(range(256)) * 4096 * 3  # 3 MiB: larger than the ring that a producer starts with


@pytest.fixture
def producer(broker: Broker) -> Iterator[Producer]:
    with Producer(home=broker.home, timeout=PATIENCE_S) as open_producer:
        yield open_producer


def board_of(broker: Broker) -> Board:
    return attach_board(read_board_file(broker.home)["board"])


def stored(broker: Broker, topic: str, count: int) -> list[Message]:
    """All messages of a topic, as a consumer sees them."""
    found: list[Message] = []
    with PullConsumer("g-" + topic, [topic], home=broker.home, consume_from=FIRST) as consumer:
        while len(found) < count:
            batch = consumer.poll(timeout=PATIENCE_S)
            assert len(batch), f"{len(found)} of {count} came"
            found += [batch[index] for index in range(len(batch))]
        assert len(consumer.poll(timeout=0)) == 0
    return found


def queue_offsets(receipts: Iterable[SendReceipt]) -> dict[int, list[int]]:
    """Queue offsets by queue id, in order of sending."""
    found: dict[int, list[int]] = {}
    for receipt in receipts:
        found.setdefault(receipt.message_queue.queue_id, []).append(receipt.queue_offset)
    return found


def test_receipts_are_dense_per_queue_and_positions_rise(
    producer: Producer, unique_name: str
) -> None:
    receipts = [producer.send(unique_name, b"%d" % n, tag="x") for n in range(40)]
    futures = [producer.send_async(unique_name, b"%d" % n, tag="x") for n in range(40, 400)]
    receipts += [future.result(PATIENCE_S) for future in futures]

    found = queue_offsets(receipts)
    assert len(found) == 4
    assert all(offsets == list(range(len(offsets))) for offsets in found.values())
    assert {len(offsets) for offsets in found.values()} == {100}, "queues are taken in turn"
    positions = [parse_offset_message_id(receipt.offset_msg_id)[1] for receipt in receipts]
    assert all(earlier < later for earlier, later in pairwise(positions))
    assert len({receipt.message_id for receipt in receipts}) == 400


def test_all_ways_of_sending_arrive_and_are_counted(
    broker: Broker, producer: Producer, unique_name: str
) -> None:
    before = board_of(broker).process(Role.WRITER)
    producer.send(unique_name, b"sync")
    futures = [producer.send_async(unique_name, b"async %d" % n, tag="a") for n in range(100)]
    producer.send_batch([Message(unique_name, b"batch %d" % n) for n in range(50)])
    for n in range(1000):
        producer.send_oneway(unique_name, b"oneway %d" % n, tag="o")
    producer.flush()
    with pytest.raises(MessageIllegal, match="no such queue"):
        producer.send(unique_name, b"nowhere", queue_id=99)

    assert all(future.done() for future in futures), "a flush waits for everything before it"
    wanted = [b"sync"] + [b"async %d" % n for n in range(100)]
    wanted += [b"batch %d" % n for n in range(50)] + [b"oneway %d" % n for n in range(1000)]
    assert sorted(bytes(m.body) for m in stored(broker, unique_name, 1151)) == sorted(wanted)

    def counted() -> tuple[int, int]:
        now = board_of(broker).process(Role.WRITER)
        return now["work"] - before["work"], now["refused"] - before["refused"]

    poll_until(lambda: counted() == (1151, 1), "the writer has counted 1151 records, 1 refused")


def test_a_batch_lies_side_by_side_in_one_queue(producer: Producer, unique_name: str) -> None:
    producer.send(unique_name, b"before")
    receipts = producer.send_batch(
        [Message(unique_name, b"%d" % n, tag=f"t{n % 3}") for n in range(100)]
    )
    (offsets,) = queue_offsets(receipts).values()
    assert offsets == list(range(offsets[0], offsets[0] + 100))
    assert producer.send_batch([]) == []


def test_a_batch_with_an_illegal_member_stores_nothing(
    broker: Broker, producer: Producer, unique_name: str
) -> None:
    """The client checks what it can; the broker refuses a whole batch for one member (SF-21)."""
    with pytest.raises(MessageIllegal, match="one topic"):
        producer.send_batch([Message(unique_name, b"a"), Message(unique_name + "-2", b"b")])
    with pytest.raises(MessageIllegal, match="belongs to the broker"):
        producer.send_batch(
            [Message(unique_name, b"a"), Message(unique_name, b"b", properties={"TAGS": "x"})]
        )
    with pytest.raises(MessageIllegal, match="no such queue"):
        producer.send_batch([Message(unique_name, b"%d" % n, queue_id=99) for n in range(3)])
    assert producer.send(unique_name, b"after").queue_offset == 0
    assert [bytes(message.body) for message in stored(broker, unique_name, 1)] == [b"after"]


def test_a_message_larger_than_the_ring_is_stored_whole(
    broker: Broker, producer: Producer, unique_name: str
) -> None:
    small = producer.send(unique_name, b"small", queue_id=1)
    big = producer.send(unique_name, BIG, tag="big", queue_id=1)
    after = producer.send_async(unique_name, b"after", queue_id=1).result(PATIENCE_S)
    assert [r.queue_offset for r in (small, big, after)] == [0, 1, 2]
    assert [bytes(m.body) for m in stored(broker, unique_name, 3)] == [b"small", BIG, b"after"]
    assert big.message_id[:20] == small.message_id[:20], "the producer keeps its identity"


def test_a_durable_receipt_means_synced(
    broker: Broker, producer: Producer, unique_name: str
) -> None:
    board = board_of(broker)
    for n in range(3):
        receipt = producer.send(unique_name, b"%d" % n, durability="durable")
        _host, position = parse_offset_message_id(receipt.offset_msg_id)
        assert receipt.durability == "durable"
        assert board.word(layout.BOARD_DURABLE) > position
    assert producer.send(unique_name, b"3").durability == "written"


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview])
def test_any_buffer_is_a_body_and_is_taken_when_sent(
    broker: Broker, producer: Producer, unique_name: str, wrap: type
) -> None:
    source = bytearray(b"some bytes")
    body = wrap(source)
    producer.send_oneway(unique_name, body, queue_id=0)
    future = producer.send_async(unique_name, body, queue_id=0)
    source[:4] = b"XXXX"
    assert future.result(PATIENCE_S).queue_offset == 1
    producer.send(unique_name, b"", queue_id=0)
    found = [bytes(message.body) for message in stored(broker, unique_name, 3)]
    assert found == [b"some bytes", b"some bytes", b""]


def test_tag_keys_and_properties_come_back(
    broker: Broker, producer: Producer, unique_name: str
) -> None:
    plain = producer.send(unique_name, b"plain", queue_id=2)
    rich = producer.send(
        Message(
            unique_name,
            b"rich",
            tag="paid",
            keys=("k1", "k2"),
            properties={"größe": "三"},
            queue_id=2,
        )
    )
    first, second = stored(broker, unique_name, 2)
    assert (first.tag, first.keys, dict(first.properties)) == (None, (), {})
    assert (second.tag, second.keys, dict(second.properties)) == (
        "paid", ("k1", "k2"), {"größe": "三"},
    )  # fmt: skip
    assert [first.message_id, second.message_id] == [plain.message_id, rich.message_id]


def test_there_may_be_a_tag_for_each_customer(
    broker: Broker, producer: Producer, unique_name: str
) -> None:
    """Tags that find no place among those that are known go with each message; topics keep theirs.

    Also untagged sends, and other topics, afterwards.
    """
    other = f"{unique_name}-other"
    for number in range(1500):
        producer.send_oneway(unique_name, b"x", tag=f"customer-{number}")
    producer.send(unique_name, b"y")
    producer.send(other, b"z", tag="customer-1499")
    tags: set[str | None] = set()
    with PullConsumer("g", [unique_name], home=broker.home, consume_from=FIRST) as consumer:
        while len(tags) < 1501:
            tags.update(message.tag for message in consumer.poll(timeout=PATIENCE_S))
    assert tags == {None, *(f"customer-{number}" for number in range(1500))}


@pytest.mark.parametrize(
    ("parts", "rule"),
    [
        ({"properties": {"UNIQ_KEY": "x"}}, "belongs to the broker"),
        ({"properties": {"KEYS": "x"}}, "belongs to the broker"),
        ({"properties": {"a\x01b": "x"}}, "separates properties"),
        ({"properties": {"a": ""}}, "lost on reading"),
        ({"keys": "one text"}, "sequence"),
        ({"keys": ("a b",)}, "blanks"),
        ({"tag": " x"}, "tag"),
        ({"tag": "a||b"}, "tag"),
        ({"properties": {"a": "x" * 40_000}}, "allowed"),
    ],
)
def test_what_no_consumer_could_read_is_refused(
    producer: Producer, unique_name: str, parts: dict[str, Any], rule: str
) -> None:
    with pytest.raises(MessageIllegal, match=rule):
        producer.send(unique_name, b"body", **parts)
    with pytest.raises(MessageIllegal, match=rule):
        producer.send_async(unique_name, b"body", **parts)
    assert producer.send(unique_name, b"next", queue_id=0).queue_offset == 0


def test_bodies_and_topics_that_are_none(producer: Producer, unique_name: str) -> None:
    for body in (None, "text", 3):
        with pytest.raises(MessageIllegal, match="body"):
            producer.send(unique_name, body)  # type: ignore[call-overload]
    with pytest.raises(MessageIllegal, match="allowed"):
        producer.send(unique_name, bytes((4 << 20) + 1))
    with pytest.raises(MessageIllegal, match="letters, digits"):
        producer.send("no topic", b"body")
    with pytest.raises(MessageIllegal, match="'written' or 'durable'"):
        producer.send(unique_name, b"body", durability="often")  # type: ignore[call-overload]


def test_a_oneway_refusal_is_told_by_the_next_flush(producer: Producer, unique_name: str) -> None:
    producer.send_oneway(unique_name, b"body", queue_id=99)
    with pytest.raises(MessageIllegal, match="refused"):
        producer.flush()
    producer.flush()


def test_a_closed_producer_says_so(broker: Broker, unique_name: str) -> None:
    with Producer(home=broker.home) as producer:
        future = producer.send_async(unique_name, b"body")
    assert future.result(PATIENCE_S).queue_offset == 0
    with pytest.raises(Closed):
        producer.send_oneway(unique_name, b"body")
    producer.close()


def test_a_record_has_our_properties_in_their_order_and_no_others() -> None:
    """ADR 0005: by every way of sending; SF-22's trailer is last, hosts are this one."""
    parts: dict[str, Any] = {
        "tag": "paid",
        "keys": ["k1", "k2"],
        "properties": {"b": "1", "a": "2"},
    }
    with Broker.temporary(broker_port=12345) as own:
        with Producer(home=own.home, timeout=PATIENCE_S) as sender:
            sender.send("t", b"sync", **parts)
            sender.send_async("t", b"async", **parts)
            sender.send_oneway("t", b"oneway", **parts)
            sender.send_batch([Message("t", b"batch", **parts)])
            sender.send("t", b"bare")
            sender.flush()
        own.stop()
        records = read_log(Path(own.home) / "store")
    assert len(records) == 5
    for item in records:
        given = b"" if item.record.body == b"bare" else _GIVEN
        text = b"UNIQ_KEY\x01" + item.message_id.encode() + b"\x02" + given
        assert item.record.properties.startswith(text)
        trailer = item.record.properties[len(text) :]
        assert trailer.startswith(layout.TRAILER_KEY)
        assert len(trailer) == layout.TRAILER.size
        assert item.record.born_host == bytes([127, 0, 0, 1, 0, 0, 0, 0])
        assert item.record.store_host == bytes([127, 0, 0, 1]) + (12345).to_bytes(4, "big")


_GIVEN = b"TAGS\x01paid\x02KEYS\x01k1 k2\x02b\x011\x02a\x012\x02"
