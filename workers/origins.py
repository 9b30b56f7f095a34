"""Which records of the log come from which: their origins, read a little at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from gantrymq.shm import layout
from gantrymq.shm.codes import Stop
from gantrymq.shm.errors import Corrupt
from gantrymq.shm.kernels.origins import (
    COMMITS,
    COPIES,
    DERIVED,
    FIND_AT,
    FIND_BASE,
    FIND_COUNT,
    FIND_END_AT,
    FIND_MOST,
    FIND_OF,
    FIND_WORDS,
    find_origins,
)
from gantrymq.shm.ranges import EVERYTHING, read_ranges
from gantrymq.workers.failure import unfit_record

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gantrymq.shm.board import Board
    from gantrymq.shm.storage import Storage
    from gantrymq.workers.logviews import LogViews

RECORDS_MAX: Final = 16_384


class Finder:
    """Reads segments; keeps what is found of one kind: DERIVED, COMMITS or COPIES."""

    def __init__(self, of: int) -> None:
        self._found: list[NDArray[np.int64]] = []
        self._damaged: list[NDArray[np.int64]] = []
        self._form = np.zeros(FIND_WORDS, np.int64)
        self._form[FIND_MOST], self._form[FIND_OF] = RECORDS_MAX, of
        self._out = np.zeros(RECORDS_MAX, np.int64)

    def read(self, segment: tuple[int, NDArray[np.uint8]], at: int, end: int) -> tuple[int, Stop]:
        """Read some records of a segment (base, view) from a log position on.

        Returns where to go on, and LIMIT or DONE, or why the record there can't be read.
        """
        base, view = segment
        assert base <= at < base + len(view), "a segment that ends before would be read for ever"
        form = self._form
        form[FIND_AT], form[FIND_BASE] = at - base, base
        form[FIND_END_AT] = min(end - base, len(view))
        stop = Stop(find_origins(view, form, self._out))
        found = self._out[: form[FIND_COUNT]]
        self._found.append(found[found >= 0])
        self._damaged.append(-1 - found[found < 0])
        at = base + int(form[FIND_AT])
        if stop == Stop.FILLER or (stop == Stop.DONE and at < end):
            return base + len(view), Stop.LIMIT
        return at, stop

    def damaged(self) -> NDArray[np.int64]:
        """Positions of damaged records: of what their origins are, nothing is known."""
        return np.concatenate([np.zeros(0, np.int64), *self._damaged])

    def origins(self) -> NDArray[np.int64]:
        """What was found, sorted."""
        found = np.concatenate([np.zeros(0, np.int64), *self._found])
        found.sort()
        return found


def positions_of_copies(board: Board, views: LogViews, start: int) -> Iterator[int]:
    """Where records that the broker made of others lie, from `start` to the log's end, in order.

    Of damaged ones, too; what has no length that leads on hides the rest of its segment.
    Raises OSError.
    """
    at, end = max(start, board.word(layout.BOARD_LOW)), board.word(layout.BOARD_APPENDED)
    while at < end:
        finder = Finder(COPIES)
        try:
            segment = views.segment(at)
        except (FileNotFoundError, Corrupt):  # retention was quicker: nothing is lost
            at = (at // board.segment_bytes + 1) * board.segment_bytes
            continue
        at, stop = finder.read(segment, at, end)
        yield from np.sort(np.concatenate([finder.origins(), finder.damaged()])).tolist()
        if stop not in (Stop.DONE, Stop.LIMIT):
            at = _behind_damage(segment, at)


def _behind_damage(segment: tuple[int, NDArray[np.uint8]], at: int) -> int:
    base, view = segment
    total = int.from_bytes(view[at - base : at - base + 4].tobytes(), "big")
    return min(at + total, base + len(view)) if total >= layout.FILLER.size else base + len(view)


class _Scan:
    """Steps through pieces of the log: [start, end) each, the first of them in one from `floor` on.

    The first may start amid a record: a note is believed, and may say any place of the log. It is
    read from `floor` or its segment's beginning on then, where a record begins for sure.
    """

    def __init__(
        self,
        board: Board,
        views: LogViews,
        pieces: Iterable[tuple[int, int]],
        of: int,
        floor: int = 0,
    ) -> None:
        self._board = board
        self._views = views
        self._pieces = [(start, end) for start, end in pieces if start < end]
        self._start = self._pieces[0][0] if self._pieces else -1
        self._floor = floor
        self._finder = Finder(of)

    @property
    def finished(self) -> bool:
        """Whether all was read."""
        return not self._pieces

    def damaged(self) -> NDArray[np.int64]:
        """Positions of records that were passed over for their damage."""
        return self._finder.damaged()

    def origins(self) -> NDArray[np.int64]:
        """The positions that were found, sorted."""
        return self._finder.origins()

    def step(self) -> None:
        """Read some records. Raises Corrupt, OSError."""
        at, end = self._pieces[0]
        at = max(at, self._board.word(layout.BOARD_LOW))
        if at < end:
            segment = self._views.segment(at)
            at, stop = self._finder.read(segment, at, end)
            if stop not in (Stop.DONE, Stop.LIMIT) and at >= self._board.word(layout.BOARD_LOW):
                at = self._before(at, segment[0], stop)
        if at < end:
            self._pieces[0] = (at, end)
        else:
            del self._pieces[0]

    def _before(self, at: int, base: int, stop: Stop) -> int:
        """Where a record begins before the place that was given to start at. Raises Corrupt."""
        first = max(base, self._floor, self._board.word(layout.BOARD_LOW))
        if at != self._start or at <= first:
            raise unfit_record("read", at, base, stop)
        self._start = -1
        return first


class OriginScan(_Scan):
    """All origins of the log positions [start, end), as far as we wrote them (HO-92).

    Of some before `start` as well, if that lies amid a record.
    """

    def __init__(
        self, storage: Storage, board: Board, views: LogViews, start: int, end: int
    ) -> None:
        ranges = read_ranges(storage) or EVERYTHING
        ours = [(piece.start, piece.end) for piece in ranges.stretches(start, end) if piece.ours]
        floor = ranges.stretch(ours[0][0]).start if ours else 0
        super().__init__(board, views, ours, DERIVED, floor)


class CommitScan(_Scan):
    """Halves of all commit copies of the log positions [start, end), whoever wrote them.

    Of some before `start` as well, if that lies amid a record.
    """

    def __init__(self, board: Board, views: LogViews, start: int, end: int) -> None:
        super().__init__(board, views, [(start, end)], COMMITS)
