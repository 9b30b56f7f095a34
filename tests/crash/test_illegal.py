"""Messages and names that break a rule: at the client, and from a client that checks nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from gantrymq.clients.home import store_of
from gantrymq.clients.message import Message
from gantrymq.clients.producer import Producer
from gantrymq.shm import limits
from gantrymq.shm.codes import EntryFlag, EntryKind, ParkMode, Status
from gantrymq.shm.errors import MessageIllegal, Rejected, TopicNotFound
from gantrymq.shm.properties import HALF_TOPIC, NOTES_TOPIC, OP_TOPIC
from gantrymq.temporary import Broker
from tests.crash.conftest import SMALL
from tests.support.adversary import Hand
from tests.support.agents import restarts_of, wait_until_shown
from tests.support.stores import require_sound
from tests.support.watchdog import PATIENCE_S, poll_until

BODY_MAX = 3000


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker.temporary(**(SMALL | {"max_message_size": BODY_MAX})) as broker:
        yield broker
        wait_until_shown(broker.home)
        assert set(restarts_of(broker.home).values()) == {0}
        broker.stop()
        bodies = {item.record.body for item in require_sound(store_of(broker.home))}
        assert not [body for body in bodies if body.startswith(b"bad")]


@pytest.fixture(scope="module")
def producer(broker: Broker) -> Iterator[Producer]:
    with Producer(broker.home, timeout=PATIENCE_S) as producer:
        yield producer


SEPARATORS = ("\x00", "\x01", "\x02")
PARTS: list[dict[str, Any]] = [
    *({"properties": {f"a{sign}b": "c"}} for sign in SEPARATORS),
    *({"properties": {"a": f"b{sign}c"}} for sign in SEPARATORS),
    *({"tag": f"a{sign}b"} for sign in SEPARATORS),
    *({"keys": [f"a{sign}b"]} for sign in SEPARATORS),
    *({"properties": {name: "1"}} for name in sorted(limits.RESERVED_KEYS)),
    {"properties": {"": "value"}},
    {"properties": {"name": ""}},
    {"properties": {"name": 7}},
    {"properties": {"name": "\ud800"}},
    {"properties": {"name": "x" * limits.PROPERTIES_BYTES_MAX}},
    {"keys": ["two words"]},
    {"keys": "text"},
    {"keys": [""]},
    {"tag": ""},
    {"tag": " blank"},
    {"tag": "a||b"},
    *({"delay": delay} for delay in (-1, -0.001, math.nan, math.inf, 1e13, 10**13, "5", True)),
    {"delay": timedelta(seconds=-1)},
    {"delay": timedelta.min},
    {"delay": timedelta.max},
    *({"delivery_timestamp": at} for at in (-1, 1.5e12, limits.DELIVER_MS_MAX + 1, "1", True)),
    *({"delay_level": level} for level in (0, -1, 1.0, "3", True)),
    {"delay": 1, "delay_level": 1},
    {"delay": 1.5, "delivery_timestamp": 1},
    {"delivery_timestamp": 1, "delay_level": 1},
    {"message_group": ""},
    {"message_group": 7},
    {"message_group": "a\x01b"},
    {"message_group": "a", "queue_id": 0},
    {"queue_id": 1000},
    {"queue_id": -7},
]


def oneway(producer: Producer, **parts: Any) -> None:  # noqa: ANN401
    """What the writer refuses is raised by the next flush."""
    producer.send_oneway("orders", b"bad", **parts)
    producer.flush()


@pytest.mark.parametrize("parts", PARTS, ids=lambda parts: ascii(parts)[:40])
def test_what_a_client_refuses(producer: Producer, parts: dict[str, Any]) -> None:
    """SF-18, SF-27, SF-28, SF-30, FL-1: by every way of sending, and the producer goes on."""
    with pytest.raises(MessageIllegal):
        producer.send("orders", b"bad", **parts)
    with pytest.raises(MessageIllegal):
        producer.send_batch([Message("orders", b"bad"), Message("orders", b"bad", **parts)])
    with pytest.raises(MessageIllegal):
        producer.send_async("orders", b"bad", **parts).result(PATIENCE_S)
    with pytest.raises(MessageIllegal):
        oneway(producer, **parts)
    assert producer.send("orders", b"good").queue_offset >= 0


@pytest.mark.parametrize(
    "topic",
    [
        "",
        "a b",
        "a/b",
        "../x",
        "ä",
        "a\x01b",
        "t" * 128,
        "%RETRY%" + "g" * 249,
        "%DLQ%" + "g" * 251,
    ],
)
def test_names_of_topics(producer: Producer, topic: str) -> None:
    """SF-35, SF-36, CQ-100."""
    with pytest.raises(MessageIllegal):
        producer.send(topic, b"bad")


def test_topics_of_a_group_that_is_not_there(producer: Producer) -> None:
    """RD-11, RD-30: a retry topic is made by its group's consumers."""
    for topic in ("%RETRY%nobody", "%DLQ%nobody"):
        with pytest.raises(TopicNotFound, match="there is no group nobody"):
            producer.send(topic, b"bad")
        with pytest.raises(TopicNotFound, match="there is no group nobody"):
            producer.send(topic, b"bad", delay=1)


