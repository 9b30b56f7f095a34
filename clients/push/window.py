"""What of a leased queue is started and what is done with; published where `groups` reads it.

A window reaches from the first message that is not done with over at most PROGRESS_WINDOW messages.
Messages in it are finished in any order. Nothing here reads messages or starts threads; whoever
calls holds the lock of the consumer's `Handoff`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from gantrymq.clients.assigned import Assigned
from gantrymq.shm import layout
from gantrymq.shm.groupwire import Done
from gantrymq.shm.kernels import poll, progress
from gantrymq.shm.limits import PROGRESS_WINDOW

if TYPE_CHECKING:
    from gantrymq.clients.push.chunks import Chunk

#: A full window asks for more messages only when it has this much room again.
_ROOM: Final = PROGRESS_WINDOW // 8


class Window:
    """One lease's messages, by offset: committed <= covered <= fetched.

    [committed, covered) are rows that listeners have, had or will have, and what lies between them
    (filtered away, removed, or done with before); [covered, fetched) has no rows.
    """

    def __init__(
        self,
        assigned: Assigned,
        memory: NDArray[np.uint8] | None = None,
        evicted: memoryview | Sequence[int] = (0,),
    ) -> None:
        """Begin where `assigned` is; `memory` is the arena if it has a progress slot there.

        `evicted` is a word that the broker sets when the session is over.
        """
        self.assigned = assigned
        self.number, self.queue = assigned.number, assigned.queue
        self.committed = self.started = self.covered = self.fetched = assigned.position
        self.skipped: list[Done] = []  # done with before this lease began
        self.held = True  # False: the lease is over; what is finished now counts for nothing
        self.halted = False  # True: listeners get nothing more of it
        self.starved = False  # True: it was full when more was there
        self.running = 0  # chunks that listener threads have
        self.owed = 0  # failures that `groups` has not answered for
        # Ordered consumption: one chunk at a time is with the listeners.
        self.pending: deque[Chunk] = deque()
        self.busy = False
        self.suspended = False
        self.failures: dict[int, int] = {}  # failed deliveries under this lease, by offset
        at = assigned.place
        if memory is None:
            at = 0
            memory = np.zeros(layout.PROGRESS_BYTES, np.uint8)
            progress.note_progress(memory, 0, self.committed, self.committed)
        self._memory, self._at = memory, at
        self.evicted = evicted
        self._pass_to(self.committed)  # the ledger may be behind
        self._limit()

    # ----------------------------------------------------------------------------------- fetching

    def cover(self, last: int) -> int:
        """Rows up to offset `last` have been fetched; returns from where on they cover."""
        start, self.covered = self.covered, last + 1
        self.fetched = max(self.fetched, self.covered)
        return start

    def settle(self, fetched: int) -> None:
        """All below `fetched` has been looked at; what has no row there needs no listener."""
        self.fetched = max(self.fetched, fetched)
        self._pass_gap()
        self.starved = self.fetched >= self.committed + PROGRESS_WINDOW

    @property
    def plain_from(self) -> int:
        """From this offset on no message was delivered, or is done with, under a lease before."""
        return max((item[1] for item in (*self.skipped, *self.assigned.attempts)), default=0)

    def is_skipped(self, offset: int) -> bool:
        """Whether a message was done with before this lease began."""
        return any(first <= offset < end for first, end in self.skipped)

    # ---------------------------------------------------------------------------------- listeners

    def begin(self, end: int) -> bool:
        """All below `end` is about to be handed out; False if nothing may be any more."""
        if self.halted or not self.held:
            return False
        if end > self.started:
            self.started = end
            progress.begin_messages(self._memory, self._at, end)
        return True

    def finish(self, ranges: Iterable[Done]) -> bool:
        """Messages [first, end), begun before, are done with; False if the lease was over.

        A session's end may be in the word before its owner's thread has looked at it.
        """
        if not self.held or self.evicted[0]:
            return False
        for first, end in ranges:
            self.committed = progress.ack_messages(self._memory, self._at, first, end)
        self._pass_gap()
        self._limit()
        return True

    @property
    def is_idle(self) -> bool:
        """Whether nothing of it is being worked on."""
        return not self.running and not self.owed

    @property
    def has_room(self) -> bool:
        """Whether it is worth while to fetch on after the window was full."""
        room = self.committed + PROGRESS_WINDOW - self.fetched
        return self.starved and (room >= _ROOM or self.committed == self.fetched)

    def done(self) -> list[Done]:
        """Ranges done with at or above `committed`: for whoever goes on with the queue."""
        words = self._memory[self._at + layout.PROGRESS_ACKED :][: PROGRESS_WINDOW // 8]
        bits = np.unpackbits(words, bitorder="little")
        offsets = np.arange(self.committed, self.started)
        flags = np.concatenate(([0], bits[offsets % PROGRESS_WINDOW], [0])).astype(np.int8)
        edges = np.flatnonzero(np.diff(flags)) + self.committed
        return [(int(a), int(b)) for a, b in edges.reshape(-1, 2)]

    def skip(self, ranges: Sequence[Done]) -> None:
        """Messages that need no listener; said before anything is fetched."""
        self.skipped = [(a, b) for a, b in ranges if b > self.committed]

    def attempts_of(self, offset: int) -> int:
        """Deliveries of a message that have failed, as `groups` has counted them."""
        ranges = self.assigned.attempts
        granted = sum(count for first, end, count in ranges if first <= offset < end)
        return granted + self.failures.get(offset, 0)

    def count_failure(self, offset: int, attempts: int) -> None:
        """`groups` has counted so many failed deliveries of a message by now."""
        self.failures[offset] = attempts - (self.attempts_of(offset) - self.failures.get(offset, 0))

    # ------------------------------------------------------------------------------------ insides

    def _pass_gap(self) -> None:
        if self.committed == self.covered < self.fetched:
            self._pass_to(self.fetched)

    def _pass_to(self, offset: int) -> None:
        """Go over messages that nobody has to get; the window may be shorter than they are."""
        while True:
            started = progress.begin_messages(self._memory, self._at, offset)
            self.committed = progress.ack_messages(self._memory, self._at, 0, started)
            if started >= offset:
                break
        self.covered = max(self.covered, offset)
        self.started = max(self.started, offset)
        self._limit()

    def _limit(self) -> None:
        self.assigned.words[poll.END] = self.committed + PROGRESS_WINDOW
