"""Members of the last `groups` of this life: known by their leases until they say more."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from workers.membership import Member, Membership

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
        for session in self._membership.holders():
            for group, key, _lease in self._membership.leases_of(session):
                slot = self._membership.topics.slots.get(key[0])
                topics = frozenset() if slot is None else frozenset([slot])
                self._membership.restore_member(group, Member(session, topics, 0))

    def end(self, attached: Collection[int], now_ns: int) -> None:
        """End holders that this `groups` was not told of in time."""
        if not self._restoring:
            return
        missing = self._membership.holders() - set(attached)
        self._restoring = bool(missing)
        if not missing:
            return
        if self._since_ns < 0:
            self._since_ns = now_ns
        elif now_ns - self._since_ns >= MISSING_NS:
            for session in missing:
                self._cut_off(session, "groups was replaced and was not told of it")
                self._membership.leave(session, failed=True)
