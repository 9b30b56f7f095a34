"""Parked records as the writer makes them, against those of a real RocketMQ and the rules."""

from __future__ import annotations

import json
import lzma
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gantrymq.brokerd.config import load
from gantrymq.brokerd.flusher import Flusher
from gantrymq.brokerd.resume import learn_from_log
from gantrymq.brokerd.writer import open_writer
from gantrymq.shm import layout, limits
from gantrymq.shm.arena import plan_arena
from gantrymq.shm.codes import EntryFlag, ParkMode, Status
from gantrymq.shm.kernels import frames, ring
from gantrymq.shm.properties import (
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    encode_properties,
    parse_delay_levels,
)
from gantrymq.shm.record import Record
from gantrymq.shm.storage import PosixStorage
from gantrymq.workers.agent import Agent, Bells
from gantrymq.workers.reader.agent import Reader
from gantrymq.workers.session import Session
from tests.support.golden import DATA
from tests.support.lanes import lane_words, set_route
from tests.support.memory_sessions import MemorySessions, memory_board
from tests.support.simbell import SimBell
from tests.support.simclock import SimClock
from tests.support.stores import read_log
from tests.support.trials import mends

LEVELS = 16  # what a topic of a memory board has room for
TABLE = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 1h 2h"
NOW_MS = 1_795_250_000_123
EXPECTED_KEYS = ("DELAY", "TIMER_DELIVER_MS", "TIMER_DELAY_MS", "REAL_TOPIC", "REAL_QID")


class Parking:
    """Writer, flusher and reader over a directory, and one producer's ring."""

    def __init__(self, directory: Path, topics: dict[str, int], **settings: object) -> None:
        self.directory = directory
        self.storage, self.clock = PosixStorage(str(directory)), SimClock(NOW_MS - 1000)
        given = {
            "mapped_file_size_commit_log": 1 << 20,
            "mapped_file_size_consume_queue": 20 * 1000,
            "max_message_size": 1 << 16,
            "message_delay_level": TABLE,
        }
        self.settings = load(given=given | settings, environment={}).settings
        self.board = memory_board(topics)
        self.bells = Bells.each(SimBell)
        plan = plan_arena()
        arena = np.zeros(plan.size, np.uint8)
        self.session = Session(1, arena, plan, SimBell(), 0, bytes(range(10)))
        self.lane = lane_words(plan.writer)
        self.agents: list[Agent] = []
        openers: tuple[Callable[..., Agent], ...] = (open_writer, Flusher, Reader)
        for opener in openers:
            self.agents.append(self._open(opener))

    def _open(self, opener: Callable[..., Agent]) -> Agent:
        table = MemorySessions()
        table.attach(self.session)
        return opener(self.storage, self.clock, self.board, table, self.bells, self.settings)

    def route(self, topic: str, tag: str | None = None) -> int:
        """A route slot of the session, by now."""
        slot = next(found.slot for found in self.board.topics() if found.name == topic)
        number = getattr(self, "_routes", 0)
        self._routes = number + 1
        set_route(self.session, number, slot, encode_properties({"TAGS": tag}))
        return number

    def put(
        self, route: int, due: tuple[int, int], body: bytes = b"b", extra: bytes = b"",
        queue: int = -1,
    ) -> None:  # fmt: skip
        """One entry with a receipt."""
        form = np.array([EntryFlag.RECEIPT, route, queue, NOW_MS, 7, 0, *due], np.int64)
        parts = [np.frombuffer(part, np.uint8) for part in (body, extra)]
        assert ring.put(self.session.arena, self.lane, form, *parts) > 0

    def settle(self) -> list[dict[str, int]]:
        """Let the agents work; the answers."""
        while sum(agent.do_work(self.clock.monotonic_ns()) for agent in self.agents):
            pass
        return self.answers()

    def answers(self) -> list[dict[str, int]]:
        """Completions that were not taken yet."""
        rows = np.zeros(256 * frames.COMPLETION_WORDS, np.int64)
        count = ring.take_completions(self.session.arena, self.lane, rows)
        names = ("seq", "status", "queue", "offset", "position", "end", "ms", "flags")
        table = rows[: count * frames.COMPLETION_WORDS].reshape(-1, frames.COMPLETION_WORDS)
        return [dict(zip(names, row.tolist(), strict=True)) for row in table]

    def records(self) -> list[Record]:
        """All that is in the log."""
        return [item.record for item in read_log(self.directory)]

    def units(self, topic: str, queue: int) -> list[dict[str, int]]:
        """Units of a queue."""
        data = (self.directory / f"consumequeue/{topic}/{queue}" / f"{0:020d}").read_bytes()
        places = range(0, len(data), layout.CQ_UNIT_BYTES)
        units = (layout.CQ_UNIT.unpack(data, at) for at in places)
        return [unit for unit in units if unit["size"]]

    def replace_writer(self) -> None:
        """The writer dies, another takes the lane over."""
        self.agents[0].close()
        self.agents[0] = self._open(open_writer)

    def close(self) -> None:
        """Give the files back."""
        for agent in self.agents:
            agent.close()


