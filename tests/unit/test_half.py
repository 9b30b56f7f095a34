"""Halves of transactions as the writer makes them, against a real RocketMQ's and the rules."""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from gantrymq.brokerd.producers import Producers, identified
from gantrymq.brokerd.resume import learn_from_log
from gantrymq.clients.subscription import parse_subscription
from gantrymq.shm import layout, limits
from gantrymq.shm.codes import EntryFlag, ParkMode, Status
from gantrymq.shm.errors import GroupIllegal
from gantrymq.shm.kernels import frames, ring, scan
from gantrymq.shm.properties import (
    GIVEN_UP_TOPIC,
    HALF_TOPIC,
    NOTES_TOPIC,
    OP_TOPIC,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    encode_properties,
    java_hash,
)
from tests.support.golden import DATA
from tests.support.handed import HandMadeLog
from tests.unit.test_park import NOW_MS, Parking, machine

HALF = (ParkMode.HALF, 0)
TX = "0123456789abcdef" * 2
BLOCK = encode_properties({"TRAN_MSG": "true", "PGROUP": "pay", "GANTRY_TX": f"{TX},1"})
ADDED = ["__transactionId__", "REAL_TOPIC", "REAL_QID", "__CRC32#"]


@pytest.fixture
def parking(tmp_path: Path) -> Iterator[Parking]:
    made = machine(tmp_path / "store", ("orders", 4), (HALF_TOPIC, 1))
    yield made
    made.close()


def test_a_half_byte_by_byte(parking: Parking) -> None:
    """TX-3, TX-4: properties in their order, the queue of the half topic, no bits of sysFlag."""
    user = encode_properties({"KEYS": "k1 k2", "region": "eu"})
    parking.put(parking.route("orders", "paid"), HALF, b"body", BLOCK + user, 3)
    (answer,) = parking.settle()
    (record,) = parking.records()
    unique = f"{bytes(range(10)).hex().upper()}{1:012X}"
    expected = (
        encode_properties({"UNIQ_KEY": unique, "TAGS": "paid"}) + BLOCK + user
        + encode_properties(
            {"__transactionId__": unique, "REAL_TOPIC": "orders", "REAL_QID": "3"}
        )
    )  # fmt: skip
    assert record.properties[: -limits.TRAILER_BYTES] == expected
    assert (record.topic, record.queue_id, record.queue_offset) == (HALF_TOPIC, 0, 0)
    assert (record.sys_flag, record.flag, record.prepared_transaction_offset) == (0, 7, 0)
    assert (record.born_timestamp, record.store_timestamp) == (NOW_MS, NOW_MS)
    assert (record.body, record.reconsume_times) == (b"body", 0)
    assert (answer["status"], answer["queue"]) == (Status.OK, 3), "TX-4"
    assert (answer["offset"], answer["position"]) == (0, record.physical_offset)
    (unit,) = parking.units(HALF_TOPIC, 0)
    assert unit["tags_code"] == java_hash("paid")
    assert (unit["physical_offset"], unit["size"]) == (0, record.total_size)


def test_queues_are_chosen_in_turn_at_parking(parking: Parking) -> None:
    route = parking.route("orders")
    for _ in range(5):
        parking.put(route, HALF, extra=BLOCK)
    assert [answer["queue"] for answer in parking.settle()] == [0, 1, 2, 3, 0]
    real = [record.property_map()["REAL_QID"] for record in parking.records()]
    assert real == ["0", "1", "2", "3", "0"]
    assert [record.queue_offset for record in parking.records()] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("more", [{"GANTRY_TX_DELAY": "level:3"}, {"GANTRY_TX_DELAY": "at:7"},
                                  {"CHECK_IMMUNITY_TIME_IN_SECONDS": "60"},
                                  {"GANTRY_TX_DELAY": "after:9",
                                   "CHECK_IMMUNITY_TIME_IN_SECONDS": "60"}])  # fmt: skip
def test_what_a_half_may_carry_besides(parking: Parking, more: dict[str, str]) -> None:
    parking.put(parking.route("orders"), HALF, extra=BLOCK + encode_properties(more | {"k": "v"}))
    (answer,) = parking.settle()
    assert answer["status"] == Status.OK
    found = parking.records()[0].property_map()
    names = ["UNIQ_KEY", "TRAN_MSG", "PGROUP", "GANTRY_TX", *more, "k", *ADDED]
    assert list(found) == names
    assert {name: found[name] for name in more} == more


