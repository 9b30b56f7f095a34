"""When each record came into the log, by the machine's own clocks: the judge of P8."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from tests.support.simclock import SimClock


@dataclass(frozen=True, slots=True)
class Moment:
    """The clocks at one moment. CLOCK_BOOTTIME goes on over boots here, as nobody can see."""

    boot: int
    since_ns: int  # not before this
    now_ns: int  # not later
    highest_wall_ms: int  # that the wall has ever shown
    even_ms: int  # the highest wall of this boot, if nobody had set it back since
    wall_ms: int


class Moments:
    """What the clocks said when the log had grown so far."""

    def __init__(self) -> None:
        self._ends: list[int] = []
        self._moments: list[Moment] = []
        self._unsure_ns = -1  # when a writer died that may have written more than it said

    def grown(self, end: int, clock: SimClock, boot: int, began_ns: int) -> None:
        """The log ends here now; the writer looked at the clock after `began_ns`."""
        if self._ends and end <= self._ends[-1]:
            return
        now_ns = clock.monotonic_ns()
        since_ns = began_ns if self._unsure_ns < 0 else self._unsure_ns
        self._unsure_ns = -1
        even_ms = clock.highest_offset_ms + now_ns // 1_000_000
        self._ends.append(end)
        wall_ms = clock.wall_ms()
        self._moments.append(
            Moment(boot, since_ns, now_ns, clock.highest_wall_ms, even_ms, wall_ms)
        )

    def writer_died(self, now_ns: int) -> None:
        """What it has written last may be found in the log later."""
        if self._unsure_ns < 0:
            self._unsure_ns = now_ns

    def recovered(self, end: int) -> None:
        """A power cut, or a start, has left so much of it."""
        while len(self._ends) > 1 and self._ends[-2] >= end:
            self._ends.pop()
            self._moments.pop()
        if self._ends:
            self._ends[-1] = min(self._ends[-1], end)

    def of(self, position: int) -> Moment | None:
        """When the record at a position was stored; None if nobody has looked since."""
        at = bisect_right(self._ends, position)
        return self._moments[at] if at < len(self._ends) else None

    def too_early(self, parked: tuple[int, int], copy: int, delay_ms: int, at_ms: int) -> str:
        """What is wrong with a copy's time (P8); "" if nothing is.

        `parked`: position and storeTimestamp of the record; `copy`: position. `delay_ms` below 0:
        due at the point in time `at_ms`. A point in time waits for the largest wall clock seen, a
        delay for CLOCK_BOOTTIME, over a boot for the wall (design: time).
        """
        begin, end = self.of(parked[0]), self.of(copy)
        if begin is None or end is None:
            return ""
        if delay_ms < 0:
            seen_ms = end.highest_wall_ms
            return "" if seen_ms >= at_ms else f"no wall clock had shown {at_ms} yet, but {seen_ms}"
        passed_ns = end.now_ns - begin.since_ns
        if passed_ns >= delay_ms * 1_000_000:
            return ""
        # While the wall is behind the log's times, these stand still.
        parked_ms = min(parked[1], begin.wall_ms)
        if begin.boot != end.boot and end.even_ms >= parked_ms + delay_ms:
            return ""
        return f"{delay_ms} ms had not passed, but {passed_ns} ns"
