"""A queue under lease: its offsets, as words that the poll's kernel moves."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from gantrymq.clients.message import MessageQueue
from gantrymq.shm.groupwire import Attempts, Done
from gantrymq.shm.kernels import poll

#: A base that no offset reaches.
_VOID: Final = 1 << 62


class Place(NamedTuple):
    """How far an application got in a queue under a session that has ended.

    The ledger's offset is within [base, high], unless another member had the queue meanwhile, or
    it was reset. Within these it may be what somebody else has set: the lease tells.
    """

    base: int
    passed: int
    high: int
    lease: int = 0

    @property
    def is_confirmed(self) -> bool:
        """Whether it was in the ledger."""
        return self.base == self.passed == self.high

    def voided(self) -> Place:
        """The same, not to be gone on from."""
        return self._replace(base=_VOID)

    def start(self, offset: int, end: int, since: int = 0) -> int:
        """Where the next session begins, by the ledger's offset and the end of the queue.

        `since` as groupwire.Granted has it.
        """
        is_own = self.lease >= since and self.base <= offset <= self.high
        return self.passed if is_own and self.passed <= end else offset


class _Offset:
    """One of a queue's offsets, in the row of words that the poll's kernel moves."""

    def __init__(self, place: int) -> None:
        self._place = place

    def __get__(self, owner: Assigned, kind: type[Assigned]) -> int:
        return owner.words[self._place]

    def __set__(self, owner: Assigned, value: int) -> None:
        owner.words[self._place] = value


class Assigned:
    """A queue under lease. Each offset is that of the next message: to fetch, to hand out, ..."""

    position = _Offset(poll.POSITION)  # to fetch
    delivered = _Offset(poll.DELIVERED)  # to hand out
    passed = _Offset(poll.PASSED)  # the application is done with all below
    begun = _Offset(poll.BEGUN)  # the application has, or is about to get, all below

    def __init__(self, number: int, queue: MessageQueue, lease: int, offset: int) -> None:
        """`number` is the board's, `offset` the ledger's."""
        self.number = number
        self.queue = queue
        self.lease = lease
        self.since = 0  # as groupwire.Granted has it
        self.row = np.zeros(poll.ROW_WORDS, np.int64)
        self.words = self.row.data  # quicker, one by one
        self.words[poll.NUMBER] = number
        self.words[poll.END] = poll.NO_END
        self.position = self.delivered = self.passed = self.begun = offset
        self.base = offset  # the ledger's offset is not below,
        self.high = offset  # nor above this, or `passed`, unless another member had the queue
        self.place = 0  # of its progress slot in the arena
        self.slot = -1  # of the progress table; -1: reported by requests, with
        self.committed = offset  # what was sent last
        self.started = offset  # and `begun` likewise
        self.attempts: list[Attempts] = []
        self.done: list[Done] = []
        self.revoked = False
        self.paused = False
        self.generation = 0  # rises when rows fetched ahead are void

    def move_to(self, offset: int) -> None:
        """Go on at another place, whatever was fetched ahead."""
        self.high = max(self.high, self.passed)
        self.base = min(self.base, offset)
        self.started = offset
        self.generation += 1
        # All four in one step: a signal handler that raises comes before or after.
        self.row[poll.POSITION : poll.BEGUN + 1] = offset

    def confirm(self) -> None:
        """What is passed is in the ledger."""
        self.base = self.high = self.passed

    @property
    def reached(self) -> Place:
        """For the next session."""
        return Place(self.base, self.passed, max(self.high, self.passed), self.lease)

    def pass_delivered(self) -> None:
        """The application is done with all that it was handed."""
        self.words[poll.PASSED] = self.words[poll.DELIVERED]