def illegal_blocks() -> Iterator[bytes]:
    parts = {"TRAN_MSG": "true", "PGROUP": "pay", "GANTRY_TX": f"{TX},1"}
    yield b""
    yield b"k\x01v\x02"
    yield b"k\x01v\x02" + BLOCK
    yield BLOCK[:-1]
    for name, value in parts.items():
        yield encode_properties({key: parts[key] for key in parts if key != name})
        yield BLOCK + encode_properties({name: value})
        yield BLOCK.replace(f"{name}\x01{value}".encode(), f"{name}\x01".encode())
    yield BLOCK.replace(b"true", b"false")
    yield BLOCK.replace(b"pay", b"p" * 256)
    yield BLOCK.replace(b",1", b"," + b"1" * 40)
    yield BLOCK.replace(b"pay", b"p\x01y")
    yield encode_properties({"PGROUP": "pay", "TRAN_MSG": "true", "GANTRY_TX": f"{TX},1"})
    for name in ("DELAY", "TIMER_DELAY_MS", "REAL_TOPIC", "__transactionId__", "UNIQ_KEY",
                 "TRANSACTION_CHECK_TIMES", "TRAN_PREPARED_QUEUE_OFFSET"):  # fmt: skip
        yield BLOCK + encode_properties({name: "1"})


def test_what_a_half_may_not_carry(parking: Parking) -> None:
    """SF-30, LW-47; properties of a transaction only in a half, and only in their place."""
    route = parking.route("orders")
    blocks = list(illegal_blocks())
    for block in blocks:
        parking.put(route, HALF, extra=block)
    parking.put(route, (0, 0), extra=BLOCK)
    parking.put(route, (ParkMode.LEVEL, 1), extra=BLOCK)
    parking.put(route, (ParkMode.HALF, 1), extra=BLOCK)
    statuses = [answer["status"] for answer in parking.settle()]
    assert statuses == [Status.ILLEGAL_PROPERTIES] * (len(blocks) + 2) + [Status.ILLEGAL_DELAY]
    assert parking.records() == []


def test_the_real_topic_is_judged_before_parking(tmp_path: Path) -> None:
    """TX-5; and a broker without the half topic refuses."""
    made = machine(tmp_path / "store", ("orders", 2), (HALF_TOPIC, 1))
    route = made.route("orders")
    made.put(route, HALF, extra=BLOCK, queue=2)
    made.put(5, HALF, extra=BLOCK)
    made.put(made.route(HALF_TOPIC), HALF, extra=BLOCK)
    assert [answer["status"] for answer in made.settle()] == [
        Status.UNKNOWN_QUEUE, Status.UNKNOWN_ROUTE, Status.OK,
    ]  # fmt: skip
    made.close()
    bare = machine(tmp_path / "bare", ("orders", 2))
    bare.put(bare.route("orders"), HALF, extra=BLOCK)
    assert [answer["status"] for answer in bare.settle()] == [Status.UNKNOWN_ROUTE]
    bare.close()


def test_the_longest_half_fits(tmp_path: Path) -> None:
    """SF-18: what parking adds counts."""
    made = machine(tmp_path / "store", ("orders", 1), (HALF_TOPIC, 1))
    added = encode_properties(
        {"__transactionId__": "0" * 32, "REAL_TOPIC": "orders", "REAL_QID": "0"}
    )
    free = limits.PROPERTIES_BYTES_MAX - limits.UNIQ_KEY_PROPERTY_BYTES - limits.TRAILER_BYTES
    free -= len(added) + len(BLOCK)
    route = made.route("orders")
    for size in (free, free + 1):
        made.put(route, HALF, extra=BLOCK + b"k\x01" + b"v" * (size - 3) + b"\x02")
    statuses = [answer["status"] for answer in made.settle()]
    assert statuses == [Status.OK, Status.ILLEGAL_PROPERTIES]
    made.close()


def test_a_half_sent_again_is_answered_from_the_log(parking: Parking) -> None:
    """P2, P6: DUPLICATE with its place, and with the queue that was chosen for it."""
    route = parking.route("orders")
    for due in (HALF, HALF, (0, 0), HALF):
        parking.put(route, due, extra=BLOCK if due is HALF else b"")
    told = parking.settle()
    assert [answer["queue"] for answer in told] == [0, 1, 2, 3]
    # The writer has died before it told anybody: the client puts the same seqs again.
    parking.board.set_word(layout.BOARD_SETTLED, 0)
    parking.lane[frames.SEQ] = parking.lane[frames.COMPLETED] = 0
    parking.replace_writer()
    found = learn_from_log(parking.storage, parking.board, int(told[-1]["end"]))
    assert found.last_seq(bytes(range(10))) == 4
    for due in (HALF, HALF, (0, 0), HALF):
        parking.put(route, due, extra=BLOCK if due is HALF else b"")
    again = parking.settle()
    assert len(parking.records()) == 4
    assert [answer["status"] for answer in again] == [Status.DUPLICATE] * 4
    for before, answer in zip(told, again, strict=True):
        for name in ("queue", "offset", "position", "end", "ms"):
            assert answer[name] == before[name]


