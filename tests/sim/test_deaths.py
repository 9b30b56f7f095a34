"""An agent that dies between what it publishes and the ring that it owes for that."""

from __future__ import annotations

from functools import partial

import pytest

from shm.marks import MARKS
from tests.sim import scenario
from tests.sim.scenario import STEPS_MAX, World
from tests.support.simmachine import ROLES
from tests.support.simulation import AgentActor

#: A message to an idle machine gets there; a full segment is another matter.
WITHIN_REACH = sorted(
    name
    for name in MARKS
    if not name.startswith("recovery.")
    and not name.startswith("txn_checker.")  # nobody sends transactions there
    and not name.endswith(("_roll", "_sidecar", "_checkpoint", "_note", "_new_file"))
)
#: Before a sleep runs out; later than that a flusher's timer would wake the reader anyway.
SHORTLY_NS = 3_000_000


def all_asleep(world: World) -> bool:
    """Whether every agent sleeps, and was not rung."""
    simulation = world.simulation
    now_ns = simulation.clock.monotonic_ns()
    actors = [simulation.actors.get(role.name.lower()) for role in ROLES]
    return all(isinstance(a, AgentActor) and a.ready_at(now_ns) > now_ns for a in actors)


@pytest.mark.parametrize("name", WITHIN_REACH)
def test_nobody_sleeps_over_what_a_dead_agent_has_published(name: str) -> None:
    """AgentActor raises LostWakeupError where a sleep that ran out finds work."""
    deaths = 0
    for sleeper in ROLES:
        world = scenario.new_world(sleeper)
        simulation = world.simulation
        simulation.run_until(world.settled, STEPS_MAX)
        simulation.run_until(partial(all_asleep, world), STEPS_MAX)
        now_ns = simulation.clock.monotonic_ns()
        left_ns = simulation.actors[sleeper.name.lower()].ready_at(now_ns) - now_ns
        simulation.clock.advance(max(0, left_ns - SHORTLY_NS))
        simulation.kill_at_mark(name, 1)
        world.producers[0].send_more(1)  # one: a successor has nothing more to ring for
        simulation.run_until(world.settled, STEPS_MAX)
        deaths += any(f"dies: mark {name}" in line for line in simulation.trace)
    assert deaths, "somebody got there"
