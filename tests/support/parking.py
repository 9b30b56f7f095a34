"""Lives of a broker's agents in this process over one store, and a clock that jumps when all rest.

For tests of what is delivered later: parked records go in by a broker agent's own session, and the
log is read back record by record.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import ClassVar

import numpy as np

from gantrymq.brokerd import agents, epoch
from gantrymq.brokerd.agents import AgentEnv
from gantrymq.brokerd.config import Settings, load
from gantrymq.brokerd.handover.adoption import import_foreign
from gantrymq.brokerd.metadata import Metadata
from gantrymq.brokerd.recovery import recover
from gantrymq.brokerd.writer import Writer
from gantrymq.shm import layout
from gantrymq.shm.arena import plan_arena
from gantrymq.shm.board import Board, format_board
from gantrymq.shm.codes import Role, Status
from gantrymq.shm.properties import SCHEDULE_TOPIC, TIMER_TOPIC, encode_properties
from gantrymq.shm.record import STRUCTURE, Filler, Record, parse_record
from gantrymq.shm.storage import PosixStorage
from gantrymq.workers.agent import Agent, Bells
from gantrymq.workers.outlet import Copy, Outcome, Outlet
from gantrymq.workers.session import Session
from tests.support.memory_sessions import MemorySessions, memory_session
from tests.support.simbell import SimBell
from tests.support.simclock import SimClock

ROLES = (Role.SCHEDULER, Role.WRITER, Role.FLUSHER, Role.READER, Role.HOUSEKEEPER)
SIZES = {
    "mapped_file_size_commit_log": 1 << 18,
    "mapped_file_size_consume_queue": 20 * 500,
    "topics_max": 64,
    "board_queues_max": 2048,
    "message_index_enable": False,
}
HOST = bytes([127, 0, 0, 1, 0, 0, 42, 159])
TURNS_MAX = 20_000
LEAST_NS = 100_000


@dataclass(frozen=True, slots=True)
class Parked:
    """What a test parks."""

    topic: str
    queue_id: int
    properties: dict[str, str]
    body: bytes = b"later"
    sys_flag: int = 0


def level_message(level: int, topic: str = "later", **more: str) -> Parked:
    """A message parked by a delay level (DT-11)."""
    properties = {**more, "DELAY": str(level), "REAL_TOPIC": topic, "REAL_QID": "0"}
    return Parked(SCHEDULE_TOPIC, level - 1, properties)


_keys = count(1)


def timer_message(due_ms: int, *, key: str = "", **more: str) -> Parked:
    """A message parked for a time; `due` tells the test when (DT-33, DT-35)."""
    properties = {
        "UNIQ_KEY": key or f"{next(_keys):032x}",
        **more,
        "due": str(due_ms),
        "TIMER_OUT_MS": str((due_ms - 1) // 1000 * 1000),
        "REAL_TOPIC": "later",
        "REAL_QID": "1",
    }
    return Parked(TIMER_TOPIC, 0, properties)


def at_message(due_ms: int, *, key: str = "", **more: str) -> Parked:
    """A message for a point in time."""
    return timer_message(due_ms, key=key, **more, TIMER_DELIVER_MS=str(due_ms))


def after_message(life: Life, delay_ms: int, **more: str) -> Parked:
    """A message with a delay from now on; to be parked at once."""
    stored_ms = max(life.clock.wall_ms(), life.board.word(layout.BOARD_STORE_MS))
    return timer_message(stored_ms + delay_ms, **more, TIMER_DELAY_MS=str(delay_ms))


class Life:
    """One life of the broker's agents over a directory."""

    own_rings: ClassVar[dict[Role, int]] = {}  # bytes of agents' way to the writer, if short

    def __init__(
        self,
        directory: Path,
        clock: SimClock,
        sizes: dict[str, object] | None = None,
        topics: Sequence[str] = ("later",),
        boot: bytes = bytes(16),
        *,
        level: str = "written",
    ) -> None:
        """`level` is the durability of its `topics`."""
        self.clock = clock
        self.storage = PosixStorage(str(directory))
        self.settings: Settings = load(given={**SIZES, **(sizes or {})}, environment={}).settings
        found = recover(self.storage, self.settings, None, lambda *_: None)
        segment_bytes = self.settings.mapped_file_size_commit_log
        import_foreign(self.storage, segment_bytes, found.low, found.appended)
        self.metadata = Metadata(self.storage, self.settings, clock)
        self.metadata.load()
        self.metadata.add_parking_topics()
        self.board = self._format(boot)
        self.metadata.publish(self.board, found)
        epoch.mark_running(self.storage, epoch.Life(1, boot.hex()), found.appended)
        for name in topics:
            self.metadata.create(name, 2, level)
        self.slots = {topic.name: topic.slot for topic in self.board.topics()}
        self.bells = Bells.each(SimBell)
        self.own = [self._own_session(role) for role in agents.SENDERS]
        self.clients: list[Session] = []
        self.tables: dict[Role, MemorySessions] = {}
        self.agents: dict[Role, Agent] = {}
        for role in ROLES:
            self.start(role)
        self.outlet = Outlet(self.own[1], self.bells)
        self.outcomes: list[Outcome] = []
        self._nap_ns = 0

    def _format(self, boot: bytes) -> Board:
        settings = self.settings
        size = layout.board_bytes(settings.topics_max, settings.board_queues_max)
        memory = memoryview(bytearray(size))
        format_board(
            memory, epoch=1, boot_id=boot, topics_max=settings.topics_max,
            queues_max=settings.board_queues_max,
            segment_bytes=settings.mapped_file_size_commit_log,
            cq_bytes=settings.mapped_file_size_consume_queue, started_ms=self.clock.wall_ms(),
            wall_ahead_ns=epoch.wall_ahead_ns(self.clock, None),
        )  # fmt: skip
        return Board(memory)

    def _own_session(self, role: Role) -> Session:
        made = memory_session(
            100 + role,
            plan_arena(self.own_rings.get(role, 1 << 20), 1 << 18),
            producer=os.urandom(10),
        )
        bell = getattr(self.bells, role.name.lower())
        return replace(made, bell=bell, groups=False, owner=int(role))

    def start(self, role: Role) -> None:
        """Start or replace an agent."""
        table = self.tables[role] = MemorySessions()
        for session in (*self.own, *self.clients):
            table.attach(session)
        env = AgentEnv(self.storage, self.clock, self.board, self.bells, self.settings, table)
        self.agents[role] = agents.build(role, env)

    def kill(self, role: Role) -> None:
        """An agent is gone between two steps, and replaced at once."""
        self.agents.pop(role)
        self.start(role)

    def kill_all(self) -> None:
        """All agents are replaced: none has seen the clock before."""
        for role in ROLES:
            self.kill(role)

    @property
    def writer_waits(self) -> bool:
        """Whether all that appends waits for the next segment."""
        writer = self.agents.get(Role.WRITER)
        return isinstance(writer, Writer) and writer.waits

    # ------------------------------------------------------------------------------------- running

    def turn(self) -> int:
        """One duty cycle of each agent; heeds what they ask the supervisor for."""
        now_ns, done, naps = self.clock.monotonic_ns(), 0, []
        for agent in self.agents.values():
            work = agent.do_work(now_ns)
            if not work:  # as its loop does
                naps.append(agent.arm(now_ns))
                agent.disarm()
            done += work
        self._nap_ns = 0 if done else min(naps)
        for table in self.tables.values():
            assert not table.failures, table.failures
            for _level, event, fields in table.notes:
                if event == "topic_wanted":
                    self.metadata.have(str(fields["topic"]))
        return done

    def settle(self) -> None:
        """Let all agents work until none has anything to do at this time."""
        idle = 0
        for _ in range(TURNS_MAX):
            idle = 0 if self.turn() else idle + 1
            if idle == 3:
                return
        raise AssertionError("the agents do not come to rest")

    def sleep(self) -> int:
        """Nanoseconds that all agents would sleep at most."""
        now_ns = self.clock.monotonic_ns()
        naps = [agent.arm(now_ns) for agent in self.agents.values()]
        for agent in self.agents.values():
            agent.disarm()
        return min(naps)

    def run_for(self, duration_ms: int) -> None:
        """Let time pass: from one thing that is due to the next."""
        end = self.clock.monotonic_ns() + duration_ms * 1_000_000
        while (now := self.clock.monotonic_ns()) < end:
            self._work_until_all_sleep()
            self.clock.advance(max(1, min(max(self._nap_ns, LEAST_NS), end - now)))
        self.settle()

    def _work_until_all_sleep(self) -> None:
        """As their loops do: who has had nothing to do once sleeps as long as it says."""
        for _ in range(TURNS_MAX):
            if not self.turn():
                return
        raise AssertionError("the agents do not come to rest")

    def stop(self) -> None:
        """A clean stop, agent by agent."""
        for role in ROLES:
            self.tables[role].stop = True
            idle = 0
            while idle < 3:
                idle = 0 if self.turn() else idle + 1
                self.clock.advance(1_000_000)
            self.agents.pop(role).close()
        epoch.mark_stopped(self.storage, self.board.word(layout.BOARD_DURABLE))

    # -------------------------------------------------------------------------------- parking, log

    def slot(self, topic: str) -> int:
        """A topic's place on the board."""
        return next(t.slot for t in self.board.topics() if t.name == topic)

    def park(self, *messages: Parked) -> list[int]:
        """Append parked records as a broker agent would; returns their positions."""
        while self.outlet.is_lost():
            self.turn()
            self.outlet.reconcile()
        self.outcomes.clear()
        for message in messages:
            copy = Copy(
                self.slot(message.topic), message.queue_id, message.body,
                encode_properties(message.properties), -1, 0, message.sys_flag,
                self.clock.wall_ms(), HOST, HOST, 0,
            )  # fmt: skip
            while not self.outlet.put(copy, None):
                self.turn()
                self.outcomes += self.outlet.poll()
        while len(self.outcomes) < len(messages):
            self.turn()
            self.outcomes += self.outlet.poll()
        assert {outcome.status for outcome in self.outcomes} == {Status.OK}
        return [outcome.position for outcome in self.outcomes]

    def records(self) -> list[Record]:
        """All records of the log."""
        return list(records_of(self.storage, self.board.segment_bytes))

    def delivered(self, topic: str = "later") -> list[Record]:
        """Copies in a topic, in order of the log."""
        return [
            record
            for record in self.records()
            if record.topic == topic and record.prepared_transaction_offset < 0
        ]


def records_of(storage: PosixStorage, segment_bytes: int) -> Iterator[Record]:
    for name in storage.list("commitlog"):
        if not name.isdigit():
            continue
        data = np.fromfile(f"{storage.root}/commitlog/{name}", np.uint8).data
        at = 0
        while at < segment_bytes:
            found = parse_record(data, at, segment_bytes, STRUCTURE, int(name) + at)
            if isinstance(found, Filler) or not isinstance(found, Record):
                break
            yield found
            at += found.total_size


def origins(records: Sequence[Record]) -> list[int]:
    """Positions that copies come from."""
    return [record.origin for record in records]