def test_a_commit_copy_is_not_taken_for_its_half() -> None:
    """It has the half's UNIQ_KEY and a position that may be 0 (TX-15)."""
    log = HandMadeLog()
    unique = f"{bytes(range(10)).hex().upper()}{1:012X}"
    half = log.add(HALF_TOPIC, {"UNIQ_KEY": unique, "REAL_QID": "3"})
    for topic in ("orders", "rmq_sys_wheel_timer"):
        log.add(
            topic, {"UNIQ_KEY": unique}, sys_flag=layout.SYS_COMMIT,
            prepared_transaction_offset=half,
        )  # fmt: skip
    view = np.frombuffer(bytes(log.data), np.uint8)
    rows = np.zeros(8 * scan.ROW_WORDS, np.int64)
    form = np.array([0, 0, 0, 0, 0, 0], np.int64)
    scan.scan_log(view, form, rows)
    assert form[5] == 3
    table = rows[: 3 * scan.ROW_WORDS].reshape(-1, scan.ROW_WORDS)
    sent = identified(view, table)
    assert (table[sent.rows, scan.AT].tolist(), sent.seqs.tolist()) == ([half], [1])
    producers = Producers()
    producers.learn(view, table, 0, 0)
    _known, stored = producers.unanswered.of(bytes(range(10)))
    places = [frames.STORED_SEQ, frames.STORED_QUEUE, frames.STORED_POSITION]
    assert stored[places].tolist() == [1, 3, half]


@pytest.mark.parametrize("name", ["tx", "tx-533"])
def test_a_half_as_a_real_rocketmq_parks(tmp_path: Path, name: str) -> None:
    """TX-3, TX-6: the same message has the same topic, queue, offset, bits and properties."""
    with lzma.open(DATA / f"{name}.dump.jsonl.xz", "rt") as lines:
        rows = [json.loads(line) for line in lines]
    halves = [row for row in rows if row["kind"] == "record" and row["topic"] == HALF_TOPIC]
    halves = [row for row in halves if "TRANSACTION_CHECK_TIMES" not in row["properties"]]
    assert len(halves) > 10
    real = {row["properties"]["REAL_TOPIC"] for row in halves}
    made = machine(tmp_path / "store", *((topic, 16) for topic in real), (HALF_TOPIC, 1))
    for row in halves:
        theirs = row["properties"]
        wanted = {key: theirs[key] for key in ("TRAN_MSG", "PGROUP")} | {"GANTRY_TX": f"{TX},1"}
        if "CHECK_IMMUNITY_TIME_IN_SECONDS" in theirs:
            name = "CHECK_IMMUNITY_TIME_IN_SECONDS"
            wanted[name] = theirs[name]
        user = {k: v for k, v in theirs.items() if k == "KEYS" or k not in limits.RESERVED_KEYS}
        route = made.route(theirs["REAL_TOPIC"], theirs.get("TAGS"))
        block = encode_properties(wanted | user)
        made.put(route, HALF, b"body", block, int(theirs["REAL_QID"]))
    assert {answer["status"] for answer in made.settle()} == {Status.OK}
    for row, record in zip(halves, made.records(), strict=True):
        theirs, ours = row["properties"], record.property_map()
        assert (record.topic, record.queue_id) == (row["topic"], row["queueId"])
        assert record.sys_flag & layout.SYS_TRANSACTION == row["sysFlag"] & layout.SYS_TRANSACTION
        assert record.prepared_transaction_offset == row["preparedTransactionOffset"]
        assert theirs["__transactionId__"] == theirs["UNIQ_KEY"]
        assert ours["__transactionId__"] == ours["UNIQ_KEY"]
        brokers_own = {"UNIQ_KEY", "__transactionId__", "MSG_REGION", "CLUSTER", "WAIT", "TRACE_ON"}
        for key, value in theirs.items():
            if key not in brokers_own:
                assert ours.get(key) == value, key
    made.close()


def test_flags_of_a_half(parking: Parking) -> None:
    """It is alone, never in a batch."""
    form = np.array(
        [EntryFlag.RECEIPT | EntryFlag.BATCH, parking.route("orders"), -1, NOW_MS, 0, 1, *HALF],
        np.int64,
    )
    body, extra = np.frombuffer(b"b", np.uint8), np.frombuffer(BLOCK, np.uint8)
    assert ring.put(parking.session.arena, parking.lane, form, body, extra) > 0
    assert parking.settle() == []
    assert parking.records() == []


@pytest.mark.parametrize("topic", [HALF_TOPIC, OP_TOPIC, NOTES_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC])
def test_nobody_subscribes_to_what_is_not_decided_or_not_due(topic: str) -> None:
    with pytest.raises(GroupIllegal, match=topic):
        parse_subscription({"orders": "*", topic: "*"})
    assert parse_subscription([GIVEN_UP_TOPIC]).keys() == {GIVEN_UP_TOPIC}
