"""Each site at which an agent changes the disk fails, once and for good (F7, F9).

A site is a process, a kind of call, and a kind of file, as a run without faults shows them.
"""

from __future__ import annotations

import errno
import re
from functools import partial

import pytest

from gantrymq.shm.codes import Role
from tests.sim import scenario
from tests.sim.downfalls import STEPS_MAX, cut_power
from tests.sim.scenario import World
from tests.support.faults import Fault, Moment
from tests.support.simdisk import parent_of
from tests.support.simmachine import ROLES
from tests.support.simstorage import OPENS, SYNCS, SimStorage
from tests.support.trials import mends

#: process, kind, beginning of the file's name
Site = tuple[str, str, str]
#: What finds no room: a sync or rename that fails is not about room in this broker's eyes.
NEEDS_ROOM = {"create", "write", "allocate", "make_directory"}
STEPS_WITH_IT = 400
AGENTS = {role.name.lower(): role for role in ROLES}
#: Reached by a clean stop alone, which asks for no room and is done with the log.
AT_A_STOP = {("flusher", "unlink", "gantry/spare")}
_NUMBERED = re.compile(r"^(commitlog|consumequeue|index|gantry/segments)/.*|^(gantry/timers)/\d+$")


def busy_world() -> World:
    world = scenario.new_world(11)  # which gets to all of them before it is stopped
    for producer in world.producers:
        producer.send_more(40)
    return world


@pytest.fixture(scope="module")
def sites() -> list[Site]:
    """Where agents change the disk."""
    world, found = busy_world(), set[Site]()

    def watch(process: str, kind: str, name: str) -> None:
        if process in AGENTS:
            found.add((process, kind, _NUMBERED.sub(r"\1\2/", name)))

    world.machine.disk.watch = watch
    world.simulation.run_until(world.settled, STEPS_MAX)
    scenario.stop_cleanly(world)
    return sorted(found - AT_A_STOP)


def run(site: Site, number: int, *, persistent: bool) -> World:
    """A run in which the site fails; then it is mended, and the oracle looks."""
    process, kind, under = site
    world = busy_world()
    fault = Fault(1, Moment.BEFORE, number, (kind,), persistent, under)
    world.machine.plans.agents[AGENTS[process]] = (fault,)
    if kind in SYNCS:
        world.machine.disk.watch = FailedSyncs(world, process, lasting=number == errno.EIO).watch
    simulation = world.simulation
    simulation.run_until(partial(_is_met, world, process), STEPS_MAX)
    simulation.run_until(
        partial(simulation.has_reached, simulation.steps + STEPS_WITH_IT), STEPS_MAX
    )
    scenario.calm(world)
    simulation.run_until(world.settled, STEPS_MAX)
    scenario.start_again(world)
    return world


class FailedSyncs:
    """P3: what the kernel has dropped is never said to be on the disk by another sync.

    An error of the device is `lasting`; after a want of room what was written anew may be synced.
    """

    def __init__(self, world: World, process: str, *, lasting: bool) -> None:
        self._world, self._process, self._lasting = world, process, lasting
        self._failed: set[str] = set()
        self._store: SimStorage | None = None  # of the process that `_failed` is of
        self._met = 0  # how many faults were looked at

    def watch(self, who: str, what: str, name: str) -> None:
        """Look at a change, before and after it."""
        store = self._world.machine.stores.get(who)
        if who != self._process or store is None:
            return
        if store is not self._store:
            self._failed, self._store, self._met = set(), store, 0
        met = store.faults.met[self._met :]
        self._met = len(store.faults.met)
        self._failed |= {text.split()[1].rstrip(":") for text in met if text.startswith(SYNCS)}
        if what not in SYNCS:
            self._failed -= set() if self._lasting else {name, parent_of(name)}
        else:
            assert name not in self._failed, f"{who} syncs {name or '.'} again after it failed"


def run_on_what_was_dropped(site: Site, at: int) -> None:
    """A sync fails and pages that it drops count as clean; the next life works on them, and syncs.

    Then the power goes, with whatever is not on the disk, and the oracle looks.
    """
    process, kind, under = site
    world = busy_world()
    fault = Fault(at, Moment.BEFORE, errno.EIO, (kind,), under=under)
    world.machine.plans.agents[AGENTS[process]] = (fault,)
    simulation = world.simulation
    simulation.run_until(partial(_is_met_or_settled, world, process), STEPS_MAX)
    if world.machine.lives == 1 and not _is_met(world, process):
        return  # it does not sync as often
    scenario.calm(world)
    simulation.run_until(world.settled, STEPS_MAX)
    for _ in range(2):
        world.add_producer(10)
        scenario.wait(world)
    cut_power(world)
    scenario.calm(world)
    simulation.run_until(world.settled, STEPS_MAX)
    scenario.start_again(world)


