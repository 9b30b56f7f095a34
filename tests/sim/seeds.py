"""Run the simulator over a range of seeds: `python -m tests.sim --seeds 0:1000`.

Ends at the first failing seed, tells its story, and prints the command that replays it.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable

from tests.sim import plants, rare_faults, scenario, scheduler_plants
from tests.sim.downfalls import cut_power
from tests.sim.scenario import World
from tests.support.simulation import Simulation

STORY_LINES = 40
PLANTS = plants.PLANTS | scheduler_plants.PLANTS
Faults = tuple[Callable[[World], None], ...]


def tell(program: str, seed: int, faults: str, plant: str | None, batch: str | None) -> str:
    """Command that replays a seed."""
    more = f" --plant {plant}" if plant else ""
    more += f" --batch-topic {batch}" if batch else ""
    return f"python -m {program} --seeds {seed}:{seed + 1} --faults {faults}{more}"


def main() -> None:
    """Runs of tests.sim.scenario."""
    every = (*scenario.FAULTS, *rare_faults.RARE, cut_power)
    named = {fault.__name__: fault for fault in every}
    run_seeds("tests.sim", scenario.run, (scenario.FAULTS, named), PLANTS)


def run_seeds(
    program: str,
    run: Callable[[int, Faults], World],
    faults: tuple[Faults, dict[str, Callable[[World], None]]],
    plants: dict[str, Callable[[], None]],
) -> None:
    """Parse, run, report. `faults`: those of a run that names none, and all by their names."""
    every, named = faults
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0:100", help="first:behind the last")
    parser.add_argument("--faults", default="all", help=f"all, none, or some of {','.join(named)}")
    parser.add_argument("--story", action="store_true", help="tell the story of good seeds too")
    parser.add_argument("--plant", choices=plants, help="put a known bug in first")
    parser.add_argument("--batch-topic", help="a topic that is of RocketMQ's type BatchCQ")
    wanted = parser.parse_args()
    if wanted.batch_topic:
        scenario.BATCH_TOPICS.add(wanted.batch_topic)
    if wanted.plant:
        plants[wanted.plant]()
    chosen = {"all": every, "none": ()}.get(wanted.faults)
    if chosen is None:
        chosen = tuple(named[name] for name in wanted.faults.split(","))
    first, last = (int(number) for number in wanted.seeds.split(":"))
    started = time.monotonic()
    tally: Counter[str] = Counter()
    for seed in range(first, last):
        story: list[str] = []
        try:
            world = run(seed, chosen)
            story = world.simulation.trace
            tally += world.model.tally
        except BaseException as error:
            story = last_story()
            traceback.print_exc()
            print("\n".join(story[-STORY_LINES:]))
            print(f"seed {seed} fails: {type(error).__name__}: {error}")
            again = tell(program, seed, wanted.faults, wanted.plant, wanted.batch_topic)
            print(f"replay: {again}")
            sys.exit(1)
        if wanted.story:
            print("\n".join(story))
        if (seed - first) % 20 == 19:
            took = time.monotonic() - started
            print(f"{seed - first + 1} seeds in {took:.0f} s", file=sys.stderr, flush=True)
    print("reached: " + ", ".join(f"{count} {what}" for what, count in sorted(tally.items())))
    print(f"seeds {first} to {last - 1} hold")


def last_story() -> list[str]:
    """What happened in the run that has just failed."""
    return Simulation.latest.trace if Simulation.latest is not None else []
