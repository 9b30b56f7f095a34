"""Virtual time: moves only when the scheduler says so."""

from __future__ import annotations


class SimClock:
    """`shm.clock.Clock` by hand: the wall may be stepped, monotonic time only advances."""

    def __init__(self, wall_ms: int = 1_700_000_000_000) -> None:
        self._now_ns = 1_000_000_000
        self._wall_at_start_ms = wall_ms
        self._highest_wall_ms = 0
        self.was_set = False
        #: The largest distance of the wall from monotonic time since the machine's start.
        self.highest_offset_ms = wall_ms

    def wall_ms(self) -> int:
        """Unix milliseconds."""
        return self._wall_at_start_ms + self._now_ns // 1_000_000

    def monotonic_ns(self) -> int:
        """Nanoseconds since some point of the past."""
        return self._now_ns

    @property
    def highest_wall_ms(self) -> int:
        """The largest that `wall_ms` has been."""
        return max(self._highest_wall_ms, self.wall_ms())

    def advance(self, duration_ns: int) -> int:
        """Let time pass; what monotonic time is then."""
        if duration_ns < 0:
            raise ValueError("monotonic time never steps back")
        self._now_ns += duration_ns
        return self._now_ns

    def step_wall(self, by_ms: int) -> None:
        """Set the wall clock forward or back."""
        self.was_set = True
        self._highest_wall_ms = self.highest_wall_ms
        self._wall_at_start_ms += by_ms
        self.highest_offset_ms = max(self.highest_offset_ms, self._wall_at_start_ms)

    def boot(self) -> None:
        """The machine starts anew: nothing knows how far ahead the wall has been."""
        self.highest_offset_ms = self._wall_at_start_ms
