"""One fixed run through encode, dispatch, scan, fetch and poll; prints a digest of each output.

`python -m tests.support.twins DIRECTORY`, with the kernels compiled or, by NUMBA_DISABLE_JIT=1, as
Python: both print the same.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
from pathlib import Path

import numpy as np

from gantrymq.brokerd.config import load
from gantrymq.brokerd.flusher import Flusher
from gantrymq.brokerd.writer import open_writer
from gantrymq.clients.assigned import Assigned
from gantrymq.clients.batch import MessageBatch
from gantrymq.clients.fetcher import Fetcher
from gantrymq.clients.logfiles import LogFiles
from gantrymq.clients.message import MessageQueue
from gantrymq.shm import layout
from gantrymq.shm.arena import plan_arena
from gantrymq.shm.codes import EntryFlag, ParkMode
from gantrymq.shm.controllane import ControlLane, End
from gantrymq.shm.filter import parse_tags
from gantrymq.shm.jit import JIT_OFF
from gantrymq.shm.kernels import fetch, frames, poll, ring, scan
from gantrymq.shm.limits import DELIVER_MS_MAX
from gantrymq.shm.properties import SCHEDULE_TOPIC, TIMER_TOPIC
from gantrymq.shm.ranges import OPEN
from gantrymq.shm.storage import PosixStorage
from gantrymq.workers.agent import Agent, Bells
from gantrymq.workers.reader.agent import Reader
from gantrymq.workers.session import Session
from tests.support.lanes import lane_words, set_route
from tests.support.memory_sessions import MemorySessions, memory_board
from tests.support.simbell import SimBell
from tests.support.simclock import SimClock

SEGMENT_BYTES = 1 << 16
CQ_BYTES = 20 * 1000
SENDS = 300
QUEUES = 4
LEVELS = 3
DELAYS: list[tuple[int, int]] = [
    *((ParkMode.LEVEL, level) for level in (1, 3, 9)),
    *((ParkMode.AT, at) for at in (0, 999, 1_000, 7_230_000_000_000, DELIVER_MS_MAX)),
    *((ParkMode.AFTER, ms) for ms in (0, 1, 99, 100, 86_400_000)),
]
NO_BYTES = np.zeros(0, np.uint8)
BLOCK = b"TAGS\x01paid\x02"


class Machine:
    """Writer, flusher and reader over a directory, and one client's lane."""

    def __init__(self, directory: Path) -> None:
        storage, clock = PosixStorage(str(directory)), SimClock(0)
        sizes = {
            "mapped_file_size_commit_log": SEGMENT_BYTES,
            "mapped_file_size_consume_queue": CQ_BYTES,
            "max_message_size": 16 * 1024,
            "message_delay_level": "1s 5s 2h",
        }
        settings = load(given=sizes, environment={}).settings
        self.clock = clock
        topics = {"orders": QUEUES, SCHEDULE_TOPIC: LEVELS, TIMER_TOPIC: 1}
        self.board = memory_board(topics, segment_bytes=SEGMENT_BYTES)
        bells = Bells.each(SimBell)
        tables = [MemorySessions() for _ in range(3)]
        parts = [(storage, clock, self.board, table, bells, settings) for table in tables]
        self.agents: list[Agent] = [
            open_writer(*parts[0]), Flusher(*parts[1]), Reader(*parts[2])
        ]  # fmt: skip
        plan = plan_arena()
        arena = np.zeros(plan.size, np.uint8)
        self.session = Session(1, arena, plan, SimBell(), 0, bytes(range(10)))
        self.lane = lane_words(plan.writer)
        set_route(self.session, 0, 0)
        set_route(self.session, 1, 0, BLOCK)
        self.tables = tables
        for table in tables:
            table.attach(self.session)

    def settle(self) -> None:
        """Let the agents finish what is there."""
        while sum(agent.do_work(self.clock.monotonic_ns()) for agent in self.agents):
            pass

    def completions(self) -> np.ndarray:
        """Rows that the client has not taken yet."""
        rows = np.zeros(512 * frames.COMPLETION_WORDS, np.int64)
        count = ring.take_completions(self.session.arena, self.lane, rows)
        return rows[: count * frames.COMPLETION_WORDS]

    def send(self, dice: random.Random, number: int) -> None:
        """One message, or now and then a batch, of any legal shape."""
        shape = [EntryFlag.RECEIPT, number % 2, dice.randrange(-1, QUEUES), number, -number, 0]
        if number % 10 and not number % 7:
            shape += dice.choice(DELAYS)
        form = np.array(shape, np.int64)
        bodies = [dice.randbytes(dice.choice((0, 1, 15, 100, 3000))) for _ in range(3)]
        if number % 10:
            extra = np.frombuffer(b"k\x01%d\x02" % number if number % 3 else b"", np.uint8)
            done = ring.put(
                self.session.arena, self.lane, form, np.frombuffer(bodies[0], np.uint8), extra
            )
        else:
            payload = np.frombuffer(b"".join(bodies), np.uint8)
            sizes = [n for body in bodies for n in (len(body), 0)]
            lengths = np.array([*sizes, 0, 1, 1], np.int64)
            done = ring.put_batch(self.session.arena, self.lane, form, payload, lengths)
        assert done > 0, done


