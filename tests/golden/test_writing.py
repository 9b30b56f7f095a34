"""What RocketMQ wrote with checksum trailers, our agents write again, byte for byte.

Given are each record's contents and clock; computed by writer, flusher and reader are positions,
queue offsets, rolls, fillers, both checksums, ConsumeQueue units and files.
"""

from __future__ import annotations

import ipaddress
import shutil
import struct
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gantrymq.brokerd.config import load
from gantrymq.brokerd.flusher import Flusher
from gantrymq.brokerd.metadata import Metadata
from gantrymq.brokerd.recovered import Recovered
from gantrymq.brokerd.writer import open_writer
from gantrymq.shm import layout
from gantrymq.shm.arena import plan_arena
from gantrymq.shm.board import Board, format_board
from gantrymq.shm.codes import EntryFlag, EntryKind, Role, Status
from gantrymq.shm.kernels import frames
from gantrymq.shm.kernels.ready import put_entries
from gantrymq.shm.kernels.ring import take_completions
from gantrymq.shm.storage import PosixStorage
from tests.support.folders import files_below
from tests.support.golden import GoldenStore, dump_lines
from tests.support.lanes import lane_words, set_route
from tests.support.memory_sessions import MemorySessions
from tests.support.simbell import SimBell
from tests.support.simclock import SimClock
from gantrymq.workers.agent import Agent, Bells
from gantrymq.workers.reader.agent import Reader
from gantrymq.workers.session import Session

Golden = Callable[[str], GoldenStore]
Line = dict[str, Any]
SETS = ("crc", "crc-533")
TRAILER_BYTES = 20
TURNS_MAX = 10_000
QUEUES_MAX = 2048  # RocketMQ's BenchmarkTest alone has 1024 (SF-106)


class Rig:
    """The three agents over a directory, one lane that may append, and a clock set by hand."""

    def __init__(self, golden: GoldenStore, directory: Path) -> None:
        given = golden.settings
        sizes = {
            "mapped_file_size_commit_log": int(given["mappedFileSizeCommitLog"]),
            "mapped_file_size_consume_queue": int(given["mappedFileSizeConsumeQueue"]),
        }
        settings = load(given=sizes, environment={}).settings
        (directory / "config").mkdir()
        shutil.copy(golden.store / "config" / "topics.json", directory / "config")
        storage = PosixStorage(str(directory))
        self.clock = SimClock(0)
        self.board = plain_board(*sizes.values())
        metadata = Metadata(storage, settings, self.clock)
        metadata.load()
        metadata.publish(self.board, Recovered())
        for name in {record["topic"] for record in dump_lines(golden.name, "record")}:
            metadata.open(
                name, create=True, of_member=True
            )  # the set's direct writes know topics of no list
        self.slots = {topic.name: topic.slot for topic in self.board.topics()}
        self.tables = [MemorySessions() for _ in range(3)]
        bells = Bells.each(SimBell)
        parts = [(storage, self.clock, self.board, table, bells, settings) for table in self.tables]
        self._writer = open_writer(*parts[0])
        self.agents: list[Agent] = [self._writer, Flusher(*parts[1]), Reader(*parts[2])]
        plan = plan_arena()
        arena = np.zeros(plan.size, np.uint8)
        self.session = Session(1, arena, plan, SimBell(), 0, bytes(range(10)), owner=Role.SCHEDULER)
        self.lane = lane_words(plan.writer)
        for slot in self.slots.values():
            set_route(self.session, slot, slot)
        for table in self.tables:
            table.attach(self.session)
        self.turn()  # a writer takes nothing that an agent has put before

    def turn(self) -> int:
        """One duty cycle of each agent."""
        return sum(agent.do_work(self.clock.monotonic_ns()) for agent in self.agents)

    def turn_until_written(self) -> None:
        """Let the writer take what there is, after the next segment has come where it needs one."""
        self.turn()
        while self._writer.waits:
            self.turn()

    def turn_until_idle(self) -> None:
        """Let the agents finish."""
        for _ in range(TURNS_MAX):
            if not self.turn():
                return
        raise AssertionError("the agents do not come to rest")

    def set_wall(self, wall_ms: int) -> None:
        """Set the clock of storeTimestamps."""
        self.clock.step_wall(wall_ms - self.clock.wall_ms())

    def put(self, entry: bytes) -> None:
        """Publish an entry, as a broker agent would."""
        assert put_entries(self.session.arena, self.lane, np.frombuffer(entry, np.uint8)) == 1

    def completions(self) -> list[dict[str, int]]:
        """What the writer has answered."""
        rows = np.zeros(1024 * frames.COMPLETION_WORDS, np.int64)
        count = take_completions(self.session.arena, self.lane, rows)
        table = rows.reshape(-1, frames.COMPLETION_WORDS)[:count]
        names = ("status", "queueId", "queueOffset", "physicalOffset")
        first = (frames.OUT_STATUS, frames.OUT_QUEUE, frames.OUT_OFFSET, frames.OUT_POSITION)
        return [dict(zip(names, row[list(first)].tolist(), strict=True)) for row in table]

    def stop(self) -> None:
        """A clean stop, agent by agent."""
        for table, agent in zip(self.tables, self.agents, strict=True):
            table.stop = True
            self.turn_until_idle()
            agent.close()
            assert not table.failures
            assert not table.cut


