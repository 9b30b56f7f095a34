"""Delay levels (DT-10 to DT-17): one queue each, whose units say when their records are due.

In order within a level. A unit's time is bound from above by the level's delay from the moment
when it was first seen (DT-13's guard, but never early).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from gantrymq.shm import layout
from gantrymq.shm.kernels.parked import DUE_MS
from gantrymq.shm.properties import SCHEDULE_TOPIC
from gantrymq.workers.scheduler.duerows import Rows, due_rows
from gantrymq.workers.scheduler.timerpool import are_among

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gantrymq.shm.board import Board
    from gantrymq.workers.logviews import LogViews
    from gantrymq.workers.scheduler.othersettled import OtherSettled
    from gantrymq.workers.scheduler.timeline import Timeline

#: Units of a level that are looked at together.
UNITS_MAX: Final = 1024
NEVER: Final = 1 << 62


def _none() -> NDArray[np.int64]:
    return np.zeros(0, np.int64)


@dataclass(slots=True)
class Level:
    """One level's units at hand: of those that need a copy, where, how long and when they are."""

    number: int
    delay_ms: int
    end: int  # queue offset behind what was looked at
    at: int = 0  # the first that was not handed in
    offsets: NDArray[np.int64] = field(default_factory=_none)
    positions: NDArray[np.int64] = field(default_factory=_none)
    sizes: NDArray[np.int64] = field(default_factory=_none)
    due: NDArray[np.int64] = field(default_factory=_none)

    @property
    def next(self) -> int:
        """Queue offset of the first unit whose record was not handed in."""
        return int(self.offsets[self.at]) if self.holds else self.end

    @property
    def holds(self) -> bool:
        """Whether a unit at hand is still to be handed in."""
        return self.at < len(self.offsets)

    @property
    def has_room(self) -> bool:
        """Whether more units may be taken to hand: early, for the clock may be set meanwhile."""
        return len(self.offsets) - self.at < UNITS_MAX

    def add(self, end: int, *columns: NDArray[np.int64]) -> None:
        """Units behind those at hand, up to a queue offset: offsets, positions, sizes, times."""
        held = (self.offsets, self.positions, self.sizes, self.due)
        self.offsets, self.positions, self.sizes, self.due = (
            np.concatenate((old[self.at :], new)) for old, new in zip(held, columns, strict=True)
        )
        self.end, self.at = end, 0


class DelayLevels:
    """What is due in each level, and how far it has come."""

    def __init__(
        self, board: Board, views: LogViews, timeline: Timeline, delays_ms: Sequence[int]
    ) -> None:
        self._board = board
        self._views = views
        self._time = timeline
        self._delays = delays_ms
        self._levels: list[Level] = []
        self._base = -1
        self._known: Mapping[int, int] = {}
        self._done: NDArray[np.int64] = np.zeros(0, np.int64)
        self._others: OtherSettled | None = None

    def begin(
        self,
        known: Mapping[int, int],
        done: NDArray[np.int64],
        others: OtherSettled | None = None,
    ) -> None:
        """Go on from these offsets; `done` are positions (sorted) that have their copies.

        `others`: what another broker has delivered.
        """
        self._known, self._done, self._others = known, done, others

    @property
    def offsets(self) -> dict[int, int]:
        """Level -> next offset, of all levels that ever held a record."""
        kept = {n: o for n, o in self._known.items() if n > len(self._levels)}
        return kept | {level.number: level.next for level in self._levels if level.next}

    @property
    def queues(self) -> list[int]:
        """Their board queues."""
        return [self._base + level.number - 1 for level in self._levels]

    @property
    def waiting(self) -> int:
        """Records that were not handed in."""
        ends = (self._board.word(self._at(v) + layout.QUEUE_NEXT_OFFSET) for v in self._levels)
        return sum(max(0, end - v.next) for end, v in zip(ends, self._levels, strict=True))

    def has_more(self) -> bool:
        """Whether units have come to a level that has room for them."""
        for level in self._levels:
            if self._has_grown(level) and level.has_room:
                low, high = self._bounds(level)
                if high > max(level.end, low):
                    return True
        return False

    def _has_grown(self, level: Level) -> bool:
        """Whether there is anything behind what was looked at: asked of each level at each step."""
        return self._board.word(self._at(level) + layout.QUEUE_MAX_OFFSET) > level.end

    def _bounds(self, level: Level) -> tuple[int, int]:
        word, at = self._board.word, self._at(level)
        return word(at + layout.QUEUE_MIN_OFFSET), word(at + layout.QUEUE_MAX_OFFSET)

    def _at(self, level: Level) -> int:
        return self._board.queue_at(self._base + level.number - 1)

    def find_queues(self) -> None:
        """Follow the board: more levels may have their queues by now."""
        topic = self._board.topic_named(SCHEDULE_TOPIC)
        if topic is None:
            return
        self._base = topic.queue_base
        for number in range(len(self._levels) + 1, topic.queue_count + 1):
            at = self._board.queue_at(self._base + number - 1)
            low = self._board.word(at + layout.QUEUE_MIN_OFFSET)
            # By the log: after a kill the reader may still be making the queue's end again.
            end = self._board.word(at + layout.QUEUE_NEXT_OFFSET)
            start = min(max(self._known.get(number, 0), low), max(low, end))  # DT-17
            delay = self._delays[min(number, len(self._delays)) - 1]
            self._levels.append(Level(number, delay, start))

    # ---------------------------------------------------------------------------------- what is due

    def due(self) -> list[tuple[Level, Rows]]:
        """Rows that are due now, level by level."""
        now_ms = self._time.delay_ms()
        found = []
        for level in self._levels:
            if self._has_grown(level) and level.has_room:
                self._read(level)
            if level.holds and (count := _count_due(level, now_ms)):
                part = slice(level.at, level.at + count)
                rows = due_rows(level.positions[part], level.sizes[part])
                rows[:, DUE_MS] = self._time.since_boot(level.due[part], now_ms)
                found.append((level, rows))
        return found

    def taken(self, level: Level, count: int) -> None:
        """So many of the rows last given are taken care of."""
        level.at += count

    def _read(self, level: Level) -> None:
        low, high = self._bounds(level)
        first = max(level.end, low)
        end = min(high, first + UNITS_MAX)
        if first >= end:
            return
        units = self._views.units(SCHEDULE_TOPIC, level.number - 1, first, end)
        positions, sizes = units["position"].astype(np.int64), units["size"].astype(np.int64)
        # SF-65: some units have no record; others have their copies.
        need = (sizes != layout.CQ_FILLER_SIZE) & ~are_among(positions, self._done)
        if self._others is not None:
            settled = self._others.among(SCHEDULE_TOPIC, level.number - 1, first, len(units))
            need &= ~settled
        stored = units["code"].astype(np.int64)[need] - level.delay_ms
        level.add(
            first + len(units), first + np.flatnonzero(need), positions[need], sizes[need],
            self._time.due_after(stored, level.delay_ms),
        )  # fmt: skip

    def next_due_ms(self) -> int:
        """When the first unit is due, on the timeline of delays; NEVER if there is none."""
        return min((int(v.due[v.at]) for v in self._levels if v.holds), default=NEVER)


def _count_due(level: Level, now_ms: int) -> int:
    """How many of the first units are due: a later one never goes before an earlier one."""
    later = np.flatnonzero(level.due[level.at :] > now_ms)
    return int(later[0]) if len(later) else len(level.due) - level.at
