"""Halves that were given up: parked in TRANS_CHECK_MAX_TIME_TOPIC (TX-37) and listed until settled.

A half may have several copies there, each with its position as origin: the newest one counts.

An operator settles them, and open halves as well: commit, rollback, or another round of checks. Who
and when is in the log before the answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shm import transactionwire as wire
from shm.properties import GIVEN_UP_TOPIC, HALF_TOPIC, java_int
from shm.transactionwire import COMMITTED, GIVEN_UP, ROLLED_BACK, Settle, Settled
from workers.transactions import records as transactionnotes
from workers.transactions.delayedcommit import commit_copy, copy_of
from workers.transactions.staging import Decision

if TYPE_CHECKING:
    from shm.record import Record
    from workers.outlet import Copy
    from workers.transactions.decisions import Decisions
    from workers.transactions.desk import Desk
    from workers.transactions.endings import Endings
    from workers.transactions.halves import Halves
    from workers.transactions.staging import Asked

_ACTIONS = (wire.COMMIT, wire.ROLLBACK, wire.RECHECK)
_OUTCOMES = {
    wire.COMMIT: COMMITTED,
    wire.ROLLBACK: ROLLED_BACK,
    wire.RECHECK: wire.CHECKED_AGAIN,
}


@dataclass(slots=True)
class _Asked:
    """A settlement on its way: nobody may ask otherwise before it is in the log."""

    position: int
    action: str


class GivenUp:
    """What was given up and is not settled, by the position of the half."""

    def __init__(self, halves: Halves, decisions: Decisions) -> None:
        self.unsettled: dict[int, tuple[int, int, int]] = {}  # queue offset, position, size
        self.next = 0  # first unit of the give-up queue that was not read
        self._settled: set[int] = set()  # copies of these may still come to be read
        self._halves = halves
        self._decisions = decisions

    def read(self) -> int:
        """Take in units of the give-up queue; how many."""
        self.next = max(self.next, self._halves.lowest(GIVEN_UP_TOPIC))
        end = self._halves.written(GIVEN_UP_TOPIC)
        if self.next >= end:
            return 0
        first, units = self._halves.units(GIVEN_UP_TOPIC, self.next, min(end, self.next + 256))
        for number, (position, size) in enumerate(units.reshape(-1, 2).tolist()):
            record = self._decisions.record(position)
            if record is not None:
                # A RocketMQ's says no origin.
                half = record.origin if record.origin >= 0 else position
                if half not in self._settled:
                    self.unsettled[half] = (first + number, position, size)
        self.next = first + len(units) // 2
        return len(units) // 2

    def give_up(self, position: int, offset: int) -> Decision | None:
        """The decision that parks a half; None if its record cannot be read."""
        record = self._decisions.record(position)
        slot = self._decisions.slots.get(GIVEN_UP_TOPIC)
        if record is None or slot is None:
            return None
        copy = copy_of(record, slot, 0, record.property_map(), position)
        return Decision(GIVEN_UP, [(position, offset)], [], copies=[copy])

    def below(self, low: int) -> list[int]:
        """Halves of which the copy lies below a log position, and is not settled."""
        return [half for half, place in self.unsettled.items() if place[1] < low]

    def forget_below(self, low: int) -> None:
        """Copies that retention has taken off a full disk are no longer known."""
        for half in self.below(low):
            del self.unsettled[half]

    def park_again(self, half: int) -> Decision | None:
        """What gives a half another copy; None if its record cannot be read."""
        record = self._decisions.record(self.unsettled[half][1])
        slot = self._decisions.slots.get(GIVEN_UP_TOPIC)
        if record is None or slot is None:
            return None
        copy = copy_of(record, slot, 0, record.property_map(), half)
        return Decision(GIVEN_UP, [(half, -1)], [], copies=[copy], named=False)

    def parked_again(self, half: int, place: tuple[int, int]) -> None:
        """It has another copy, at a position and queue offset."""
        if half in self.unsettled:
            self.unsettled[half] = (place[1], place[0], self.unsettled[half][2])

    def is_settled(self, half: int) -> None:
        """An operator's settlement is in the log."""
        self.unsettled.pop(half, None)
        self._settled.add(half)


