"""Batches in all their forms: one native call or laid out in Python, waited for or in flight."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from gantrymq.clients import batchsends
from gantrymq.clients.consumer import PullConsumer
from gantrymq.clients.fastcall import FastPut
from gantrymq.clients.message import NO_PROPERTIES, Message, SendReceipt
from gantrymq.clients.producer import Producer
from gantrymq.clients.receipts import PAGE_ROWS
from gantrymq.shm import layout, limits
from gantrymq.shm.errors import Closed, MessageIllegal
from gantrymq.shm.kernels import fastput
from gantrymq.shm.messageid import parse_offset_message_id
from gantrymq.temporary import Broker
from tests.support.trials import mends
from tests.system.test_send import FIRST, PATIENCE_S, stored


@pytest.fixture
def producer(broker: Broker) -> Iterator[Producer]:
    with Producer(home=broker.home, timeout=PATIENCE_S) as open_producer:
        yield open_producer


@mends("S38")
def test_a_batch_that_no_ring_holds_is_refused_by_name(producer: Producer, topic: str) -> None:
    """Whatever makes it so large; the producer goes on."""
    body, properties = bytes(1 << 20), {"note": "n" * 30_000}
    for batch in ([Message(topic, body)] * 17, [Message(topic, b"", properties=properties)] * 600):
        with pytest.raises(MessageIllegal, match="as several batches"):
            producer.send_batch(batch)
    assert producer.send_batch([Message(topic, body)] * 2)


class _Special(Message, frozen=True, kw_only=True):
    """A message of somebody's own class."""


def _mixed(topic: str) -> list[Message]:
    """Every shape of a legal member."""
    again = "".join(list(topic))  # equal, and another object
    return [
        Message(topic, b"plain"),
        Message(topic, b"tagged", tag="a"),
        Message(topic, b"other", tag="b"),
        Message(again, b"equal topic", tag="".join(["a", ""])),
        Message(topic, b"keys", tag="a", keys=("k1", "k2")),
        Message(topic, b"properties", properties={"region": "eu"}),
        Message(topic, bytearray(b"bytearray")),
        Message(topic, memoryview(b"every other byte")[::2], tag="a"),
        Message(topic, b""),
        _Special(topic, b"special", tag="a"),
        Message(topic, b"long".ljust(70_000, b"."), tag="a"),
    ]


def _told(message: Message) -> tuple[object, ...]:
    told = {name: text for name, text in message.properties.items() if name == "region"}
    return bytes(message.body), message.tag, tuple(message.keys), told


def _side_by_side(receipts: Sequence[SendReceipt]) -> None:
    (queue,) = {receipt.message_queue for receipt in receipts}
    first = receipts[0].queue_offset
    assert [r.queue_offset for r in receipts] == list(range(first, first + len(receipts))), queue
    assert len({receipt.message_id for receipt in receipts}) == len(receipts)


def test_members_of_any_shape_are_stored_as_they_are(
    broker: Broker, producer: Producer, unique_name: str
) -> None:
    """The first time each goes the Python way; later the native put meets all of them."""
    for _ in range(3):
        _side_by_side(producer.send_batch(_mixed(unique_name)))
    for message in _mixed(unique_name):
        alone = Message(unique_name, message.body, tag=message.tag)
        _side_by_side(producer.send_batch([alone, alone]))
    wanted = [_told(message) for message in _mixed(unique_name)] * 3
    wanted += [
        (bytes(message.body), message.tag, (), {})
        for message in _mixed(unique_name)
        for _ in range(2)
    ]
    found = [_told(message) for message in stored(broker, unique_name, len(wanted))]
    assert sorted(found, key=repr) == sorted(wanted, key=repr)


def test_bodies_of_one_topic_are_a_batch(
    broker: Broker, producer: Producer, unique_name: str
) -> None:
    bodies: list[Any] = [b"%d" % n for n in range(50)]
    for _ in range(2):
        _side_by_side(producer.send_batch(unique_name, bodies))
        _side_by_side(producer.send_batch(unique_name, bodies, tag="x"))
    _side_by_side(producer.send_batch(unique_name, (body for body in bodies), tag="x"))
    _side_by_side(producer.send_batch(unique_name, [*bodies, bytearray(b"array")], tag="x"))
    receipts = producer.send_batch(unique_name, bodies, tag="y", keys=["k"], queue_id=2)
    assert {receipt.message_queue.queue_id for receipt in receipts} == {2}
    found = [_told(message) for message in stored(broker, unique_name, 351)]
    wanted: list[tuple[object, ...]] = [(body, None, (), {}) for body in bodies + bodies]
    wanted += [(body, "x", (), {}) for body in bodies] * 4 + [(b"array", "x", (), {})]
    wanted += [(body, "y", ("k",), {}) for body in bodies]
    assert sorted(found, key=repr) == sorted(wanted, key=repr)
    assert producer.send_batch(unique_name, []) == []


