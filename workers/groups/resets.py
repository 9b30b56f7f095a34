"""Offsets of a group set by an operator, safe against members that are at work.

Their leases of these queues are asked back first; who does not give back in time is ended. Then
the offsets are set and all is dealt out anew.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gantrymq.shm import groupwire, layout
from gantrymq.shm.board import Board
from gantrymq.workers.groups.admission import name_fault
from gantrymq.workers.groups.ledger import Ledger
from gantrymq.workers.groups.membership import Membership
from gantrymq.workers.groups.progress import QueueKey

#: Of resets that are done; who repeats one does so at once.
ANSWERS_KEPT: Final = 64

Tell = Callable[[int, groupwire.AnyNotice], None]


@dataclass(slots=True)
class _Reset:
    session: int
    request: groupwire.Reset
    keys: dict[int, QueueKey]
    deadline_ns: int
    #: Of these queues, those that were not seen to be free; blocked as they are, they stay so.
    busy: list[QueueKey]

    @property
    def name(self) -> tuple[int, int]:
        """Session and serial."""
        return self.session, self.request.serial


class Resets:
    """Resets that wait for their queues; see the module."""

    def __init__(
        self, membership: Membership, tell: Tell, cut_off: Callable[[int, str], None]
    ) -> None:
        self._membership = membership
        self._ledger: Ledger = membership.ledger
        self._board: Board = membership.board
        self._tell = tell
        self._cut_off = cut_off
        self._open: list[_Reset] = []
        self._answered: dict[tuple[int, int], groupwire.WasReset] = {}

    def ask(self, session: int, request: groupwire.Reset, now_ns: int) -> None:
        """Begin a reset; it is answered `WasReset`, or refused at once.

        Said again since this process replaced another, it is the same reset.
        """
        name = session, request.serial
        if name in self._answered:
            self._tell(session, self._answered[name])
        if name in self._answered or any(r.name == name for r in self._open):
            return
        fault = self._fault_of(request)
        if fault:
            self._tell(session, groupwire.Refused(request.serial, "GroupIllegal", fault))
            return
        topics = self._membership.topics
        keys = {queue: key for queue in request.offsets if (key := topics.key(queue))}
        deadline_ns = now_ns + min(max(request.patience_ms, 0), 3_600_000) * 1_000_000
        self._open.append(_Reset(session, request, keys, deadline_ns, list(keys.values())))
        self._membership.blocked.update((request.group, queue) for queue in keys)
        self._membership.mark(request.group)

    def _fault_of(self, request: groupwire.Reset) -> str:
        fault = name_fault(request.group)
        if fault:
            return fault
        if request.group not in self._ledger.groups:
            return f"there is no group {request.group!r}"
        topics = self._membership.topics
        topics.refresh()
        for queue, offset in request.offsets.items():
            key = topics.key(queue)
            if key is None:
                return f"there is no queue {queue} on the board"
            if (request.group, queue) in self._membership.blocked:
                return f"{key[0]}/{key[1]} of {request.group!r} is being reset already"
            at = self._board.queue_at(queue)
            low = self._board.word(at + layout.QUEUE_MIN_OFFSET)
            high = self._board.word(at + layout.QUEUE_MAX_OFFSET)
            if not low <= offset <= max(low, high):
                return f"{key[0]}/{key[1]} holds {low} to {high}, not {offset}"
        return ""

    def count_of(self, session: int) -> int:
        """Resets of a session that wait."""
        return sum(reset.session == session for reset in self._open)

    def forget(self, session: int) -> None:
        """A session is over: what it has asked and nobody has begun ends with it."""
        for reset in [reset for reset in self._open if reset.session == session]:
            self._open.remove(reset)
            name = reset.request.group
            self._membership.blocked.difference_update((name, queue) for queue in reset.keys)
            self._membership.mark(name)

    def work(self, now_ns: int) -> int:
        """Finish what can be finished; returns how many were."""
        done = 0
        for reset in list(self._open):
            if self._is_free(reset):
                self._open.remove(reset)
                self._finish(reset)
                done += 1
            elif now_ns >= reset.deadline_ns:
                self._end_holders(reset)
        return done

    def _is_free(self, reset: _Reset) -> bool:
        group = self._ledger.group(reset.request.group)
        while reset.busy:
            queue = group.queue(reset.busy[-1])
            if queue.lease or queue.sending:
                return False
            reset.busy.pop()
        return True

    def _end_holders(self, reset: _Reset) -> None:
        group = self._ledger.group(reset.request.group)
        leases = [group.queue(key).lease for key in reset.keys.values()]
        for session in {lease.session for lease in leases if lease}:
            self._cut_off(session, "it did not give a queue back whose offset is being reset")

    def _finish(self, reset: _Reset) -> None:
        name = reset.request.group
        before: dict[int, int] = {}
        for queue, key in reset.keys.items():
            before[queue] = self._ledger.group(name).queue(key).committed
            end = self._board.word(layout.BOARD_APPENDED)
            self._ledger.reset(name, key, reset.request.offsets[queue], end)
            self._membership.blocked.discard((name, queue))
        self._membership.mark(name)
        answer = groupwire.WasReset(reset.request.serial, before, dict(reset.request.offsets))
        self._answered[reset.name] = answer
        if len(self._answered) > ANSWERS_KEPT:
            del self._answered[next(iter(self._answered))]
        self._tell(reset.session, answer)

    def deadline_ns(self) -> int | None:
        """When to look again; None if nothing waits."""
        return min((reset.deadline_ns for reset in self._open), default=None)