class Settling:
    """Handles Settle requests."""

    def __init__(
        self, halves: Halves, decisions: Decisions, given_up: GivenUp, endings: Endings, desk: Desk
    ) -> None:
        self._halves = halves
        self._decisions = decisions
        self._given_up = given_up
        self._endings = endings
        self._desk = desk
        self._settled: dict[int, str] = {}  # lately: by position

    def settle(self, session: int, request: Settle, now_ms: int) -> None:
        """Take a request; it is answered when what it wants is in the log."""
        position = self._halves.newest(request.position)
        if request.action not in _ACTIONS:
            self._refuse(session, request, wire.NOT_A_HALF, f"no action {request.action!r}")
        elif self._endings.is_flying(position):
            self._refuse(session, request, wire.DECIDED, "it is being decided: look again")
        elif position in self._given_up.unsettled:
            self._settle_given_up(session, request, position, now_ms)
        elif (index := self._halves.table.at_position(position)) >= 0:
            self._settle_open(session, request, index, now_ms)
        else:
            self._refuse_decided(session, request, position)

    def _refuse_decided(self, session: int, request: Settle, position: int) -> None:
        outcome = self._settled.get(position) or self._halves.outcome_at(position) or ""
        if outcome == _OUTCOMES[request.action]:
            self._desk.tell(session, Settled(request.serial, outcome))
        elif outcome:
            text = f"the transaction is {outcome.replace('_', ' ')} already"
            notice = Settled(request.serial, outcome, wire.DECIDED, text)
            self._desk.tell(session, notice)
        else:
            text = f"no open or given-up transaction lies at {request.position}"
            self._refuse(session, request, wire.UNKNOWN, text)

    def _settle_open(self, session: int, request: Settle, index: int, now_ms: int) -> None:
        row = self._halves.table.rows[index]
        position, offset = int(row["position"]), int(row["offset"])
        if request.action == wire.RECHECK:
            row["checks"], row["next_ns"] = 0, 0
        else:
            outcome = _OUTCOMES[request.action]
            decision = Decision(outcome, [(position, offset)], [])
            if not self._endings.decide(decision, now_ms):
                self._refuse(session, request, decision.error, "its message cannot be stored")
                return
        self._note(session, request, position, [], now_ms)

    def _settle_given_up(self, session: int, request: Settle, position: int, now_ms: int) -> None:
        _offset, parked, _size = self._given_up.unsettled[position]
        record = self._decisions.record(parked)
        if record is None:
            self._refuse(session, request, wire.UNKNOWN, "its record cannot be read")
            return
        copies = []
        if request.action != wire.ROLLBACK:
            copy = self._copy(record, position, request.action)
            if copy is None:
                self._refuse(session, request, wire.UNSTORABLE, "its topic is gone")
                return
            copies = [copy]
        self._note(session, request, position, copies, now_ms)

    def _copy(self, record: Record, position: int, action: str) -> Copy | None:
        slots, named = self._decisions.slots, record.property_map()
        if action == wire.RECHECK:
            return copy_of(record, slots[HALF_TOPIC], 0, named, position)
        topic = slots.get(named.get("REAL_TOPIC", ""))
        if topic is None:
            return None
        copy = commit_copy(record, topic, java_int(named.get("REAL_QID", "")) or 0)
        # TX-15: of the half, not of the copy that was parked.
        return copy_of(record, topic, copy.queue_id, _properties(copy), -1 - position)

    def _note(
        self, session: int, request: Settle, position: int, copies: list[Copy], now_ms: int
    ) -> None:
        """Put what a settlement stores, and the record of who wanted it."""
        slots = self._decisions.slots
        note = transactionnotes.settled(slots, position, request.action, request.who, now_ms)
        asked: list[Asked] = [(session, request.serial, _Asked(position, request.action))]
        # Durable whatever the topic's level: it is an operator's word.
        decision = Decision("", [], asked, copies=[*copies, note], named=False, durable=True)
        self._endings.decide(decision, now_ms)
        self._given_up.unsettled.pop(position, None)

    def settled(self, decision: Decision) -> None:
        """A settlement is in the log, or nothing of it is."""
        for session, serial, asked in decision.asked:
            if not isinstance(asked, _Asked):
                continue
            if decision.error:
                self._desk.tell(session, Settled(serial, "", decision.error, "nothing was stored"))
                self._given_up.next = 0  # it is listed still: read again
                continue
            outcome = _OUTCOMES[asked.action]
            self._given_up.is_settled(asked.position)
            if asked.action != wire.RECHECK:
                self._settled[asked.position] = outcome
                self._halves.remember(asked.position, outcome)
            self._desk.tell(session, Settled(serial, outcome))

    def _refuse(self, session: int, request: Settle, error: str, text: str) -> None:
        self._desk.tell(session, Settled(request.serial, "", error, text))


def _properties(copy: Copy) -> dict[str, str]:
    from shm.properties import parse_properties

    return parse_properties(copy.properties)
