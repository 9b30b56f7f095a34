"""Timers however far apart: some hundred files, each timer opened once, in time, over restarts."""

from __future__ import annotations

import random

import numpy as np
import pytest
from numpy.typing import NDArray

from gantrymq.workers.scheduler import timerbuckets
from gantrymq.workers.scheduler.timerbuckets import (
    LEAD_MS,
    LEVELS,
    TimerBuckets,
    span_of,
)
from gantrymq.workers.scheduler.timerpool import ENTRY
from tests.support.simdisk import Disk
from tests.support.simstorage import SimStorage
from tests.support.trials import mends

MADE = "1"
MS = 1_700_000_000_000
#: How far ahead timers are: some of a second, some of centuries.
AHEAD_MS = [10**exponent for exponent in range(2, 14)]


class Timers:
    """Files and opens timers, and knows which must have come."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.storage = SimStorage(Disk())
        self.buckets = TimerBuckets(self.storage)
        self.buckets.belong_to(MADE)
        self.now_ms = MS
        self.due: dict[int, int] = {}  # by position
        self.seen: set[int] = set()

    def file(self, count: int) -> None:
        """New ones; those of open buckets come at once, as `Timers` of the scheduler has it."""
        some = np.zeros(count, ENTRY)
        some["position"] = range(len(self.due), len(self.due) + count)
        most = [LEAD_MS + self.dice.choice(AHEAD_MS) for _ in range(count)]
        some["ms"] = [self.now_ms + self.dice.randrange(LEAD_MS, ms) for ms in most]
        some["size"] = 100
        self.due |= dict(zip(some["position"].tolist(), some["ms"].tolist(), strict=True))
        soon = some[self.buckets.are_open(some)]
        self.buckets.append(some)
        self._see(soon)

    def _see(self, some: NDArray[np.void]) -> None:
        for position, ms in some[["position", "ms"]].tolist():
            assert self.due[position] == ms
            assert position not in self.seen, "it comes twice"
            self.seen.add(position)

    def open_all(self) -> None:
        """All that is to be opened by now."""
        self.buckets.follow(self.now_ms)
        while self.buckets.opens_ms() < self.now_ms:
            opened = self.buckets.open_next()
            if opened is not None:
                self._see(opened[0])
            if self.dice.random() < 0.1:
                self.look()
        late = [n for n, ms in self.due.items() if ms < self.now_ms and n not in self.seen]
        assert not late

    def look(self) -> None:
        """One that has not come is found, by its time and by its position."""
        waiting = sorted(self.due.keys() - self.seen)
        if not waiting:
            return
        position = self.dice.choice(waiting)
        found, is_all = self.buckets.look_on(self.due[position], {}, 100_000)
        assert is_all
        assert position in found["position"].tolist()
        search = self.buckets.seek(position, 10**9)
        with pytest.raises(StopIteration) as ended:
            next(search)
        assert ended.value.value["position"].tolist() == [position]

    def restart(self, *, is_counted: bool) -> None:
        """Another agent takes over; `is_counted`: behind a note."""
        if is_counted:
            while not self.buckets.sync_some(100):
                pass
            self.buckets.forget_passed(self.now_ms)
        before = self.buckets
        before.close()
        self.buckets = TimerBuckets(self.storage)
        assert self.buckets.begin(MADE, len(self.due), {})
        found = set(self.buckets.unopened())
        assert found >= set(before.unopened())
        for name in found:  # what its note does not count comes again
            start, end = span_of(name)
            self.seen -= {n for n in self.seen if start < self.due[n] <= end}


@mends("S92")
@pytest.mark.parametrize("seed", range(12))
def test_each_comes_once_in_time(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timerbuckets, "PIECE", 7)
    monkeypatch.setattr(timerbuckets, "SPLIT_ENTRIES", 40)
    dice = random.Random(seed)
    timers = Timers(dice)
    for turn in range(60):
        timers.open_all()
        timers.file(dice.randint(1, 30))
        timers.look()
        names = [name for name in timers.buckets.unopened() if "." not in name]
        assert len(names) < 66 * (LEVELS + 1)
        if turn % 12 == 11:
            timers.restart(is_counted=dice.random() < 0.7)
        if turn % 5 == 4:  # while files are being split
            timers.buckets.follow(timers.now_ms)
            for _ in range(dice.randint(0, 20)):
                if timers.buckets.opens_ms() < timers.now_ms:
                    opened = timers.buckets.open_next()
                    if opened is not None:
                        timers._see(opened[0])
        timers.now_ms += dice.choice(AHEAD_MS[:9])
    timers.now_ms += 20 * AHEAD_MS[-1]
    timers.open_all()
    assert len(timers.seen) == len(timers.due)
    timers.buckets.close()


@mends("S92")
def test_a_second_of_many_timers_is_not_split(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is nothing smaller: who looks into it has all of it."""
    monkeypatch.setattr(timerbuckets, "SPLIT_ENTRIES", 4)
    buckets = TimerBuckets(SimStorage(Disk()))
    buckets.follow(MS)
    some = np.zeros(10, ENTRY)
    some["position"], some["ms"], some["size"] = range(10), MS + 5_000, 100
    buckets.append(some)
    (minute,) = buckets.unopened()
    while buckets.is_unopened(minute):
        assert buckets.look_into(minute) is None
    (second,) = buckets.unopened()
    found = buckets.look_into(second)
    assert found is not None
    assert found["position"].tolist() == list(range(10))
    buckets.close()
