"""While the reader is late with the log, no client has more than its share of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count, pairwise
from pathlib import Path

import pytest

from gantrymq.shm import layout, limits
from gantrymq.shm.arena import plan_arena
from gantrymq.shm.codes import Role
from gantrymq.workers.outlet import Copy, Outlet
from tests.support.memory_sessions import memory_session
from tests.support.parking import HOST, Life
from tests.support.simclock import SimClock

#: A record of the log that a small entry becomes, at most.
SMALL = 256
SIZES: dict[str, object] = {"mapped_file_size_commit_log": 4 << 20}


class Sender(Outlet):
    """A session that keeps its ring full, or puts one entry."""

    _sessions = count(50)

    def __init__(self, life: Life) -> None:
        number = next(self._sessions)
        made = memory_session(
            number, plan_arena(1 << 20, 1 << 20), producer=number.to_bytes(10, "big")
        )
        session = replace(made, groups=False, owner=int(Role.GROUPS))
        life.clients.append(session)
        life.tables[Role.WRITER].attach(session)
        super().__init__(session, life.bells)
        self.copy = Copy(life.slot("later"), 0, b"x", b"", -1, 0, 0, 0, HOST, HOST, 0)

    def fill(self, body: bytes = b"x") -> None:
        """Put as much as there is room for."""
        self.heard()
        while self.put(self.copy._replace(body=body), None):
            pass

    def heard(self) -> list[object]:
        """Tags of what has been appended since the last call."""
        tags = []
        while outcomes := self.poll():
            tags += [outcome.tag for outcome in outcomes]
        return tags

    def begin(self) -> None:
        """Learn of what the writer has announced."""
        while self.is_lost():
            assert self.reconcile()


@pytest.fixture
def life(tmp_path: Path) -> Iterator[Life]:
    made = Life(tmp_path / "store", SimClock(), SIZES)
    yield made
    for agent in made.agents.values():
        agent.close()


def write(life: Life) -> int:
    """A round of the writer's loop alone; how many bytes it appended."""
    before, writer = life.board.word(layout.BOARD_APPENDED), life.agents[Role.WRITER]
    if not writer.do_work(life.clock.monotonic_ns()):
        writer.arm(life.clock.monotonic_ns())
        writer.disarm()
    return life.board.word(layout.BOARD_APPENDED) - before


def late(life: Life, *senders: Sender) -> None:
    """The reader passes nothing for some time, while senders send."""
    life.settle()
    for sender in senders:
        sender.begin()
    for _ in range(3):
        for sender in senders:
            sender.fill()
        write(life)
        life.clock.advance(limits.READER_LATE_NS)


def test_a_flood_waits_for_the_reader_and_others_do_not(life: Life) -> None:
    flood, other = Sender(life), Sender(life)
    late(life, flood)
    other.begin()
    before = life.board.word(layout.BOARD_APPENDED)
    for step in range(1, 50):
        flood.fill()
        assert other.put(other.copy, step)
        write(life)
        assert other.heard() == [step]
        taken = life.board.word(layout.BOARD_APPENDED) - before
        assert taken <= limits.DRAIN_BYTES + step * (limits.SHARE_BYTES + SMALL)
    nap_ns = life.agents[Role.WRITER].arm(life.clock.monotonic_ns())
    assert nap_ns == limits.FLOOD_NAP_NS
    life.agents[Role.READER].do_work(life.clock.monotonic_ns())
    flood.fill()
    assert write(life) > limits.DRAIN_BYTES


def test_what_is_large_is_paid_in_turns(life: Life) -> None:
    """An entry comes as a whole; then its lane waits until its share has grown to that."""
    flood = Sender(life)
    late(life, flood)
    while flood.waiting:  # what had been put before
        write(life)
        flood.heard()
    body = bytes(10 * limits.SHARE_BYTES)
    flood.fill(body)
    turns = [number for number in range(60) if write(life)]
    assert [after - turn for turn, after in pairwise(turns)] == [21, 21]  # two of ten shares each


def test_who_was_idle_is_heard_beside_a_flood_without_end(life: Life) -> None:
    """The writer does not sleep, so it does not look whether idle lanes have something."""
    flood, other = Sender(life), Sender(life)
    life.settle()
    flood.begin()
    other.begin()
    for step in range(20):
        flood.fill()
        if step == 10:
            assert other.put(other.copy, step)
        write(life)
        life.agents[Role.READER].do_work(life.clock.monotonic_ns())
        assert other.heard() == ([10] if step == 10 else [])


def test_a_session_that_ends_and_a_stop_wait_for_no_reader(life: Life) -> None:
    flood, other = Sender(life), Sender(life)
    late(life, flood, other)
    for sender in (flood, other):
        sender.fill()
    table = life.tables[Role.WRITER]
    table.detach(flood.session.session)
    assert write(life) > 10 * limits.SHARE_BYTES
    other.heard()
    table.stop = True
    write(life)
    other.heard()
    assert not other.waiting
