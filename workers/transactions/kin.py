"""Which halves are of one transaction, and what was decided of it: the first decision is for all.

Whoever decides a half (an END, an answer to a check, an operator, giving up, a start) takes the
open ones of its transaction along. Producers number halves in the order in which these are stored,
so what came before a decision is a row by then, and number 1 is among those that it names. A half
that is stored later finds no open number 1 (or a decision on its way), and is SUSPECT: nobody
decides or asks about it until `Latecomers` knows what became of the others. Halves of a RocketMQ
have no such id: each is decided by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from gantrymq.shm.transactionwire import GIVEN_UP
from gantrymq.workers.transactions.begun import BINDING
from gantrymq.workers.transactions.firstplace import is_checked_again
from gantrymq.workers.transactions.identity import (
    hash_of,
    is_first_at,
    transaction_at,
    transaction_of,
)
from gantrymq.workers.transactions.latest import Latest
from gantrymq.workers.transactions.table import ALONE, LATER, SUSPECT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray

    from gantrymq.workers.logwindow import LogWindow
    from gantrymq.workers.transactions.begun import Begun
    from gantrymq.workers.transactions.decision import Half
    from gantrymq.workers.transactions.halves import Halves

    Words = NDArray[np.int64]

#: A row of a transaction of several.
PAIR: Final = np.dtype([("tx", "i8"), ("offset", "i8")])
#: Decided transactions that are remembered: the latest so many. Of others the log tells.
REMEMBERED: Final = 32_768
#: Halves that one decision takes along; more of the same transaction follow it.
ALONG_MAX: Final = 1024
#: Rows that are looked at together for the first halves of transactions: these lie near.
BLOCK_ROWS: Final = 65_536
#: Pairs of rows that are gone which are worth their removal, at least.
GONE_MIN: Final = 1024
#: Of a transaction that is being decided.
DECIDING: Final = ""


class Kin:
    """See the module. What is alike by its hash is compared by ids."""

    def __init__(
        self, halves: Halves, window: LogWindow, begun: Begun, read: Callable[[], object]
    ) -> None:
        """`read` makes rows of all that is in the half queue."""
        self._halves = halves
        self._begun = begun
        self._window = window
        self._read = read
        self._pairs = np.zeros(0, PAIR)  # rows of transactions of several, by hash
        self._pairs_max = GONE_MIN
        self._entered = 0  # rows of queue offsets below are known
        self._recent: Latest[int, tuple[str, str]] = Latest(REMEMBERED)  # hash -> id, outcome
        self.has_suspects = False

    # --------------------------------------------------------------------- what became of them

    def outcome(self, tx: str) -> str | None:
        """How a transaction was decided, as far as that is remembered, or DECIDING."""
        return self._said(hash_of(tx), tx)

    def _said(self, key: int, tx: str) -> str | None:
        known = self._recent.get(key)
        found = known[1] if tx and known is not None and known[0] == tx else None
        if found not in (None, GIVEN_UP):
            return found
        return self._begun.outcome(tx) or found

    def begin(self, tx: str) -> None:
        """A decision is on its way, unless there is one."""
        if tx and self.outcome(tx) is None:
            self.decided(tx, DECIDING)

    def failed(self, tx: str) -> None:
        """It was not, after all."""
        if self.outcome(tx) == DECIDING:
            self.reopened(tx)

    def decided(self, tx: str, outcome: str) -> None:
        """A decision is in the log: if one was before, that stands."""
        key = hash_of(tx)
        if not tx or self._said(key, tx) in BINDING:
            return
        self._begun.learn(tx, outcome)
        self._recent.note(key, (tx, outcome))

    def reopened(self, tx: str) -> None:
        """What was given up is asked about again; if others of it are decided, it follows."""
        key = hash_of(tx)
        if not tx or self._said(key, tx) in BINDING:
            return
        known = self._recent.get(key)
        if known is not None and known[0] == tx:
            self._recent.forget(key)

    def transaction(self, half: Half) -> str:
        """Id of a half's transaction; "" if it has none."""
        return transaction_at(self._window, half[0])

    def parked(self, position: int) -> tuple[str, int]:
        """Id and half of what was given up, by its copy's position; "" if there is nothing."""
        record = self._window.record(position)
        if record is None:
            return "", -1
        half = record.origin if record.origin >= 0 else position  # a RocketMQ's says no origin
        return transaction_of(record.property_map()), half

    # ------------------------------------------------------------------------- who belongs to whom

    def others(self, tx: str, named: Iterable[Half], group: str = "") -> list[Half]:
        """Open halves of a transaction beside those named, in order; of `group` if that is given.

        Those that were appended again stand behind, and may not be rows yet.
        What cannot go along is made to follow.
        """
        if not tx:
            return []
        known = set(named)
        first = min(known, key=lambda half: half[1])
        if first[1] >= self._halves.next and not is_first_at(self._window, first[0]):
            self._read()  # others before it may not be rows yet
        found = [half for half in self._open(tx, group) if half not in known]
        self.suspect(offset for _position, offset in found[ALONG_MAX:])
        return found[:ALONG_MAX]

    def _open(self, tx: str, group: str = "") -> Iterator[Half]:
        table, window = self._halves.table, self._window
        for offset in self._offsets_of(hash_of(tx)):
            index = table.find(offset)
            if index < 0 or (group and table.group_names[table.rows["group"][index]] != group):
                continue
            position = int(table.rows["position"][index])
            if transaction_at(window, position) == tx:
                yield position, offset
        for offset, position in self._halves.unread.items():
            if self._halves.is_open(offset) and transaction_at(window, position) == tx:
                yield position, offset

    def _offsets_of(self, key: int) -> list[int]:
        start = int(np.searchsorted(self._pairs["tx"], key))
        end = int(np.searchsorted(self._pairs["tx"], key, side="right"))
        offsets: list[int] = self._pairs["offset"][start:end].tolist()
        return sorted(offsets)

    def waits(self, halves: Iterable[Half]) -> bool:
        """Whether it is not known yet if the transaction of some row was decided before it came."""
        if not self.has_suspects:
            return False
        table = self._halves.table
        found = (table.find(offset) for _position, offset in halves)
        return any(index >= 0 and table.rows["kin"][index] == SUSPECT for index in found)

    def suspect(self, offsets: Iterable[int]) -> None:
        """Have rows follow what becomes of their transaction."""
        self._mark(offsets, SUSPECT)

    def pass_over(self, half: Half) -> None:
        """It cannot follow: it is as others are."""
        self._mark([half[1]], LATER)

    def pursue(self, tx: str) -> None:
        """Have all that is open of a transaction follow its decision, number 1 as well."""
        rows = self._halves.table.rows
        for row in rows[(rows["tx"] == hash_of(tx)) & (rows["live"] != 0)] if tx else ():
            if self.transaction((int(row["position"]), -1)) == tx:
                self.suspect([int(row["offset"])])

    def is_checked_again(self, tx: str) -> bool:
        """Whether an operator has opened some half of a transaction again, and it is open."""
        records = (self._window.record(position) for position, _offset in self._open(tx))
        return any(record and is_checked_again(record.property_map()) for record in records)

    def clear(self, tx: str) -> None:
        """Nobody has decided it: its rows are as others."""
        self._mark([offset for _position, offset in self._open(tx)], LATER)

    def _mark(self, offsets: Iterable[int], kin: int) -> None:
        table = self._halves.table
        for offset in offsets:
            index = table.find(offset)
            if index >= 0:
                table.rows["kin"][index] = kin
                self.has_suspects = self.has_suspects or kin == SUSPECT

    # ---------------------------------------------------------------------------------- new rows

    def enter(self, flying: Iterable[int]) -> None:
        """Rows came; `flying`: log positions of halves that are being decided."""
        rows = self._halves.table.rows
        start = int(np.searchsorted(rows["offset"], self._entered))
        self._entered = self._halves.next
        fresh = rows[start:]
        later = fresh[(fresh["kin"] == LATER) & (fresh["live"] != 0)]
        if not (len(later) or (len(self._pairs) and len(fresh))):
            return
        several, known = np.unique(later["tx"]), self._pairs["tx"]
        unmet = np.setdiff1d(several, fresh["tx"][fresh["kin"] == ALONE])
        unmet = unmet[~_among(unmet, known)]
        self._add(fresh[_among(fresh["tx"], several) | _among(fresh["tx"], known)])
        if len(unmet):
            self._add(self._before(start, unmet))
        undecided = self._undecided(several, flying)
        self.suspect(later["offset"][~_among(later["tx"], undecided)].tolist())

    def _before(self, end: int, hashes: Words) -> NDArray[np.void]:
        """Rows below an index that have one of the hashes, as far back as one first half is."""
        rows, found = self._halves.table.rows, []
        while end > 0 and len(hashes):
            start = max(0, end - BLOCK_ROWS)
            block = rows[start:end]
            mine = block[_among(block["tx"], hashes) & (block["live"] != 0)]
            found.append(mine)
            hashes = np.setdiff1d(hashes, mine["tx"][mine["kin"] == ALONE])
            end = start
        return np.concatenate(found) if found else rows[:0]

    def _add(self, rows: NDArray[np.void]) -> None:
        more = np.zeros(len(rows), PAIR)
        more["tx"], more["offset"] = rows["tx"], rows["offset"]
        more = more[np.argsort(more["tx"], kind="stable")]
        at = np.searchsorted(self._pairs["tx"], more["tx"], side="right")
        self._pairs = np.insert(self._pairs, at, more)
        if len(self._pairs) > self._pairs_max:
            self._pairs = self._pairs[self._indices(self._pairs["offset"]) >= 0]
            self._pairs_max = max(GONE_MIN, 2 * len(self._pairs))

    def _undecided(self, hashes: Words, flying: Iterable[int]) -> Words:
        """Hashes of transactions of which number 1 is open, and no decision on its way."""
        start = np.searchsorted(self._pairs["tx"], hashes)
        counts = np.searchsorted(self._pairs["tx"], hashes, side="right") - start
        skipped = np.repeat(start - np.cumsum(counts) + counts, counts)
        pairs = self._pairs[np.arange(len(skipped)) + skipped]
        indices = self._indices(pairs["offset"])
        rows = self._halves.table.rows[indices[indices >= 0]]
        firsts = rows[rows["kin"] == ALONE]
        firsts = firsts[~np.isin(firsts["position"], np.fromiter(flying, np.int64))]
        decided = np.fromiter((*self._recent, *self._begun.hashes), np.int64)
        return np.setdiff1d(firsts["tx"], decided)

    def _indices(self, offsets: Words) -> Words:
        """Indices of live rows, -1 where there is none."""
        rows = self._halves.table.rows
        if not len(rows):
            return np.full(len(offsets), -1)
        at = np.minimum(np.searchsorted(rows["offset"], offsets), len(rows) - 1)
        is_there = (rows["offset"][at] == offsets) & (rows["live"][at] != 0)
        return np.where(is_there, at, -1)


def _among(column: Words, wanted: Words) -> NDArray[np.bool_]:
    """Which of a column are among some that ascend."""
    if not len(wanted):
        return np.zeros(len(column), np.bool_)
    at = np.minimum(np.searchsorted(wanted, column), len(wanted) - 1)
    found: NDArray[np.bool_] = wanted[at] == column
    return found
