"""Groups that go: by an operator's hand, or because there are too many that never consumed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gantrymq.shm import layout, wire
from gantrymq.shm.errors import GroupIllegal
from gantrymq.shm.groupwire import AnyNotice, DeleteGroup, GroupDeleted, Refused
from gantrymq.workers.groups.admission import name_fault

if TYPE_CHECKING:
    from gantrymq.workers.groups.filters import FilterTable
    from gantrymq.workers.groups.membership import Membership
    from gantrymq.workers.groups.progress import GroupProgress
    from gantrymq.workers.session import SessionTable

#: With too many groups this part of them may go at once: to look for them takes its time.
_PART: Final = 16
#: How long it is not looked again where none could go.
_PAUSE_NS: Final = 1_000_000_000
#: Names in one note: a frame has room for them.
_NAMED: Final = 64


class Removal:
    """Forgets groups; see the module."""

    def __init__(
        self, membership: Membership, filters: FilterTable, sessions: SessionTable, groups_max: int
    ) -> None:
        self._membership = membership
        self._ledger = membership.ledger
        self._filters = filters
        self._sessions = sessions
        self._most = groups_max
        self._paused_until_ns = 0

    def delete(self, request: DeleteGroup) -> AnyNotice:
        """Forget a group; the answer is true once the ledger has it."""
        fault = name_fault(request.group) or self._use_of(request.group)
        if fault:
            return Refused(request.serial, GroupIllegal.__name__, fault)
        known = request.group in self._ledger.groups
        if known:
            self._drop(request.group)
        return GroupDeleted(request.serial, known)

    def _use_of(self, name: str) -> str:
        """What keeps a group; empty if nothing does."""
        group = self._membership.groups.get(name)
        if group is not None and group.members:
            count = len(group.members)
            return (
                f"group {name!r} has {count} member{'s' * (count > 1)}: end them first,"
                f" `gantrymq group describe {name}` shows them"
            )
        known = self._ledger.groups.get(name)
        if (known is not None and known.is_at_work()) or name in self._membership.blocked:
            return f"group {name!r} is at work, a failed message or a reset: try again in a moment"
        return ""

    def _drop(self, name: str) -> None:
        self._ledger.delete(name)
        self._membership.forget(name)
        self._filters.forget(name)

    def make_room(self, name: str, now_ns: int) -> str:
        """Have room for a group that joins; why there is none, empty if there is."""
        groups = self._ledger.groups
        if name in groups or len(groups) < self._most:
            return ""
        if now_ns >= self._paused_until_ns:
            idle = self._idle()
            for one in idle:
                self._drop(one)
            for at in range(0, len(idle), _NAMED):
                named = idle[at : at + _NAMED]
                self._sessions.note("warning", wire.GROUPS_DROPPED, groups=named)
            if idle:
                return ""
            self._paused_until_ns = now_ns + _PAUSE_NS
        return (
            f"the broker has {len(groups)} groups: delete some (`gantrymq group delete NAME`), or"
            " raise groups_max"
        )

    def _idle(self) -> list[str]:
        """Groups that never consumed, for which nothing waits: those known longest, some."""
        found: list[str] = []
        for name, group in self._ledger.groups.items():
            if len(found) > self._most // _PART:
                break
            if self._is_idle(name, group):
                found.append(name)
        return found

    def _is_idle(self, name: str, group: GroupProgress) -> bool:
        # As a rule nearly all have consumed: what costs more is asked of the others only.
        if (group.consumed and group.queues) or self._use_of(name):
            return False
        board = self._membership.board
        for key, progress in group.queues.items():
            queue = self._membership.topics.queue(key)
            end = 0
            if queue is not None:
                end = board.word(board.queue_at(queue) + layout.QUEUE_NEXT_OFFSET)
            if progress.committed < end:
                return False
        return True
