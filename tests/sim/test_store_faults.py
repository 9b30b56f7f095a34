"""Single calls of the store that fail, in a whole simulated machine: what is final, what is not."""

from __future__ import annotations

import errno
from typing import cast

import pytest

from gantrymq.shm import layout
from gantrymq.shm.codes import BrokerState, Role
from gantrymq.shm.indexnote import NOTE_FILE
from gantrymq.workers.groups.agent import Groups
from gantrymq.workers.sparetime import InSpareTime
from tests.sim import scenario
from tests.sim.downfalls import STEPS_MAX, kill_everything
from tests.sim.scenario import World
from tests.support.faults import Fault, Moment
from tests.support.simdisk import ROOM_FOR_ALL
from tests.support.simulation import AgentActor
from tests.support.trials import mends

#: More calls of a kind than any agent makes in these runs.
CALLS_MAX = 400


def busy_world(*faults: Fault, role: Role = Role.WRITER) -> World:
    """A machine that is about to fill several segments; `faults` are those of one agent."""
    world = scenario.new_world(11)
    for producer in world.producers:
        producer.send_more(40)
    world.simulation.run_until(lambda: world.machine.running, STEPS_MAX)
    world.machine.stores[role.name.lower()].faults.faults = faults
    return world


def run(world: World) -> World:
    """Until all is consumed, and what `groups` has written is on the disk."""
    world.simulation.run_until(lambda: world.settled() and ledger_is_synced(world), STEPS_MAX)
    return world


def ledger_is_synced(world: World) -> bool:
    actor = world.simulation.actors.get("groups")
    assert actor is None or isinstance(actor, AgentActor)
    agent = cast(InSpareTime, actor.agent)._first if actor is not None else None
    return agent is not None and not cast(Groups, agent).ledger.unsynced


def stop_and_check(world: World) -> None:
    """Stop, start, and let the oracle look at the store."""
    scenario.calm(world)
    run(world)
    scenario.start_again(world)


@pytest.mark.parametrize("kind", ["create", "write", "sync", "rename", "sync_directory"])
def test_no_room_for_the_table_of_producers_is_only_noted(kind: str) -> None:
    under = "gantry" if kind == "sync_directory" else "gantry/producers"
    fault = Fault(1, Moment.BEFORE, errno.ENOSPC, (kind,), persistent=True, under=under)
    world = run(busy_world(fault))
    board = world.machine.board
    assert board is not None
    assert world.model.tally["no_space_for_producers"]
    assert world.machine.lives == 1
    assert board.half(layout.BOARD_STATE) == BrokerState.READY
    assert board.word(layout.BOARD_APPENDED) > board.segment_bytes
    stop_and_check(world)


@pytest.mark.parametrize("kind", ["create", "write", "truncate", "sync", "rename"])
def test_no_room_for_the_index_is_only_noted(kind: str) -> None:
    """It goes on once there is room; a sync that fails is final, whatever it says."""
    under = {"sync": "gantry/index", "rename": "gantry/index"}.get(kind, "index/")
    at = 1 if kind in ("sync", "rename") else 2
    fault = Fault(at, Moment.BEFORE, errno.ENOSPC, (kind,), persistent=True, under=under)
    world = busy_world(fault, role=Role.HOUSEKEEPER)
    notes = world.machine.tables[Role.HOUSEKEEPER].notes
    world.simulation.run_until(
        lambda: any(event == "no_space_for_index" for _, event, _ in notes), STEPS_MAX
    )
    run(world)
    board = world.machine.board
    assert board is not None
    assert world.machine.lives == 1
    assert board.half(layout.BOARD_STATE) == BrokerState.READY
    stop_and_check(world)


@pytest.mark.parametrize(("role", "file"), [
    (Role.WRITER, "gantry/producers"), (Role.FLUSHER, "gantry/checkpoint"),
    (Role.HOUSEKEEPER, "index/"), (Role.HOUSEKEEPER, "gantry/segments"),
])  # fmt: skip
def test_a_write_error_of_a_derived_file_is_final(role: Role, file: str) -> None:
    """The board says FAILED, the store is told of, and a restart recovers."""
    fault = Fault(1, Moment.BEFORE, errno.EIO, ("write",), under=file)
    world = busy_world(fault, role=role)
    world.simulation.run_until(lambda: bool(world.machine.tables[role].failures), STEPS_MAX)
    board = world.machine.board
    assert board is not None
    assert board.half(layout.BOARD_STATE) == BrokerState.FAILED
    assert board.half(layout.BOARD_FAILED_ERRNO) == errno.EIO
    appended = board.word(layout.BOARD_APPENDED)
    for _ in range(200):  # the supervisor does not hear of it yet
        actor = world.simulation.actors["writer"]
        actor.step(world.simulation.clock.monotonic_ns())
    assert role is not Role.WRITER or board.word(layout.BOARD_APPENDED) == appended
    stop_and_check(world)
    assert world.machine.lives == 3


