"""Checks: halves that nobody has decided are asked about, and given up in the end.

Each half has its own time (LW-45). A check counts once its note goes up; without a live session of
the producer group it is waited for, and not counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from gantrymq.shm import layout
from gantrymq.shm import transactionwire as wire
from gantrymq.shm.transactionwire import GIVEN_UP
from gantrymq.workers.transactions import records as transactionnotes
from gantrymq.workers.transactions.decision import Decision
from gantrymq.workers.transactions.identity import transaction_at
from gantrymq.workers.transactions.table import SUSPECT

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gantrymq.shm.board import Board
    from gantrymq.workers.transactions.decision import Half
    from gantrymq.workers.transactions.decisions import Decisions
    from gantrymq.workers.transactions.desk import Desk
    from gantrymq.workers.transactions.endings import Endings
    from gantrymq.workers.transactions.givenup import GivenUp
    from gantrymq.workers.transactions.halves import Halves

#: Halves that one pass takes care of, and how soon the next one follows.
CHECKS_MAX: Final = 256
#: So many that are due are looked at together, to see who of them can be asked about.
DUE_MAX: Final = 1 << 17
PASS_NS: Final = 10_000_000
#: So many more put the next pass off by as much again: all rows are looked at, some ns for each.
ROWS_PER_PASS: Final = 10_000
#: A session whose ring is full is asked again after.
AGAIN_NS: Final = 1_000_000_000
S_NS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Times:
    """Settings, in the units that their names say."""

    interval_s: int
    checks_max: int
    reserved_ms: int  # file_reserved_time


class Checks:
    """Looks over the table when the first half is due."""

    def __init__(
        self,
        board: Board,
        halves: Halves,
        decisions: Decisions,
        endings: Endings,
        given_up: GivenUp,
        desk: Desk,
    ) -> None:
        self._board = board
        self._halves = halves
        self._decisions = decisions
        self._endings = endings
        self._given_up = given_up
        self._desk = desk
        self._kin = endings.kin
        self.next_ns = 0
        self._giving_up: dict[int, tuple[str, int]] = {}  # on its way: group and checks

    def step(self, now_ns: int, now_ms: int, times: Times) -> int:
        """Check what is due; for how many halves there was something to do."""
        if now_ns < self.next_ns:
            return 0
        if not len(self._halves.table):
            self.next_ns = now_ns + 1000 * S_NS  # `came` says when there are some
            return 0
        rows = self._halves.table.rows
        is_due = (rows["next_ns"] <= now_ns) & (rows["live"] != 0) & (rows["kin"] != SUSPECT)
        all_due = np.flatnonzero(is_due)
        due = all_due[:DUE_MAX]
        asked: dict[int, int] = {}
        left = self._put_off(due, now_ns, now_ms, times)
        for index in left[:CHECKS_MAX].tolist():
            self._look_at(index, now_ns, now_ms, times, asked)
        if asked:
            copy = transactionnotes.checked(self._decisions.slots, asked, now_ms)
            self._endings.decide(Decision("", [], [], copies=[copy], named=False), now_ms)
            sent = self._board.word(layout.BOARD_CHECKS_SENT) + len(asked)
            self._board.set_word(layout.BOARD_CHECKS_SENT, sent)
        is_over = len(left) <= CHECKS_MAX and len(due) == len(all_due)
        self.next_ns = self._first_ns(now_ns) if is_over else now_ns + PASS_NS
        return len(left)

    def _put_off(
        self, due: NDArray[np.int64], now_ns: int, now_ms: int, times: Times
    ) -> NDArray[np.int64]:
        """Those that there is something to do for; the others have nobody who could be asked.

        These wait, all of them at once and uncounted: there may be a million. Age alone ends those
        only: of the others the wall clock may just have been set.
        """
        rows, names = self._halves.table.rows, self._halves.table.group_names
        groups = rows["group"][due]
        absent = [
            group for group in np.unique(groups).tolist() if not self._desk.has_member(names[group])
        ]
        waits = (
            np.isin(groups, absent)
            & (rows["checks"][due] < times.checks_max)
            & (now_ms - rows["stored_ms"][due] <= times.reserved_ms)
        )
        rows["next_ns"][due[waits]] = now_ns + times.interval_s * S_NS
        return due[~waits]

    def _first_ns(self, now_ns: int) -> int:
        """When the first of all is due; no sooner than a small part of the time is spent on it."""
        rows = self._halves.table.rows
        alive = rows["next_ns"][(rows["live"] != 0) & (rows["kin"] != SUSPECT)]
        first = int(alive.min()) if len(alive) else now_ns + S_NS
        return max(first, now_ns + PASS_NS * (1 + len(rows) // ROWS_PER_PASS))

    def came(self, now_ns: int) -> None:
        """Rows were added: the first of all may be due earlier."""
        self.next_ns = min(self.next_ns, self._first_ns(now_ns))

    def _look_at(
        self, index: int, now_ns: int, now_ms: int, times: Times, asked: dict[int, int]
    ) -> None:
        row = self._halves.table.rows[index]
        position, offset, checks = int(row["position"]), int(row["offset"]), int(row["checks"])
        row["next_ns"] = now_ns + times.interval_s * S_NS
        if self._endings.is_flying(position):
            return
        session = self._desk.member(self._halves.table.group_names[row["group"]])
        if session < 0 or checks >= times.checks_max:
            self._give_up(index, now_ms)
            return
        if not self._decisions.window.enter(position):
            return  # it has gone with its segment
        size = int(row["size"])
        check = wire.Check(position, size, offset, transaction_at(self._decisions.window, position))
        if position < self._board.word(layout.BOARD_LOW):
            return  # likewise, perhaps while it was read: retention says so before it begins
        if self._kin.outcome(check.tx) is not None:
            self._kin.suspect([offset])
            return
        if not self._desk.ask(session, check):
            row["next_ns"] = now_ns + AGAIN_NS
            return
        row["checks"] = asked[offset] = checks + 1

    def _give_up(self, index: int, now_ms: int) -> None:
        """Give a half's transaction up: its first open half before all others."""
        row = self._halves.table.rows[index]
        half = int(row["position"]), int(row["offset"])
        tx = self._kin.transaction(half)
        if self._kin.outcome(tx) is not None:
            self._kin.suspect([half[1]])
            return
        first = min([half, *self._kin.others(tx, [half])], key=lambda one: one[1])
        if not self._endings.is_flying(first[0]):
            self.give_up(first, tx, now_ms)

    def give_up(self, half: Half, tx: str, now_ms: int) -> bool:
        """Park a half of a transaction, which others follow; False if it cannot be."""
        index = self._halves.table.find(half[1])
        decision = self._given_up.give_up(*half) if index >= 0 else None
        if decision is None:
            self._halves.forget_damaged(half)
            return False
        decision.tx = tx
        row = self._halves.table.rows[index]
        told = self._halves.table.group_names[row["group"]], int(row["checks"])
        if not self._endings.decide(decision, now_ms):
            return False
        self._giving_up[half[0]] = told
        return True

    def goes_on(self, decision: Decision, now_ms: int) -> bool:
        """Heed a copy that is in the log, or its error; whether the op record follows.

        A full disk may have refused the copy and have room for what comes behind it: so nothing
        comes behind it before it is there.
        """
        if decision.named:
            return False
        (half,) = decision.halves
        group, checks = self._giving_up.pop(half[0], ("", -1))
        if decision.error:
            return False
        durable = bool(self._decisions.durables)  # some topic's, perhaps not this half's
        done = Decision(
            GIVEN_UP, [half], decision.asked, copies=[], durable=durable, tx=decision.tx
        )  # fmt: skip
        self._kin.suspect(other[1] for other in self._kin.others(decision.tx, [half]))
        self._decisions.owe(done, decision.end)
        self._endings.keep(half, done)
        self._endings.decide(done, now_ms)
        self._desk.note("warning", "half_given_up", position=half[0], group=group, checks=checks)
        return True
