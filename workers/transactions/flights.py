"""What the txn-checker has put by one store of the tail, until the writer has answered it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gantrymq.shm.kernels import ends, frames, halfform
from gantrymq.workers.transactions.ends import Ends

if TYPE_CHECKING:
    from gantrymq.workers.transactions.decision import Decision


@dataclass(slots=True)
class Flight:
    """What went up by one store of the tail."""

    first_seq: int
    last_seq: int
    op_seq: int  # 0 without an op record
    appended: int  # where the log ended before
    decisions: list[Decision]

    @property
    def first_copy(self) -> int:
        """Seq of the first copy that belongs to the decisions; owed ones may go before."""
        end = self.op_seq or self.last_seq + 1
        return end - sum(one.puts for one in self.decisions)

    def note_places(self, answers: NDArray[np.int64]) -> None:
        """Where copies are now that decisions ask for."""
        if not any(wants_place(one) for one in self.decisions):
            return
        seq = self.first_copy
        for one in self.decisions:
            if wants_place(one):
                one.place = place_of(answers, seq + one.tells)
            seq += one.puts

    def note_op(self, offset: int) -> tuple[int, int, int]:
        """Its last op record has a queue offset: that of the first, how many, the highest named."""
        highest = -1
        for one in self.decisions:
            if isinstance(one, Ends) and (own := len(one.op_seqs)):
                one.op_named = True
                return offset + 1 - own, own, max(one.column(halfform.OFFSET))
            if one.named:
                one.op_named = True
                highest = max([highest, *(half[1] for half in one.halves)])
        return offset, 1, highest

    def by_op(self) -> list[Flight]:
        """The same with decisions that stand for themselves, one op record in each."""
        parts = [part for one in self.decisions for part in one.parts()]
        one = self.decisions[0] if self.decisions else None
        if not (isinstance(one, Ends) and one.op_seqs):
            return [replace(self, decisions=parts)]
        found: dict[int, list[Decision]] = {}
        for row, part in zip(one.rows, parts, strict=True):
            found.setdefault(row[ends.OP_SEQ], []).append(part)
        return [Flight(0, seq, seq, self.appended, own) for seq, own in found.items()]


def join(early: NDArray[np.int64] | None, answers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Answers, with those that came before and are still of use."""
    return answers if early is None else np.concatenate([early, answers])


def behind(answers: NDArray[np.int64], seq: int) -> NDArray[np.int64]:
    """A copy of the answers from a seq on."""
    return answers[np.searchsorted(answers[:, frames.OUT_SEQ], seq) :].copy()


def row_of(answers: NDArray[np.int64], seq: int) -> NDArray[np.int64]:
    """The answer of a seq."""
    found: NDArray[np.int64] = answers[np.searchsorted(answers[:, frames.OUT_SEQ], seq)]
    return found


def place_of(answers: NDArray[np.int64], seq: int) -> tuple[int, int]:
    """Log position and queue offset of what a seq was stored as."""
    row = row_of(answers, seq)
    return int(row[frames.OUT_POSITION]), int(row[frames.OUT_OFFSET])


def is_told_by_writer(flight: Flight) -> bool:
    """Whether all who asked hear of it from the writer."""
    one = flight.decisions[0] if flight.decisions else None
    return isinstance(one, Ends) and one.by_writer


def wants_place(one: Decision) -> bool:
    """Whether it is to be noted where one of its copies is: a half that was appended again."""
    return one.tells >= 0 and one.place is None
