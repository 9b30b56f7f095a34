"""Retention by itself, over a copy of what a simulated machine has written."""

from __future__ import annotations

from typing import Any

from gantrymq.brokerd import recovery
from gantrymq.brokerd.config import Settings, load
from gantrymq.brokerd.metadata import Metadata
from gantrymq.brokerd.retention import Retention, open_retention
from gantrymq.shm import layout, wire
from gantrymq.shm.board import Board
from gantrymq.shm.queuenames import queue_directory
from gantrymq.shm.storage import read_file
from gantrymq.workers.groups.ledger import open_ledger
from tests.sim import scenario
from tests.sim.downfalls import STEPS_MAX
from tests.support import simwidth
from tests.support.faults import FaultPlan
from tests.support.memory_sessions import MemorySessions
from tests.support.simclock import SimClock
from tests.support.simdisk import Disk
from tests.support.simmachine import SimMachine
from tests.support.simstorage import SimStorage

#: Long enough for a pass and all its steps, at the simulator's pace.
A_WHILE_NS = 400_000_000
HOUR_MS = 3_600_000
QUEUES = [("plain", 0), ("plain", 1), ("safe", 0)]


def written_machine(seed: int = 16) -> SimMachine:  # even: each step is whole
    """A machine that has written several segments, which a group has read, and was stopped."""
    assert simwidth.settings_of(seed) == {}, "the sizes that tests count with"
    world = scenario.new_world(seed)
    for producer in world.producers:
        producer.delays = False  # what waits would hold segments, and be delivered at a start
        producer.send_more(80)
    world.simulation.run_until(world.settled, STEPS_MAX)
    scenario.stop_cleanly(world)
    return world.machine


class Rig:
    """One life of retention: the disk may be another's, the board is its own."""

    def __init__(
        self,
        machine: SimMachine,
        disk: Disk | None = None,
        faults: FaultPlan | None = None,
        **settings: Any,  # noqa: ANN401 - of the broker
    ) -> None:
        self.machine = machine
        self.disk = disk or machine.disk.clone()
        self.storage = SimStorage(self.disk, "retention", faults)
        self.settings: Settings = load(None, {**machine.settings(), **settings}, {}).settings
        self.clock = SimClock()
        behind_ms = machine.simulation.clock.wall_ms() - self.clock.wall_ms()
        self.clock.step_wall(behind_ms + 2 * HOUR_MS)
        self.sessions = MemorySessions()
        self.notes: list[tuple[str, str, dict[str, object]]] = []
        assert machine.board is not None, "it runs"
        self.use_board(Board(memoryview(bytearray(machine.board.memory))))

    def use_board(self, board: Board) -> None:
        """Work with another board, as a supervisor that has filled it."""
        self.board = board
        self.metadata = Metadata(SimStorage(self.disk), self.settings, self.clock)
        self.metadata._board = board

    def open(self) -> Retention:
        """The agent, with the ledger as the disk has it."""
        ledger = open_ledger(self.storage, self.board.epoch)
        return open_retention(
            self.storage, self.clock, self.board, self.sessions, self.settings, ledger
        )

    def run(self, agent: Retention, for_ns: int = A_WHILE_NS) -> None:
        """Let it work and sleep, and do what it asks of the supervisor."""
        end = self.clock.monotonic_ns() + for_ns
        while (now := self.clock.monotonic_ns()) < end:
            if not agent.do_work(now):
                self.clock.advance(agent.arm(now))
            self.heed()

    def heed(self) -> None:
        """The supervisor's part."""
        for level, event, fields in self.sessions.notes:
            if event == wire.QUEUES_BEGIN:
                pairs: Any = fields["queues"]
                self.metadata.begin_queues(pairs)
            else:
                self.notes.append((level, event, fields))
        self.sessions.notes.clear()

    def restart(self) -> None:
        """Recover as a start without an old board does; the board is a fresh one."""
        storage = SimStorage(self.disk)
        found = recovery.recover(storage, self.settings, None)
        again = recovery.recover(storage, self.settings, None)
        assert found == again, "recovery changes nothing the second time (P11)"
        metadata = Metadata(storage, self.settings, self.clock)
        metadata.load()
        board = self.machine._format((self.board.epoch & ~0xFFFF) + (1 << 16) + 2)
        metadata.publish(board, found)
        self.board, self.metadata = board, metadata
        self.storage = SimStorage(self.disk, "retention")
        self.sessions = MemorySessions()

    @property
    def low(self) -> int:
        """Where the log begins by the board."""
        return self.board.word(layout.BOARD_LOW)

    def events(self, event: str) -> list[dict[str, object]]:
        """Fields of all events of a name."""
        return [fields for _level, name, fields in self.notes if name == event]

    def min_offsets(self) -> dict[tuple[str, int], int]:
        """What consumers may see first."""
        found = {}
        for topic in self.board.topics():
            for queue_id in range(topic.queue_count):
                words = self.board.queue(topic.queue_base + queue_id)
                found[topic.name, queue_id] = words["min_offset"]
        return {key: found[key] for key in QUEUES}

    def log(self) -> dict[str, bytes]:
        """The segments."""
        names = self.storage.list("commitlog")
        return {name: read_file(SimStorage(self.disk), f"commitlog/{name}") for name in names}


def units_of(disk: Disk, key: tuple[str, int], first: int, end: int) -> list[bytes]:
    """Units [first, end) of a queue; empty bytes where there is no file."""
    storage, size = SimStorage(disk), layout.CQ_UNIT_BYTES
    folder, data = queue_directory(storage, *key), {}
    for name in storage.list(folder):
        content = read_file(storage, f"{folder}/{name}")
        for at in range(0, len(content), size):
            data[(int(name) + at) // size] = content[at : at + size]
    return [data.get(offset, b"") for offset in range(first, end)]
