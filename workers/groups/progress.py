"""How far a group has got in one queue: committed offset, what is started, attempts."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from itertools import pairwise
from operator import itemgetter
from typing import Final

from gantrymq.shm.groupwire import ATTEMPTS_MAX, Attempts, Done
from gantrymq.shm.limits import DELIVERIES_MAX, PROGRESS_WINDOW

UNSET = -1
#: `Progress.since`: the next lease.
NEXT: Final = -1
_BEYOND: Final = 1 << 64  # all offsets

QueueKey = tuple[str, int]


@dataclass(slots=True)
class Lease:
    """A session's right to a queue; `number` rises with every grant of a ledger."""

    number: int
    session: int
    digest: int = 0  # of the subscription that its holder has stated (groupwire.Join)
    revoking: bool = False


@dataclass(slots=True)
class Progress:
    """One (group, topic, queue). Messages in [committed, started) are being worked on.

    Of these, `done` are finished: ranges in order, apart from one another, all above `committed`.
    """

    committed: int = UNSET
    started: int = UNSET
    lease: Lease | None = None
    attempts: list[Attempts] = field(default_factory=list)
    done: list[Done] = field(default_factory=list)
    #: Send-backs whose copy may be in the log: offset -> (the message's attempts, log position).
    sending: dict[int, tuple[int, int]] = field(default_factory=dict)
    #: Copies that lie below in the log are of what was consumed before it last went back.
    copies_from: int = 0
    #: The first lease whose holder knows where the offset was last set back or reset to. Of a queue
    #: that is met for the first time, or again after it was forgotten, whoever had it before does
    #: not.
    since: int = NEXT
    #: The last lease that is over.
    previous: int = 0

    def grant(self, lease: Lease) -> None:
        """Give the queue to a session."""
        if self.lease is not None:
            self.previous = self.lease.number
        if self.since == NEXT:
            self.since = lease.number
        self.lease = lease

    def commit(self, offset: int, log_end: int = 0) -> None:
        """Set the next offset to consume, forward or (a seek) backward from a log end on."""
        if offset < self.committed:
            self._go_back(offset, log_end)
        self.committed = offset
        self.started = max(self.started, offset)
        if self.attempts:
            self.attempts = [
                (max(first, offset), end, count)
                for first, end, count in self.attempts
                if end > offset
            ]
        if self.done and self.done[0][0] < offset:
            del self.done[: bisect_right(self.done, offset, key=itemgetter(1))]
            if self.done:
                first, end = self.done[0]
                self.done[0] = (max(first, offset), end)
        if self.sending and min(self.sending) < offset:
            self.sending = {at: known for at, known in self.sending.items() if at >= offset}
        if self.lease is None:
            self._pass_done()

    def finish(self, first: int, end: int) -> None:
        """Messages [first, end) are done with, whatever becomes of those before them."""
        self.finish_all([(first, end)])

    def finish_all(self, ranges: Iterable[Done]) -> None:
        """The same for many ranges."""
        base = self.committed
        news = [(first if first > base else base, end) for first, end in ranges if end > base]
        for first, end in news:
            if end - first <= len(self.sending):
                for offset in range(first, end):
                    self.sending.pop(offset, None)
            else:
                for offset in [at for at in self.sending if first <= at < end]:
                    del self.sending[offset]
        for first, end in news:
            if first < end:
                self._add_done(first, end)
        if self.lease is None:
            self._pass_done()

    def _add_done(self, first: int, end: int) -> None:
        """Merge a range into `done`."""
        done = self.done
        at = bisect_right(done, (first, _BEYOND))
        if at and done[at - 1][1] >= first:
            at -= 1
            first = done[at][0]
        behind = at
        while behind < len(done) and done[behind][0] <= end:
            end = max(end, done[behind][1])
            behind += 1
        done[at:behind] = [(first, end)]

    def _pass_done(self) -> None:
        """A holder moves `committed` itself; without one it passes what is done with."""
        while self.done and self.done[0][0] <= self.committed:
            self.commit(self.done[0][1])

    def send(self, offset: int, attempt: int, position: int) -> None:
        """A copy of a message is about to be put; `position` < 0: it was not."""
        self.sending.pop(offset, None)
        if position >= 0 and not self.is_done(offset):
            self.sending[offset] = (attempt, position)

    def fail(self, offset: int, attempts: int) -> None:
        """So many deliveries of a message have failed."""
        while self.attempts_of(offset) < min(attempts, DELIVERIES_MAX):
            self.add_attempts([(offset, offset + 1)])

    def reset(self, offset: int, log_end: int = 0) -> None:
        """Begin anew at an offset; copies below `log_end` are of what was consumed before."""
        self._go_back(offset, log_end)
        self.committed = offset
        self.attempts, self.sending = [], {}

    def _go_back(self, offset: int, log_end: int) -> None:
        """Nothing from an offset on was consumed, whatever copies of it lie below `log_end`."""
        self.started = offset
        self.done.clear()
        self.since = NEXT if self.lease is None else self.lease.number
        self.copies_from = max(self.copies_from, log_end)

    def shorten(self, end: int) -> None:
        """The log ends at `end`: copies are looked for from there."""
        behind = {n: place for n, place in self.sending.items() if place[1] > end}
        self.sending |= {offset: (attempt, end) for offset, (attempt, _place) in behind.items()}
        self.copies_from = min(self.copies_from, end)

    def is_done(self, offset: int) -> bool:
        """Whether a message is done with."""
        at = bisect_right(self.done, (offset, _BEYOND)) - 1
        return offset < self.committed or (at >= 0 and offset < self.done[at][1])

    def fresh(self, ranges: list[Done]) -> list[Done]:
        """Ranges without what is known to be done with."""
        return list(without(ranges, self.done)) if self.done else ranges

    def start(self, next_offset: int) -> None:
        """Messages below `next_offset` have been handed out."""
        self.started = max(self.started, next_offset)

    def end_lease(self, failed: bool) -> None:
        """The holder is gone; with `failed` what it had not finished counts as one more attempt."""
        if failed:
            self.add_attempts(without([(self.committed, self.started)], self.done))
        if self.lease is not None:
            self.previous = self.lease.number
        self.lease = None
        self._pass_done()
        self.started = self.committed

    def add_attempts(self, ranges: Iterable[Done]) -> None:
        """Count one more delivery of each of these messages; the ranges lie apart."""
        steps: dict[int, int] = defaultdict(int)  # by how much the count changes at an offset
        for first, end, count in (*self.attempts, *((a, b, 1) for a, b in ranges)):
            steps[first] += count
            steps[end] -= count
        counted: list[Attempts] = []
        count = 0
        for low, high in pairwise(sorted(steps)):
            count += steps[low]
            if count:
                counted.append((low, high, min(count, DELIVERIES_MAX)))
        self.set_attempts(counted)

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
        before = (self.committed, self.started, list(self.attempts), list(self.done))
        if self.committed != UNSET:
            self.commit(min(max(self.committed, low), high))
        self.started = min(self.started, high)
        self.attempts = [(a, min(b, high), n) for a, b, n in self.attempts if a < high]
        self.done = [(a, min(b, high)) for a, b in self.done if a < high]
        self.sending = {at: known for at, known in self.sending.items() if at < high}
        return before != (self.committed, self.started, self.attempts, self.done)


