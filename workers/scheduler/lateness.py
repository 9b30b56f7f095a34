"""How late delayed messages were delivered, as words of the board."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from gantrymq.shm import layout, limits
from gantrymq.shm.kernels.parked import DELIVER, DUE_AGAIN, DUE_MS, DUE_STATE, PUT
from gantrymq.workers.scheduler.duerows import NOT_TIMED
from gantrymq.workers.scheduler.timeline import NS

if TYPE_CHECKING:
    from gantrymq.shm.board import Board
    from gantrymq.workers.scheduler.duerows import Rows

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
