"""A simulated operator who settles what is in doubt, open or given up, one way or another.

As `gantrymq tx` does it: one half after the other, all of a transaction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gantrymq.shm import transactionwire as wire
from gantrymq.shm.codes import AgentState, Role
from gantrymq.shm.controllane import ControlLane, End
from gantrymq.workers.transactions.indoubt import InDoubt
from tests.support.simclients import NEVER_NS, SimClient

if TYPE_CHECKING:
    from gantrymq.workers.session import Session
    from tests.support.simmachine import SimMachine

#: As clients do: a checker that was replaced has forgotten what it was asked.
REPEAT_NS = 500_000_000
ACTIONS = (wire.COMMIT, wire.ROLLBACK, wire.RECHECK)


class SimOperator(SimClient):
    """Settles so many halves that are in doubt when it looks, then goes."""

    transactions = True

    def __init__(self, name: str, machine: SimMachine, count: int) -> None:
        super().__init__(name, machine)
        self.left = count
        self._serial = 0
        self._asked: wire.Settle | None = None
        self._rest: list[tuple[int, str]] = []  # positions of the same transaction, and the action
        self._next_ns = 0
        self._lane: ControlLane | None = None

    @property
    def done(self) -> bool:
        """All asked and answered."""
        return not (self.left or self._rest) and self._asked is None

    def ready_at(self, now_ns: int) -> int:
        """It also wakes by itself: to ask again, or for the next one."""
        when = super().ready_at(now_ns)
        if self.done or when <= now_ns or self.session is None:
            return when
        return max(now_ns, min(when, self._next_ns or now_ns + NEVER_NS))

    def attached(self, session: Session) -> None:
        """Ask again what has no answer."""
        self._lane = ControlLane(session.arena, session.plan.transactions, End.CLIENT)
        self._next_ns = 0

    def go_on(self, session: Session, now_ns: int) -> None:
        """Hear, look, ask, or wait."""
        lane = self._lane
        assert lane is not None, "attached"
        while (body := lane.take()) is not None:
            if lane.wants_bell:
                self.machine.bell(Role.TXN_CHECKER).ring()
            self._hear(wire.decode_notice(body))
        while self._asked is None and not self.done:  # with nothing in doubt nobody would wake it
            self._choose()
        if self._asked is not None and now_ns >= self._next_ns:
            self._next_ns = now_ns + REPEAT_NS
            lane.put(wire.encode(self._asked))
            if lane.wants_bell:
                self.machine.bell(Role.TXN_CHECKER).ring()
        self._asleep = lane.arm(AgentState.ARMED)

    def _choose(self) -> None:
        if not self._rest:
            self.left -= 1
            found = InDoubt(self.machine.storage_for("operator"), None).read()
            if not found:
                return
            chosen, action = self.dice.choice(found), self.dice.choice(ACTIONS)
            tx = chosen.transaction_id
            self._rest = [(one.position, action) for one in found if one.transaction_id == tx]
        position, action = self._rest.pop(0)
        self._serial += 1
        self._asked = wire.Settle(self._serial, position, action, "ops@host")
        self._next_ns = 0
        self.model.transactions.settle(position, action)

    def _hear(self, notice: object) -> None:
        asked = self._asked
        if asked is None or not isinstance(notice, wire.Settled) or notice.serial != self._serial:
            return
        self.model.transactions.was_settled(asked.position, asked.action, notice)
        self._asked = None
