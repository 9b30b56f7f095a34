"""What of delays the board shows: how many wait, and how late they were delivered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from shm import layout, limits
from shm.kernels.parked import DELIVER, DUE_AGAIN, DUE_MS, DUE_STATE, PUT
from workers.scheduler.timeline import NS

if TYPE_CHECKING:
    from shm.board import Board
    from workers.scheduler.delaylevels import DelayLevels
    from workers.scheduler.delivery import Rows
    from workers.scheduler.timers import Timers

#: A row's DUE_MS of which nobody knows when it should have come; else ms of CLOCK_BOOTTIME.
NOT_TIMED: Final = -(1 << 62)
#: Who works without a rest counts what waits so often.
COUNT_NS: Final = 100_000_000
_BOUNDS: Final = np.array(limits.LATENESS_MS)


class Lateness:
    """Counts on the board, which go on when this process is replaced."""

    def __init__(self, board: Board) -> None:
        self._board = board

    def note(self, rows: Rows, now_ns: int) -> None:
        """Copies of these rows were answered, and are in the log but for those refused."""
        # Not what was refused, nor what was appended again.
        delivered = rows[(rows[:, DUE_STATE] == PUT) & (rows[:, DUE_AGAIN] == DELIVER)]
        self._add(layout.BOARD_DELIVERED, len(delivered))
        due = delivered[:, DUE_MS]
        late = np.maximum(now_ns // NS - due[due != NOT_TIMED], 0)
        if not len(late):
            return
        self._add(layout.BOARD_LATE_SUM_MS, int(late.sum()))
        most = max(self._board.word(layout.BOARD_LATE_MAX_MS), int(late.max()))
        self._board.set_word(layout.BOARD_LATE_MAX_MS, most)
        for number, count in enumerate(np.bincount(np.searchsorted(_BOUNDS, late)).tolist()):
            if count:
                self._add(layout.BOARD_LATE_COUNTS + 8 * number, count)

    def _add(self, word: int, more: int) -> None:
        self._board.set_word(word, self._board.word(word) + more)


class Pending:
    """How many wait; told now and then."""

    def __init__(self, board: Board, levels: DelayLevels, timers: Timers) -> None:
        self._board = board
        self._levels = levels
        self._timers = timers
        self._next_ns = 0

    def show(self, now_ns: int) -> None:
        """Say it on the board, if it is time to."""
        if now_ns >= self._next_ns:
            self._next_ns = now_ns + COUNT_NS
            self._board.set_word(layout.BOARD_PENDING_LEVELS, self._levels.waiting)
            self._board.set_word(layout.BOARD_PENDING_TIMERS, self._timers.waiting)