def machine(directory: Path, *real: tuple[str, int], **settings: object) -> Parking:
    topics = dict(real) | {SCHEDULE_TOPIC: LEVELS, TIMER_TOPIC: 1}
    return Parking(directory, topics, **settings)


@pytest.fixture
def parking(tmp_path: Path) -> Iterator[Parking]:
    made = machine(tmp_path / "store", ("orders", 4))
    yield made
    made.close()


def rounded(time_ms: int, precision_ms: int) -> int:
    """DT-33, as the specification says it."""
    if time_ms % precision_ms == 0:
        return time_ms - precision_ms
    return time_ms // precision_ms * precision_ms


@pytest.mark.parametrize("level", [1, 3, LEVELS, LEVELS + 1, 99, (1 << 62)])
def test_a_level_waits_in_its_queue(parking: Parking, level: int) -> None:
    """DT-10, DT-11, DT-12: clamped to the highest; the unit knows when it is due."""
    parking.put(parking.route("orders", "paid"), (ParkMode.LEVEL, level), b"x", b"k\x01v\x02", 2)
    (answer,) = parking.settle()
    (record,) = parking.records()
    stored = min(level, LEVELS)
    assert answer["status"] == Status.OK
    assert (answer["queue"], answer["offset"]) == (stored - 1, 0)
    assert (record.topic, record.queue_id, record.body) == (SCHEDULE_TOPIC, stored - 1, b"x")
    assert (record.flag, record.born_timestamp) == (7, NOW_MS)
    names = list(record.property_map().items())
    assert [name for name, _ in names] == (
        ["UNIQ_KEY", "TAGS", "k", "DELAY", "REAL_TOPIC", "REAL_QID", "__CRC32#"]
    )
    assert names[3:6] == [("DELAY", str(stored)), ("REAL_TOPIC", "orders"), ("REAL_QID", "2")]
    (unit,) = parking.units(SCHEDULE_TOPIC, stored - 1)
    due_ms = record.store_timestamp + parse_delay_levels(TABLE)[stored - 1]
    assert unit["tags_code"] == due_ms, "DT-12"
    assert record.prepared_transaction_offset == 0


@pytest.mark.parametrize("precision", [100, 1000])
@pytest.mark.parametrize("after", [1, 877, 1000, 1877, 86_400_000, 10**13])
@pytest.mark.parametrize("mode", [ParkMode.AT, ParkMode.AFTER])
def test_a_time_waits_in_the_queue_of_timers(
    tmp_path: Path, mode: ParkMode, after: int, precision: int
) -> None:
    """DT-33, DT-35; the wanted millisecond stands beside RocketMQ's rounded one."""
    made = machine(tmp_path / "store", ("orders", 4), timer_precision_ms=precision)
    value = after + (NOW_MS if mode is ParkMode.AT else 0)
    made.put(made.route("orders"), (mode, value))
    (answer,) = made.settle()
    (record,) = made.records()
    assert (record.store_timestamp, record.topic, record.queue_id) == (NOW_MS, TIMER_TOPIC, 0)
    wanted = "TIMER_DELIVER_MS" if mode is ParkMode.AT else "TIMER_DELAY_MS"
    assert list(record.property_map().items())[1:-1] == [
        (wanted, str(value)),
        ("TIMER_OUT_MS", str(rounded(NOW_MS + after, precision))),
        ("REAL_TOPIC", "orders"),
        ("REAL_QID", "0"),
    ]
    assert (answer["status"], answer["ms"], answer["queue"]) == (Status.OK, NOW_MS, 0)
    made.close()


