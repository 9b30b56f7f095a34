"""How many delayed messages wait, as words of the board."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gantrymq.shm import layout

if TYPE_CHECKING:
    from gantrymq.shm.board import Board
    from gantrymq.workers.scheduler.delaylevels import DelayLevels
    from gantrymq.workers.scheduler.timers import Timers

#: Who works without a rest counts what waits so often.
COUNT_NS: Final = 100_000_000


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