def digest(*parts: bytes | np.ndarray) -> str:
    """One hash of all parts."""
    found = hashlib.sha256()
    for part in parts:
        found.update(part if isinstance(part, bytes) else part.tobytes())
    return found.hexdigest()


def scanned(directory: Path) -> tuple[int, np.ndarray]:
    """Records of all segments and the rows that the scan kernel makes of them."""
    total, kept = 0, []
    for path in sorted((directory / "commitlog").iterdir()):
        memory = np.fromfile(path, np.uint8)
        memory.flags.writeable = False
        form = np.array([0, int(path.name), scan.CHECK_TRAILER | scan.CHECK_PLACE, 0, 1, 0])
        rows = np.zeros(SENDS * 4 * scan.ROW_WORDS, np.int64)
        scan.scan_log(memory, form, rows)
        total += int(form[5])
        kept.append(rows[: form[5] * scan.ROW_WORDS])
    return total, np.concatenate(kept).reshape(-1, scan.ROW_WORDS)


def fetched(directory: Path) -> list[np.ndarray]:
    """Columns of queue 0 as far as the first segment holds its records."""
    room = 256
    form = np.zeros(fetch.FORM_WORDS, np.int64)
    form[fetch.END_OFFSET], form[fetch.STRETCH_END], form[fetch.OURS] = room, OPEN, 1
    units = np.fromfile(directory / "consumequeue/orders/0" / f"{0:020d}", np.uint8)
    log = np.fromfile(directory / "commitlog" / f"{0:020d}", np.uint8)
    units.flags.writeable = log.flags.writeable = False
    bodies, properties = np.zeros(1 << 17, np.uint8), np.zeros(1 << 16, np.uint8)
    body_offsets, property_offsets = np.zeros((2, room + 1), np.int64)
    columns = np.zeros(fetch.COLUMNS * room, np.int64)
    hosts = np.zeros(fetch.HOSTS_BYTES * room, np.uint8)
    stop = fetch.fetch(
        units, log, form, np.zeros(0, np.int64), NO_BYTES, bodies, body_offsets, properties,
        property_offsets, columns, hosts,
    )  # fmt: skip
    assert form[fetch.ROWS] > 3, stop
    return [form, bodies, body_offsets, properties, property_offsets, columns, hosts]


def polled(directory: Path, machine: Machine) -> list[np.ndarray]:
    """What polls of different sizes take out of all queues, over segments and files."""
    files = LogFiles(str(directory), machine.board)
    fetcher = Fetcher(machine.board, files, {"orders": parse_tags("*")})
    plan = machine.session.plan.groups
    lane = ControlLane(machine.session.arena, plan, End.CLIENT)
    fetcher.attach(machine.session.arena, lane.words, (0, 0))
    fetcher.follow([Assigned(n, MessageQueue("orders", n), n + 1, 0) for n in range(QUEUES)])
    columns: list[np.ndarray] = []
    for most in (1, 2, 5, 100, 7, 1000):
        count = fetcher.poll(most, poll.HAND_OUT | poll.PASS, restless=False)
        assert 0 < count <= most, count
        batch = MessageBatch(fetcher.columns, count, {}, {})
        columns += [batch.bodies.buffer, batch.bodies.offsets, batch.positions]
        columns += [batch.queue_offsets, batch.board_queues, batch.raw_properties.buffer]
    assert fetcher.poll(1, poll.PASS, restless=False) == 0
    return [column.copy() for column in columns]


def run(directory: Path) -> dict[str, object]:
    """Send, let the agents work, read back; a digest per kernel and how much there was."""
    dice = random.Random(7)
    machine = Machine(directory)
    answers = []
    for number in range(SENDS):
        machine.send(dice, number)
        if number % 20 == 19:
            machine.clock.step_wall(dice.randrange(-5, 10))  # LW-12: back as well
            machine.settle()
            answers.append(machine.completions())
    files = {
        str(path.relative_to(directory)): path.read_bytes()
        for folder in ("commitlog", "consumequeue")
        for path in sorted((directory / folder).rglob("*"))
        if path.is_file()
    }
    for agent in machine.agents:
        agent.close()
    records, rows = scanned(directory)
    times = rows[:, scan.STORE_MS]
    return {
        "jit": not JIT_OFF,
        "records": records,
        "in_order": bool((np.diff(times) >= 0).all() and np.unique(times).size > 3),
        "segments": sum(name.startswith("commitlog") for name in files),
        "answers": digest(*answers),
        "encode": digest(*(data for name, data in files.items() if name.startswith("commitlog"))),
        "dispatch": digest(*(d for name, d in files.items() if name.startswith("consumequeue"))),
        "board": digest(bytes(machine.board.memory[layout.TOPICS_AT :])),
        "scan": digest(rows),
        "fetch": digest(*fetched(directory)),
        "poll": digest(*polled(directory, machine)),
    }


if __name__ == "__main__":
    print(json.dumps(run(Path(sys.argv[1]))))
