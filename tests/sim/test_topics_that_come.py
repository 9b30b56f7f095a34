"""Topics that come while an agent is stopped amid a step, with filters from a time before them."""

from __future__ import annotations

import pytest

from gantrymq.brokerd.config import load
from gantrymq.workers.filterfile import FilterEntry, bloom_form, write_filters
from tests.sim import scenario
from tests.sim.downfalls import STEPS_MAX
from tests.sim.scenario import World
from tests.support import simbits
from tests.support.simstorage import SimStorage
from tests.support.simulation import PAUSE_SHARES
from tests.support.trials import mends

#: So many come, and so many messages go to each at once.
TOPICS = 6
SENT = 3
#: They make bits, and their agents stop amid steps.
SEEDS = [
    seed
    for seed in range(0, 46 * simbits.EVERY, simbits.EVERY)
    if PAUSE_SHARES[seed % len(PAUSE_SHARES)] == max(PAUSE_SHARES)
]


@mends("S252")
@pytest.mark.parametrize("seed", SEEDS)
def test_their_messages_have_bits_from_the_first_one_on(seed: int) -> None:
    """Wherever the reader stood when the topic came and all was sent: FL-65."""
    world = scenario.new_world(seed)
    names = [f"new-{number}" for number in range(TOPICS)]
    know_filters(world, names)
    machine, simulation = world.machine, world.simulation
    machine.topics = dict(machine.topics)
    simulation.run_until(lambda: machine.running, STEPS_MAX)
    for name in names:
        world.more_traffic()
        simulation.run_until(lambda: simulation.is_amid("reader"), STEPS_MAX)
        with simulation.held("reader"):
            assert machine.metadata is not None, "nobody dies"
            machine.metadata.create(name, 1, "written")
            machine.topics[name] = (1, "written")
            producer = world.add_producer(SENT)
            producer.topics, producer.delays = [name], False
            simulation.run_until(lambda: producer.done, STEPS_MAX)  # noqa: B023 - at once
    simulation.run_until(world.settled, STEPS_MAX)
    scenario.wait(world)
    scenario.start_again(world)  # it looks at all bits
    assert world.model.tally["denied_by_bits"]


def know_filters(world: World, names: list[str]) -> None:
    """A group had subscribed to such topics before they were deleted."""
    form = bloom_form(load(given=world.machine.settings(), environment={}).settings)
    entries = [
        FilterEntry(name, scenario.GROUP, simbits.EXPRESSION, simbits.DIALECT, 1, 1)
        for name in names
    ]
    write_filters(SimStorage(world.machine.disk, "before"), entries, form)
