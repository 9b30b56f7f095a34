"""Which timers of buckets have been appended again (workers/scheduler/timermove.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gantrymq.workers.scheduler.timerbuckets import MINUTE_MS, SECOND_MS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gantrymq.workers.scheduler.timerpool import Entries


class Moved:
    """Which timers have been appended again, or are done: these do not count where they are."""

    def __init__(self) -> None:
        self.floor = 0  # none below counts
        self.below = 0  # while some are being moved: none below, of these buckets
        self._starts: dict[int, set[int]] = {MINUTE_MS: set(), SECOND_MS: set()}

    def add(self, name: str) -> None:
        """A bucket's timers are put."""
        minute, _, second = name.partition(".")
        if second:
            self._starts[SECOND_MS].add(int(minute) * 60 + int(second))
        else:
            self._starts[MINUTE_MS].add(int(minute))

    def has(self, name: str) -> bool:
        """Whether a bucket's timers are put."""
        minute, _, second = name.partition(".")
        if int(minute) in self._starts[MINUTE_MS]:
            return True
        return bool(second) and int(minute) * 60 + int(second) in self._starts[SECOND_MS]

    def among(self, entries: Entries) -> NDArray[np.bool_]:
        """Which of a bucket's entries do not count."""
        gone: NDArray[np.bool_] = entries["position"] < self.floor
        for span, starts in self._starts.items():
            if starts:
                found = (entries["ms"] - 1) // span
                # Of a bucket's entries there are few; of starts there may be half a million.
                theirs = [start for start in np.unique(found).tolist() if start in starts]
                inside = np.isin(found, theirs)
                gone |= inside & (entries["position"] < self.below)
        return gone

    def finish(self) -> None:
        """All of them are put, or delivered."""
        self.floor, self.below = self.below, 0
        for starts in self._starts.values():
            starts.clear()
