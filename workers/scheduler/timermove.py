"""Timers whose segments are to go are appended again before, each with its origin (ADR 0018).

Bucket by bucket, the next one first. What of a bucket lies below the wanted position and still
waits is put; from then on none of it counts there. What is in memory by then is due within a minute
and is delivered from where it is. When nothing below is left, the position becomes the floor: no
timer below it counts any more, and the note says so once all copies are durable. Until then no note
is written, so that a start finds the origins of these copies behind its `scanned`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from shm import layout
from shm.kernels.parked import DUE_AGAIN, SAME_TIME
from workers.scheduler.delivery import NOTHING, due_rows
from workers.scheduler.timeline import STEP_MS
from workers.scheduler.timerbuckets import MINUTE_MS, SECOND_MS
from workers.scheduler.timerpool import AFTER_BIT, SIZE_MASK

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shm.board import Board
    from workers.scheduler.delivery import Delivery, Rows
    from workers.scheduler.timeline import Timeline
    from workers.scheduler.timerpool import Entries
    from workers.scheduler.timers import Timers

PUTS: Final = 4_096


class Moved:
    """Which timers have been appended again, or are done: these do not count where they are."""

    def __init__(self) -> None:
        self.floor = 0  # none below counts
        self.below = 0  # while some are being moved: none below, of these buckets
        self._starts: dict[int, set[int]] = {MINUTE_MS: set(), SECOND_MS: set()}

    def add(self, name: str) -> None:
        """A bucket's timers are put."""
        minute, _, second = name.partition(".")
        if second:
            self._starts[SECOND_MS].add(int(minute) * 60 + int(second))
        else:
            self._starts[MINUTE_MS].add(int(minute))

    def has(self, name: str) -> bool:
        """Whether a bucket's timers are put."""
        minute, _, second = name.partition(".")
        if int(minute) in self._starts[MINUTE_MS]:
            return True
        return bool(second) and int(minute) * 60 + int(second) in self._starts[SECOND_MS]

    def among(self, entries: Entries) -> NDArray[np.bool_]:
        """Which of a bucket's entries do not count."""
        gone: NDArray[np.bool_] = entries["position"] < self.floor
        for span, starts in self._starts.items():
            if starts:
                inside = np.isin((entries["ms"] - 1) // span, list(starts))
                gone |= inside & (entries["position"] < self.below)
        return gone

    def finish(self) -> None:
        """All of them are put, or delivered."""
        self.floor, self.below = self.below, 0
        for starts in self._starts.values():
            starts.clear()


class TimerMove:
    """Does what retention asks for by the board's word `timers_wanted`."""

    def __init__(
        self, board: Board, timers: Timers, delivery: Delivery, timeline: Timeline
    ) -> None:
        self._board = board
        self._timers = timers
        self._delivery = delivery
        self._time = timeline
        self._until = 0  # units that have to be read first
        self._rows: Rows = NOTHING
        self._name = ""  # of the bucket that they are of
        self._seq = 0

    def work(self) -> int:
        """Go on a little; how many were put, or 1. Raises OSError."""
        moved = self._timers.moved
        if not moved.below:
            wanted = self._board.word(layout.BOARD_TIMERS_WANTED)
            if wanted <= moved.floor or self._timers.queue < 0:
                return 0
            moved.below, self._until = wanted, self._timers.written()
            return 1
        if not self._timers.has_read(self._until) or self._timers.is_recalling:
            return 0
        if self._timers.is_moving:
            return self._put()
        return self._begin_bucket()

    def _begin_bucket(self) -> int:
        moved = self._timers.moved
        found = self._timers.bucket_to_move()
        if found is None:
            if self._timers.holds_below(moved.below):
                return 0  # for a minute: these are delivered from memory
            moved.finish()
            return 1
        self._name, entries = found
        entries = entries[entries["position"] < moved.below]
        sizes = (entries["size"] & SIZE_MASK).astype(np.int64)
        self._rows = due_rows(entries["position"].astype(np.int64), sizes)
        self._rows[:, DUE_AGAIN] = self._times(entries)
        self._timers.is_moving = True
        return 1 + self._put()

    def _times(self, entries: Entries) -> NDArray[np.int64]:
        """When delays end by the wall clock, for their record's time of storing goes with it."""
        step_ms = self._time.wall_ms() - self._time.filed_ms()
        if abs(step_ms) <= STEP_MS:
            step_ms = 0
        after = entries["size"] & AFTER_BIT != 0
        return np.where(after, entries["ms"] + step_ms, SAME_TIME)

    def _put(self) -> int:
        if len(self._rows):
            taken = self._delivery.put(self._rows[:PUTS])
            self._rows = self._rows[taken:]
            self._seq = self._delivery.put_seq
            return taken
        if self._delivery.answered_seq < self._seq:
            return 0  # a recall has to name the new record: it waits for these
        self._timers.moved.add(self._name)
        self._timers.is_moving = False
        return 1
