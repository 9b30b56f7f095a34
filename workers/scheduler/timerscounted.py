"""What the agent before has counted as done: its entries are still in buckets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gantrymq.workers.scheduler.timerpool import KILLERS, is_delay

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gantrymq.workers.scheduler.note import Note
    from gantrymq.workers.scheduler.timerpool import Entries


class Counted:
    """A note's view of a bucket's entries."""

    def __init__(self) -> None:
        """Nothing has been counted."""
        self._until_ms = (0, 0)  # points in time, and delays, of records up to
        self._position = -1

    def take_over(self, found: Note) -> None:
        """Go by a note."""
        self._until_ms = (found.timers_ms, found.delays_ms)
        self._position = found.timers_position

    def leaves(self, entries: Entries) -> NDArray[np.bool_]:
        """Which entries are not counted as done; recalls count for what they name."""
        is_killer = entries["size"] & KILLERS != 0
        after = is_delay(entries)
        counted = np.where(after, self._until_ms[1], self._until_ms[0])
        # Time may begin anew with a boot: what the note has not met it does not count.
        return np.asarray(
            (entries["ms"] > counted) | (entries["position"] > self._position) | is_killer
        )
