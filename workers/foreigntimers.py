"""What a RocketMQ that had this store says of its timers: `config/timercheck` (DT section 4.3).

It has delivered all of a slot before `last_read_time_ms`, of the units below its queue offset.
There are no origins in what it wrote, so this is the only word; its own copies could be repeated
up to a second (DT-59).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from shm import layout
from shm.kernels import timer
from shm.ranges import read_ranges
from shm.storage import read_file

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from shm.storage import Storage

FILE: Final = "config/timercheck"


@dataclass(frozen=True, slots=True)
class ForeignTimers:
    """How far another broker came, and which records it may have met."""

    read_ms: int = 0
    offset: int = 0
    position: int = 0  # log positions below were there when it stopped

    def has_done(self, rows: NDArray[np.int64], first: int) -> NDArray[np.bool_]:
        """Which rows of `read_timers`, of units from offset `first` on, it has delivered."""
        met = max(0, min(len(rows), self.offset - first))
        done: NDArray[np.bool_] = (rows[:, timer.OUT_MS] < self.read_ms) & (
            rows[:, timer.POSITION] < self.position
        )
        done[met:] = False
        return done


def read_foreign_timers(storage: Storage) -> ForeignTimers:
    """What is left of another broker; nothing if there was none after us."""
    try:
        data = read_file(storage, FILE)
    except FileNotFoundError:
        return ForeignTimers()
    if len(data) < layout.TIMER_CHECKPOINT.size:
        return ForeignTimers()
    row = layout.TIMER_CHECKPOINT.unpack(data)
    spans = read_ranges(storage)
    if spans is None or not spans.spans:
        return ForeignTimers()
    # All before our last range was there when it stopped.
    position = spans.spans[-1][0]
    return ForeignTimers(row["last_read_time_ms"], row["last_timer_queue_offset"], position)
