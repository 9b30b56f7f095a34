"""Which records of the log come from which: their origins, read a little at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from shm import layout
from shm.codes import Stop
from shm.errors import Corrupt
from shm.kernels import parked
from shm.kernels.parked import find_origins
from shm.lognames import segment_name
from shm.ranges import EVERYTHING, read_ranges

if TYPE_CHECKING:
    from shm.board import Board
    from shm.storage import Storage
    from workers.logviews import LogViews

RECORDS_MAX: Final = 16_384


class OriginScan:
    """All origins of the log positions [start, end), as far as we wrote them (HO-92)."""

    def __init__(
        self, storage: Storage, board: Board, views: LogViews, start: int, end: int
    ) -> None:
        self._board = board
        self._views = views
        self._pieces = [
            (stretch.start, stretch.end)
            for stretch in (read_ranges(storage) or EVERYTHING).stretches(start, end)
            if stretch.ours
        ]
        self._found: list[NDArray[np.int64]] = []
        self._form = np.zeros(parked.FIND_WORDS, np.int64)
        self._form[parked.FIND_MOST] = RECORDS_MAX
        self._out = np.zeros(RECORDS_MAX, np.int64)

    @property
    def finished(self) -> bool:
        """Whether all was read."""
        return not self._pieces

    def origins(self) -> NDArray[np.int64]:
        """What was found, sorted."""
        found = np.concatenate([np.zeros(0, np.int64), *self._found])
        found.sort()
        return found

    def step(self) -> None:
        """Read some records. Raises Corrupt, OSError."""
        at, end = self._pieces[0]
        at = max(at, self._board.word(layout.BOARD_LOW))
        if at >= end:
            del self._pieces[0]
            return
        base, view = self._views.segment(at)
        form = self._form
        form[parked.FIND_AT], form[parked.FIND_BASE] = at - base, base
        form[parked.FIND_END_AT] = min(end - base, len(view))
        stop = find_origins(view, form, self._out)
        self._found.append(self._out[: form[parked.FIND_COUNT]].copy())
        at = base + int(form[parked.FIND_AT])
        if stop == Stop.FILLER or (stop == Stop.DONE and at < end):
            at = base + len(view)
        elif stop not in (Stop.DONE, Stop.LIMIT) and at >= self._board.word(layout.BOARD_LOW):
            raise Corrupt(
                f"record at {at} of the commit log can't be read ({Stop(stop).name}); stop the"
                " broker and run `gantrymq store verify`",
                path=segment_name(base),
                position=at,
            )
        self._pieces[0] = (at, end)
