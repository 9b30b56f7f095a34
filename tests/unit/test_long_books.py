"""What scheduler and txn-checker remember by name or position: it does not grow for ever."""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from gantrymq.shm import layout
from gantrymq.shm.codes import Role
from gantrymq.shm.schedulerwire import CANCELLED
from gantrymq.shm.transactionwire import COMMITTED
from gantrymq.workers.scheduler import recalls
from gantrymq.workers.scheduler.timerbuckets import MINUTE_MS
from gantrymq.workers.scheduler.timerholds import TimerHolds
from gantrymq.workers.scheduler.timerpool import ENTRY
from gantrymq.workers.transactions import halves as halvesmodule
from gantrymq.workers.transactions import table as tablemodule
from gantrymq.workers.transactions.table import ROW, OpenHalves
from tests.support.books import books, grown
from tests.support.parking import Life, at_message
from tests.support.simclock import SimClock
from tests.support.transacting import Peer, TxnLife, remove_below, txn_life
from tests.support.trials import mends
from tests.unit.test_recalls import Asker, handle_of
from tests.unit.test_txn_long_life import ask_for, end, fill_segment, lone

#: Of a thing that happens again and again.
TIMES = 50


@pytest.fixture
def life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TxnLife]:
    yield from txn_life(tmp_path / "store", monkeypatch)


def entries_at(*rows: tuple[int, int]) -> NDArray[np.void]:
    """Timers, by their time and position."""
    entries = np.zeros(len(rows), ENTRY)
    entries["ms"], entries["position"] = zip(*rows, strict=True)
    return entries


@mends("H13")
def test_a_recalled_timer_is_forgotten_with_its_bucket() -> None:
    holds, nothing = TimerHolds(), np.zeros(0, ENTRY)
    for position in range(TIMES):
        holds.hold(position, nothing, nothing)
        holds.give_up(position)
    ms = 5 * MINUTE_MS + 1
    rows = [(ms, position) for position in range(TIMES)]
    assert len(holds.sift(entries_at(*rows))) == 0, "its bucket was opened"
    holds.forget(6 * MINUTE_MS - 1, 0)
    assert all(position in holds for position in range(TIMES)), "the file may still be there"
    holds.forget(6 * MINUTE_MS, 0)
    assert not any(position in holds for position in range(TIMES))


class NeverWhole(dict[int, int]):
    """Nobody may go through it: it is long."""

    def __iter__(self) -> Iterator[int]:
        """For whoever does."""
        raise AssertionError("all of it is looked at")

    items = keys = values = __iter__  # type: ignore[assignment]


@mends("S244")
def test_no_step_looks_at_all_that_was_recalled(monkeypatch: pytest.MonkeyPatch) -> None:
    """They may be a million, due next year, while others come and are recalled."""
    holds, nothing = TimerHolds(), np.zeros(0, ENTRY)
    for position in range(TIMES):
        holds.hold(position, nothing, nothing)
        holds.give_up(position)
    monkeypatch.setattr(holds, "_gone", NeverWhole(holds._gone))
    ms = 5 * MINUTE_MS + 1
    holds.hold(TIMES, nothing, nothing)
    come = holds.sift(entries_at((ms, 3), (ms, TIMES), (ms, TIMES + 1)))
    assert come["position"].tolist() == [TIMES + 1]
    assert holds.let_go(TIMES)[0]["position"].tolist() == [TIMES]
    holds.forget(5 * MINUTE_MS, 0)
    assert 3 in holds
    holds.forget(6 * MINUTE_MS, 0)
    assert 3 not in holds
    assert 4 in holds


class Both:
    """Holds, and a plain account of them; one timer at each position."""

    def __init__(self, dice: random.Random) -> None:
        self.dice, self.holds = dice, TimerHolds()
        self.ms = [dice.randrange(1, 6 * MINUTE_MS) for _ in range(60)]
        self.held: dict[int, set[int]] = {}
        self.gone: dict[int, float] = {}
        self.done_ms = self.floor = 0

    def end_of(self, position: int) -> int:
        return -(-self.ms[position] // MINUTE_MS) * MINUTE_MS

    def hold(self) -> None:
        position, nothing = self.dice.randrange(self.floor, 60), np.zeros(0, ENTRY)
        if position not in self.held and position not in self.gone:
            self.holds.hold(position, nothing, nothing)
            self.held[position] = set()

    def end(self) -> None:
        """A recall has its outcome."""
        if not self.held:
            return
        position = self.dice.choice(sorted(self.held))
        came = self.held.pop(position)
        if self.dice.random() < 0.3:
            at, after = self.holds.let_go(position)
            assert {int(row["position"]) for row in (*at, *after)} == came
            return
        self.holds.give_up(position)
        if position >= self.floor:
            self.gone[position] = self.end_of(position) if came else math.inf

    def sift(self) -> None:
        some = sorted(self.dice.sample(range(60), self.dice.choice((1, 5, 40))))
        stay = self.holds.sift(entries_at(*((self.ms[one], one) for one in some)))
        out = {*self.held, *self.gone}
        assert stay["position"].tolist() == [one for one in some if one not in out]
        for one in self.held.keys() & some:
            self.held[one].add(one)
        self.gone |= {one: self.end_of(one) for one in self.gone.keys() & some}

    def forget(self) -> None:
        self.done_ms = max(self.done_ms, self.dice.randrange(7 * MINUTE_MS))
        self.floor += self.dice.random() < 0.3
        self.holds.forget(self.done_ms, self.floor)
        kept = self.gone.items()
        self.gone = {p: end for p, end in kept if end > self.done_ms and p >= self.floor}


@mends("S244")
@pytest.mark.parametrize("time", range(20))
def test_what_is_held_is_what_a_plain_account_says(seed: int, time: int) -> None:
    """Recalls, their outcomes, opened buckets, notes and moves, in any order."""
    dice = random.Random(f"{seed} {time}")
    both = Both(dice)
    for _ in range(300):
        dice.choice((both.hold, both.hold, both.hold, both.end, both.sift, both.forget))()
        assert {p for p in range(60) if p in both.holds} == both.gone.keys()


@mends("H13")
def test_what_is_recalled_again_and_again_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recalls, "CANCELLED_MAX", 4)
    life = Life(tmp_path, SimClock())
    asker = Asker(life)

    def recall(times: int) -> dict[str, int]:
        for _ in range(times):
            message = at_message(life.clock.wall_ms() + 90_000)
            life.park(message)
            life.run_for(1_500)
            assert asker.recall(handle_of(message)) == CANCELLED
        life.run_for(300_000)
        return books(life.agents[Role.SCHEDULER])

    before = recall(8)
    assert grown(before, recall(TIMES)) == {}
    assert life.delivered() == []


