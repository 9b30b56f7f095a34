"""The machine's clocks, and the simulator's, which answers the same questions."""

from __future__ import annotations

import time

import pytest

from gantrymq.shm.clock import Clock, SystemClock
from tests.support.simclock import SimClock


def test_wall_time_is_unix_milliseconds() -> None:
    clock: Clock = SystemClock()
    before = time.time_ns() // 1_000_000
    now = clock.wall_ms()
    assert before <= now <= time.time_ns() // 1_000_000


def test_monotonic_time_is_that_which_counts_through_suspend() -> None:
    """Nanoseconds since the boot: processes compare what each has read by itself."""
    clock: Clock = SystemClock()
    before = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    times = [clock.monotonic_ns() for _ in range(1000)]
    assert before <= times[0]
    assert times == sorted(times)
    assert times[-1] <= time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def test_the_simulators_clock_moves_by_hand_alone() -> None:
    """The wall may step back, monotonic time does not (LW-12 needs both)."""
    hand = SimClock(1_000)
    clock: Clock = hand
    wall, monotonic = clock.wall_ms(), clock.monotonic_ns()
    assert (clock.wall_ms(), clock.monotonic_ns()) == (wall, monotonic)
    hand.advance(5_000_000)
    assert (clock.wall_ms(), clock.monotonic_ns()) == (wall + 5, monotonic + 5_000_000)
    hand.step_wall(-20)
    assert (clock.wall_ms(), clock.monotonic_ns()) == (wall - 15, monotonic + 5_000_000)
    with pytest.raises(ValueError, match="never steps back"):
        hand.advance(-1)
