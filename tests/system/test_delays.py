"""Delayed messages and message groups by a real broker: every way of sending, receipts, handles."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from datetime import timedelta
from itertools import count
from typing import Any

import pytest

from gantrymq.clients import subscription
from gantrymq.clients.consumer import ConsumeFrom
from gantrymq.clients.home import store_of
from gantrymq.clients.message import Message, MessageQueue, ReceivedMessage, SendReceipt
from gantrymq.clients.producer import Producer
from gantrymq.clients.push.consumer import PushConsumer
from gantrymq.clients.push.messagemodel import MessageModel
from gantrymq.shm import jit, limits
from gantrymq.shm.errors import MessageIllegal
from gantrymq.shm.properties import SCHEDULE_TOPIC, TIMER_TOPIC, java_hash
from gantrymq.shm.record import Record
from gantrymq.temporary import Broker
from tests.support.brokers import command
from tests.support.stores import read_live_log, require_sound
from tests.support.watchdog import poll_until

PATIENCE_S = 30.0
FAR_MS = 7_230_000_000_123
NAME = "gantry-test"
TAG = "later"
_numbers = count()


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    settings = {"broker_name": NAME, "timer_precision_ms": 500}
    with Broker.temporary(**settings) as running:
        yield running
        running.stop()
        require_sound(store_of(running.home))


@pytest.fixture(scope="module")
def producer(broker: Broker) -> Iterator[Producer]:
    with Producer(home=broker.home, timeout=PATIENCE_S) as open_producer:
        yield open_producer


def records_of(broker: Broker, producer: Producer) -> dict[bytes, Record]:
    """All that is in the log, by bodies."""
    producer.flush()
    return {item.record.body: item.record for item in read_live_log(broker.home)}


Send = Callable[[Producer, bytes, dict[str, Any]], SendReceipt | None]


def _oneway(producer: Producer, body: bytes, parts: dict[str, Any]) -> None:
    for _ in range(2):  # the second finds the route of the first
        producer.send_oneway("orders", body, tag=TAG, **parts)
        body += b"-again"
    producer.flush()


def _async(producer: Producer, body: bytes, parts: dict[str, Any]) -> SendReceipt:
    first = producer.send_async("orders", body + b"-again", tag=TAG, **parts)
    second: Future[SendReceipt] = producer.send_async("orders", body, tag=TAG, **parts)
    topics = {future.result(PATIENCE_S).message_queue.topic for future in (first, second)}
    assert len(topics) == 1
    return second.result(PATIENCE_S)


WAYS: dict[str, Send] = {
    "send": lambda producer, body, parts: producer.send("orders", body, tag=TAG, **parts),
    "message": lambda producer, body, parts: producer.send(
        Message("orders", body, tag=TAG, **parts)
    ),
    "async": _async,
    "async message": lambda producer, body, parts: producer.send_async(
        Message("orders", body, tag=TAG, **parts)
    ).result(PATIENCE_S),
    "oneway": _oneway,
}
#: What is asked for, and the properties that tell of it.
DELAYS: list[tuple[dict[str, Any], dict[str, str]]] = [
    ({"delay_level": 4}, {"DELAY": "4"}),
    ({"delay_level": 1000}, {"DELAY": "18"}),
    ({"delivery_timestamp": FAR_MS}, {"TIMER_DELIVER_MS": str(FAR_MS)}),
    ({"delivery_timestamp": limits.DELIVER_MS_MAX}, {"TIMER_DELIVER_MS": "253402300799999"}),
    ({"delay": 3600}, {"TIMER_DELAY_MS": "3600000"}),
    ({"delay": 3600.0015}, {"TIMER_DELAY_MS": "3600002"}),
    ({"delay": timedelta(days=1, microseconds=1500)}, {"TIMER_DELAY_MS": "86400002"}),
]


@pytest.mark.parametrize("way", WAYS)
def test_every_way_of_sending_parks(broker: Broker, producer: Producer, way: str) -> None:
    """DT-10, DT-11, DT-33, DT-35, DT-70: the record, and what the receipt says of it."""
    bodies = [f"{way}-{next(_numbers)}".encode() for _ in DELAYS]
    receipts = [
        WAYS[way](producer, body, parts)
        for body, (parts, _told) in zip(bodies, DELAYS, strict=True)
    ]
    records = records_of(broker, producer)
    for body, receipt, (_parts, told) in zip(bodies, receipts, DELAYS, strict=True):
        record = records[body]
        found = record.property_map()
        assert record.topic == (SCHEDULE_TOPIC if "DELAY" in told else TIMER_TOPIC)
        assert (found["REAL_TOPIC"], found["TAGS"]) == ("orders", TAG)
        assert 0 <= int(found["REAL_QID"]) < 4
        assert {name: found.get(name) for name in told} == told
        if receipt is not None:
            check_receipt(receipt, record)


def check_receipt(receipt: SendReceipt, record: Record) -> None:
    """It says where the record is, and how it is recalled."""
    found = record.property_map()
    place = MessageQueue(record.topic, record.queue_id)
    assert (receipt.message_queue, receipt.queue_offset) == (place, record.queue_offset)
    assert receipt.message_id == found["UNIQ_KEY"]
    if record.topic != TIMER_TOPIC:
        assert receipt.recall_handle is None
        return
    handle = base64.urlsafe_b64decode(receipt.recall_handle or "").decode()
    out_ms = int(found["TIMER_OUT_MS"])
    assert out_ms % 500 == 0
    assert handle == f"v1 orders {NAME} {out_ms + 1} {receipt.message_id}"


@pytest.mark.parametrize("way", WAYS)
def test_what_is_due_is_delivered_at_once(broker: Broker, producer: Producer, way: str) -> None:
    """DT-31."""
    due: list[dict[str, Any]] = [
        {"delay": 0}, {"delay": 0.0}, {"delivery_timestamp": 0}, {"delay": timedelta(0)}
    ]  # fmt: skip
    bodies = [f"due-{way}-{next(_numbers)}".encode() for _ in due]
    receipts = [WAYS[way](producer, body, parts) for body, parts in zip(bodies, due, strict=True)]
    records = records_of(broker, producer)
    for body, receipt in zip(bodies, receipts, strict=True):
        record = records[body]
        assert record.topic == "orders"
        assert record.property_map().keys() == {"UNIQ_KEY", "TAGS", "__CRC32#"}
        if receipt is not None:
            check_receipt(receipt, record)


def test_delays_by_name_go_natively(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Python's way once a route is known: else the park rate is a tenth."""
    with Producer(home=broker.home, timeout=PATIENCE_S) as sender:
        for tag in (None, TAG):
            named: dict[str, Any] = {"tag": tag} if tag else {}
            sender.send_oneway("orders", b"first", **named)
        sender.send("orders", b"first")  # receipts have a page from then on
        python = [0]

        def count_python(*arguments: Any, **_parts: Any) -> int:  # noqa: ANN401
            python[0] += 1
            return submit(*arguments)

        submit = sender._sends.submit
        monkeypatch.setattr(sender._sends, "submit", count_python)
        calls = 0
        for _given, parts in ((0, parts) for parts, _told in DELAYS):
            if not isinstance(parts.get("delay"), timedelta):
                sender.send_oneway("orders", b"native", tag=TAG, **parts)
                sender.send_oneway("orders", b"native", **parts)
                sender.send_async("orders", b"native", **parts, tag=TAG).result(PATIENCE_S)
                calls += 3
        assert python[0] == (calls if jit.JIT_OFF else 0)
        with pytest.raises(MessageIllegal):
            sender.send_oneway("orders", b"bad", delay=-1, tag=TAG)
        with pytest.raises(MessageIllegal):
            sender.send_oneway("orders", b"bad", delay=1, delay_level=1)


