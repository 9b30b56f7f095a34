"""The wall clock is set, or the machine sleeps, amid the traffic (F11, LW-12)."""

from __future__ import annotations

import pytest

from gantrymq.shm.record import OWN, Record
from gantrymq.shm.segment import open_log
from tests.sim import scenario
from tests.sim.downfalls import STEPS_MAX
from tests.support.simstorage import SimStorage

HOUR_MS, DAY_MS = 3_600_000, 86_400_000
SUSPEND_NS = 600_000_000_000


@pytest.mark.parametrize("by_ms", [-1, -HOUR_MS, HOUR_MS, -DAY_MS, DAY_MS])
def test_a_clock_that_is_set_ends_no_session_and_turns_no_time_back(by_ms: int) -> None:
    world = scenario.new_world(21)
    for producer in world.producers:
        producer.send_more(30)
    for _ in range(6):
        step = world.simulation.steps + 60
        world.simulation.run_until(lambda step=step: world.simulation.steps >= step, STEPS_MAX)  # type: ignore[misc]
        world.simulation.clock.step_wall(by_ms)
    world.simulation.run_until(world.settled, STEPS_MAX)
    assert world.model.tally["cut off"] == 0
    assert world.machine.lives == 1
    scenario.start_again(world)
    log = open_log(SimStorage(world.machine.disk))
    times = [r.store_timestamp for _, r in log.scan(0, check=OWN) if isinstance(r, Record)]
    assert len(times) > 10  # others may have expired: the clock says that they are old
    assert times == sorted(times)


def test_a_machine_that_was_suspended_goes_on() -> None:
    """Ten minutes pass between two steps, for everybody at once."""
    world = scenario.new_world(22)
    for _ in range(3):
        world.more_traffic()
        step = world.simulation.steps + 80
        world.simulation.run_until(lambda step=step: world.simulation.steps >= step, STEPS_MAX)  # type: ignore[misc]
        world.simulation.clock.advance(SUSPEND_NS)
        world.model.tally["suspended"] += 1
    world.simulation.run_until(world.settled, STEPS_MAX)
    assert world.machine.lives == 1
    scenario.start_again(world)