@pytest.mark.parametrize("body", ["text", 7, None, [b"bad"]])
def test_a_body_is_bytes(producer: Producer, body: object) -> None:
    with pytest.raises(MessageIllegal):
        producer.send("orders", body)  # type: ignore[call-overload]


@pytest.mark.parametrize("size", [BODY_MAX + 1, 1 << 20, limits.BODY_BYTES_MAX + 1])
def test_a_body_that_is_too_long(producer: Producer, size: int) -> None:
    """SF-18: by the setting, the segment's room, the format's limit; the longest is stored."""
    with pytest.raises(MessageIllegal):
        producer.send("orders", b"bad".ljust(size, b"."))
    assert producer.send("orders", b"longest".ljust(BODY_MAX, b".")).queue_offset >= 0


LONG = b"k\x01" + b"v" * limits.PROPERTIES_BYTES_MAX + b"\x02"
EXTRAS = (
    *(b"k", b"k\x01", b"k\x01v", b"\x01v\x02", b"k\x01\x02", b"k\x02", b"\x02", b"\x00"),
    *(b"k\x01v\x02tail", b"k\x01a\x01b\x02", b"k\x00\x01v\x02", LONG),
)
#: Keys that would make a message another one: half, delayed, of another id, checked by another sum.
RESERVED = tuple(sorted(limits.RESERVED_KEYS - limits.CLIENTS_KEYS))
ROUTES = (1, 2, 3, 4, limits.ROUTES_MAX - 1, limits.ROUTES_MAX, 0xFFFFFFFF)


#: Mode and value of delays that no client of ours sends.
DELAYS = (
    *((mode, 1) for mode in (0, ParkMode.HALF, 5, 1 << 31)),
    *((ParkMode.LEVEL, level) for level in (0, -1, -(1 << 63))),
    *((ParkMode.AT, at) for at in (-1, limits.DELIVER_MS_MAX + 1, (1 << 63) - 1, -(1 << 63))),
    *((ParkMode.AFTER, ms) for ms in (-1, limits.DELIVER_MS_MAX, (1 << 63) - 1, -(1 << 63))),
)


def illegal_entries(hand: Hand) -> Iterator[tuple[bytes, Status]]:
    """Entries that only a client without checks sends, and the answer of each."""
    for extra in EXTRAS:
        yield hand.entry(b"bad", extra), Status.ILLEGAL_PROPERTIES
    yield hand.entry(b"bad".ljust(BODY_MAX + 1, b".")), Status.ILLEGAL_SIZE
    hand.set_route(1, hand.topic, ready=0)
    hand.set_route(2, 63)
    hand.set_route(3, 0xFFFFFFFF)
    hand.set_route(4, hand.topic, b"no property")
    for route in ROUTES:
        yield hand.entry(b"bad", route=route), Status.UNKNOWN_ROUTE
    for queue in (4, 1000, (1 << 31) - 1):
        yield hand.entry(b"bad", queue=queue), Status.UNKNOWN_QUEUE
    for mode, value in DELAYS:
        yield hand.parked(b"bad", mode, value), Status.ILLEGAL_DELAY
    yield hand.parked(b"bad", ParkMode.LEVEL, 1, route=3), Status.UNKNOWN_ROUTE
    yield hand.parked(b"bad", ParkMode.LEVEL, 1, queue=4), Status.UNKNOWN_QUEUE


