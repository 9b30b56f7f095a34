"""What time it is for a delay when the wall clock is set (DT-11, P8, F11)."""

from __future__ import annotations

import numpy as np
import pytest

from gantrymq.workers.scheduler.timeline import Timeline
from tests.support.simclock import SimClock

MS = 1_000_000
HOUR_MS = 3_600_000


@pytest.mark.parametrize("steps", [(-HOUR_MS, 2 * HOUR_MS), (-HOUR_MS, HOUR_MS + 50), (HOUR_MS,)])
def test_a_record_of_a_time_when_the_clock_was_set_waits_its_whole_delay(
    steps: tuple[int, ...],
) -> None:
    """While the wall is behind, records get the newest time that the log has, however long ago."""
    clock = SimClock()
    stamped = clock.wall_ms()
    timeline = Timeline(clock, stamp=lambda: stamped)
    clock.advance(42 * MS)
    for number, by_ms in enumerate(steps):
        clock.step_wall(by_ms)
        if number == 0:
            stored_ms, stored_ns = max(stamped, clock.wall_ms()), clock.monotonic_ns()
    timeline.look()
    due = timeline.due_after(np.array([stored_ms]), 400)
    waits_ns = int(due[0]) * MS - timeline.delay_ns() + (clock.monotonic_ns() - stored_ns)
    assert 400 * MS <= waits_ns <= 402 * MS


def test_what_was_stored_before_the_clock_was_set_waits_no_longer() -> None:
    """Only records since the last look may have stood still."""
    clock = SimClock()
    stamped = stored_ms = clock.wall_ms()
    timeline = Timeline(clock, stamp=lambda: stamped)
    clock.advance(100 * MS)
    stamped = clock.wall_ms()
    timeline.look()
    clock.advance(50 * MS)
    clock.step_wall(HOUR_MS)
    timeline.look()
    due = timeline.due_after(np.array([stored_ms]), 400)
    assert 250 <= int(due[0]) - timeline.delay_ms() <= 252


def test_a_look_that_is_interrupted_takes_no_clock_for_set() -> None:
    """The writer stamps a record between the two looks at wall and stamp: nothing stood still."""
    clock = SimClock()
    is_late = False

    def stamp() -> int:
        if is_late:
            clock.advance(1 * MS)
        return clock.wall_ms()

    timeline = Timeline(clock, stamp=stamp)
    is_late = True
    timeline.look()
    is_late = False
    assert timeline.frozen == []
    stored_ms = clock.wall_ms()
    clock.advance(HOUR_MS * MS)
    due = timeline.due_after(np.array([stored_ms]), 2 * HOUR_MS)
    assert int(due[0]) - timeline.delay_ms() <= HOUR_MS + 2


def test_who_waits_for_a_point_in_time_sleeps_as_long_as_the_clock_was_set_back() -> None:
    """It would look a thousand times a second otherwise, until the clock is where it was."""
    clock = SimClock()
    timeline = Timeline(clock)
    due_ms = clock.wall_ms() + 1
    clock.step_wall(-HOUR_MS)
    timeline.look()
    assert timeline.until_wall_ns(due_ms) == (HOUR_MS + 1) * MS
    clock.step_wall(2 * HOUR_MS)
    timeline.look()
    clock.step_wall(-HOUR_MS)
    assert timeline.until_wall_ns(due_ms) == 0
