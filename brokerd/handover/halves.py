"""Transactions as a log tells them: which halves are open, which decided (HO-41, HO-82 3.).

Halves of one UNIQ_KEY are the same message, put back by a RocketMQ or appended again by us; the
newest one stands for all. An op record of ours that names an older one only says that it has been
replaced; what was said before our own appending again says nothing of the new one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from gantrymq.brokerd.handover.links import properties_of
from gantrymq.brokerd.handover.names import HALVES, OPS
from gantrymq.brokerd.handover.parked import PARKED, Parked, rows_of
from gantrymq.shm import layout
from gantrymq.shm.kernels import scan
from gantrymq.shm.properties import GANTRY_TX, GIVEN_UP_TOPIC, HALF_TOPIC, NOTES_TOPIC, OP_TOPIC
from gantrymq.shm.transactionwire import RECHECK
from gantrymq.workers.transactions.records import read_record

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from gantrymq.brokerd.logscan import Piece


@dataclass(slots=True)
class Transactions:
    """What is to be done; halves are rows of PARKED.

    `waiting` are open; of the transaction of `unfinished` another half is committed.
    `missing`: queue offsets from the first of these on that are settled and in no op record.
    `half_offset`, `op_offset`: H and O of HO-40.
    """

    waiting: NDArray[Any] = field(default_factory=lambda: np.zeros(0, PARKED))
    unfinished: NDArray[Any] = field(default_factory=lambda: np.zeros(0, PARKED))
    missing: list[int] = field(default_factory=list)
    given_up: int = 0
    half_offset: int = 0
    op_offset: int = 0
    parked: Parked | None = None


class Halves:
    """Takes in what a log says of transactions, piece by piece."""

    def __init__(self) -> None:
        self._rows: list[NDArray[Any]] = []
        self._keys: list[int] = []
        self._transactions: list[int] = []
        self._again: list[NDArray[np.bool_]] = []
        self._ops: list[_Op] = []
        self._committed: list[NDArray[np.int64]] = []
        #: Key, position of the copy, and of its half (of a RocketMQ's copy its own).
        self._given_up: list[tuple[int, int, int]] = []
        self._settled: list[int] = []  # positions of halves that an operator has settled

    def learn(self, piece: Piece, topics: NDArray[np.uint16], names: list[str], ours: bool) -> None:
        """Take in the records of a piece; `ours`: we wrote it."""
        rows = piece.rows
        commits = (rows[:, scan.SYS_FLAG] & layout.SYS_TRANSACTION) == layout.SYS_COMMIT
        if commits.any():
            self._committed.append(rows[commits, scan.PREPARED])
        for number, name in enumerate(names):
            if name == HALF_TOPIC:
                self._learn_halves(piece, rows[topics == number])
            elif name == OP_TOPIC:
                self._learn_ops(piece, rows[topics == number], ours)
            elif name == GIVEN_UP_TOPIC:
                self._learn_given_up(piece, rows[topics == number])
            elif name == NOTES_TOPIC:
                self._learn_notes(piece, rows[topics == number])

    def judged(self, queues: Mapping[tuple[str, int], tuple[int, int]]) -> Transactions:
        """What all of it means; `queues`: first and next offset of each queue."""
        found = Transactions()
        found.half_offset = queues.get(HALVES, (0, 0))[1]
        found.op_offset = queues.get(OPS, (0, 0))[1]
        known = set(self._keys)
        lone = {half for key, _at, half in self._given_up if key not in known}
        found.given_up = len(lone.difference(self._settled))  # their halves are removed
        if not self._rows:
            return found
        chains = _Chains(np.concatenate(self._rows), np.array(self._keys, np.int64))
        is_named, names_newest = chains.named(self._ops)
        committed = np.concatenate([np.zeros(0, np.int64), *self._committed])
        is_committed = np.isin(chains.rows["position"], committed)
        decided = chains.decided(np.concatenate(self._again), names_newest, is_committed)
        given_up = chains.given_up(self._given_up)
        settled_by_hand = np.isin(chains.rows["position"], self._settled)
        over = chains.any_of(is_committed | settled_by_hand)
        found.given_up += int((given_up & ~over).sum())
        left = chains.newest[~(decided | given_up)]
        transactions = np.array(self._transactions, np.int64)
        # Of a copy that an op record names the transaction is over, whatever is open of it.
        finished = transactions[is_committed & ~is_named]
        unfinished = np.isin(transactions[left], finished[finished != 0])
        found.waiting = np.sort(chains.rows[left[~unfinished]], order="position")
        found.unfinished = np.sort(chains.rows[left[unfinished]], order="position")
        settled = np.ones(len(chains.rows), np.bool_)
        settled[left] = False
        found.parked = Parked(chains.rows, settled)
        if len(left):
            found.half_offset = int(chains.rows["offset"][left].min())
        behind = chains.rows["offset"] >= found.half_offset
        found.missing = chains.rows["offset"][behind & settled & ~is_named].tolist()
        for op in self._ops:
            if (op.names >= found.half_offset).any():
                found.op_offset = min(found.op_offset, op.offset)
        return found

    def _learn_halves(self, piece: Piece, rows: NDArray[np.int64]) -> None:
        self._rows.append(rows_of(rows, piece.base))
        self._again.append(rows[:, scan.PREPARED] < 0)
        for at, properties in zip(rows[:, scan.AT], properties_of(piece, rows), strict=True):
            self._keys.append(hash(properties.get("UNIQ_KEY", f"@{piece.base + at}")))
            name, _, _number = properties.get(GANTRY_TX, "").partition(",")
            self._transactions.append(hash(name) if name else 0)

    def _learn_ops(self, piece: Piece, rows: NDArray[np.int64], ours: bool) -> None:
        """The body of an op message names queue offsets of halves: `8,11,` (TX-21, TX-22)."""
        columns = [scan.QUEUE_OFFSET, scan.AT, scan.BODY_AT, scan.BODY_SIZE]
        for offset, place, at, size in rows[:, columns].tolist():
            text = piece.view[at : at + size].tobytes().decode("ascii", "replace")
            words = [int(word) for word in text.split(",") if word.isdecimal()]
            until = piece.base + place if ours else -1
            self._ops.append(_Op(offset, until, np.array(words, np.int64)))

    def _learn_given_up(self, piece: Piece, rows: NDArray[np.int64]) -> None:
        places = rows[:, [scan.AT, scan.PREPARED]].tolist()
        for (at, prepared), properties in zip(places, properties_of(piece, rows), strict=True):
            position, origin = piece.base + at, -1 - prepared
            half = origin if origin >= 0 else position
            self._given_up.append((hash(properties.get("UNIQ_KEY", "")), position, half))

    def _learn_notes(self, piece: Piece, rows: NDArray[np.int64]) -> None:
        for at, size in rows[:, [scan.BODY_AT, scan.BODY_SIZE]].tolist():
            settled = read_record(piece.view[at : at + size].tobytes())[1]
            if settled and settled[1] != RECHECK:
                self._settled.append(settled[0])


@dataclass(frozen=True, slots=True)
class _Op:
    """An op record: what it decides was the newest of its chain at log position `at`.

    A RocketMQ does not look at what is older: there `at` is -1.
    """

    offset: int
    at: int
    names: NDArray[np.int64]


class _Chains:
    """Halves by their keys, in the order of the log."""

    def __init__(self, rows: NDArray[Any], keys: NDArray[np.int64]) -> None:
        self.rows = rows
        self._keys, self._chain = np.unique(keys, return_inverse=True)
        self.newest = np.zeros(len(self._keys), np.int64)  # by chain: index of its last row
        np.maximum.at(self.newest, self._chain, np.arange(len(rows)))
        self._begin = np.zeros(len(self._keys), np.int64)

    def named(self, ops: list[_Op]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Which rows op records name, and which of these as the newest of their chain then."""
        order = np.argsort(self._chain, kind="stable")
        replaced = np.full(len(self.rows), np.iinfo(np.int64).max)
        follows = self._chain[order[1:]] == self._chain[order[:-1]]
        replaced[order[:-1][follows]] = self.rows["position"][order[1:][follows]]
        names = np.concatenate([np.zeros(0, np.int64), *(op.names for op in ops)])
        places = np.repeat([op.at for op in ops], [len(op.names) for op in ops])
        by_offset = np.argsort(self.rows["offset"], kind="stable")
        offsets = self.rows["offset"][by_offset]
        index = np.searchsorted(offsets, names)
        known = index < len(offsets)
        known[known] = offsets[index[known]] == names[known]
        at = by_offset[index[known]]
        named, newest = np.zeros(len(self.rows), np.bool_), np.zeros(len(self.rows), np.bool_)
        named[at] = True
        newest[at[places[known] < replaced[at]]] = True
        return named, newest

    def decided(
        self, again: NDArray[np.bool_], named: NDArray[np.bool_], committed: NDArray[np.bool_]
    ) -> NDArray[np.bool_]:
        """Which chains: a commit is for good, an op record counts behind our last appending."""
        index = np.flatnonzero(again)
        np.maximum.at(self._begin, self._chain[index], index)
        counts = np.arange(len(self.rows)) >= self._begin[self._chain]
        return self.any_of(committed | named & counts)

    def given_up(self, copies: list[tuple[int, int, int]]) -> NDArray[np.bool_]:
        """Which chains have a copy in the topic of those, behind our last appending."""
        found = np.zeros(len(self._keys), np.bool_)
        for key, position, _half in copies:
            at = int(np.searchsorted(self._keys, key))
            if at < len(self._keys) and self._keys[at] == key:
                found[at] |= position > self.rows["position"][self._begin[at]]
        return found

    def any_of(self, marked: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Which chains have a marked row."""
        found = np.zeros(len(self._keys), np.bool_)
        found[self._chain[marked]] = True
        return found
