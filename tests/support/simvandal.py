"""A simulated client that breaks every rule: garbage into its own shared memory, seeded."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from gantrymq.shm import groupwire, layout, schedulerwire, transactionwire
from gantrymq.shm.controllane import BrokenLane, ControlLane, End
from gantrymq.shm.kernels import ring
from tests.support.extremes import kinds_of, requests_of
from tests.support.floods import BASE, LANES
from tests.support.lanes import lane_words, set_route
from tests.support.simclients import SimClient
from tests.support.simmachine import ROLES, SimMachine

if TYPE_CHECKING:
    from gantrymq.shm.arena import LanePlan
    from gantrymq.workers.session import Session

#: Words that agents read of a client, by their place in a lane.
_LANE_WORDS = (
    layout.LANE_UP_TAIL, layout.LANE_DOWN_HEAD, layout.LANE_CLIENT_ARMED, layout.LANE_UP_HEAD,
    layout.LANE_AGENT_STATE, layout.LANE_DOWN_TAIL, layout.LANE_ADOPTED, layout.LANE_LAST_SEQ,
)  # fmt: skip
_NUMBERS = (0, 1, 7, 8, 64, 4095, 4096, 1 << 31, (1 << 32) - 1, 1 << 62, (1 << 63) - 1, -1, -8)
#: How long at most one asks that reads no answers.
_UNREAD_NS = 50_000_000
_NO_BYTES = np.zeros(0, np.uint8)


#: A request of each lane that is answered at once, though its answers are never read.
_UNREAD = {
    "groups": groupwire.encode(groupwire.Commit(1, {0: 1}, {0: 1})),
    "scheduler": schedulerwire.encode(schedulerwire.Recall(1, "nowhere", "no handle")),
    "transactions": transactionwire.encode(
        transactionwire.Settle(1, 1, transactionwire.ROLLBACK, "nobody")
    ),
}


@cache
def requests_at_the_ends(lane: str) -> list[bytes]:
    """Each request of a lane with each field at the ends of its type, if it fits into a ring."""
    kinds = kinds_of(LANES[lane])
    return [body for kind in kinds for body in requests_of(kind, lambda: BASE) if len(body) < 1500]


class SimVandal(SimClient):
    """Attaches as producer and member, puts a few good entries, then writes anything anywhere.

    It rings after each deed, so that nobody oversleeps it. Once cut off it is gone. Some break no
    rule: they ask as long as there is room, and read no answer.
    """

    groups = scheduler = transactions = True

    def __init__(self, name: str, machine: SimMachine) -> None:
        super().__init__(name, machine)
        self.producer = self.dice.getrandbits(80).to_bytes(10, "big")
        self.machine.expect_cut_off.add(name)
        self.model.vandals.add(self.producer.hex())
        self.deeds = self.dice.randint(5, 40)
        self._unread = self.dice.choice([*_UNREAD, *[""] * 9])
        self._ends_ns = 0  # of one that reads no answers

    def attached(self, session: Session) -> None:
        """Some entries as they should be, to have something to spoil."""
        for number in range(2):
            set_route(session, number, number)
        words = lane_words(session.plan.writer)
        form = np.array([1, 0, 0, 1_700_000_000_000, 0, 0], np.int64)
        for _ in range(self.dice.randint(0, 6)):
            body = np.frombuffer(self.dice.randbytes(self.dice.choice([0, 30, 400])), np.uint8)
            ring.put(session.arena, words, form, body, _NO_BYTES)
        self._ring_all()

    def session_over(self) -> None:
        """Cut off, or the broker has ended: either way it does not come back."""
        super().session_over()
        self.machine.simulation.remove(self.name)

    def go_on(self, session: Session, now_ns: int) -> None:
        """One deed."""
        if self._unread:
            self._ask_on(session, now_ns)
            return
        self.deeds -= 1
        if self.deeds < 0:
            self.die()
            return
        deed = self.dice.choice(
            [self._spoil_word, self._spoil_entry, self._spoil_bytes, self._ask_at_the_ends]
        )
        deed(session)
        self._ring_all()

    def _ring_all(self) -> None:
        for role in ROLES:
            self.machine.bell(role).ring()

    def _lane(self, session: Session) -> LanePlan:
        plan = session.plan
        return self.dice.choice([plan.writer, plan.groups, plan.scheduler, plan.transactions])

    def _number(self, near: int) -> int:
        if self.dice.random() < 0.5:
            return min(near + 8 * self.dice.randint(-4, 60), (1 << 63) - 1)
        return self.dice.choice(_NUMBERS)

    def ready_at(self, now_ns: int) -> int:
        """One that reads no answers sleeps for some time, both ways of its lane full."""
        at = super().ready_at(now_ns)
        return max(now_ns, min(at, self._ends_ns)) if self._ends_ns and self.session else at

    def _ask_on(self, session: Session, now_ns: int) -> None:
        """As much as goes into the ring; both ways of the lane get full."""
        self._ends_ns = self._ends_ns or now_ns + self.dice.randint(1, _UNREAD_NS)
        if now_ns >= self._ends_ns:
            self.die()
            return
        lane = ControlLane(session.arena, getattr(session.plan, self._unread), End.CLIENT)
        while lane.put(_UNREAD[self._unread]):
            pass
        self._asleep = True
        self._ring_all()

    def _ask_at_the_ends(self, session: Session) -> None:
        """Requests with a field at an end of its type, in rings that are as they should be."""
        lane = self.dice.choice(sorted(LANES))
        try:
            ring_of = ControlLane(session.arena, getattr(session.plan, lane), End.CLIENT)
            for _ in range(self.dice.randint(1, 8)):
                ring_of.put(self.dice.choice(requests_at_the_ends(lane)))
        except BrokenLane:
            pass  # it has broken that one itself

    def _spoil_word(self, session: Session) -> None:
        """A cursor or flag of a lane."""
        at = self._lane(session).control + self.dice.choice(_LANE_WORDS)
        word = session.arena[at : at + 8].view("<i8")
        word[0] = self._number(int(word[0]))

    def _spoil_entry(self, session: Session) -> None:
        """A number in the ring that agents read, and more of it published."""
        lane = self._lane(session)
        tail = session.arena[lane.control : lane.control + 8].view("<i8")
        at = lane.up + 4 * self.dice.randrange(32)
        session.arena[at : at + 4].view("<u4")[0] = self._number(64) & 0xFFFF_FFFF
        tail[0] += 8 * self.dice.randint(0, 12)

    def _spoil_bytes(self, session: Session) -> None:
        """Noise: over routes and interest list, or over a piece of a ring."""
        lane = self._lane(session)
        places = [
            layout.INTEREST_AT - 512,
            layout.ROUTES_AT,
            layout.PROGRESS_AT,
            lane.up,
            lane.down,
        ]
        start = self.dice.choice(places)
        noise = np.frombuffer(self.dice.randbytes(self.dice.choice([8, 64, 600])), np.uint8)
        session.arena[start : start + noise.size] = noise
