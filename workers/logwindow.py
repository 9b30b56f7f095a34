"""One segment's map and whose it is, kept from one look to the next."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shm import layout
from shm.ranges import EVERYTHING, read_ranges

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shm.board import Board
    from shm.storage import Storage
    from workers.logviews import LogViews

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
        stretch = self._ranges.stretch(position)
        self.ours = stretch.ours
        self.start = max(self.base, stretch.start)
        self.end = min(self.base + len(self.view), stretch.end)
        return True

    def drop(self) -> None:
        """Hold no map."""
        self.view = NO_VIEW
        self.base = self.start = self.end = 0
