"""One segment's map and whose it is, kept from one look to the next."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gantrymq.shm import layout
from gantrymq.shm.kernels import stretch
from gantrymq.shm.ranges import EVERYTHING, read_ranges
from gantrymq.workers.logviews import record_in

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gantrymq.shm.board import Board
    from gantrymq.shm.record import Record
    from gantrymq.shm.storage import Storage
    from gantrymq.workers.logviews import LogViews

NO_VIEW = np.zeros(0, np.uint8)


class LogWindow:
    """The part of the log around a position that one side wrote (shm.ranges)."""

    def __init__(self, storage: Storage, board: Board, views: LogViews) -> None:
        self._board = board
        self._views = views
        self._ranges = read_ranges(storage) or EVERYTHING
        self.base = self.start = self.end = 0
        self.ours = False
        self.view: NDArray[np.uint8] = NO_VIEW

    def enter(self, position: int) -> bool:
        """Have `view` hold a log position; False if it is gone or not there yet."""
        if self.start <= position < self.end:
            return True
        board = self._board
        if not board.word(layout.BOARD_LOW) <= position < board.word(layout.BOARD_APPENDED):
            return False
        try:
            self.base, self.view = self._views.segment(position)
        except FileNotFoundError:
            self.drop()
            return False
        piece = self._ranges.stretch(position)
        self.ours = piece.ours
        self.start = max(self.base, piece.start)
        self.end = min(self.base + len(self.view), piece.end)
        return True

    def show_in(self, form: NDArray[np.int64] | memoryview[int]) -> None:
        """Tell a kernel what it may read of `view`."""
        form[stretch.BASE], form[stretch.OURS] = self.base, int(self.ours)
        form[stretch.STRETCH_FROM], form[stretch.STRETCH_END] = self.start, self.end

    def record(self, position: int) -> Record | None:
        """A record of the log, for what is rare; None if it cannot be read."""
        return record_in(self.view, self.base, position) if self.enter(position) else None

    def drop(self) -> None:
        """Hold no map."""
        self.view = NO_VIEW
        self.base = self.start = self.end = 0
