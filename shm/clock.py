"""Edge to the operating system: what time it is.

Only supervisor, groups, scheduler, txn-checker and retention ask for wall time; the writer is
given it as a source of storeTimestamp. Everything else counts monotonic nanoseconds.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Source of time; the simulator has its own."""

    def wall_ms(self) -> int:
        """Unix milliseconds. May step back."""
        ...

    def monotonic_ns(self) -> int:
        """Nanoseconds of CLOCK_BOOTTIME: never steps back, counts through suspend."""
        ...


class SystemClock:
    """The machine's clocks."""

    def wall_ms(self) -> int:
        """Unix milliseconds."""
        return time.time_ns() // 1_000_000

    def monotonic_ns(self) -> int:
        """Nanoseconds of CLOCK_BOOTTIME."""
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)