@mends("H13")
def test_a_move_looks_at_each_bucket_a_few_times(tmp_path: Path) -> None:
    """Calls of functions are counted: twice the buckets are twice the calls."""

    def calls_of_a_move(buckets: int) -> int:
        life = Life(tmp_path / str(buckets), SimClock(), {"mapped_file_size_commit_log": 1 << 20})
        begin = life.clock.wall_ms() + 10 * MINUTE_MS
        life.settle()
        timers = life.agents[Role.SCHEDULER]._timers  # type: ignore[attr-defined]
        timers.buckets.follow(begin + buckets * MINUTE_MS)  # each minute gets a file
        for number in range(0, buckets, 50):
            life.park(*(at_message(begin + (number + n) * MINUTE_MS) for n in range(50)))
        life.run_for(3_000)
        timers.moved.below = life.board.word(layout.BOARD_APPENDED)
        count = [0]

        def note(_frame: object, event: str, _what: object) -> None:
            count[0] += event == "call"

        sys.setprofile(note)
        try:
            for _ in range(buckets):
                name, _entries = timers.bucket_to_move()
                timers.moved.add(name)
            assert timers.bucket_to_move() is None
        finally:
            sys.setprofile(None)
        return count[0]

    assert calls_of_a_move(400) < 2.5 * calls_of_a_move(200)


@mends("H13")
def test_names_of_producer_groups_are_kept_as_long_as_a_half_is_theirs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tablemodule, "NAMES_MIN", 4)
    table = OpenHalves()
    for number in range(TIMES):
        rows = np.zeros(1, ROW)
        rows["offset"] = rows["position"] = number
        rows["group"], rows["live"] = table.group_number(f"group-{number}"), 1
        table.add(rows)
        if number >= 2:
            table.remove(table.find(number - 2))
            table.compact(least=1)
        names = [table.group_names[group] for group in table.rows["group"].tolist()]
        assert names == [f"group-{n}" for n in range(max(0, number - 1), number + 1)]
    assert len(table.group_names) <= 6


@mends("H13")
def test_producer_groups_without_a_session_leave_nothing(life: TxnLife) -> None:
    """Sessions that enlist for a group of their own, and end."""

    def enlist(first: int, count: int) -> dict[str, int]:
        for number in range(first, first + count):
            peer = Peer(life, f"group-{number}")
            life.run_for(10)
            life.tables[Role.TXN_CHECKER].detach(peer.session.session)
            life.run_for(10)
        return books(life.agents[Role.TXN_CHECKER])

    before = enlist(0, 8)
    assert grown(before, enlist(8, TIMES)) == {}


@mends("S245")
def test_op_records_that_are_merged_tell_no_later_place(
    life: TxnLife, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Where a start has to look from on: never behind the op record that names a half."""
    monkeypatch.setattr(halvesmodule, "OP_MARKS_MAX", 8)
    life.half(f"{1:032x}")
    life.run_for(2000)
    halves = life.agents[Role.TXN_CHECKER]._halves  # type: ignore[attr-defined]
    dice, ops = random.Random(seed), list[tuple[int, int]]()
    halves.ops_next = 0
    for number in range(100):
        ops.append((number, dice.randrange(50)))
        halves.note_ops([(number, 1, ops[-1][1])])
        assert len(halves._marks) <= 9
        for offset in range(51):
            exact = next((op for op, highest in ops if highest >= offset), number + 1)
            assert halves.first_op(offset) <= exact


@mends("H13")
def test_places_of_halves_that_were_appended_again_are_kept_until_they_are_decided(
    life: TxnLife, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And as long as their outcome is remembered: who asks by an old place hears of it."""
    monkeypatch.setattr(halvesmodule, "ALIASES_MIN", 4)
    life.settle()
    halves = life.agents[Role.TXN_CHECKER]._halves  # type: ignore[attr-defined]
    monkeypatch.setattr(halves._recent, "_most", 4)
    unlink, exists = life.storage.unlink, life.storage.exists
    monkeypatch.setattr(life.storage, "unlink", lambda name: exists(name) and unlink(name))
    for number in range(3):
        theirs = [lone(life, 8 * number + n) for n in range(8)]
        life.run_for(2000)
        low = fill_segment(life)
        ask_for(life, low)
        life.run_for(4000)
        remove_below(life, low)
        life.run_for(3000)
        for half in theirs:
            assert end(life, half, commit=True) == (COMMITTED, "")
        life.run_for(3000)
    kept = books(life.agents[Role.TXN_CHECKER])
    assert 0 < kept["TxnChecker._halves.aliases"] <= 3 * 4 + 4
