"""Timers that were read, on their way into buckets: some buckets in each step.

Each bucket costs a write whatever goes into it, and timers may be spread over thousands of minutes.
So units are gathered for a while, and what belongs together is written together. Until all of them
are filed they count as unread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from gantrymq.workers.scheduler.timerbuckets import MINUTE_MS
from gantrymq.workers.scheduler.timerpool import ENTRY

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from gantrymq.workers.scheduler.timerbuckets import TimerBuckets
    from gantrymq.workers.scheduler.timerpool import Entries

#: Minutes that one step writes to: some tenths of a millisecond each.
MINUTES_MAX: Final = 8


class TimerFiling:
    """What is gathered, then what is left of it."""

    def __init__(self, buckets: TimerBuckets) -> None:
        self._buckets = buckets
        self._clear()

    def _clear(self) -> None:
        self._parts: list[Entries] = []
        self._entries: Entries = np.zeros(0, ENTRY)
        self._opened: list[Entries] = []  # filed in buckets that are open: they come now
        self._cuts: NDArray[np.intp] = np.zeros(0, np.intp)  # where minutes begin, and the end
        self.next = -1  # queue offset behind what was gathered; -1: nothing was
        self.position = -1  # of the last record
        self.units = 0
        self.has_begun = False

    def __bool__(self) -> bool:
        """Whether there is something that is not filed."""
        return self.next >= 0

    @property
    def left(self) -> int:
        """Entries that are not filed."""
        begun = int(self._cuts[-1] - self._cuts[0]) if len(self._cuts) else 0
        return begun + sum(map(len, self._parts))

    def runs(self) -> Iterator[Entries]:
        """Entries that are not filed."""
        yield from self._parts
        if len(self._cuts):
            yield self._entries[self._cuts[0] :]

    def gather(self, entries: Entries, units: tuple[int, int], position: int) -> None:
        """Take in entries of `units`: first, and behind the last; `position` of the last record."""
        self._parts.append(entries)
        self.next = units[1]
        self.units += units[1] - units[0]
        self.position = max(self.position, position)

    def file_some(self) -> Entries:
        """Write to some minutes; returns what of it belongs to buckets that were opened already.

        Raises OSError: what is not written stays to be filed.
        """
        if not self.has_begun:
            self._begin()
            return self._entries[:0]
        for _ in range(min(MINUTES_MAX, len(self._cuts) - 1)):
            part = self._entries[self._cuts[0] : self._cuts[1]]
            is_open = self._buckets.append(part)
            self._cuts = self._cuts[1:]
            self._opened.append(part[is_open])
        opened, self._opened = [self._entries[:0], *self._opened], []
        if len(self._cuts) <= 1:
            self._clear()
        return np.concatenate(opened)

    def _begin(self) -> None:
        entries = np.concatenate(self._parts)
        minutes = (entries["ms"] - 1) // MINUTE_MS
        order = np.argsort(minutes, kind="stable")
        self._entries, minutes = entries[order], minutes[order]
        starts = np.flatnonzero(np.diff(minutes)) + 1
        self._cuts = np.concatenate(([0], starts, [len(entries)])) if len(entries) else self._cuts
        self._parts = []
        self.has_begun = True