@dataclass(slots=True)
class GroupProgress:
    """What the ledger knows of one group."""

    queues: dict[QueueKey, Progress] = field(default_factory=dict)
    subscribed: dict[str, int] = field(default_factory=dict)
    #: Whether a member has ever said how far it is: not only where it would begin.
    consumed: bool = False
    #: Ids of `queues` by topic: what is asked of one topic does not grow with the others.
    ids: dict[str, list[int]] = field(default_factory=dict, init=False, compare=False)

    def __post_init__(self) -> None:
        """Find the queues that are there already by their topics."""
        for topic, queue_id in self.queues:
            self.ids.setdefault(topic, []).append(queue_id)

    def queue(self, key: QueueKey) -> Progress:
        """Progress in a queue; a queue met for the first time has no offset."""
        known = self.queues.get(key)
        if known is None:
            known = self.queues[key] = Progress()
            self.ids.setdefault(key[0], []).append(key[1])
        return known

    def queues_of(self, topic: str) -> Iterator[Progress]:
        """Progress in the queues of a topic that were met."""
        return (self.queues[topic, queue_id] for queue_id in self.ids.get(topic, ()))

    def topics(self) -> set[str]:
        """Names of topics of which anything is known."""
        return self.ids.keys() | self.subscribed.keys()

    def among(self, names: Set[str]) -> set[str]:
        """Of these names those of topics of which anything is known."""
        return (self.ids.keys() & names) | (self.subscribed.keys() & names)

    def is_at_work(self, topic: str | None = None) -> bool:
        """Whether a member holds a queue (of a topic), or a copy of a failed message goes out."""
        queues = self.queues.values() if topic is None else self.queues_of(topic)
        return any(queue.lease or queue.sending for queue in queues)

    def forget(self, topic: str) -> None:
        """Know nothing of a topic any more."""
        self.subscribed.pop(topic, None)
        for queue_id in self.ids.pop(topic, ()):
            del self.queues[topic, queue_id]
        # A shorter ledger could not say it of a group of whose queues it knows nothing.
        self.consumed &= any(queue != Progress() for queue in self.queues.values())


def without(ranges: Iterable[Done], holes: Sequence[Done]) -> Iterator[Done]:
    """What is left of ranges when holes (in order, apart) are cut out."""
    for first, end in ranges:
        at = first
        number = bisect_right(holes, first, key=itemgetter(1))
        while number < len(holes) and holes[number][0] < end:
            low, high = holes[number]
            if low > at:
                yield at, low
            at = high
            number += 1
        if at < end:
            yield at, end


def ranges_of(bits: int, committed: int, started: int) -> list[Done]:
    """What a slot's `acked` says is done with, in [committed, started)."""
    if not bits or started <= committed:
        return []
    turn = committed % PROGRESS_WINDOW
    bits = bits >> turn | bits << (PROGRESS_WINDOW - turn)
    bits &= (1 << min(started - committed, PROGRESS_WINDOW)) - 1
    found: list[Done] = []
    at = committed
    while bits:
        skip = (bits & -bits).bit_length() - 1
        bits >>= skip
        run = (~bits & (bits + 1)).bit_length() - 1
        bits >>= run
        found.append((at + skip, at + skip + run))
        at += skip + run
    return found
