"""Timers that were read, on their way into buckets: some buckets in each step.

Each bucket costs a write whatever goes into it, and timers may be spread over hundreds of buckets.
So units are gathered for a while, and what belongs together is written together, while the next
units are gathered. Until all of those that are filed together are filed they count as unread.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from gantrymq.workers.scheduler.timerpool import ENTRY, NEVER, joined

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gantrymq.workers.scheduler.timerbuckets import TimerBuckets
    from gantrymq.workers.scheduler.timerpool import Entries

#: Buckets that one step writes to: some tenths of a millisecond each.
BUCKETS_MAX: Final = 8


class TimerFiling:
    """What is being filed, and what was gathered since."""

    def __init__(self, buckets: TimerBuckets) -> None:
        self._buckets = buckets
        self._gathered = _Gathered()
        self._begun: _Gathered | None = None  # its entries are these, in order of their buckets:
        self._entries: Entries = np.zeros(0, ENTRY)
        self._at = 0  # so many of them are filed
        self._ends: list[int] = []  # where those of each bucket end that is not

    def __bool__(self) -> bool:
        """Whether there is something that is not filed."""
        return bool(self._begun or self._gathered.units)

    @property
    def has_begun(self) -> bool:
        """Whether something is being filed."""
        return self._begun is not None

    @property
    def next(self) -> int:
        """Queue offset behind the last unit that is here; -1: there is none."""
        last = self._gathered if self._gathered.units else self._begun
        return last.next if last else -1

    @property
    def units(self) -> int:
        """How many were gathered, and are not being filed."""
        return self._gathered.units

    @property
    def since(self) -> int:
        """Where the log ended before the first of what is here was read; -1: nothing is here."""
        return (self._begun or self._gathered).since

    def runs(self) -> Iterator[Entries]:
        """Entries that are not filed."""
        if self._ends:
            yield self._entries[self._at :]
        if self._gathered.units:
            yield self._gathered.entries

    def next_ms(self) -> int:
        """The earliest time of what is not filed; NEVER without any."""
        return min((int(run["ms"].min(initial=NEVER)) for run in self.runs()), default=NEVER)

    def within(self, span: tuple[int, int]) -> Entries:
        """What is not filed of a bucket's span."""
        found = [run[(run["ms"] > span[0]) & (run["ms"] <= span[1])] for run in self.runs()]
        return joined(*found)

    def gather(
        self, entries: Entries, units: tuple[int, int], position: int, appended: int
    ) -> None:
        """Take in entries of `units`: first, and behind the last; `position` of the last record.

        `appended`: where the log ended before they were read.
        """
        gathered = self._gathered
        if not gathered.units:
            gathered.since = appended
        gathered.add(entries)
        gathered.next = units[1]
        gathered.units += units[1] - units[0]
        gathered.position = max(gathered.position, position)

    def file_some(self) -> tuple[int, int] | None:
        """Write to some buckets. Raises OSError: what is not written stays to be filed.

        Once all that is filed together is filed: the queue offset behind it, and the position of
        its last record.
        """
        if self._begun is None:
            self._begin()
            return None
        buckets = self._ends[:BUCKETS_MAX]
        if buckets:
            # By now some of them may belong elsewhere.
            for part in self._buckets.parts(self._entries[self._at : buckets[-1]]):
                self._buckets.write(part)
                self._at += len(part[1])
            del self._ends[: len(buckets)]
        if self._ends:
            return None
        filed = self._begun.next, self._begun.position
        self._begun, self._entries = None, self._entries[:0]
        return filed

    def _begin(self) -> None:
        entries = self._gathered.entries
        keys = self._buckets.keys(entries)
        order = np.argsort(keys, kind="stable")
        self._entries, keys = entries[order], keys[order]
        ends = np.flatnonzero(np.diff(keys, append=keys[-1:] + 1)) + 1
        self._at, self._ends = 0, ends.tolist()
        self._begun, self._gathered = self._gathered, _Gathered()
        self._begun.forget()


@dataclass(slots=True)
class _Gathered:
    """Units that are filed together. They come few at a time, and are looked at as one."""

    next: int = -1  # queue offset behind the last
    position: int = -1  # of its record
    units: int = 0
    since: int = -1  # where the log ended before the first was read
    _room: Entries = field(default_factory=lambda: np.zeros(0, ENTRY))  # with room for more
    _count: int = 0

    @property
    def entries(self) -> Entries:
        """Of these units; valid until there are more."""
        return self._room[: self._count]

    def add(self, entries: Entries) -> None:
        """Take in some more."""
        end = self._count + len(entries)
        if end > len(self._room):
            self._room = joined(self.entries, np.zeros(2 * end - self._count, ENTRY))
        self._room[self._count : end] = entries
        self._count = end

    def forget(self) -> None:
        """Somebody else has them."""
        self._room, self._count = self._room[:0], 0
