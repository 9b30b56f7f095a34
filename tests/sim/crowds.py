"""Sessions by the thousand: a few at a time and hundreds at once, and what agents hold afterwards.

`python -m tests.sim.crowds --seeds 0:10`. After 2,000 sessions more nobody holds more than after
the first ones: tables, lanes, arrays, descriptors.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Final

from gantrymq.shm import groupwire
from gantrymq.shm.codes import Role
from tests.sim.downfalls import SELDOM
from tests.sim.floods import FloodMachine
from tests.sim.scenario import World
from tests.support.model import Model
from tests.support.reachable import held
from tests.support.simclients import NEVER_NS
from tests.support.simmachine import ROLES
from tests.support.simrounds import Counted
from tests.support.simtalker import Talker
from tests.support.simulation import AgentActor, Simulation

#: Sessions before the first look and between that and the second one.
FIRST: Final = 300
MORE: Final = 2000
#: So many at once, now and then; else a few.
MANY: Final = 200
FEW: Final = 12
GROUPS: Final = 4
STEPS_MAX: Final = 400_000
#: What an agent remembers of the past for a while, whoever it was about, and bounds itself.
SLACK: Final = 200
SLACK_BYTES: Final = 1 << 16

Fault = Callable[[World], None]


class CrowdedError(AssertionError):
    """What sessions have left behind."""


class Visitor(Talker):
    """Attaches, perhaps joins a group, and is gone, perhaps before it has heard of it."""

    def __init__(self, name: str, machine: FloodMachine) -> None:
        super().__init__(name, machine)
        self.gone = False
        self._stays = self.dice.randrange(3)
        self._group = f"crowd-{self.dice.randrange(GROUPS)}"

    def ready_at(self, now_ns: int) -> int:
        """Never again once it is gone."""
        return now_ns + NEVER_NS if self.gone else super().ready_at(now_ns)

    def go_on(self, session: object, now_ns: int) -> None:
        """Ask, stay for a few steps, leave."""
        del session, now_ns
        self.hear()
        if self._stays == 1:
            self.ask(Role.GROUPS, groupwire.encode(groupwire.Join(1, self._group, self.slots[:1])))
        self._stays -= 1
        if self._stays < 0:
            self.gone = True
            self.die()


def run(seed: int, faults: tuple[Fault, ...] = ()) -> World:
    """One crowd. Raises CrowdedError."""
    del faults
    simulation, model = Simulation(seed), Model(frozenset({"safe"}))
    machine = FloodMachine(simulation, model)
    world = World(simulation, model, machine, [], [])
    simulation.run_until(lambda: machine.running, STEPS_MAX)
    _visit(world, machine, FIRST)
    before, descriptors = _held(machine), len(os.listdir("/proc/self/fd"))
    _visit(world, machine, MORE)
    after = _held(machine)
    for name in after:
        slack = SLACK_BYTES if name.endswith(" bytes") else SLACK
        if after[name] > before[name] + slack:
            raise CrowdedError(f"{name}: {before[name]} before, {after[name]} after")
    if len(os.listdir("/proc/self/fd")) > descriptors:
        raise CrowdedError("descriptors are left open")
    return world


def _visit(world: World, machine: FloodMachine, count: int) -> None:
    """So many sessions come and go, then all is at rest."""
    left, number, simulation = count, 0, world.simulation
    while left > 0:
        wave = min(left, MANY if number % 8 == 0 else world.dice.randint(1, FEW))
        left, number = left - wave, number + 1
        visitors = [Visitor(f"visitor-{count}-{left + place}", machine) for place in range(wave)]
        for visitor in visitors:
            simulation.add(visitor)
        simulation.run_until(lambda: all(one.gone for one in visitors), STEPS_MAX, SELDOM)  # noqa: B023
        world.model.tally["sessions"] += wave
    for role in ROLES:
        machine.bell(role).ring()
    simulation.run_until(partial(_is_at_rest, machine), STEPS_MAX, SELDOM)


def _is_at_rest(machine: FloodMachine) -> bool:
    agents = [one for one in machine.simulation.actors.values() if isinstance(one, AgentActor)]
    heard = not any(table.unheard for table in machine.tables.values())
    now_ns = machine.simulation.clock.monotonic_ns()
    asleep = all(agent.ready_at(now_ns) > now_ns and agent.idle_cycles for agent in agents)
    return heard and not machine.sessions and asleep


def _held(machine: FloodMachine) -> Counter[str]:
    found: Counter[str] = Counter()
    for role in ROLES:
        actor = machine.simulation.actors[role.name.lower()]
        assert isinstance(actor, AgentActor), "an agent"
        assert isinstance(actor.agent, Counted), "of this machine"
        of_agent = held(actor.agent.agent, "gantrymq.")
        found.update({f"{role.name.lower()}: {name}": count for name, count in of_agent.items()})
    return found


def main() -> None:
    """Run many seeds."""
    from tests.sim.crowd_plants import PLANTS
    from tests.sim.seeds import run_seeds

    run_seeds("tests.sim.crowds", run, ((), {}), PLANTS)


if __name__ == "__main__":
    main()
