"""Halves that came after a decision of their transaction follow it, however much later.

What is remembered tells; else the half queue does, read from the newest of them backwards, short
step by short step, for all of them together: another half of the transaction that is decided. One
that was given up may have gone from there, and still have its copy in the give-up queue. What an
operator had checked again does not follow one that was given up before. If there is none, nobody
has decided it as far as the log goes back, and they are as others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from gantrymq.shm.properties import GIVEN_UP_TOPIC, HALF_TOPIC
from gantrymq.shm.transactionwire import DISK_FULL, GIVEN_UP
from gantrymq.workers.transactions.decision import MOVED, Decision
from gantrymq.workers.transactions.identity import hash_of
from gantrymq.workers.transactions.kin import DECIDING
from gantrymq.workers.transactions.pastdecisions import MISSING, Follow
from gantrymq.workers.transactions.table import SUSPECT

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from gantrymq.workers.transactions.decision import Half
    from gantrymq.workers.transactions.endings import Endings
    from gantrymq.workers.transactions.halves import Halves
    from gantrymq.workers.transactions.pastdecisions import PastDecisions

#: Halves that one step follows up, and units of the half queue that it reads.
ROWS_MAX: Final = 256
UNITS_MAX: Final = 4096
#: Records of the give-up queue.
PARKED_MAX: Final = 256
#: After a full disk.
RETRY_NS: Final = 1_000_000_000


class Latecomers:
    """Takes care of rows that are SUSPECT."""

    def __init__(
        self,
        halves: Halves,
        endings: Endings,
        past: PastDecisions,
        give_up: Callable[[Half, str, int], bool],
    ) -> None:
        self._halves = halves
        self._endings = endings
        self._kin = endings.kin
        self._past = past
        self._give_up = give_up
        self._sought: dict[str, int] = {}  # ids whose halves are looked for, and their hashes
        self._asked: set[str] = set()  # of these a decided half was found
        self._at = 0  # below this unit they are looked for
        self._parked = 0  # from this unit of the give-up queue on, after that
        self._retry_ns = 0

    @property
    def is_searching(self) -> bool:
        """Whether there is something to do at once."""
        return bool(self._sought)

    def step(self, now_ns: int, now_ms: int) -> int:
        """Go on a little; whether something was done."""
        if self._sought:
            self._search_on()
            return 1
        if not self._kin.has_suspects or now_ns < self._retry_ns:
            return 0
        rows = self._halves.table.rows
        suspects = rows[(rows["kin"] == SUSPECT) & (rows["live"] != 0)]
        self._kin.has_suspects = len(suspects) > 0
        halves = list(zip(suspects["position"].tolist(), suspects["offset"].tolist(), strict=True))
        return sum(self._look_at(half, now_ms) for half in halves[:ROWS_MAX])

    def _look_at(self, half: Half, now_ms: int) -> bool:
        """Follow, or begin to look for others; False if there is something to wait for."""
        if self._endings.is_flying(half[0]):
            return False
        tx = self._kin.transaction(half)
        outcome = self._kin.outcome(tx)
        if not tx:
            self._kin.pass_over(half)  # it has gone with its segment
        elif outcome is None:
            if tx in self._asked:
                return False
            self._sought[tx] = hash_of(tx)
            self._at = max(self._at, half[1])
        elif outcome == DECIDING:
            return False
        else:
            self._follow(half, tx, outcome, now_ms)
        return True

    def _follow(self, half: Half, tx: str, outcome: str, now_ms: int) -> None:
        if outcome == GIVEN_UP:
            done = self._give_up(half, tx, now_ms)
        else:
            done = self._endings.decide(Decision(outcome, [half], [], tx=tx), now_ms)
        if not done:
            self._kin.pass_over(half)  # an operator sees it

    def heed(self, decision: Decision, now_ns: int) -> None:
        """A decision has an error: what only had no room on the disk follows later."""
        if decision.error == DISK_FULL and self._kin.outcome(decision.tx):
            self._kin.suspect(offset for _position, offset in decision.halves)
            self._retry_ns = now_ns + RETRY_NS

    # ------------------------------------------------------------------------------- half queue

    def _search_on(self) -> None:
        """Read some units before those that were read."""
        low = self._halves.lowest()
        first = at = max(low, self._at - UNITS_MAX)
        while at < self._at:
            _first, units = self._halves.units(HALF_TOPIC, at, self._at)
            if not len(units):
                break
            self._look_among(self._halves.rows_of(units.reshape(-1, 2), 0, 0))
            at += len(units) // 2
        self._at = first
        if first <= low and self._sought and not self._search_parked():
            for tx in self._sought:
                self._kin.clear(tx)
            self._sought.clear()
        if not self._sought:
            self._at = self._parked = 0

    def _search_parked(self) -> bool:
        """Read some of the give-up queue; False at its end."""
        halves = self._halves
        first = max(self._parked, halves.lowest(GIVEN_UP_TOPIC))
        end = min(halves.written(GIVEN_UP_TOPIC), first + PARKED_MAX)
        if first >= end:
            return False
        _first, units = halves.units(GIVEN_UP_TOPIC, first, end)
        for position in units[0::2].tolist():
            tx, half = self._kin.parked(position)
            if tx in self._sought:
                self._judge(tx, *halves.newest_half((half, -1)))
        self._parked = first + len(units) // 2
        return len(units) > 0

    def _look_among(self, rows: NDArray[np.void]) -> None:
        near = rows[np.isin(rows["tx"], list(self._sought.values()))]
        for half in zip(near["position"].tolist(), near["offset"].tolist(), strict=True):
            tx = self._kin.transaction(half)
            if tx in self._sought:
                self._judge(tx, *self._halves.newest_half(half))

    def _judge(self, tx: str, position: int, offset: int) -> None:
        """What another half of a transaction says of it."""
        outcome = self._halves.outcome_at(position)
        if self._endings.is_flying(position):
            if not self._endings.is_moving(position):
                del self._sought[tx]  # it is looked at again
        elif outcome is not None:
            del self._sought[tx]
            self._learn(tx, outcome)
        elif not self._halves.is_open(offset):
            del self._sought[tx]
            self._asked.add(tx)
            self._past.follow(Follow(tx), position, offset)

    def found(self, request: Follow, outcome: str) -> None:
        """What became of a half that was found."""
        self._asked.discard(request.tx)
        if outcome == MISSING:
            self._kin.clear(request.tx)
        elif outcome != MOVED:  # then what stands for it tells
            self._learn(request.tx, outcome)

    def _learn(self, tx: str, outcome: str) -> None:
        """What the log has of others was given up before an operator opened one again, if so."""
        if outcome == GIVEN_UP and self._kin.is_checked_again(tx):
            self._kin.clear(tx)
        else:
            self._kin.decided(tx, outcome)
