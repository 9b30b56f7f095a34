"""A step of an agent may stop at each call of what it shares: lanes and outlets too."""

from __future__ import annotations

import sys
from types import BuiltinFunctionType

from tests.sim import scenario
from tests.sim.downfalls import STEPS_MAX
from tests.support.simstops import AGENTS, KERNELS, PLACES, WORD_KERNELS, stopping_at_lanes
from tests.support.simulation import PAUSE_SHARES, AgentActor

#: Modules of kernels that work on the log, on files' contents, and on an agent's own memory.
OWN = {
    "blocks", "census", "extend", "halfform", "halfrows", "index", "inner", "origins", "record",
    "retrycopy", "scan", "stretch", "timer", "unitfiles", "units",
}  # fmt: skip
MOST_STOPS = PAUSE_SHARES.index(max(PAUSE_SHARES))


def test_no_kernel_of_an_agent_over_shared_memory_is_left_out() -> None:
    """One that comes new is of either kind."""
    known = {name for names in (KERNELS | WORD_KERNELS).values() for name in names}
    kernels = {
        id(call): (module.rpartition(".")[2], name)
        for module, found in sys.modules.items()
        if module.startswith("gantrymq.shm.kernels.")
        for name, call in vars(found).items()
        if isinstance(call, BuiltinFunctionType) and call.__name__ == name
    }
    called = {
        kernels[id(call)]
        for module, found in sys.modules.items()
        if module.startswith(AGENTS)
        for call in vars(found).values()
        if id(call) in kernels
    }
    assert {name for _module, name in called} & known, "agents call some by name"
    assert not {name for module, name in called if module not in OWN} - known


def test_calls_are_themselves_again_behind_a_run() -> None:
    before = [vars(place.owner)[place.name] for place in PLACES]
    with stopping_at_lanes(lambda: None):
        within = [vars(place.owner)[place.name] for place in PLACES]
    assert [vars(place.owner)[place.name] for place in PLACES] == before
    assert not any(mine is theirs for mine, theirs in zip(before, within, strict=True))


def test_each_step_of_an_agent_may_stop() -> None:
    """Work, and going to sleep, which is lanes and board alone, and waking up."""
    world, stopped = scenario.new_world(MOST_STOPS), set[tuple[str, str]]()
    simulation, observe = world.simulation, world.machine.observe

    def look(who: str) -> None:
        actor = simulation.actors.get(who)
        if isinstance(actor, AgentActor) and actor.is_amid:
            stopped.add((who, actor._next.__name__))
        observe(who)

    simulation.after_step = look
    simulation.run_until(world.settled, STEPS_MAX)
    for name in ("writer", "flusher", "groups", "scheduler"):
        assert {step for who, step in stopped if who == name} >= {"_work", "_arm"}, name
    assert "_disarm" in {step for _who, step in stopped}
