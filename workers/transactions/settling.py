"""What an operator decides: commit, rollback, or another round of checks.

Of halves that were given up, and of open ones as well. Who and when is in the log before the
answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gantrymq.shm import transactionwire as wire
from gantrymq.shm.properties import HALF_TOPIC
from gantrymq.shm.record import origin_field
from gantrymq.shm.transactionwire import Settle, Settled
from gantrymq.workers.transactions import records as transactionnotes
from gantrymq.workers.transactions.begun import BINDING
from gantrymq.workers.transactions.decision import Decision
from gantrymq.workers.transactions.delayedcommit import copy_of
from gantrymq.workers.transactions.firstplace import from_now
from gantrymq.workers.transactions.identity import transaction_of
from gantrymq.workers.transactions.kin import DECIDING

if TYPE_CHECKING:
    from gantrymq.shm.record import Record
    from gantrymq.workers.outlet import Copy
    from gantrymq.workers.transactions.decision import Half
    from gantrymq.workers.transactions.decisions import Decisions
    from gantrymq.workers.transactions.desk import Desk
    from gantrymq.workers.transactions.endings import Endings
    from gantrymq.workers.transactions.givenup import GivenUp
    from gantrymq.workers.transactions.halves import Halves
    from gantrymq.workers.transactions.pastdecisions import PastDecisions


BEING_DECIDED: Final = "it is being decided: look again"


@dataclass(slots=True)
class _Asked:
    """A settlement on its way: nobody may ask otherwise before it is in the log."""

    position: int
    action: str
    was_open: bool  # not given up yet
    tx: str  # id of its transaction


class Settling:
    """Handles Settle requests."""

    def __init__(
        self,
        halves: Halves,
        decisions: Decisions,
        given_up: GivenUp,
        endings: Endings,
        past: PastDecisions,
        desk: Desk,
    ) -> None:
        self._halves = halves
        self._decisions = decisions
        self._given_up = given_up
        self._endings = endings
        self._past = past
        self._desk = desk
        self._kin = endings.kin
        #: Of given-up halves, on their way, by transaction: what is wanted, how often.
        self._wanted: dict[str, tuple[str, int]] = {}

    def settle(self, session: int, request: Settle, now_ms: int) -> None:
        """Take a request; it is answered when what it wants is in the log."""
        position = self._halves.newest(request.position)
        if request.action not in wire.OUTCOMES:
            self._refuse(session, request, wire.NOT_A_HALF, f"no action {request.action!r}")
        elif self._endings.is_flying(position):
            self._refuse(session, request, wire.DECIDED, BEING_DECIDED)
        elif position in self._given_up.unsettled:
            self._settle_given_up(session, request, position, now_ms)
        elif (index := self._halves.table.at_position(position)) >= 0:
            self._settle_open(session, request, index, now_ms)
        else:
            self._refuse_decided(session, request, position)

    def _refuse_decided(self, session: int, request: Settle, position: int) -> None:
        outcome = self._halves.outcome_at(position) or ""
        if outcome == wire.OUTCOMES[request.action]:
            self._desk.tell(session, Settled(request.serial, outcome))
        elif outcome:
            self._refuse_otherwise(session, request, outcome)
        elif (half := self._half_at(position)) is not None:
            self._past.ask(session, request, *half)  # of a life before, or long ago
        else:
            self.refuse_unknown(session, request)

    def _refuse_otherwise(self, session: int, request: Settle, outcome: str) -> None:
        text = f"the transaction is {outcome.replace('_', ' ')} already"
        self._desk.tell(session, Settled(request.serial, outcome, wire.DECIDED, text))

    def _half_at(self, position: int) -> Half | None:
        record = self._decisions.window.record_asked_for(position)
        is_half = record is not None and record.topic == HALF_TOPIC
        return (position, record.queue_offset) if record and is_half else None

    def refuse_unknown(self, session: int, request: Settle) -> None:
        """Nothing is known of what it names."""
        text = f"no open or given-up transaction lies at {request.position}"
        self._refuse(session, request, wire.UNKNOWN, text)

    def _settle_open(self, session: int, request: Settle, index: int, now_ms: int) -> None:
        row = self._halves.table.rows[index]
        half = int(row["position"]), int(row["offset"])
        tx = self._kin.transaction(half)
        said = self._kin.outcome(tx) or ""
        halves = [half, *(self._kin.others(tx, [half]) if said not in BINDING else ())]
        is_deciding = any(self._endings.is_flying(one[0]) for one in halves)
        if is_deciding or self._kin.waits([half]) or self._kin.outcome(tx) == DECIDING:
            self._refuse(session, request, wire.DECIDED, BEING_DECIDED)
            return
        is_otherwise = request.action != wire.RECHECK and self._is_bound(request.action, said)
        record = self._decisions.window.record(half[0])
        if is_otherwise and record and self._may_follow(request.action, record, now_ms):
            self._refuse_otherwise(session, request, said)
            return
        decision = Decision("", [], [], copies=[], named=False)
        if request.action != wire.RECHECK:
            decision = Decision(wire.OUTCOMES[request.action], halves, [], copies=[], tx=tx)
        if request.action == wire.COMMIT:
            copies = [self._decisions.copy_again(one, now_ms) for one in halves]
            if None in copies:
                self._refuse(session, request, wire.UNSTORABLE, "its topic is gone")
                return
            decision.copies = [copy for copy in copies if copy is not None]
        self._decide(session, request, half[0], decision, tx, now_ms)

    def _settle_given_up(self, session: int, request: Settle, position: int, now_ms: int) -> None:
        _offset, parked, _size = self._given_up.unsettled[position]
        record = self._decisions.window.record(parked)
        if record is None:
            self._refuse(session, request, wire.UNKNOWN, "its record cannot be read")
            return
        tx = transaction_of(record.property_map())
        if self._is_deciding(tx, request.action):
            self._refuse(session, request, wire.DECIDED, BEING_DECIDED)
            return
        said = self._kin.outcome(tx) or ""
        is_otherwise = self._is_bound(request.action, said)
        if is_otherwise and self._may_follow(request.action, record, now_ms):
            self._refuse_otherwise(session, request, said)
            return
        copies: list[Copy] = []
        if request.action != wire.ROLLBACK:
            copy = self._copy(record, position, request.action, now_ms)
            if copy is None:
                self._refuse(session, request, wire.UNSTORABLE, "its topic is gone")
                return
            copies = [copy]
        decision = Decision("", [], [], copies=copies, named=False, given_up=position)
        if request.action == wire.RECHECK:
            decision.tells = 0
        self._decide(session, request, position, decision, tx, now_ms)

    def _is_bound(self, action: str, said: str) -> bool:
        """Whether something of the transaction was decided, and not so."""
        return said in BINDING and wire.OUTCOMES[action] != said

    def _may_follow(self, action: str, record: Record, now_ms: int) -> bool:
        """Whether what is bound can follow: what cannot be stored any more may be taken back."""
        copy = self._decisions.commit_of(record, now_ms)
        return action != wire.ROLLBACK or self._decisions.may_store(copy)

    def _is_deciding(self, tx: str, action: str) -> bool:
        """Whether something of a transaction is on its way that is not wanted here."""
        wanted, _count = self._wanted.get(tx, ("", 0))
        return wanted != action if wanted else self._kin.outcome(tx) == DECIDING

    def _begin(self, tx: str, action: str) -> None:
        """A settlement of what was given up is on its way: others of its transaction wait."""
        if tx:
            self._wanted[tx] = action, self._wanted.get(tx, ("", 0))[1] + 1
            self._kin.begin(tx)

    def _end(self, tx: str) -> None:
        """It is no longer."""
        action, count = self._wanted.pop(tx, ("", 0))
        if count > 1:
            self._wanted[tx] = action, count - 1
        elif tx:
            self._kin.failed(tx)  # unless it was decided

    def _copy(self, record: Record, position: int, action: str, now_ms: int) -> Copy | None:
        if action == wire.RECHECK:
            anew = from_now(record.property_map(), position, now_ms)
            return copy_of(record, self._decisions.slots[HALF_TOPIC], 0, anew, position)
        copy = self._decisions.commit_of(record, now_ms)
        # TX-15: of the half, not of the copy that was parked.
        return copy._replace(origin=origin_field(position)) if copy else None

    def _decide(
        self, session: int, request: Settle, position: int, decision: Decision, tx: str,
        now_ms: int,
    ) -> None:  # fmt: skip
        """Put what a settlement stores, and with it the record of who wanted it."""
        slots = self._decisions.slots
        notes = [
            transactionnotes.settled(slots, (at, tx), request.action, request.who, now_ms)
            for at in (decision.positions or [position])
        ]
        decision.copies = [*(decision.copies or ()), *notes]
        decision.durable = True  # whatever the topic's level: it is an operator's word
        asked = _Asked(position, request.action, decision.given_up < 0, tx)
        decision.asked = [(session, request.serial, asked)]
        if not self._endings.decide(decision, now_ms):
            self._refuse(session, request, decision.error, "its message cannot be stored")
        elif decision.given_up >= 0:
            self._begin(tx, request.action)

    def settled(self, decision: Decision) -> bool:
        """A settlement is in the log, or nothing of it is; whether some half is due at once."""
        is_due = False
        for session, serial, asked in decision.asked:
            if not isinstance(asked, _Asked):
                continue
            if decision.error:
                if not asked.was_open:
                    self._end(asked.tx)
                self._desk.tell(session, Settled(serial, "", decision.error, "nothing was stored"))
                continue
            outcome = wire.OUTCOMES[asked.action]
            if not asked.was_open:
                self._settled_given_up(asked, decision)
            if asked.action != wire.RECHECK:
                self._halves.remember(asked.position, outcome)
            elif (index := self._halves.table.at_position(asked.position)) >= 0:
                row = self._halves.table.rows[index]
                row["checks"], row["next_ns"], is_due = 0, 0, True
            self._desk.tell(session, Settled(serial, outcome))
        return is_due

    def _settled_given_up(self, asked: _Asked, decision: Decision) -> None:
        self._given_up.is_settled(asked.position, decision.end)
        if decision.place is not None:  # of the half that is checked anew
            self._halves.aliases[asked.position] = decision.place
            self._kin.reopened(asked.tx)
        else:
            self._kin.decided(asked.tx, wire.OUTCOMES[asked.action])
            self._kin.pursue(asked.tx)
        self._end(asked.tx)

    def _refuse(self, session: int, request: Settle, error: str, text: str) -> None:
        self._desk.tell(session, Settled(request.serial, "", error, text))
