"""A simulated client that cancels delayed messages, at any time, also while they are delivered."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from typing import TYPE_CHECKING

from gantrymq.shm import schedulerwire
from gantrymq.shm.codes import AgentState, Role
from gantrymq.shm.controllane import ControlLane, End
from gantrymq.shm.schedulerwire import Recall, Recalled
from tests.support.recalling import Recallable
from tests.support.simclients import NEVER_NS, SimClient

if TYPE_CHECKING:
    from gantrymq.workers.session import Session
    from tests.support.simmachine import SimMachine

#: As clients do: a scheduler that was replaced has forgotten what it was asked.
REPEAT_NS = 500_000_000
#: Between two recalls, at most.
PAUSE_NS = 15_000_000


class SimRecaller(SimClient):
    """Asks for one message after the other; repeats what is not answered."""

    scheduler = True

    def __init__(self, name: str, machine: SimMachine, count: int) -> None:
        super().__init__(name, machine)
        self.left = count
        self.pause_ns = PAUSE_NS
        self._serial = 0
        self._asked: tuple[Recallable | None, bytes] | None = None
        self._unput = False
        self._lane: ControlLane | None = None
        self._next_ns = 0

    @property
    def done(self) -> bool:
        """All asked and answered."""
        return self._asked is None and not (self.left and self.model.recalls.known)

    def ready_at(self, now_ns: int) -> int:
        """It also wakes by itself: to ask again, or for the next one."""
        when = super().ready_at(now_ns)
        if self.stopped or self.session is None or self.done:
            return max(when, now_ns + NEVER_NS) if self.done and self.session else when
        return when if self.bell.rung or not self._asleep else self._next_ns

    def attached(self, session: Session) -> None:
        """Ask again what has no answer."""
        self._lane = ControlLane(session.arena, session.plan.scheduler, End.CLIENT)
        self._unput = self._asked is not None

    def go_on(self, session: Session, now_ns: int) -> None:
        """Hear, ask, or wait."""
        lane = self._lane
        assert lane is not None, "attached"
        while (body := lane.take()) is not None:
            if lane.wants_bell:
                self.machine.bell(Role.SCHEDULER).ring()
            self._hear(schedulerwire.decode_notice(body), now_ns)
        if self._asked is None and now_ns >= self._next_ns:
            self._choose()
        if self._asked is not None and (self._unput or now_ns >= self._next_ns):
            self._next_ns = now_ns + REPEAT_NS
            self._unput = not lane.put(self._asked[1])
            if lane.wants_bell:
                self.machine.bell(Role.SCHEDULER).ring()
        self._asleep = not self._unput and lane.arm(AgentState.ARMED)

    def _hear(self, notice: Recalled, now_ns: int) -> None:
        if self._asked is None or notice.serial != self._serial:
            return
        message, self._asked = self._asked[0], None
        if notice.refusal:
            known = ("DISK_FULL", schedulerwire.INDEX_BEHIND)
            is_poison = self.machine.poisons.is_of(self.session)
            assert notice.refusal in known or is_poison, f"{self.name} was refused: {notice}"
            self.model.tally["recalls refused"] += 1
            return
        model = self.model
        # Without the key index, what is overdue and not to be found counts as delivered.
        # Nor does it wait for the index for minutes, which may pass at once (a suspended machine).
        blind = model.may_force or bool(
            model.tally["no_space_for_index"] + model.tally["suspended"]
        )
        gone = model.may_be_gone(message) if message else blind
        model.recalls.answered(message, notice.outcome, gone=gone)
        self._next_ns = now_ns + self.dice.randint(0, self.pause_ns)

    def _choose(self) -> None:
        known = self.model.recalls.known
        if not self.left or not known:
            return
        self.left -= 1
        chosen = self.dice.choice(known[-6:] if self.dice.random() < 0.7 else known)
        message: Recallable | None = chosen
        topic, handle = chosen.topic, chosen.handle
        if self.dice.random() < 0.1:
            handle, message = self._invented(topic), None
        self._serial += 1
        self._asked = (message, schedulerwire.encode(Recall(self._serial, topic, handle)))
        self._unput = True

    def _invented(self, topic: str) -> str:
        """A handle of no message, due lately or soon."""
        due_ms = self.machine.simulation.clock.wall_ms() // 1000 * 1000
        due_ms += self.dice.choice([-60_000, -1000, 0, 1000, 60_000]) + 1
        unique = f"{self.dice.getrandbits(128):032X}"
        return urlsafe_b64encode(f"v1 {topic} broker {due_ms} {unique}".encode()).decode()
