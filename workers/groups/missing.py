"""What a `groups` of this life leaves to the next: members by their leases, ends of sessions."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from gantrymq.shm import wire
from gantrymq.workers.groups.membership import Member, Membership
from gantrymq.workers.session import SessionTable

#: After a replacement, sessions are told again at once; one that was not by then is ended.
MISSING_NS: Final = 2_000_000_000


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
            for group, key, lease in self._membership.ledger.leases_of(session):
                slot = self._membership.topics.slots.get(key[0])
                topics = frozenset() if slot is None else frozenset([slot])
                member = Member(session, topics, 0, digest=lease.digest)
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
            for session in missing:
                self._cut_off(session, "groups was replaced and was not told of it")
                self._membership.leave(session, failed=True)


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
