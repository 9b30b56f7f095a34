"""Decisions of old: what the table does not remember is found in the op queue, step by step.

Sessions have turns of a step each; what one that has ended wanted to know is looked for no more.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from gantrymq.shm import layout
from gantrymq.shm.properties import HALF_TOPIC, NOTES_TOPIC, OP_TOPIC
from gantrymq.shm.transactionwire import (
    COMMITTED,
    GIVEN_UP,
    OUTCOMES,
    RECHECK,
    ROLLED_BACK,
    End,
    Settle,
)
from gantrymq.workers.origins import CommitScan
from gantrymq.workers.transactions import records as transactionnotes
from gantrymq.workers.transactions.decision import MOVED
from gantrymq.workers.transactions.identity import unique_at

if TYPE_CHECKING:
    from gantrymq.shm.board import Board
    from gantrymq.workers.logviews import LogViews
    from gantrymq.workers.transactions.decisions import Decisions
    from gantrymq.workers.transactions.desk import Desk
    from gantrymq.workers.transactions.givenup import GivenUp
    from gantrymq.workers.transactions.halves import Halves

#: Op records that are read at one time.
OPS_MAX: Final = 4096
MISSING: Final = "missing"


#: Who asks for a half that came late: no session.
NOBODY: Final = -1


@dataclass(frozen=True, slots=True)
class Follow:
    """How was a transaction decided? Not asked by any session."""

    tx: str
    serial: int = 0


Request = End | Settle | Follow


@dataclass(slots=True)
class _Search:
    session: int
    request: Request
    position: int
    offset: int
    op: int = -1  # where in the op queue to go on
    scan: CommitScan | None = None
    unit: int = -1  # where in the half queue to look for a record that stands for it
    note: int = -1  # where in the notes queue to look for a settlement
    key: int = 0  # hash of its UNIQ_KEY
    otherwise: str = ROLLED_BACK


class PastDecisions:
    """Requests for halves that were decided before what is remembered."""

    def __init__(
        self, board: Board, views: LogViews, decisions: Decisions, known: tuple[Halves, GivenUp],
        desk: Desk,
    ) -> None:  # fmt: skip
        self._board = board
        self._views = views
        self._decisions = decisions
        self._halves, self._given_up = known
        self._desk = desk
        self._hand = desk.hand
        self._searches: deque[_Search] = deque()

    def __len__(self) -> int:
        return len(self._searches)

    def ask(self, session: int, request: End | Settle, position: int, offset: int) -> None:
        """Look for what became of a half, for a request that names it."""
        if self._desk.search_for(session, 1):
            self._searches.append(_Search(session, request, position, offset))

    def follow(self, request: Follow, position: int, offset: int) -> None:
        """Look for what became of a half, for others of its transaction that came late."""
        self._searches.append(_Search(NOBODY, request, position, offset))

    def lost(self) -> list[tuple[int, object]]:
        """Who waits for what is to be found: it is all learned anew."""
        asked = [search for search in self._searches if search.session != NOBODY]
        for search in asked:
            self._desk.search_for(search.session, -1)
        return [(search.session, search.request) for search in asked]

    def step(self) -> tuple[int, Request, str] | None:
        """Look a little further; a request with what was found of its half, or MISSING."""
        if not self._searches:
            return None
        search = self._searches.popleft()
        if search.session != NOBODY and not self._desk.search_for(search.session, 0):
            return None
        self._hand.take(search.session, search.request.serial)
        found = self._look(search)
        self._hand.drop()
        if not found:
            self._searches.append(search)  # others come first
            return None
        self._desk.search_for(search.session, -1)
        if found not in (MISSING, MOVED):
            self._halves.remember(search.position, found)
        return search.session, search.request, found

    def _look(self, search: _Search) -> str:
        if search.note >= 0:
            return self._look_at_notes(search)
        if search.unit >= 0:
            return self._look_for_newer(search)
        if search.scan is not None:
            return self._scan_on(search)
        if search.op < 0:
            return self._begin(search)
        return self._look_in_ops(search)

    def _begin(self, search: _Search) -> str:
        if search.position in self._given_up.unsettled:
            return GIVEN_UP
        if self._is_unit(search):
            search.op = self._first_behind(search.position)
            return ""
        is_gone = search.position < self._board.word(layout.BOARD_LOW)
        return self._begin_newer(search, MISSING) if is_gone else MISSING

    def _look_in_ops(self, search: _Search) -> str:
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
            search.scan = CommitScan(self._board, self._views, search.position, stop)
            return ""
        return COMMITTED if committed else ROLLED_BACK

    def _scan_on(self, search: _Search) -> str:
        scan = search.scan
        assert scan is not None, "it is going on"
        if not scan.finished:
            scan.step()
            return ""
        if search.position in scan.origins().tolist():
            return COMMITTED
        damaged = scan.damaged()  # one of them may be its copy
        self._decisions.window.name_damaged(damaged)
        return self._begin_newer(search, MISSING if len(damaged) else ROLLED_BACK)

    def _begin_newer(self, search: _Search, otherwise: str) -> str:
        """Nothing but another record of the same half, or a settlement, can tell."""
        search.otherwise = otherwise
        search.unit = max(search.offset + 1, self._halves.lowest())
        if otherwise is not MISSING:
            _first, units = self._halves.units(HALF_TOPIC, search.offset, search.offset + 1)
            rows = self._halves.rows_of(units.reshape(-1, 2), 0, 0)
            search.key = int(rows["key"][0]) if len(rows) else 0
        return ""

    def _look_for_newer(self, search: _Search) -> str:
        halves = self._halves
        if search.unit >= halves.next:  # what is behind has told `halves` where it comes from
            search.note = halves.lowest(NOTES_TOPIC)
            return ""
        search.unit = max(search.unit, halves.lowest())
        end = min(halves.next, search.unit + OPS_MAX)
        if search.unit >= end:
            return ""
        first, units = halves.units(HALF_TOPIC, search.unit, end)
        damaged = halves.damaged
        rows = halves.rows_of(units.reshape(-1, 2), 0, 0)  # these tell where they come from
        if halves.damaged != damaged:
            search.otherwise = MISSING  # one of them may stand for it
        same = rows[(rows["key"] == search.key) & (rows["key"] != 0)]
        places = list(zip(same["position"].tolist(), same["offset"].tolist(), strict=True))
        window = self._decisions.window
        key = unique_at(window, search.position) if places else ""
        named = [place for place in places if key and unique_at(window, place[0]) == key]
        if named:
            halves.aliases.setdefault(search.position, named[-1])
        search.unit = first + len(units) // 2
        return MOVED if search.position in halves.aliases else ""

    def _look_at_notes(self, search: _Search) -> str:
        """Whether an operator has settled it after it was given up."""
        end = self._halves.written(NOTES_TOPIC)
        if search.note >= end:
            return search.otherwise
        search.note = max(search.note, self._halves.lowest(NOTES_TOPIC))
        end = min(end, search.note + OPS_MAX)
        if search.note >= end:
            return ""
        first, units = self._halves.units(NOTES_TOPIC, search.note, end)
        for position in units[0::2].tolist():
            record = self._decisions.window.record(position)
            if record is None:
                search.otherwise = MISSING  # it may be of this one
                continue
            settled = transactionnotes.read_record(record.body)[1]
            if settled is None or settled[0] != search.position or settled[1] == RECHECK:
                continue
            search.otherwise = OUTCOMES.get(settled[1], search.otherwise)
        search.note = first + len(units) // 2
        return ""

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
