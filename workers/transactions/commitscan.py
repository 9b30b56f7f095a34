"""Which halves have commit copies in a stretch of the log, read a little at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from shm import layout
from shm.codes import Stop
from shm.errors import Corrupt
from shm.kernels import halfform
from shm.kernels.halfrows import find_commits

if TYPE_CHECKING:
    from shm.board import Board
    from shm.storage import Storage
    from workers.logviews import LogViews

RECORDS_MAX: Final = 16_384


class CommitScan:
    """All commit copies of the log positions [start, end), whoever wrote them."""

    def __init__(
        self, storage: Storage, board: Board, views: LogViews, start: int, end: int
    ) -> None:
        del storage
        self._board = board
        self._views = views
        self._at, self._end = start, end
        self._found: list[NDArray[np.int64]] = []
        self._form = np.zeros(halfform.FORM_WORDS, np.int64)
        self._out = np.zeros(RECORDS_MAX, np.int64)

    @property
    def finished(self) -> bool:
        """Whether all was read."""
        return self._at >= self._end

    def positions(self) -> NDArray[np.int64]:
        """The halves' positions, sorted."""
        found = np.concatenate([np.zeros(0, np.int64), *self._found])
        found.sort()
        return found[np.searchsorted(found, 0) :]

    def step(self) -> None:
        """Read some records. Raises Corrupt, OSError."""
        low = self._board.word(layout.BOARD_LOW)
        at = max(self._at, low)
        if at >= self._end:
            self._at = at
            return
        base, view = self._views.segment(at)
        form = self._form
        form[halfform.NEXT], form[halfform.BASE] = at - base, base
        form[halfform.STRETCH_END] = min(self._end - base, len(view))
        form[halfform.COMMIT] = RECORDS_MAX
        stop = find_commits(view, form, self._out)
        self._found.append(self._out[: form[halfform.COUNT]].copy())
        at = base + int(form[halfform.NEXT])
        if stop == Stop.FILLER or (stop == Stop.DONE and at < self._end):
            at = base + len(view)
        elif stop not in (Stop.DONE, Stop.LIMIT) and at >= self._board.word(layout.BOARD_LOW):
            raise Corrupt(
                f"record at {at} of the commit log can't be read ({Stop(stop).name}); stop the"
                " broker and run `gantrymq store verify`",
                path=f"commitlog/{base:020d}",
                position=at,
            )
        self._at = at