def plain_board(segment_bytes: int, cq_bytes: int) -> Board:
    memory = memoryview(bytearray(layout.board_bytes(64, QUEUES_MAX)))
    format_board(
        memory, epoch=1, boot_id=bytes(16), topics_max=64, queues_max=QUEUES_MAX,
        segment_bytes=segment_bytes, cq_bytes=cq_bytes, started_ms=0, wall_ahead_ns=0,
    )  # fmt: skip
    return Board(memory)


# ------------------------------------------------------------------------------- from dump to ring


def host(text: str) -> bytes:
    """`address:port` as stored (SF-19)."""
    address, _, port = text.rpartition(":")
    return ipaddress.ip_address(address).packed + int(port).to_bytes(4, "big")


def body_of(record: Line, log: Callable[[int, int], bytes]) -> bytes:
    """The stored body, which the dump has only the hash of (SF-16, SF-18)."""
    hosts = len(host(record["bornHost"])) + len(host(record["storeHost"]))
    return log(record["physicalOffset"] + 88 - 16 + hosts, record["bodyLength"])


OLD_TRAILER = b"__CRC32#\x011234567890\x02"
#: How properties may be handed to the writer: it makes the same of all (SF-22).
SHAPES: dict[str, Callable[[bytes], bytes]] = {
    "as stored": lambda kept: kept,
    "open end": lambda kept: kept[:-1],
    "old trailers, open end": lambda kept: (
        OLD_TRAILER + kept.replace(b"\x02", b"\x02" + OLD_TRAILER, 1) + OLD_TRAILER[:-1]
    ),
}


def properties_of(record: Line, shape: str) -> bytes:
    """The stored properties without the trailer, in one of SHAPES."""
    stored = bytes.fromhex(record["propertiesHex"])
    assert stored[-TRAILER_BYTES:].startswith(b"__CRC32#\x01")
    kept = stored[:-TRAILER_BYTES]
    assert not kept or kept.endswith(b"\x02")
    return SHAPES[shape](kept)


def entry_of(record: Line, body: bytes, properties: bytes, seq: int, route: int) -> bytes:
    """An APPEND entry; neither place, nor queue offset, nor any checksum is in it."""
    fixed = layout.ENTRY.pack(
        kind=EntryKind.APPEND, flags=EntryFlag.RECEIPT, seq=seq, route=route,
        born_ms=record["bornTimestamp"], queue=record["queueId"], app_flag=record["flag"],
        body_bytes=len(body), extra_bytes=len(properties),
    )  # fmt: skip
    extension = layout.APPEND.pack(
        sys_flag=record["sysFlag"],
        reconsume_times=record["reconsumeTimes"],
        prepared_offset=record["preparedTransactionOffset"],
        born_host=host(record["bornHost"]),
        store_host=host(record["storeHost"]),
    )
    entry = fixed + extension + body + properties
    entry += bytes(-len(entry) % 8)
    return len(entry).to_bytes(4, "little") + entry[4:]


