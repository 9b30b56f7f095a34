"""F15: every bit of a working session's words flipped, one after the other: it harms it alone."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gantrymq.brokerd import agents
from gantrymq.brokerd.agents import AgentEnv
from gantrymq.brokerd.config import load
from gantrymq.shm import groupwire, layout
from gantrymq.shm.arena import plan_arena
from gantrymq.shm.codes import EntryFlag, Role, Status
from gantrymq.shm.controllane import ControlLane, End
from gantrymq.shm.kernels import frames, progress, ring
from gantrymq.shm.storage import PosixStorage
from gantrymq.shm.structs import Struct
from gantrymq.workers.agent import Agent, Bells
from gantrymq.workers.groups.reports import LOOK_NS
from gantrymq.workers.session import Session
from tests.support.lanes import lane_words, set_route
from tests.support.memory_sessions import MemorySessions, memory_board, memory_session
from tests.support.simbell import SimBell
from tests.support.simclock import SimClock

PLAN = plan_arena(4096, 4096, 4096, 4096)
AT_ONCE = 48
SAMPLED = 24
FORM = np.array([EntryFlag.RECEIPT, 0, 0, 1_700_000_000_000, 0, 0], np.int64)
NO_BYTES = np.zeros(0, np.uint8)


class Worker:
    """A session that sends and is a member of a group of its own."""

    def __init__(self, number: int, group: str) -> None:
        self.session: Session = memory_session(number, PLAN, producer=number.to_bytes(10, "big"))
        self.words = lane_words(PLAN.writer)
        self.groups = ControlLane(self.session.arena, PLAN.groups, End.CLIENT)
        self.group = group
        self.lease = 0
        set_route(self.session, 0, 0)

    def send(self) -> None:
        body = np.frombuffer(b"of session %d" % self.session.session, np.uint8)
        assert ring.put(self.session.arena, self.words, FORM, body, NO_BYTES) > 0

    def join(self) -> None:
        topics = groupwire.Join(1, self.group, [0], groupwire.ConsumeFrom.FIRST_OFFSET)
        assert self.groups.put(groupwire.encode(topics))

    def begin_to_work(self) -> None:
        """Take the lease, note an offset by words, wait for messages and for durability."""
        while (body := self.groups.take()) is not None:
            notice = groupwire.decode_notice(body)
            if isinstance(notice, groupwire.Granted):
                self.lease = notice.lease
        assert self.lease
        arena = self.session.arena
        at = progress.open_slot(arena, 0, self.lease, 0, 0)
        progress.note_progress(arena, at, 0, 0)
        arena[layout.ARENA_WAIT_ARMED] = arena[layout.ARENA_INTEREST_COUNT] = 1
        arena[layout.ARENA_DURABLE_WANTED : layout.ARENA_DURABLE_WANTED + 2] = 255

    def answers(self) -> list[int]:
        """Statuses of the completions that have come."""
        rows = np.zeros(16 * frames.COMPLETION_WORDS, np.int64)
        count = ring.take_completions(self.session.arena, self.words, rows)
        assert count >= 0
        found = rows.reshape(-1, frames.COMPLETION_WORDS)[:count, frames.OUT_STATUS]
        return [int(status) for status in found]


class Machine:
    """All agents in this process, as one thread."""

    def __init__(self, folder: Path) -> None:
        sizes = {"mapped_file_size_commit_log": 1 << 20, "mapped_file_size_consume_queue": 200_000}
        settings = load(None, {"message_index_enable": False, **sizes}, {}).settings
        self.clock = SimClock(0)
        self.board = memory_board({"orders": 1}, segment_bytes=1 << 20)
        self.tables = {role: MemorySessions() for role in agents.CONSTRUCTORS}
        bells = Bells.each(SimBell)
        self.env = AgentEnv(PosixStorage(str(folder)), self.clock, self.board, bells, settings)
        self.agents: list[Agent] = [
            agents.build(role, replace(self.env, sessions=table))
            for role, table in self.tables.items()
        ]
        self._last = 0

    def attach(self, group: str) -> Worker:
        self._last += 1
        worker = Worker(self._last, group)
        for table in self.tables.values():
            table.attach(worker.session)
        return worker

    def detach(self, worker: Worker) -> None:
        for table in self.tables.values():
            table.detach(worker.session.session)

    def settle(self, steps: int = 1) -> None:
        """Let agents work until they rest; each step is as long as words may wait for a look."""
        for _ in range(steps):
            self.clock.advance(LOOK_NS)
            for _ in range(200):
                if not sum(agent.do_work(self.clock.monotonic_ns()) for agent in self.agents):
                    break
            else:
                raise AssertionError("the agents never come to rest")

    @property
    def cut(self) -> set[int]:
        return {session for table in self.tables.values() for session, _why in table.cut}

    def require_well(self) -> None:
        assert [table.failures for table in self.tables.values()] == [[]] * len(self.tables)
        words = self.board.queue(0)
        assert words["next_offset"] == words["written"] == words["max_offset"]


def bits_of(table: Struct, at: int) -> Iterator[tuple[int, int]]:
    """Byte and bit of all that a struct holds but its padding."""
    for field in table.fields:
        if "pad" not in field.name:
            start = at + table.offset(field.name)
            yield from ((start + bit // 8, bit % 8) for bit in range(8 * field.size))


def sampled(dice: random.Random, start: int, end: int) -> list[tuple[int, int]]:
    return [(dice.randrange(start, end), dice.randrange(8)) for _ in range(SAMPLED)]


def places(dice: random.Random) -> list[tuple[int, int]]:
    """All bits of header and lanes; of tables, rings and padding some, of used slots more."""
    found = [*bits_of(layout.ARENA, 0)]
    found += [*bits_of(layout.LANE, layout.WRITER_LANE_AT)]
    found += [*bits_of(layout.LANE, layout.GROUPS_LANE_AT)]
    found += [*bits_of(layout.PROGRESS, layout.PROGRESS_AT)]
    for start, end in (
        (0, layout.ARENA_BYTES),
        (layout.INTEREST_AT, layout.INTEREST_AT + 4),
        (layout.INTEREST_AT, layout.PROGRESS_AT),
        (layout.PROGRESS_AT, layout.ROUTES_AT),
        (layout.ROUTES_AT, layout.ROUTES_AT + 16),
        (layout.ROUTES_AT, layout.WRITER_LANE_AT),
        (layout.WRITER_LANE_AT, layout.RINGS_AT),
        (PLAN.writer.up, PLAN.writer.up + 192),
        (PLAN.writer.down, PLAN.writer.down + 128),
        (PLAN.groups.up, PLAN.groups.up + 64),
    ):
        found += sampled(dice, start, end)
    return found


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path)
    yield machine
    for agent in machine.agents:
        agent.close()


def test_a_flipped_bit_of_a_sessions_memory_harms_that_session_alone(
    machine: Machine, seed: int
) -> None:
    dice = random.Random(seed)
    good = machine.attach("good")
    good.join()
    machine.settle()
    good.begin_to_work()
    todo = places(dice)
    rounds = [todo[at : at + AT_ONCE] for at in range(0, len(todo), AT_ONCE)]
    culprits: set[int] = set()
    for flips in rounds:
        workers = [machine.attach(f"bad-{number}") for number in range(len(flips))]
        culprits |= {worker.session.session for worker in workers}
        for worker in workers:
            worker.send()
            worker.join()
        machine.settle()
        for worker, (at, bit) in zip(workers, flips, strict=True):
            worker.begin_to_work()
            worker.send()
            worker.session.arena[at] ^= 1 << bit
        good.send()
        machine.settle(2)
        machine.require_well()
        assert good.answers() == [Status.OK]
        for worker in workers:
            machine.detach(worker)
        machine.settle()
    assert machine.cut, "some words are judged"
    assert machine.cut <= culprits
    assert not any(machine.board.process(role)["faults"] > len(culprits) for role in Role)
    held = machine.tables[Role.GROUPS].notes
    assert [note for note in held if note[0] == "error"] == []