@pytest.mark.parametrize(
    "wrong",
    [
        lambda send, topic: send(topic),
        lambda send, topic: send([Message(topic, b"a")], [b"b"]),
        lambda send, topic: send([Message(topic, b"a")], tag="x"),
        lambda send, topic: send(topic, b"bytes"),
        lambda send, topic: send(topic, [b"a", "text"]),
        lambda send, topic: send(topic, [b"a"], tag=" x"),
    ],
)
def test_what_is_no_batch_is_refused(
    producer: Producer, unique_name: str, wrong: Callable[..., object]
) -> None:
    producer.send_batch(unique_name, [b"first"])
    for send in (producer.send_batch, producer.send_batch_async):
        with pytest.raises(MessageIllegal):
            wrong(send, unique_name)
    (receipt,) = producer.send_batch(unique_name, [b"second"], queue_id=0)
    assert receipt.queue_offset <= 1, "nothing of what was refused is there"


def test_known_topics_and_tags_are_not_laid_out_in_python(
    producer: Producer, unique_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = [Message(unique_name, b"%d" % n, tag="abc"[n % 3]) for n in range(100)]
    producer.send_batch(messages)
    producer.send_batch(unique_name, [b"x"])

    def refuse(*_: object) -> None:
        raise AssertionError("laid out in Python")

    monkeypatch.setattr(batchsends, "lay_out", refuse)
    _side_by_side(producer.send_batch(messages))
    _side_by_side(producer.send_batch(tuple(messages), durability="durable"))
    _side_by_side(producer.send_batch(unique_name, [b"x", b"y"]))
    with pytest.raises(AssertionError, match="laid out"):
        producer.send_batch([*messages, Message(unique_name, b"keys", keys=("k",))])


def test_many_batches_in_flight(broker: Broker, producer: Producer, unique_name: str) -> None:
    """More than the rings hold: puts wait for room, and receipts come in order."""
    batches = [[b"%d-%d" % (number, n) for n in range(60)] for number in range(400)]
    futures = [producer.send_batch_async(unique_name, bodies, tag="x") for bodies in batches]
    done, _ = wait(futures[:50], timeout=PATIENCE_S)
    assert len(done) == 50
    for future in futures:
        _side_by_side(future.result(PATIENCE_S))
    by_place = {
        (message.queue_id, message.queue_offset): bytes(message.body)
        for message in stored(broker, unique_name, 400 * 60)
    }
    for bodies, future in zip(batches, futures, strict=True):
        places = [(r.message_queue.queue_id, r.queue_offset) for r in future.result()]
        assert [by_place[place] for place in places] == bodies


def test_each_receipt_tells_the_place_of_its_record(
    broker: Broker, producer: Producer, unique_name: str
) -> None:
    """One completion stands for a batch: places follow from the sizes of its records."""
    batches = [[b"x" * (7 * n % 300 + n) for n in range(count)] for count in (1, 2, 3, 50, 600)]
    receipts = [
        receipt
        for bodies in batches
        for future in [producer.send_batch_async(unique_name, bodies, tag="x") for _ in range(3)]
        for receipt in future.result(PATIENCE_S)
    ]
    wanted = {
        (receipt.message_queue.queue_id, receipt.queue_offset): (
            parse_offset_message_id(receipt.offset_msg_id)[1],
            receipt.message_id,
        )
        for receipt in receipts
    }
    found: dict[tuple[int, int], tuple[int, str | None]] = {}
    with PullConsumer("g-" + unique_name, [unique_name], home=broker.home, consume_from=FIRST) as c:
        while len(found) < len(receipts):
            batch = c.poll(timeout=PATIENCE_S)
            assert len(batch), f"{len(found)} of {len(receipts)} came"
            for message, position in zip(batch, batch.positions.tolist(), strict=True):
                assert message.queue_id is not None
                assert message.queue_offset is not None
                found[message.queue_id, message.queue_offset] = position, message.message_id
    assert found == wanted


def test_completions_of_batches_wrap_around_their_ring(
    producer: Producer, unique_name: str
) -> None:
    """Of several sizes, until the ring that they come through was filled more than twice."""
    bytes_each = layout.BATCH_COMPLETION_BYTES + 8
    batches = 2 * limits.WRITER_DOWN_BYTES // bytes_each + 500
    members = [[b"x"] * count for count in (2, 3, 2, 17, 2, 5, 1)]
    futures = [
        producer.send_batch_async(unique_name, members[number % len(members)])
        for number in range(batches)
    ]
    for number, future in enumerate(futures):
        receipts = future.result(PATIENCE_S)
        assert len(receipts) == len(members[number % len(members)])
        _side_by_side([receipts[0], receipts[-1]] if len(receipts) == 2 else receipts[:1])
    last = [future.result()[-1].message_id for future in futures]
    assert last == sorted(last), "seqs rise"
    assert len(set(last)) == batches


def test_a_future_tells_of_a_refusal(producer: Producer, unique_name: str) -> None:
    good = producer.send_batch_async(unique_name, [b"a", b"b"])
    bad = producer.send_batch_async(unique_name, [b"a", b"b"], queue_id=99)
    told: list[BaseException | None] = []
    bad.add_done_callback(lambda future: told.append(future.exception()))
    with pytest.raises(MessageIllegal, match="no such queue"):
        bad.result(PATIENCE_S)
    assert len(good.result(PATIENCE_S)) == 2
    wait([bad], timeout=PATIENCE_S)
    assert [type(error) for error in told] == [MessageIllegal]


@mends("A12.4")
def test_a_batch_without_messages_is_stored_at_once(producer: Producer, topic: str) -> None:
    told: list[object] = []
    for future in (producer.send_batch_async([]), producer.send_batch_async(topic, [])):
        future.add_done_callback(told.append)
        assert future.done()
        assert future.result(0) == []
        assert future.exception(0) is None
        assert told.pop() is future
    assert producer.send_batch([]) == producer.send_batch(topic, []) == []
    producer.close()
    for send in (producer.send_batch, producer.send_batch_async):
        with pytest.raises(Closed):
            send([])


def test_receipts_of_a_batch_over_several_pages(producer: Producer, unique_name: str) -> None:
    """Receipts are looked up long after other sends have taken their pages out of use."""
    producer.send_batch_async(unique_name, [b"before"] * (PAGE_ROWS - 10))
    receipts = producer.send_batch(unique_name, [b"x"] * (PAGE_ROWS + 50))
    for _ in range(4):
        producer.send_batch_async(unique_name, [b"after"] * PAGE_ROWS)
    producer.flush()
    assert len(receipts) == PAGE_ROWS + 50
    _side_by_side(receipts)
    assert [r.message_id for r in receipts[-20:]] == [r.message_id for r in receipts][-20:]


def test_threads_share_a_producer(broker: Broker, producer: Producer, unique_name: str) -> None:
    def send(thread: int) -> None:
        for number in range(20):
            bodies = [b"%d-%d-%d" % (thread, number, n) for n in range(30)]
            _side_by_side(producer.send_batch(unique_name, bodies, tag="x"))
            producer.send_oneway(unique_name, b"between", tag="x")

    with ThreadPoolExecutor(4) as threads:
        for outcome in [threads.submit(send, thread) for thread in range(4)]:
            outcome.result(PATIENCE_S)
    assert len(stored(broker, unique_name, 4 * 20 * 31)) == 4 * 20 * 31


def test_a_closed_producer_takes_no_batch(broker: Broker, unique_name: str) -> None:
    with Producer(home=broker.home, timeout=PATIENCE_S) as producer:
        producer.send_batch(unique_name, [b"a"])
    for send in (producer.send_batch, producer.send_batch_async):
        with pytest.raises(Closed):
            send(unique_name, [b"b"])


def test_a_batch_of_known_parts_is_one_native_call(
    producer: Producer, unique_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Put and future alike; what waits for the disk does so by its call or its producer."""
    messages = [Message(unique_name, b"%d" % n, tag="x") for n in range(10)]
    for _ in range(3):  # the first one teaches the route, and turns to a page
        producer.send_batch(messages)
        producer.send_batch(unique_name, [b"x"])

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("Python's way")

    monkeypatch.setattr(batchsends, "Wished", refuse)
    assert {r.durability for r in producer.send_batch_async(messages).result()} == {"written"}
    _side_by_side(producer.send_batch(unique_name, [b"x", b"y"]))
    waiting = producer.send_batch_async(unique_name, [b"x", b"y"], tag="x", durability="durable")
    assert {receipt.durability for receipt in waiting.result(PATIENCE_S)} == {"durable"}
    assert {r.durability for r in producer.send_batch(messages, durability="durable")} == {
        "durable"
    }
    for unusual in (tuple(messages), [*messages, Message(unique_name, b"", queue_id=1)]):
        with pytest.raises(AssertionError, match="Python's way"):
            producer.send_batch_async(unusual)


@dataclass(frozen=True)
class _InADictionary:
    """What the native put cannot read: its parts are not in the object itself."""

    topic: object
    body: object
    tag: object
    keys: object
    properties: object
    queue_id: object
    message_group: object
    delivery_timestamp: object
    delay: object
    delay_level: object


def test_where_messages_keep_their_parts_is_seen_or_not_believed() -> None:
    def nothing(*_: object, **__: object) -> None: ...

    fast = FastPut(nothing, nothing, nothing, nothing, nothing)  # type: ignore[arg-type]
    fast.know_messages(_InADictionary, NO_PROPERTIES)
    assert fast.state[fastput.MESSAGE] == 0
    fast.know_messages(Message, NO_PROPERTIES)
    assert fast.state[fastput.MESSAGE] == id(Message)
    words = [*range(fastput.AT_CLASS, fastput.AT_QUEUE + 1)]
    words += range(fastput.AT_GROUP, fastput.AT_DELAY_LEVEL + 1)
    places = fast.state[words]
    assert len(np.unique(places)) == len(places)
