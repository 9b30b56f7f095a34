"""Requests of a session that end their agent whenever it carries them out, as a defect would.

The agent dies of itself, with the request in hand (workers/inhand.py): its successors are to set
it aside by name and end the session, and all others go on.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from gantrymq.brokerd.appender import Appender
from gantrymq.shm.codes import Role
from gantrymq.shm.kernels import frames
from gantrymq.workers.inhand import InHand
from gantrymq.workers.session import Session
from tests.support.faults import KilledError
from tests.support.storedlog import require

#: Of one request: two amid it, and one before it of which the successor did not know whose it was.
#: One more: a successor may be killed before it has read its suspects. At six the broker ends.
DEATHS_MAX: Final = 4

#: Agents that carry out requests of clients, and the lane of a client that has them.
LANES = {
    Role.GROUPS: "groups", Role.SCHEDULER: "scheduler", Role.TXN_CHECKER: "transactions",
    Role.WRITER: "producer",
}  # fmt: skip


class Poisons:
    """Those of one machine; the machine that was made last is the one that runs."""

    latest: Poisons

    def __init__(self) -> None:
        self._sessions: dict[int, str] = {}
        self.ever: set[int] = set()  # sessions that had one
        self._serials: dict[int, int] = {}
        self._deaths: Counter[int] = Counter()
        self._struck = False
        Poisons.latest = self

    def put(self, role: Role, session: int) -> None:
        """The next request of a session that an agent carries out is one."""
        self._sessions[session] = role.name.lower()
        self.ever.add(session)

    def waits_for(self, agent: str) -> bool:
        """Whether a session may have one for an agent; what looks for it may let others go on."""
        return agent in self._sessions.values()

    def has_struck(self) -> bool:
        """Whether the death that is heard of now is of that."""
        struck, self._struck = self._struck, False
        return struck

    def is_of(self, session: Session | None) -> bool:
        """Whether something of it may be refused because it ended its agent."""
        return session is not None and session.session in self.ever

    def set_aside(self, session: int, why: str) -> bool:
        """Whether a session is cut off because of one."""
        return "again and again" in why and session in self.ever

    def carry_out(self, agent: str, session: int, serial: int) -> None:
        """An agent is about to carry out a request. Raises KilledError if it dies of it."""
        if self._sessions.get(session) != agent:
            return
        if self._serials.setdefault(session, serial) == serial:
            self._deaths[session] += 1
            what = f"{agent} dies of what session {session} asks for the {DEATHS_MAX + 1}th time"
            require(self._deaths[session] <= DEATHS_MAX, "P10", what)
            self._struck = True
            raise KilledError(f"{agent} dies of what session {session} asks")


_take, _drain = InHand.take, Appender._drain


def _take_or_die(hand: InHand, session: int, serial: int = 0) -> None:
    _take(hand, session, serial)
    if serial:
        Poisons.latest.carry_out(hand._name, session, serial)


def _drain_or_die(appender: Appender, now_ns: int, number: int, end: int, *, may_wait: bool) -> Any:  # noqa: ANN401
    lanes = appender.lanes.lanes if Poisons.latest.waits_for("writer") else []
    for lane in lanes[number:end]:
        if lane.published() != lane.view[frames.UP_CURSOR]:
            Poisons.latest.carry_out("writer", lane.session.session, 0)
    return _drain(appender, now_ns, number, end, may_wait=may_wait)


def install() -> None:
    """For the rest of this process, which runs nothing but simulations."""
    setattr(InHand, "take", _take_or_die)  # noqa: B010 - mypy refuses the plain way
    setattr(Appender, "_drain", _drain_or_die)  # noqa: B010
