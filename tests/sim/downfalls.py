"""How whole brokers and machines go down in runs of the simulator."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import TYPE_CHECKING

from gantrymq.shm.codes import Role
from tests.support.faults import Fault, Moment, kill_at
from tests.support.model import End
from tests.support.simmachine import ROLES

if TYPE_CHECKING:
    from tests.sim.scenario import World

STEPS_MAX = 60_000
#: After how many moves a dear goal is looked for.
SELDOM = 16
#: Longer than agents take to be replaced, and shorter than who waits for the disk is patient.
STALL_NS = 20_000_000


def kill_everything(world: World) -> None:
    """SIGKILL of the whole broker, perhaps again while it recovers."""
    plan_death_in_recovery(world)
    world.machine.kill_broker(End.KILL)


def cut_power(world: World) -> None:
    """The machine goes down with its clients, perhaps again while the broker recovers."""
    plan_death_in_recovery(world)
    world.kill_clients()
    world.machine.kill_broker(End.POWER)
    world.add_producer(world.dice.randint(5, 20))
    world.add_consumer()
    world.add_recaller()


def plan_death_in_recovery(world: World) -> None:
    """Half of the starts die at one of their changes, or fail at one of their syncs."""
    if world.dice.random() < 0.5:
        fault = kill_at(world.dice.randint(1, 25), world.dice.choice(list(Moment)))
        if world.dice.random() < 0.3:
            fault = Fault(world.dice.randint(1, 8), Moment.BEFORE, errno.EIO, ("sync",))
        world.machine.plans.supervisor = (fault,)


def lose_power(world: World) -> None:
    """As it comes, or amid a stall of the disk in which some agent is replaced."""
    if world.dice.random() < 0.5:
        stall_the_disk(world, lambda: world.machine.kill_agent(world.dice.choice(ROLES)))
    cut_power(world)


def stall_the_disk(
    world: World, kill: Callable[[], None], is_over: Callable[[], bool] = lambda: False
) -> None:
    """The disk stands still while somebody is replaced, until `is_over` or for some time.

    What is told meanwhile has to be on the disk: the power goes next.
    """
    simulation = world.simulation
    simulation.note("the disk stalls")
    simulation.remove(Role.FLUSHER.name.lower())
    kill()
    until_ns = simulation.clock.monotonic_ns() + world.dice.randint(1, STALL_NS)
    simulation.run_until(
        lambda: is_over() or simulation.clock.monotonic_ns() >= until_ns, STEPS_MAX
    )
