"""An agent that dies between what it publishes and the ring that it owes for that."""

from __future__ import annotations

from collections import Counter
from functools import partial

from gantrymq.shm.codes import ParkMode, Role
from gantrymq.shm.marks import MARKS
from tests.sim import scenario
from tests.sim.downfalls import STEPS_MAX
from tests.sim.scenario import World
from tests.support.simmachine import ROLES
from tests.support.simulation import AgentActor

#: A message to an idle machine gets there; a full segment is another matter.
WITHIN_REACH = sorted(
    name
    for name in MARKS
    if not name.startswith("recovery.")
    and not name.startswith("txn_checker.")  # nobody sends transactions there
    and not name.startswith(("housekeeper.", "indexer."))  # they owe nobody a ring
    and not name.endswith(("_roll", "_sidecar", "_checkpoint", "_note", "_new_file"))
)
#: Before a sleep runs out; later than that a flusher's timer would wake the reader anyway.
SHORTLY_NS = 3_000_000
#: In this time a message with the shortest delay has come.
DELIVERED_NS = 3_000_000_000


def all_asleep(world: World) -> bool:
    """Whether every agent sleeps, and was not rung."""
    simulation = world.simulation
    now_ns = simulation.clock.monotonic_ns()
    actors = [simulation.actors.get(role.name.lower()) for role in ROLES]
    return all(isinstance(a, AgentActor) and a.ready_at(now_ns) > now_ns for a in actors)


def dies_in_idle_machine(world: World, sleeper: Role, name: str) -> bool:
    """Whether somebody dies at a mark, of what a message to an idle machine brings with it."""
    simulation = world.simulation
    simulation.run_until(partial(all_asleep, world), STEPS_MAX)
    now_ns = simulation.clock.monotonic_ns()
    left_ns = simulation.actors[sleeper.name.lower()].ready_at(now_ns) - now_ns
    simulation.clock.advance(max(0, left_ns - SHORTLY_NS))
    told = len(simulation.trace)
    simulation.kill_at_mark(name, 1)
    sender = world.producers[0]
    sender.delays, sender.at_once = name.startswith("scheduler."), 0
    sender.waits = [(ParkMode.AFTER, 1)]
    sender.send_more(1)  # one: a successor has nothing more to ring for
    if sender.delays:  # parked is settled, too
        until_ns = simulation.clock.monotonic_ns() + DELIVERED_NS
        simulation.run_until(lambda: simulation.clock.monotonic_ns() >= until_ns, STEPS_MAX)
    simulation.run_until(world.settled, STEPS_MAX)
    simulation.kill_at_mark("", 1)
    return any(f"dies: mark {name}" in line for line in simulation.trace[told:])


def test_nobody_sleeps_over_what_a_dead_agent_has_published() -> None:
    """AgentActor raises LostWakeupError where a sleep that ran out finds work."""
    deaths = Counter[str]()
    for sleeper in ROLES:
        world = scenario.new_world(sleeper)
        world.simulation.run_until(world.settled, STEPS_MAX)
        for name in WITHIN_REACH:
            try:
                deaths[name] += dies_in_idle_machine(world, sleeper, name)
            except BaseException as error:
                raise AssertionError(f"{sleeper.name}, death at {name}: {error}") from error
    assert not [name for name in WITHIN_REACH if not deaths[name]], "nobody got there"