def test_a_batch_has_no_delays(producer: Producer) -> None:
    """DT-1: nothing of it is stored, and the member is named."""
    body = b"in a batch"
    plain = Message("orders", body)
    delays: list[dict[str, Any]] = [{"delay": 1}, {"delay_level": 1}, {"delivery_timestamp": 1}]
    for parts in delays:
        late = Message("orders", body, **parts)
        for send in (producer.send_batch, producer.send_batch_async):
            with pytest.raises(MessageIllegal, match=f"number 2 has {next(iter(parts))}"):
                send([plain, plain, late])
            with pytest.raises(MessageIllegal, match=f"number 0 has {next(iter(parts))}"):
                send("orders", [body, body], **parts)


def test_a_message_group_has_one_queue(broker: Broker, producer: Producer) -> None:
    """The queue of RocketMQ's SelectMessageQueueByHash; by every way, delayed ones too."""
    groups = [f"customer-{number}" for number in range(20)] + [
        "\u00fc\U0001f600",
        "polygenelubricants",
    ]
    for group in groups:
        queue_id = abs(java_hash(group)) % 4
        parts: dict[str, Any] = {"message_group": group}
        receipts = [
            producer.send("orders", b"g", **parts),
            producer.send(Message("orders", b"g", **parts)),
            producer.send_async("orders", b"g", tag=TAG, **parts).result(PATIENCE_S),
            *producer.send_batch([Message("orders", b"g", **parts) for _ in range(2)]),
            *producer.send_batch("orders", [b"g", b"g"], **parts),
        ]
        assert {receipt.message_queue for receipt in receipts} == {MessageQueue("orders", queue_id)}
    assert {abs(java_hash(group)) % 4 for group in groups} == {0, 1, 2, 3}
    body = f"group-{next(_numbers)}".encode()
    producer.send("orders", body, message_group=groups[0], delay=3600)
    found = records_of(broker, producer)[body].property_map()
    assert found["__SHARDINGKEY"] == groups[0]
    assert int(found["REAL_QID"]) == abs(java_hash(groups[0])) % 4


