"""A queue under lease: its offsets, as words that the poll's kernel moves."""

from __future__ import annotations

import numpy as np

from gantrymq.clients.message import MessageQueue
from gantrymq.shm.groupwire import Attempts, Done
from gantrymq.shm.kernels import poll


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
        self.row = np.zeros(poll.ROW_WORDS, np.int64)
        self.words = self.row.data  # quicker, one by one
        self.words[poll.NUMBER] = number
        self.words[poll.END] = poll.NO_END
        self.position = self.delivered = self.passed = self.begun = offset
        self.base = offset  # the ledger's offset is not below
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
        self.position = self.delivered = self.passed = self.begun = self.started = offset
        self.base = min(self.base, offset)
        self.generation += 1

    def pass_delivered(self) -> None:
        """The application is done with all that it was handed."""
        self.words[poll.PASSED] = self.words[poll.DELIVERED]