def _is_met_or_settled(world: World, process: str) -> bool:
    return _is_met(world, process) or world.settled()


def _is_met(world: World, process: str) -> bool:
    store = world.machine.stores.get(process)
    return bool(store and store.faults.met) or world.machine.lives > 1


@pytest.mark.parametrize("persistent", [False, True], ids=["once", "for-good"])
@pytest.mark.parametrize("process", AGENTS)
def test_an_error_of_the_disk_is_final_wherever_it_comes(
    sites: list[Site], process: str, persistent: bool
) -> None:
    """F9, P3: the agent says FAILED or does not start; a restart recovers; nothing is lost."""
    mine = [site for site in sites if site[0] == process]
    assert mine
    for site in mine:
        try:
            world = run(site, errno.EIO, persistent=persistent)
        except BaseException as error:
            raise AssertionError(f"{site}: {error}") from error
        told = any("dies while starting" in line for line in world.simulation.trace)
        # The start that the oracle looks at is one more life.
        assert world.machine.lives > 2 or told, f"{site} failed and nobody said so"


@pytest.mark.parametrize("process", AGENTS)
def test_no_room_anywhere_loses_nothing(sites: list[Site], process: str) -> None:
    """F7, until there is room: refused, noted or final, as the site asks; answers hold."""
    for site in [s for s in sites if s[0] == process and s[1] in NEEDS_ROOM]:
        try:
            run(site, errno.ENOSPC, persistent=True)
        except BaseException as error:
            raise AssertionError(f"{site}: {error}") from error


@mends("S28")
@pytest.mark.parametrize("process", AGENTS)
def test_a_sync_that_lacks_room_is_not_tried_again(sites: list[Site], process: str) -> None:
    """P3: it is final, or all is written anew before the next; nothing is lost."""
    for site in [s for s in sites if s[0] == process and s[1] in SYNCS]:
        try:
            run(site, errno.ENOSPC, persistent=False)
        except BaseException as error:
            raise AssertionError(f"{site}: {error}") from error


@mends("S288")
@pytest.mark.usefixtures("nothing_reaches_the_disk")
@pytest.mark.parametrize("process", AGENTS)
def test_what_a_failed_sync_has_dropped_is_written_again(sites: list[Site], process: str) -> None:
    """P3: no life says of a page that it is on the disk since a sync had nothing to write."""
    for site in [s for s in sites if s[0] == process and s[1] == "sync"]:
        for at in (1, 3, 8):
            try:
                run_on_what_was_dropped(site, at)
            except BaseException as error:
                raise AssertionError(f"{site}, sync {at}: {error}") from error


@mends("S112")
@pytest.mark.parametrize("process", AGENTS)
def test_without_descriptors_an_agent_ends_and_the_store_has_not_failed(
    sites: list[Site], process: str
) -> None:
    """Wherever it opens something; its successor goes on."""
    mine = sorted({(kind, under) for who, kind, under in sites if who == process and kind in OPENS})
    for at, kind, under in [*((at, "open", "") for at in (1, 4, 9)), *((1, *one) for one in mine)]:
        world = busy_world()
        fault = Fault(at, Moment.BEFORE, errno.EMFILE, (kind,), persistent=True, under=under)
        world.machine.plans.agents[AGENTS[process]] = (fault,)
        try:
            world.simulation.run_until(world.settled, STEPS_MAX)
            assert world.machine.lives == 1, "the store has failed"
            scenario.calm(world)
            scenario.start_again(world)
        except BaseException as error:
            raise AssertionError(f"{process} at {kind} {under}: {error}") from error


def test_the_sites_are_those_of_all_agents(sites: list[Site]) -> None:
    """A canary: a run that meets few of them would show little."""
    assert {site[0] for site in sites} == set(AGENTS)
    assert {"write", "sync", "create", "rename", "sync_directory"} <= {site[1] for site in sites}
    assert len(sites) > 25
    assert Role.WRITER.name.lower() in AGENTS
