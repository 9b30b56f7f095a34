"""How far a group has got in one queue: committed offset, what is started, attempts."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from shm.groupwire import ATTEMPTS_MAX, Attempts

UNSET = -1


@dataclass(slots=True)
class Lease:
    """A session's right to a queue; `number` rises with every grant of a ledger."""

    number: int
    session: int
    revoking: bool = False


@dataclass(slots=True)
class Progress:
    """One (group, topic, queue). Messages in [committed, started) are being worked on."""

    committed: int = UNSET
    started: int = UNSET
    lease: Lease | None = None
    attempts: list[Attempts] = field(default_factory=list)

    def commit(self, offset: int) -> None:
        """Set the next offset to consume, forward or (a seek) backward."""
        if offset < self.committed:
            self.started = offset
        self.committed = offset
        self.started = max(self.started, offset)
        self.attempts = [
            (max(first, offset), end, count) for first, end, count in self.attempts if end > offset
        ]

    def start(self, next_offset: int) -> None:
        """Messages below `next_offset` have been handed out."""
        self.started = max(self.started, next_offset)

    def end_lease(self, failed: bool) -> None:
        """The holder is gone; with `failed` what it had started counts as one more attempt."""
        if failed:
            self.add_attempt(self.committed, self.started)
        self.started = self.committed
        self.lease = None

    def add_attempt(self, first: int, end: int) -> None:
        """Count one more delivery of [first, end)."""
        if first >= end:
            return
        edges = sorted({first, end, *(edge for item in self.attempts for edge in item[:2])})
        ranges: list[Attempts] = []
        for low, high in pairwise(edges):
            count = self.attempts_of(low) + (first <= low < end)
            if count:
                ranges.append((low, high, count))
        self.set_attempts(ranges)

    def set_attempts(self, ranges: list[Attempts]) -> None:
        """Take over ranges in order; equal neighbours, and then the oldest, are merged."""
        merged: list[Attempts] = []
        for low, high, count in ranges:
            if merged and merged[-1][1] == low and merged[-1][2] == count:
                merged[-1] = (merged[-1][0], high, count)
            else:
                merged.append((low, high, count))
        while len(merged) > ATTEMPTS_MAX:
            first, second = merged[0], merged[1]
            merged[:2] = [(first[0], second[1], max(first[2], second[2]))]
        self.attempts = merged

    def attempts_of(self, offset: int) -> int:
        """Deliveries begun of one message, by sessions that have ended."""
        for first, end, count in self.attempts:
            if first <= offset < end:
                return count
        return 0

    def clamp(self, low: int, high: int) -> bool:
        """Bring offsets into [low, high], what the queue holds; True if one had to change."""
        before = (self.committed, self.started, list(self.attempts))
        if self.committed != UNSET:
            self.commit(min(max(self.committed, low), high))
        self.started = min(self.started, high)
        self.attempts = [(a, min(b, high), n) for a, b, n in self.attempts if a < high]
        return before != (self.committed, self.started, self.attempts)
