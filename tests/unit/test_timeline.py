"""What time it is for a delay when the wall clock is set (DT-11, P8, F11)."""

from __future__ import annotations

import numpy as np
import pytest

from gantrymq.workers.scheduler.timeline import Timeline
from tests.support.simclock import SimClock
from tests.support.trials import mends

MS = 1_000_000
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


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


class Waiting(SimClock):
    """Whoever looks at the wall has to wait for a processor then, as long as `waits` has."""

    def __init__(self, waits: list[int]) -> None:
        super().__init__()
        self.waits = waits

    def wall_ms(self) -> int:
        told = super().wall_ms()
        if self.waits:
            self.advance(self.waits.pop() * MS)
        return told


@mends("S111")
@pytest.mark.parametrize("waits", [[15], [40, 15, 9], [7] * 20, [3] * 20])
def test_who_waits_for_a_processor_between_two_clocks_takes_none_for_set(waits: list[int]) -> None:
    """Else all that was stored since the look before would count from this one."""
    clock = Waiting([])
    timeline = Timeline(clock, stamp=clock.wall_ms)
    clock.advance(100 * MS)
    timeline.look()
    stored_ms = clock.wall_ms()
    clock.advance(12_000 * MS)
    clock.waits = waits
    timeline.look()
    clock.waits = []
    timeline.look()
    assert not timeline.unsure
    due = int(timeline.due_after(np.array([stored_ms]), 20_000)[0])
    assert 7_990 - 200 <= due - timeline.delay_ms() <= 8_002


@mends("S111")
def test_a_clock_that_is_set_is_noticed_by_who_waits_for_a_processor() -> None:
    clock = Waiting([])
    timeline = Timeline(clock, stamp=clock.wall_ms)
    clock.advance(100 * MS)
    timeline.look()
    clock.step_wall(HOUR_MS)
    clock.waits = [30] * 20
    timeline.look()
    assert len(timeline.unsure) == 1


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


class Wall:
    """A wall clock and the newest storeTimestamp of a young log, which lets the wall go back."""

    def __init__(self) -> None:
        self.clock = SimClock()
        self.stamp_ms = 0
        self.timeline = self.timeline_after(None)

    def timeline_after(self, before: Timeline | None) -> Timeline:
        """Of an agent that has nothing but what the one before has noted."""
        if before is None:
            return Timeline(self.clock, stamp=lambda: self.stamp_ms)
        return Timeline(
            self.clock, before.base_ns, before.wall_ms(), lambda: self.stamp_ms, before.steps()
        )

    def store(self) -> tuple[int, int]:
        """A record's storeTimestamp, and the moment of its storing."""
        self.stamp_ms = max(self.stamp_ms, self.clock.wall_ms())
        return self.stamp_ms, self.clock.monotonic_ns()

    def waits_ms(self, record: tuple[int, int]) -> int:
        """How long a record of two hours waits in all."""
        stored_ms, stored_ns = record
        due = self.timeline.due_after(np.array([stored_ms]), 2 * HOUR_MS)
        waits_ns = int(due[0]) * MS - self.timeline.delay_ns()
        return (waits_ns + self.clock.monotonic_ns() - stored_ns) // MS

    def set_back(self) -> None:
        """By a day, when the boot's even wall was known and no agent looked."""
        before = self.timeline
        self.clock.step_wall(-DAY_MS)
        self.timeline = Timeline(
            self.clock, before.base_ns, before.wall_ms(), lambda: self.stamp_ms
        )


@mends("S10")
@pytest.mark.parametrize("then_ms", [2 * HOUR_MS, -2 * HOUR_MS, 0])
@pytest.mark.parametrize("who_looks", ["the agent", "a successor"])
def test_a_time_that_the_wall_showed_between_two_looks_is_known_to_nobody(
    then_ms: int, who_looks: str
) -> None:
    """Set forward, and once more: the record's time is one of before the wall was set back."""
    wall = Wall()
    wall.set_back()
    wall.clock.step_wall(2 * HOUR_MS)
    record = wall.store()
    wall.clock.step_wall(then_ms)
    if who_looks == "a successor":
        wall.timeline = wall.timeline_after(wall.timeline)
    wall.timeline.look()
    assert 2 * HOUR_MS <= wall.waits_ms(record) <= 2 * HOUR_MS + 2


def test_a_successor_tells_the_times_of_all_that_the_wall_was_set_to() -> None:
    """What it reads anew was stored while the wall was further behind than it is now."""
    wall = Wall()
    wall.set_back()
    seen = wall.store()
    wall.clock.advance(1_000 * MS)
    wall.store()
    wall.timeline.look()
    wall.clock.step_wall(2 * HOUR_MS)
    unseen = wall.store()
    wall.clock.step_wall(2 * HOUR_MS)
    wall.timeline.look()
    wall.clock.advance(1_000 * MS)
    wall.timeline = wall.timeline_after(wall.timeline)
    for record in (seen, unseen):
        assert 2 * HOUR_MS <= wall.waits_ms(record) <= 2 * HOUR_MS + 3


@mends("S10")
def test_a_clock_that_is_set_after_the_look_is_noticed_before_a_time_is_told() -> None:
    """The record is younger than the cycle's look, and the wall was where it was before."""
    wall = Wall()
    wall.clock.advance(3 * HOUR_MS * MS)
    wall.timeline.look()
    wall.clock.step_wall(-HOUR_MS)
    assert 2 * HOUR_MS <= wall.waits_ms(wall.store()) <= 2 * HOUR_MS + 2


def test_a_record_that_was_on_its_way_when_the_clock_was_set_bears_a_time_of_before() -> None:
    """The writer had looked at the clock, and shows the record after the look."""
    wall = Wall()
    wall.set_back()
    wall.clock.step_wall(2 * HOUR_MS)
    stamp_ms, stored_ns = wall.clock.wall_ms(), wall.clock.monotonic_ns()
    wall.clock.step_wall(2 * HOUR_MS)
    wall.timeline.look()
    wall.stamp_ms = stamp_ms
    assert 2 * HOUR_MS <= wall.waits_ms((stamp_ms, stored_ns)) <= 2 * HOUR_MS + 2
