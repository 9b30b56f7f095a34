"""One segment's map and whose it is, kept from one look to the next."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gantrymq.shm import layout
from gantrymq.shm.kernels import stretch
from gantrymq.shm.ranges import EVERYTHING, read_ranges
from gantrymq.shm.record import OWN, RECOVERY, Filler, Invalid, Record, parse_record

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gantrymq.shm.board import Board
    from gantrymq.shm.storage import Storage
    from gantrymq.workers.damage import Damage
    from gantrymq.workers.logviews import LogViews

NO_VIEW = np.zeros(0, np.uint8)


class LogWindow:
    """The part of the log around a position that one side wrote (shm.ranges)."""

    def __init__(self, storage: Storage, board: Board, views: LogViews, damage: Damage) -> None:
        self._board = board
        self._views = views
        self._damage = damage
        self._ranges = read_ranges(storage) or EVERYTHING
        self.base = self.start = self.end = 0
        self.ours = False
        self.view: NDArray[np.uint8] = NO_VIEW

    def enter(self, position: int) -> bool:
        """Have `view` hold a log position; False if it is gone or not there yet. Raises Corrupt."""
        if self.start <= position < self.end:
            return True
        if not self._is_in_log(position):
            return False
        try:
            self.base, self.view = self._views.segment(position)
        except FileNotFoundError:
            self.drop()
            self._name(position)  # unless retention has removed it just now
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
        """A record of the log, for what is rare; None if it is gone, or damaged.

        What is damaged is named in the broker's log: the position has to be one that a queue, an
        index or another record gives.
        """
        found = self._parsed(position)
        if isinstance(found, Invalid):
            self._name(position)
        elif position < 0:  # nowhere, so retention has not removed it
            self._damage.name(position)
        return found if isinstance(found, Record) else None

    def record_asked_for(self, position: int) -> Record | None:
        """The same of a position that may come from a client: there need not be a record."""
        found = self._parsed(position)
        return found if isinstance(found, Record) else None

    def _parsed(self, position: int) -> Record | Filler | Invalid | None:
        """What is there, by the checksum that fits who wrote it; None if it is gone."""
        if not self.enter(position):
            return None
        check = OWN if self.ours else RECOVERY
        at = position - self.base
        return parse_record(self.view.data, at, self.view.size, check, position)

    def _is_in_log(self, position: int) -> bool:
        board = self._board
        return board.word(layout.BOARD_LOW) <= position < board.word(layout.BOARD_APPENDED)

    def _name(self, position: int) -> None:
        # A map that was made before retention came has zeroes there: that is no damage.
        if self._is_in_log(position):
            self._damage.name(position)

    def name_damaged(self, positions: NDArray[np.int64]) -> None:
        """Have those of the records at these positions named that are damaged."""
        for position in positions.tolist():
            self.record(position)

    def drop(self) -> None:
        """Hold no map."""
        self.view = NO_VIEW
        self.base = self.start = self.end = 0
