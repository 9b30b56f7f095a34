"""What becomes of half messages: who asked for it, and what of it is where by now."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from gantrymq.shm.transactionwire import COMMITTED, ROLLED_BACK
from gantrymq.workers.outlet import Copy

Half = tuple[int, int]  # position, half queue offset
#: Who waits for an answer: session, serial, and what is to be told.
Asked = tuple[int, int, object]
#: The outcome of a half that was appended again: the new record stands for it.
MOVED: Final = "moved"


@dataclass(slots=True, eq=False)
class Decision:
    """What becomes of some halves, and who is told of it."""

    outcome: str
    halves: list[Half]
    asked: list[Asked]
    copies: list[Copy] | None = None  # to be put instead of commit copies
    tells: int = -1  # number of the copy of which the place is wanted
    place: Half | None = None  # of that copy, once it is in the log
    named: bool = True  # whether an op record is to name the halves
    own: bool = False  # the first of `asked` has asked for it, the others wait for it
    tx: str = ""  # of this transaction, all that is open of it; "": of none, or of many
    given_up: int = -1  # position of a half, given up before, that an operator settles by it
    durable: bool = False
    staged: int = 0  # halves or copies that were put
    op_named: bool = False  # the op record is in the log
    end: int = -1
    error: str = ""
    decided_ms: int = 0  # from then on its delays count
    refusals: int = 0  # how often the writer took not all of it, but for a full disk
    left_out: list[Half] = field(default_factory=list)  # could not be stored, others were
    begun_at: int = -1  # something of it is in the log behind this position, so all has to be

    @property
    def is_commit(self) -> bool:
        """Whether commit copies are put."""
        return self.outcome == COMMITTED

    @property
    def is_told(self) -> bool:
        """Whether the op record says the outcome; otherwise another record of the log does."""
        return self.outcome in (COMMITTED, ROLLED_BACK)

    @property
    def is_as_asked(self) -> bool:
        """Whether its commit copies and its op record are all that the first who asked wants.

        Who waits for what somebody else has asked for may want more, or the contrary.
        """
        return self.own and not self.left_out and self.copies is None

    @property
    def positions(self) -> list[int]:
        """Log positions of all halves that it is about."""
        found = [position for position, _offset in (*self.halves, *self.left_out)]
        return found if self.given_up < 0 else [*found, self.given_up]

    def of(self, position: int) -> Decision:
        """The decision of a half."""
        return self

    def parts(self) -> list[Decision]:
        """Decisions that stand each for itself."""
        return [self]

    def leave_out(self, number: int) -> None:
        """One of its halves cannot be stored by now: it is decided by itself, which says so."""
        self.left_out.append(self.halves.pop(number))

    @property
    def puts(self) -> int:
        """How many copies it puts."""
        if self.copies is not None:
            return len(self.copies)
        return len(self.halves) if self.is_commit else 0