@pytest.mark.parametrize("before", [b"", b"a\x01b\x02", b"TAGS\x01t\x02KEYS\x01k\x02"])
def test_the_brokers_own_properties_are_refused_by_the_writer(
    broker: Broker, unique_name: str, before: bytes
) -> None:
    """SF-30, P12: inline or in a route, behind whatever stands in front."""
    hand = Hand(broker.home)
    wanted = []
    for number, key in enumerate(RESERVED, start=1):
        block = before + key.encode() + b"\x01x\x02"
        hand.set_route(number, hand.topic, block)
        inline, routed = hand.entry(b"bad", block), hand.entry(b"bad", route=number)
        hand.put(inline, routed, hand.entry(unique_name.encode(), before))
        wanted += [Status.ILLEGAL_PROPERTIES, Status.UNKNOWN_ROUTE, Status.OK]
        longer = before + key.encode() + b"_\x01x\x02" + key.lower().encode() + b"s\x01x\x02"
        hand.put(hand.entry(unique_name.encode(), longer))
        wanted += [Status.OK]
    poll_until(lambda: hand.taken, "all is taken")
    assert hand.statuses() == wanted
    hand.close()


def test_what_the_writer_refuses(broker: Broker, unique_name: str) -> None:
    """P12: each is answered, and the good entry behind it is stored."""
    hand = Hand(broker.home)
    wanted = []
    for entry, status in illegal_entries(hand):
        hand.put(entry, hand.entry(unique_name.encode()))
        wanted += [status, Status.OK]
    poll_until(lambda: hand.taken, "all is taken")
    assert hand.statuses() == wanted
    assert not hand.evicted
    hand.close()


def test_a_refusal_stays_one_when_the_writer_dies_before_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start_broker: Callable[..., Broker]
) -> None:
    """What is in the log behind it tells the new writer that it never was."""
    monkeypatch.setenv("GANTRYMQ_MARK", "writer.after_appended:1")
    monkeypatch.setenv("GANTRYMQ_MARKS_REACHED", str(tmp_path))
    hand = Hand(start_broker().home)
    hand.put(hand.entry(b"bad", b"k"), hand.entry(b"good"), hand.entry(b"bad", b"k"))
    poll_until(lambda: hand.taken, "the next writer has taken it")
    assert (tmp_path / "writer.after_appended").exists()
    assert hand.statuses() == [Status.NOT_STORED, Status.DUPLICATE, Status.ILLEGAL_PROPERTIES]
    hand.close()


def test_a_batch_with_one_illegal_member(broker: Broker) -> None:
    """All or none: the culprit is told why, the others that they share its fate (SF-21)."""
    hand = Hand(broker.home)
    flags = int(EntryFlag.BATCH | EntryFlag.RECEIPT)
    for culprit in range(3):
        extras = [b"k" if index == culprit else b"" for index in range(3)]
        hand.put(
            *(hand.entry(b"bad", extra, flags=flags, batch=3 - n) for n, extra in enumerate(extras))
        )
    poll_until(lambda: hand.taken, "all is taken")
    fate = [Status.BATCH_REFUSED] * 9
    for culprit in range(3):
        fate[4 * culprit] = Status.ILLEGAL_PROPERTIES
    assert hand.statuses() == fate
    hand.close()


def test_a_client_may_not_append_as_an_agent_does(broker: Broker) -> None:
    """Records with all fields given are for the broker's own sessions."""
    hand = Hand(broker.home)
    hand.put(hand.entry(b"bad".ljust(208, b"."), kind=int(EntryKind.APPEND), body_bytes=0))
    poll_until(lambda: hand.evicted, "it is cut off")
    hand.close()


@pytest.mark.parametrize("fault", ["short", "long", "batch"])
def test_an_impossible_delayed_entry_ends_its_session(broker: Broker, fault: str) -> None:
    """P12: one that has no room for its extension, that is longer than it says, in a batch."""
    hand = Hand(broker.home)
    if fault == "short":
        hand.put(hand.entry(b"", kind=int(EntryKind.PARK)))
    elif fault == "long":
        hand.put(hand.parked(b"bad.....", ParkMode.LEVEL, 1, body_bytes=9))
    else:
        flags = int(EntryFlag.BATCH | EntryFlag.RECEIPT)
        hand.put(hand.parked(b"bad", ParkMode.LEVEL, 1, flags=flags, batch=1))
    poll_until(lambda: hand.evicted, "it is cut off")
    hand.close()


@pytest.mark.parametrize(
    "topic", ["SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer", HALF_TOPIC, OP_TOPIC, NOTES_TOPIC]
)
def test_system_topics_are_not_for_clients(producer: Producer, topic: str) -> None:
    """CQ-102, DT-49: the broker's own topics can't be sent to by name, nor parked for."""
    delays: list[dict[str, Any]] = [{}, {"delay_level": 1}, {"delay": 5}]
    for parts in delays:
        with pytest.raises(Rejected, match=topic):
            producer.send(topic, b"bad", **parts)