@mends("S288")
@pytest.mark.parametrize("fails", [True, False])
def test_the_key_index_is_made_again_after_a_failed_sync_only(fails: bool) -> None:
    """P3: slots are changed in place; those that were put back may not be on the disk."""
    world = busy_world()
    disk, forgotten = world.machine.disk, list[str]()

    def watch(process: str, kind: str, name: str) -> None:
        if (kind, name) == ("unlink", NOTE_FILE):
            forgotten.append(process)

    world.simulation.run_until(lambda: NOTE_FILE in disk.names.entries, STEPS_MAX)
    disk.watch = watch
    if fails:
        fault = Fault(1, Moment.BEFORE, errno.EIO, ("sync",))
        world.machine.stores["groups"].faults.faults = (fault,)
        world.simulation.run_until(lambda: world.machine.lives > 1, STEPS_MAX)
    else:
        kill_everything(world)
    stop_and_check(world)
    assert bool(forgotten) == fails
    assert NOTE_FILE in disk.names.entries


@pytest.mark.parametrize(
    "role", [Role.WRITER, Role.FLUSHER, Role.READER, Role.GROUPS, Role.HOUSEKEEPER]
)
@pytest.mark.parametrize("kind", ["write", "sync"])
def test_each_call_of_an_agent_may_fail(role: Role, kind: str) -> None:
    """F5: whichever it is, the agent says FAILED, nothing false is acknowledged, none hangs."""
    step = 5 if role in (Role.WRITER, Role.READER) and kind == "write" else 3
    for call in range(1, CALLS_MAX, step):
        fault = Fault(call, Moment.BEFORE, errno.EIO, (kind,))
        world = run(busy_world(fault, role=role))
        if world.machine.lives == 1:
            break
        stop_and_check(world)
    assert world.machine.lives == 1, "every call has been tried"
    assert call > 1 or (kind == "sync" and role in (Role.WRITER, Role.READER)), "they sync nothing"


def test_sends_are_refused_while_there_is_no_room_for_a_segment() -> None:
    world = busy_world()
    world.machine.disk.allocate_max = 0
    producers = world.producers
    world.simulation.run_until(lambda: world.model.tally["DISK_FULL"] > 0, STEPS_MAX)
    assert world.machine.lives == 1
    run(world)
    world.machine.disk.allocate_max = ROOM_FOR_ALL
    world.simulation.clock.advance(1_000_000_000)
    accepted = world.model.tally["OK"]
    for producer in producers:
        producer.send_more(10)
    run(world)
    assert world.model.tally["OK"] >= accepted + 20
    assert world.machine.lives == 1
    stop_and_check(world)


@mends("S319")
@pytest.mark.parametrize("meets", ["a start", "a new writer"])
def test_a_log_without_blocks_on_a_full_disk_refuses_sends_until_there_is_room(meets: str) -> None:
    """A back-up's last segment is a hole behind its end: an append there was the store's failure.

    And the zeroes behind the end, where a writer that died may have been, were six deaths.
    """
    world = busy_world()
    run(world)
    machine, disk = world.machine, world.machine.disk
    kill_everything(world)
    machine.plans.supervisor = ()
    machine.copy_sparsely()
    disk.allocate_max = 0
    if meets == "a new writer":
        world.simulation.run_until(lambda: machine.running, STEPS_MAX)
        machine.kill_agent(Role.WRITER)
    world.simulation.run_until(lambda: machine.running, STEPS_MAX)
    lives = machine.lives
    for producer in world.producers:
        producer.send_more(20)
    accepted = world.model.tally["OK"]
    world.simulation.run_until(lambda: world.model.tally["DISK_FULL"] > 0, STEPS_MAX)
    run(world)
    assert world.model.tally["OK"] == accepted
    scenario.make_room(world)
    world.simulation.clock.advance(1_000_000_000)
    for producer in world.producers:
        producer.send_more(10)
    run(world)
    assert world.model.tally["OK"] >= accepted + 20
    assert machine.lives == lives
    stop_and_check(world)


@pytest.mark.parametrize("under", ["gantry/schedule.json", "gantry/timers"])
def test_a_scheduler_without_room_does_not_spin(under: str) -> None:
    """It tries again every second, and looks for what is due each millisecond meanwhile."""
    fault = Fault(1, Moment.BEFORE, errno.ENOSPC, (), persistent=True, under=under)
    world = busy_world(fault, role=Role.SCHEDULER)
    simulation, machine = world.simulation, world.machine
    for recaller in world.recallers:
        recaller.left = 0  # what is not in its bucket cannot be looked up
    storage = machine.stores["scheduler"]
    simulation.run_until(lambda: bool(storage.faults.met), STEPS_MAX)
    simulation.run_until(world.settled, STEPS_MAX)
    assert machine.board is not None
    at = machine.board.process_at(Role.SCHEDULER) + layout.PROCESS_HEARTBEAT
    before, until_ns = machine.board.word(at), simulation.clock.monotonic_ns() + 500_000_000
    simulation.run_until(lambda: simulation.clock.monotonic_ns() >= until_ns, STEPS_MAX)
    assert machine.board.word(at) - before < 600
    assert machine.lives == 1
    stop_and_check(world)