def test_a_batch_has_one_message_group(producer: Producer) -> None:
    """RD-61: all its messages go to one queue."""
    mixed = [Message("orders", b"g", message_group=group) for group in ("a", "b")]
    with pytest.raises(MessageIllegal, match="message_group"):
        producer.send_batch(mixed)


def test_consumers_see_a_group_and_no_properties_of_the_brokers(
    broker: Broker, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LW-36: RocketMQ shows REAL_TOPIC, DELAY and TIMER_*; the stored record has them."""
    monkeypatch.setattr(subscription, "HIDDEN_TOPICS", frozenset())  # to see what waits, too
    body = f"seen-{next(_numbers)}".encode()
    parts: dict[str, Any] = {"message_group": "g1", "keys": ["k1"], "properties": {"region": "eu"}}
    producer.send("orders", body, tag="seen", delay=3600, **parts)
    producer.send("orders", body, tag="seen", delay_level=18, **parts)
    producer.send("orders", body, tag="seen", **parts)
    topics = ["orders", SCHEDULE_TOPIC, TIMER_TOPIC]
    seen: dict[str, ReceivedMessage] = {}

    def see(message: ReceivedMessage) -> None:
        if message.body == body:
            seen[message.topic] = message

    with PushConsumer(
        "seen", topics, see, home=broker.home, consume_from=ConsumeFrom.FIRST_OFFSET,
        model=MessageModel.BROADCASTING,
    ):  # fmt: skip
        poll_until(lambda: len(seen) == len(topics), "one of each has been seen")
    records = [item.record for item in read_live_log(broker.home)]
    stored = {record.topic: record.property_map() for record in records if record.body == body}
    assert seen.keys() == set(topics)
    for topic, message in seen.items():
        assert message.properties == {"region": "eu"}
        assert (message.message_group, message.tag, message.keys) == ("g1", "seen", ("k1",))
        assert message.delivery_attempt == 1
        assert (topic == "orders") != ("REAL_TOPIC" in stored[topic])


def test_topic_list_leaves_them_out(broker: Broker, producer: Producer) -> None:
    """They are there from the start, as RocketMQ has them, but not for users to see."""
    producer.send("orders", b"any")

    def listed(*options: str) -> dict[str, dict[str, Any]]:
        done = command("topic", "list", "--json", *options, "--home", broker.home)
        assert done.returncode == 0, done
        return {row["topic"]: row for row in map(json.loads, done.stdout.splitlines())}

    assert not listed().keys() & {SCHEDULE_TOPIC, TIMER_TOPIC}
    every = listed("--system")
    assert every[SCHEDULE_TOPIC]["queues"] == 18
    assert every[TIMER_TOPIC]["queues"] == 1