def log_reader(golden: GoldenStore) -> Callable[[int, int], bytes]:
    files = {int(path.name): path.read_bytes() for path in (golden.store / "commitlog").iterdir()}

    def read(position: int, count: int) -> bytes:
        base, at = divmod(position, golden.segment_bytes)
        return files[base * golden.segment_bytes][at : at + count]

    return read


def write_again(golden: GoldenStore, directory: Path, shape: str) -> list[dict[str, int]]:
    """Feed the set's records to the agents, those of one millisecond together."""
    rig, read, seq = Rig(golden, directory), log_reader(golden), 0
    answers = []
    records = dump_lines(golden.name, "record")
    for stored_at, group in groupby(records, lambda record: record["storeTimestamp"]):
        rig.set_wall(stored_at)
        for record in group:
            seq += 1
            properties = properties_of(record, shape)
            route = rig.slots[record["topic"]]
            rig.put(entry_of(record, body_of(record, read), properties, seq, route))
        rig.turn_until_written()
        answers += rig.completions()
    rig.turn_until_idle()
    rig.stop()
    return answers


# --------------------------------------------------------------------------------------- comparing



def without_extensions(golden: GoldenStore) -> Iterator[tuple[str, bytes]]:
    """The archive's ConsumeQueue files, each address replaced by the tagsCode it stands for.

    By SF-71 a slot holds -2^63 + place in the queue's extension files when it is at most
    -2147483649; GantryMQ writes no extensions.
    """
    for name, data in files_below(golden.store / "consumequeue").items():
        folder = golden.store / "consumequeue_ext" / Path(name).parent
        extension = b"".join(path.read_bytes() for path in sorted(folder.iterdir()))
        units = bytearray(data)
        for at in range(12, len(units), 20):
            (slot,) = struct.unpack_from(">q", units, at)
            if slot <= -2147483649:
                units[at : at + 8] = extension[slot + (1 << 63) + 2 :][:8]
        yield name, bytes(units)


def assert_same_files(found: dict[str, bytes], expected: dict[str, bytes]) -> None:
    """Equal names and bytes; the first difference is named by file and position."""
    assert sorted(found) == sorted(expected)
    for name, data in expected.items():
        other = found[name]
        assert len(other) == len(data), name
        if other != data:
            left, right = (np.frombuffer(raw, np.uint8) for raw in (other, data))
            at = int(np.flatnonzero(left != right)[0])
            raise AssertionError(f"{name} differs at {at}: {other[at:][:16]!r}, {data[at:][:16]!r}")


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", SETS)
def test_the_log_is_rocketmqs(golden: Golden, tmp_path: Path, name: str, shape: str) -> None:
    """SF-5, SF-16 to SF-20, SF-22, SF-23, SF-26, SF-42: all CommitLog files.

    A missing last separator is left to the writer, which also takes an old trailer out (SF-22).
    """
    store = golden(name)
    answers = write_again(store, tmp_path, shape)
    assert_same_files(files_below(tmp_path / "commitlog"), files_below(store.store / "commitlog"))
    keys = ("queueId", "queueOffset", "physicalOffset")
    wanted = [
        {"status": int(Status.OK), **{key: record[key] for key in keys}}
        for record in dump_lines(name, "record")
    ]
    assert answers == wanted
    assert len(dump_lines(name, "filler")) >= 5, "the set rolls several times"


@pytest.mark.parametrize("name", SETS)
def test_the_queues_are_rocketmqs(golden: Golden, tmp_path: Path, name: str) -> None:
    """SF-61, SF-62, SF-64 and SF-71: all ConsumeQueue files, their addresses resolved."""
    store = golden(name)
    write_again(store, tmp_path, "as stored")
    expected = dict(without_extensions(store))
    assert_same_files(files_below(tmp_path / "consumequeue"), expected)
    addresses = [data for key, data in files_below(store.store / "consumequeue").items()
                 if data != expected[key]]  # fmt: skip
    assert addresses, "the set has extension addresses to resolve"
