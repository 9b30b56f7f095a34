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

from gantrymq.shm import layout
from gantrymq.shm.kernels.parked import DUE_AGAIN, SAME_TIME
from gantrymq.workers.scheduler.duerows import NOTHING, due_rows
from gantrymq.workers.scheduler.timerpool import SIZE_MASK, is_delay

if TYPE_CHECKING:
    from gantrymq.shm.board import Board
    from gantrymq.workers.scheduler.delivery import Delivery
    from gantrymq.workers.scheduler.duerows import Rows
    from gantrymq.workers.scheduler.timers import Timers

PUTS: Final = 4_096


class TimerMove:
    """Does what retention asks for by the board's word `timers_wanted`."""

    def __init__(self, board: Board, timers: Timers, delivery: Delivery) -> None:
        self._board = board
        self._timers = timers
        self._delivery = delivery
        self._until = 0  # units that have to be read first
        self._rows: Rows = NOTHING
        self._name = ""  # of the bucket that they are of
        self._count = 0  # how many they were
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
        if not self._name:
            return 1
        entries = entries[entries["position"] < moved.below]
        sizes = (entries["size"] & SIZE_MASK).astype(np.int64)
        self._rows = due_rows(entries["position"].astype(np.int64), sizes)
        after = is_delay(entries)
        self._rows[:, DUE_AGAIN] = np.where(after, entries["ms"], SAME_TIME)
        self._count = len(self._rows)
        self._timers.is_moving = True
        return 1 + self._put()

    def _put(self) -> int:
        if len(self._rows):
            taken = self._delivery.put(self._rows[:PUTS])
            self._rows = self._rows[taken:]
            self._seq = self._delivery.put_seq
            return taken
        if self._delivery.answered_seq < self._seq:
            return 0  # a recall has to name the new record: it waits for these
        self._timers.moved.add(self._name)
        self._timers.buckets.discount(self._name, self._count)
        self._timers.is_moving = False
        return 1