@pytest.mark.parametrize(
    "due",
    [(ParkMode.AT, 0), (ParkMode.AT, 1), (ParkMode.AT, NOW_MS), (ParkMode.AFTER, 0)],
)
def test_what_is_due_is_an_ordinary_message(parking: Parking, due: tuple[int, int]) -> None:
    """DT-31: stored at once, byte for byte what a plain send becomes but for its number."""
    route = parking.route("orders", "paid")
    parking.put(route, due, b"x" * 100, b"k\x01v\x02", 1)
    parking.put(route, (0, 0), b"x" * 100, b"k\x01v\x02", 1)
    assert [answer["status"] for answer in parking.settle()] == [Status.OK] * 2
    late, plain = parking.records()
    assert (late.topic, late.queue_id, late.queue_offset) == ("orders", 1, 0)
    assert late.total_size == plain.total_size
    mine, its = late.property_map(), plain.property_map()
    assert mine.keys() == its.keys()
    assert mine["UNIQ_KEY"][:20] == its["UNIQ_KEY"][:20]


def test_the_longest_names_and_bodies_fit(tmp_path: Path) -> None:
    """SF-18, SF-36: a retry topic's name in REAL_TOPIC, properties up to their limit."""
    longest = "%RETRY%" + "g" * 248
    made = machine(tmp_path / "store", (longest, 1))
    route = made.route(longest)
    free = limits.PROPERTIES_BYTES_MAX - limits.UNIQ_KEY_PROPERTY_BYTES - limits.TRAILER_BYTES
    added = len(f"DELAY\x011\x02REAL_TOPIC\x01{longest}\x02REAL_QID\x010\x02")
    for size in (free - added, free - added + 1):
        made.put(route, (ParkMode.LEVEL, 1), b"", b"k\x01" + b"v" * (size - 3) + b"\x02")
    answers = made.settle()
    assert [answer["status"] for answer in answers] == [Status.OK, Status.ILLEGAL_PROPERTIES]
    (record,) = made.records()
    assert record.property_map()["REAL_TOPIC"] == longest
    made.close()


def test_a_board_without_system_topics_refuses(tmp_path: Path) -> None:
    made = Parking(tmp_path / "store", {"orders": 1})
    for due in ((ParkMode.LEVEL, 1), (ParkMode.AFTER, 5000)):
        made.put(made.route("orders"), due)
    made.put(made.route("orders"), (ParkMode.AFTER, 0))
    statuses = [answer["status"] for answer in made.settle()]
    assert statuses == [Status.UNKNOWN_ROUTE, Status.UNKNOWN_ROUTE, Status.OK]
    made.close()


def test_a_parked_message_sent_again_is_answered_from_the_log(parking: Parking) -> None:
    """P2, P6: its UNIQ_KEY is in the parked record, and so is its place."""
    route = parking.route("orders")
    for due in ((ParkMode.LEVEL, 2), (ParkMode.AT, NOW_MS + 5000), (0, 0)):
        parking.put(route, due)
    told = parking.settle()
    before = parking.lane.copy()
    # The client is told nothing of it: it puts the same seqs again for the next writer.
    parking.lane[frames.SEQ] = parking.lane[frames.COMPLETED] = 0
    parking.replace_writer()
    found = learn_from_log(parking.storage, parking.board, int(told[-1]["end"]))
    assert found.last_seq(bytes(range(10))) == 3
    for due in ((ParkMode.LEVEL, 2), (ParkMode.AT, NOW_MS + 5000), (0, 0)):
        parking.put(route, due)
    again = parking.settle()
    assert len(parking.records()) == 3
    assert int(parking.lane[frames.SEQ]) == int(before[frames.SEQ])
    accepted = {Status.DUPLICATE, Status.UNKNOWN_POSITION}
    assert {answer["status"] for answer in again} <= accepted
    for first, second in zip(told, again, strict=True):
        if second["status"] == Status.DUPLICATE:
            place = ("queue", "offset", "position", "end", "ms")
            assert [first[name] for name in place] == [second[name] for name in place]


