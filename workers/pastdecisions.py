"""Decisions of old: what the table does not remember is found in the op queue, step by step."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from shm.properties import HALF_TOPIC, OP_TOPIC
from shm.transactionwire import COMMITTED, GIVEN_UP, ROLLED_BACK, End
from workers.commitscan import CommitScan

if TYPE_CHECKING:
    from shm.board import Board
    from shm.storage import Storage
    from workers.givenup import GivenUp
    from workers.halves import Halves
    from workers.logviews import LogViews

#: Op records that are read at one time.
OPS_MAX: Final = 4096
MISSING: Final = "missing"


@dataclass(slots=True)
class _Search:
    session: int
    request: End
    position: int
    offset: int
    op: int = -1  # where in the op queue to go on
    scan: CommitScan | None = None


class PastDecisions:
    """ENDs of halves that were decided before what is remembered."""

    def __init__(
        self, storage: Storage, board: Board, views: LogViews, halves: Halves, given_up: GivenUp
    ) -> None:
        self._storage = storage
        self._board = board
        self._views = views
        self._halves = halves
        self._given_up = given_up
        self._searches: deque[_Search] = deque()

    def __len__(self) -> int:
        return len(self._searches)

    def ask(self, session: int, request: End, position: int, offset: int) -> None:
        """Look for what became of a half, for an END that names it."""
        self._searches.append(_Search(session, request, position, offset))

    def step(self) -> tuple[int, End, str] | None:
        """Look a little further; an END with what was found of its half, or MISSING."""
        if not self._searches:
            return None
        search = self._searches[0]
        found = self._look(search)
        if not found:
            return None
        self._searches.popleft()
        if found is not MISSING:
            self._halves.remember(search.position, found)
        return search.session, search.request, found

    def _look(self, search: _Search) -> str:
        if search.scan is not None:
            return self._scan_on(search)
        if search.op < 0:
            if search.position in self._given_up.unsettled:
                return GIVEN_UP
            if not self._is_unit(search):
                return MISSING
            search.op = self._first_behind(search.position)
        end = self._halves.written(OP_TOPIC)
        if search.op >= end:
            return MISSING
        search.op, rows = self._halves.read_ops(search.op, min(end, search.op + OPS_MAX))
        hits = np.flatnonzero(rows[:, 0] == search.offset)
        if not len(hits):
            return ""
        committed = int(rows[hits[0], 2])
        if committed < 0:  # another broker's: only a copy tells
            _first, units = self._halves.units(OP_TOPIC, int(rows[hits[0], 1]), end)
            stop = int(units[0])
            search.scan = CommitScan(self._storage, self._board, self._views, search.position, stop)
            return ""
        return COMMITTED if committed else ROLLED_BACK

    def _scan_on(self, search: _Search) -> str:
        scan = search.scan
        assert scan is not None, "it is going on"
        if not scan.finished:
            scan.step()
            return ""
        return COMMITTED if search.position in scan.positions().tolist() else ROLLED_BACK

    def _is_unit(self, search: _Search) -> bool:
        """Whether that offset of the half queue is at that position."""
        halves = self._halves
        if not halves.lowest() <= search.offset < halves.written():
            return False
        _first, units = halves.units(HALF_TOPIC, search.offset, search.offset + 1)
        return int(units[0]) == search.position

    def _first_behind(self, position: int) -> int:
        """First op record that lies behind a log position."""
        low, high = self._halves.lowest(OP_TOPIC), self._halves.written(OP_TOPIC)
        while low < high:
            middle = (low + high) // 2
            _first, units = self._halves.units(OP_TOPIC, middle, middle + 1)
            if int(units[0]) < position:
                low = middle + 1
            else:
                high = middle
        return low
