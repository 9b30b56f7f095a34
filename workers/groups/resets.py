"""Offsets of a group set by an operator, safe against members that are at work.

Their leases of these queues are asked back first; who does not give back in time is ended. Then
the offsets are set and all is dealt out anew. Where copies of failed messages find no room on the
disk a queue cannot be given back, whoever holds it: the reset is refused, and nobody is ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Final

from gantrymq.shm import groupwire, layout
from gantrymq.shm.board import Board
from gantrymq.shm.errors import DiskFull
from gantrymq.workers.groups.admission import name_fault, topic_fault
from gantrymq.workers.groups.ledger import Ledger
from gantrymq.workers.groups.membership import Membership
from gantrymq.workers.groups.peer import NOT_BEGUN
from gantrymq.workers.groups.progress import QueueKey

if TYPE_CHECKING:
    from gantrymq.workers.groups.sendbacks import SendBacks

#: Of resets that are done; who repeats one does so at once.
ANSWERS_KEPT: Final = 64
#: Queues that are reset in one cycle.
QUEUES_MAX: Final = 256

Tell = Callable[[int, groupwire.AnyNotice], None]


@dataclass(slots=True)
class _Reset:
    session: int
    request: groupwire.Reset
    keys: dict[int, QueueKey]
    deadline_ns: int
    #: Of these queues, those that were not seen to be free; blocked as they are, they stay so.
    busy: list[QueueKey]
    left: Iterator[int]  # those that are still to be reset
    before: dict[int, int] = field(default_factory=dict)  # where those were that have been
    #: The deadline is over, and who held one of its queues then was ended.
    is_late: bool = False

    @property
    def name(self) -> tuple[int, int]:
        """Session and serial."""
        return self.session, self.request.serial


class Resets:
    """Resets that wait for their queues; see the module."""

    def __init__(
        self,
        membership: Membership,
        copies: SendBacks,
        tell: Tell,
        cut_off: Callable[[int, str], None],
    ) -> None:
        self._membership = membership
        self._ledger: Ledger = membership.ledger
        self._board: Board = membership.board
        self._copies = copies
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
        self._open.append(
            _Reset(session, request, keys, deadline_ns, list(keys.values()), iter(keys))
        )
        self._membership.blocked.setdefault(request.group, set()).update(keys)
        self._membership.mark(request.group)

    def _fault_of(self, request: groupwire.Reset) -> str:
        fault = name_fault(request.group)
        if fault:
            return fault
        if request.group not in self._ledger.groups:
            return f"there is no group {request.group!r}"
        if not request.offsets:
            return "a reset names a queue at least"
        self._membership.topics.refresh()
        faults = (self._fault_at(request.group, *place) for place in request.offsets.items())
        return next(filter(None, faults), "")

    def _fault_at(self, group: str, queue: int, offset: int) -> str:
        topics = self._membership.topics
        key = topics.key(queue)
        if key is None:
            return f"there is no queue {queue} on the board"
        if fault := topic_fault(key[0]):
            return fault
        if not topics.is_there(key[0]):
            return f"topic {key[0]} was deleted"
        if queue in self._membership.blocked.get(group, ()):
            return f"{key[0]}/{key[1]} of {group!r} is being reset already"
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
        for reset in [reset for reset in self._waiting() if reset.session == session]:
            self._open.remove(reset)
            self._unblock(reset)

    def give_up(self) -> None:
        """The disk is full: nobody could be told in time that his queues are waited for."""
        for reset in self._waiting():
            self._refuse(reset)

    def _refuse(self, reset: _Reset) -> None:
        """For want of room on the disk; nobody has begun it."""
        self._open.remove(reset)
        self._unblock(reset)
        refused = groupwire.Refused(reset.request.serial, DiskFull.__name__, NOT_BEGUN)
        self._tell(reset.session, refused)

    def _waiting(self) -> list[_Reset]:
        """Those that nobody has begun."""
        return [reset for reset in self._open if not reset.before]

    def _unblock(self, reset: _Reset) -> None:
        """Its queues may be anybody's again."""
        name = reset.request.group
        left = self._membership.blocked.pop(name, set()).difference(reset.keys)
        if left:
            self._membership.blocked[name] = left
        self._membership.mark(name)

    def work(self, now_ns: int) -> int:
        """Go on with what can be done; returns how many resets and queues that was."""
        done = 0
        for reset in list(self._open):
            if self._is_free(reset):
                done += 1
                if done < QUEUES_MAX:
                    done += self._reset_some(reset, QUEUES_MAX - done)
                if len(reset.before) == len(reset.keys):
                    self._open.remove(reset)
                    self._finish(reset)
            else:
                self._wait(reset, now_ns)
        return done

    def _is_free(self, reset: _Reset) -> bool:
        group = self._ledger.group(reset.request.group)
        while reset.busy:
            queue = group.queues.get(reset.busy[-1])
            if queue and (queue.lease or queue.sending):
                return False
            reset.busy.pop()
        return True

    def _wait(self, reset: _Reset, now_ns: int) -> None:
        """One of its queues at least is not free yet."""
        reset.is_late = now_ns >= reset.deadline_ns
        if self._is_held_up(reset):
            self._refuse(reset)
        elif reset.is_late:
            self._end_holders(reset)

    def _is_held_up(self, reset: _Reset) -> bool:
        """Whether no member can help it; until it is late that is asked of one queue a cycle."""
        if not self._copies.lacks_room:
            return False
        queues = self._ledger.group(reset.request.group).queues
        keys = reset.busy if reset.is_late else reset.busy[-1:]
        return any(self._copies.holds_up(queues[key]) for key in keys if key in queues)

    def _end_holders(self, reset: _Reset) -> None:
        group = self._ledger.group(reset.request.group)
        known = [group.queues[key] for key in reset.keys.values() if key in group.queues]
        for session in {queue.lease.session for queue in known if queue.lease}:
            self._cut_off(session, "it did not give a queue back whose offset is being reset")

    def _reset_some(self, reset: _Reset, most: int) -> int:
        """Reset so many queues more, which are free; how many it was."""
        known = len(reset.before)
        name = reset.request.group
        end = self._board.word(layout.BOARD_APPENDED)
        for queue in islice(reset.left, most):
            key = reset.keys[queue]
            reset.before[queue] = self._ledger.group(name).queue(key).committed
            self._ledger.reset(name, key, reset.request.offsets[queue], end)
        return len(reset.before) - known

    def _finish(self, reset: _Reset) -> None:
        self._unblock(reset)
        after = dict(reset.request.offsets)
        answer = groupwire.WasReset(reset.request.serial, reset.before, after)
        self._answered[reset.name] = answer
        if len(self._answered) > ANSWERS_KEPT:
            del self._answered[next(iter(self._answered))]
        self._tell(reset.session, answer)

    def deadline_ns(self) -> int | None:
        """When to look again, should nothing happen before; None: nobody waits for a time."""
        return min((it.deadline_ns for it in self._open if not it.is_late), default=None)