def golden_parked(name: str) -> list[dict[str, Any]]:
    """Records that a real RocketMQ has parked, of those that a client of ours can ask for."""
    with lzma.open(DATA / f"{name}.dump.jsonl.xz", "rt") as lines:
        rows = [json.loads(line) for line in lines]
    records = [row for row in rows if row["kind"] == "record"]
    parked = [row for row in records if row["topic"] in (SCHEDULE_TOPIC, TIMER_TOPIC)]
    units = {
        (row["topic"], row["queueId"], row["index"]): row["tagsCode"]
        for row in rows
        if row["kind"] == "cq"
    }
    for row in parked:
        row["tagsCode"] = units[row["topic"], row["queueId"], row["queueOffset"]]
    left_out = {"TIMER_DELAY_SEC", "TIMER_DEL_UNIQKEY", "TIMER_ROLL_TIMES"}
    return [row for row in parked if not left_out & row["properties"].keys()]


def due_of(properties: dict[str, str]) -> tuple[int, int]:
    for name, mode in (
        ("DELAY", ParkMode.LEVEL),
        ("TIMER_DELIVER_MS", ParkMode.AT),
        ("TIMER_DELAY_MS", ParkMode.AFTER),
    ):
        if name in properties:
            return mode, int(properties[name])
    raise AssertionError(properties)


@pytest.mark.parametrize("name", ["delay", "delay-533", "timer", "timer-533"])
def test_parked_as_a_real_rocketmq_parks(tmp_path: Path, name: str) -> None:
    """The same message is in the same topic and queue, with the same properties and unit."""
    golden = [row for row in golden_parked(name) if row["queueId"] < LEVELS]
    assert len(golden) > 10
    real = {row["properties"]["REAL_TOPIC"] for row in golden}
    table = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m"
    made = machine(tmp_path / "store", *((topic, 2) for topic in real), message_delay_level=table)
    for row in golden:
        properties = row["properties"]
        made.clock.step_wall(row["storeTimestamp"] - made.clock.wall_ms())
        user = {
            key: value
            for key, value in properties.items()
            if key == "KEYS" or key not in limits.RESERVED_KEYS
        }
        route = made.route(properties["REAL_TOPIC"], properties.get("TAGS"))
        queue = int(properties["REAL_QID"])
        body = bytes.fromhex(row["bodyHex"]) if row.get("bodyHex") else b"body"
        made.put(route, due_of(properties), body, encode_properties(user), queue)
        assert [answer["status"] for answer in made.settle()] == [Status.OK]
    for row, record in zip(golden, made.records(), strict=True):
        theirs, ours = row["properties"], record.property_map()
        assert (record.topic, record.queue_id) == (row["topic"], row["queueId"])
        assert record.store_timestamp == row["storeTimestamp"]
        for key in EXPECTED_KEYS:
            assert ours.get(key) == theirs.get(key), key
        if "TIMER_DELAY_MS" not in theirs:  # there "now" is some ms before it is stored
            assert ours.get("TIMER_OUT_MS") == theirs.get("TIMER_OUT_MS")
        at = (record.topic, record.queue_id)
        assert made.units(*at)[record.queue_offset]["tags_code"] == row["tagsCode"]
    made.close()


@mends("S100")
def test_a_delay_counts_from_no_time_before_it_was_sent(
    parking: Parking, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer looks at the clock, has to wait for a processor, and then takes what came in."""
    route, clock = parking.route("orders"), parking.clock
    real = clock.wall_ms
    sent: list[int] = []

    def wall_ms() -> int:
        told = real()
        if len(sent) < 20:
            clock.advance(7_000_000)
            for due in ((ParkMode.AFTER, 900), (ParkMode.LEVEL, 1), (0, 0)):
                parking.put(route, due)
                sent.append(real())
        return told

    monkeypatch.setattr(clock, "wall_ms", wall_ms)
    parking.put(route, (0, 0))
    sent.append(real())
    assert len(parking.settle()) == len(sent)
    stored = [record.store_timestamp for record in parking.records()]
    assert all(at >= when for at, when in zip(stored, sent, strict=True))
