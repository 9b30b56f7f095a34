"""Halves that were given up: parked in TRANS_CHECK_MAX_TIME_TOPIC (TX-37) and listed until settled.

A half may have several copies there, each with its position as origin: the newest one counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gantrymq.shm.properties import GIVEN_UP_TOPIC
from gantrymq.shm.transactionwire import GIVEN_UP
from gantrymq.workers.transactions.begun import Begun
from gantrymq.workers.transactions.decision import Decision
from gantrymq.workers.transactions.identity import transaction_at, transaction_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from gantrymq.workers.transactions.decisions import Decisions
    from gantrymq.workers.transactions.halves import Halves


Parked = tuple[int, int, int]  # queue offset, position, size


#: Settlements that are remembered while older copies may still come to be read.
SETTLED_MAX: Final = 65_536


class GivenUp:
    """What was given up and is not settled, by the position of the half."""

    def __init__(self, halves: Halves, decisions: Decisions) -> None:
        self.unsettled: dict[int, Parked] = {}
        self.begun = Begun()
        self.next = 0  # first unit of the give-up queue that was not read
        #: Where the log ended with their settlements: older copies may still come to be read.
        self._settled: dict[int, int] = {}
        self._halves = halves
        self._decisions = decisions

    def read(self, said: Callable[[str], str | None]) -> int:
        """Take in units of the give-up queue; how many. `said`: what became of a transaction."""
        self.next = max(self.next, self._halves.lowest(GIVEN_UP_TOPIC))
        end = self._halves.written(GIVEN_UP_TOPIC)
        if self.next >= end:
            return 0
        first, units = self._halves.units(GIVEN_UP_TOPIC, self.next, min(end, self.next + 256))
        for number, (position, size) in enumerate(units.reshape(-1, 2).tolist()):
            record = self._decisions.window.record(position)
            if record is not None:
                # A RocketMQ's says no origin.
                half = record.origin if record.origin >= 0 else position
                if position >= self._settled.get(half, 0):
                    self.unsettled[half] = (first + number, position, size)
                    tx = transaction_of(record.property_map())
                    self.begun.add(half, tx)
                    self.begun.learn(tx, said(tx))
        self.next = first + len(units) // 2
        return len(units) // 2

    def list_again(self, half: int, place: Parked) -> None:
        """A note lists it."""
        self.unsettled[half] = place
        self.begun.add(half, self.transaction(half))

    def transaction(self, half: int) -> str:
        """Id of the transaction of what is listed; "" if it has none, or cannot be read."""
        return transaction_at(self._decisions.window, self.unsettled[half][1])

    def give_up(self, position: int, offset: int) -> Decision | None:
        """What parks a half, to be named once it is there; None if its record cannot be read."""
        copy = self._decisions.copy_into(GIVEN_UP_TOPIC, position, position)
        if copy is None:
            return None
        return Decision(GIVEN_UP, [(position, offset)], [], copies=[copy], named=False, tells=0)

    def below(self, low: int) -> list[int]:
        """Halves of which the copy lies below a log position, and is not settled."""
        return [half for half, place in self.unsettled.items() if place[1] < low]

    def forget_below(self, low: int) -> None:
        """Copies that retention has taken off a full disk are no longer known."""
        for half in self.below(low):
            self._drop(half)

    def forget_damaged(self, half: int) -> bool:
        """Whether the copy of a half is damaged, which is named: it is not known any more."""
        position = self.unsettled[half][1]
        if self._decisions.window.record(position) is not None:
            return False
        self._drop(half)
        return True

    def _drop(self, half: int) -> None:
        del self.unsettled[half]
        self.begun.drop(half)

    def park_again(self, half: int) -> Decision | None:
        """What gives a half another copy; None if its record cannot be read."""
        copy = self._decisions.copy_into(GIVEN_UP_TOPIC, self.unsettled[half][1], half)
        if copy is None:
            return None
        return Decision(GIVEN_UP, [(half, -1)], [], copies=[copy], named=False, tells=0)

    def parked_again(self, half: int, place: tuple[int, int]) -> None:
        """It has another copy, at a position and queue offset."""
        if half in self.unsettled:
            self.unsettled[half] = (place[1], place[0], self.unsettled[half][2])

    def is_settled(self, half: int, end: int) -> None:
        """An operator's settlement is in the log, below `end`.

        What is parked behind it was open then, and the operator had it checked anew.
        """
        if self.unsettled.get(half, (0, end, 0))[1] < end:
            self._drop(half)
        self._settled[half] = end
        if len(self._settled) > SETTLED_MAX:  # what they speak of was read long ago
            del self._settled[next(iter(self._settled))]
