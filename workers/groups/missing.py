"""What a `groups` of this life leaves to the next: members by their leases, ends of sessions."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from gantrymq.shm import wire
from gantrymq.workers.groups.membership import Member, Membership
from gantrymq.workers.session import SessionTable

#: After a replacement, sessions are told again at once; one that was not by then is ended.
MISSING_NS: Final = 2_000_000_000
#: What the leases cost that are ended in one cycle.
COST_MAX: Final = 128


class Missing:
    """Takes over what a replaced `groups` left, and ends holders that nobody knows of."""

    def __init__(self, membership: Membership, cut_off: Callable[[int, str], None]) -> None:
        self._membership = membership
        self._cut_off = cut_off
        self._restoring = True
        self._since_ns = -1

    def restore(self) -> None:
        """Take holders of leases for members."""
        self._membership.topics.refresh()
        for session in self._membership.ledger.holders():
            topics = self._membership.topics
            leases = self._membership.ledger.leases_of(session)
            names = {key[0] for _, key, _ in leases}
            slots = frozenset(topics.slots[name] for name in names if name in topics.slots)
            group, _, lease = leases[-1]  # a session is in one group
            member = Member(session, slots, 0, self._membership.held_by(session), lease.digest)
            self._membership.restore_member(group, member)

    def end(self, attached: Collection[int], now_ns: int) -> None:
        """End holders that this `groups` was not told of in time."""
        if not self._restoring:
            return
        missing = self._membership.ledger.holders() - set(attached)
        self._restoring = bool(missing)
        if not missing:
            return
        if self._since_ns < 0:
            self._since_ns = now_ns
        elif now_ns - self._since_ns >= MISSING_NS:
            session = min(missing)  # the others have their turn in the next cycles
            cost = 0.0
            for more in self._membership.leave(session, failed=True):
                cost += more
                if cost >= COST_MAX:
                    return
            self._cut_off(session, "groups was replaced and was not told of it")


class Ends:
    """Sessions that have ended: the supervisor keeps their memory until the ledger's file has it.

    Otherwise what they had started would be no attempt, and what they had done be done again, if
    this process dies between their end and the ledger's write.
    """

    def __init__(self, sessions: SessionTable) -> None:
        self.attached: set[int] = set()  # cut off ones too, until the supervisor has ended them
        self._unsaid: list[int] = []
        self._sessions = sessions

    def note(self, session: int) -> None:
        """A session is over."""
        if session in self.attached:
            self.attached.remove(session)
            self._unsaid.append(session)

    def say(self) -> None:
        """All changes are in the ledger's file: a successor has nothing to learn any more."""
        if self._unsaid:
            self._sessions.note("debug", wire.SESSIONS_SETTLED, sessions=self._unsaid)
            self._unsaid = []
