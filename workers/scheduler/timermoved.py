"""Which timers of buckets have been appended again (workers/scheduler/timermove.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gantrymq.workers.scheduler.timerbuckets import span_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gantrymq.workers.scheduler.timerpool import Entries


class Moved:
    """Which timers have been appended again, or are done: these do not count where they are."""

    def __init__(self) -> None:
        self.floor = 0  # none below counts
        self.below = 0  # while some are being moved: none below, of these buckets
        self._starts: dict[int, set[int]] = {}  # by spans: which of that length are put

    def add(self, name: str) -> None:
        """A bucket's timers are put."""
        start, end = span_of(name)
        self._starts.setdefault(end - start, set()).add(start // (end - start))

    def has(self, name: str) -> bool:
        """Whether a bucket's timers are put, perhaps while it was part of a larger one."""
        start, end = span_of(name)
        return any(
            span >= end - start and start // span in starts for span, starts in self._starts.items()
        )

    def among(self, entries: Entries) -> NDArray[np.bool_]:
        """Which of a bucket's entries do not count."""
        gone: NDArray[np.bool_] = entries["position"] < self.floor
        for span, starts in self._starts.items():
            found = (entries["ms"] - 1) // span
            # Of a bucket's entries there are few; of starts there may be many.
            theirs = [start for start in np.unique(found).tolist() if start in starts]
            gone |= np.isin(found, theirs) & (entries["position"] < self.below)
        return gone

    def finish(self) -> None:
        """All of them are put, or delivered."""
        self.floor, self.below = self.below, 0
        self._starts.clear()
