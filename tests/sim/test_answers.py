"""A message that is in the log is answered with its place there, whatever died in between."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest

from gantrymq.brokerd import unanswered
from gantrymq.shm import layout
from gantrymq.shm.codes import Role, Status
from tests.sim import scenario
from tests.sim.downfalls import STEPS_MAX, kill_everything
from tests.sim.scenario import World


def dead_after_append(world: World) -> None:
    """Run until a writer has died between append and answer, and its successor is there."""
    simulation, machine = world.simulation, world.machine
    for producer in world.producers:
        producer.send_more(30)
    first = simulation.actors.get("writer")
    simulation.kill_at_mark("writer.after_appended", 3)
    simulation.run_until(partial(_has_another, world, first), STEPS_MAX)
    assert machine.board is not None
    assert machine.board.word(layout.BOARD_SETTLED) < machine.board.word(layout.BOARD_APPENDED)


def _has_another(world: World, first: object) -> bool:
    found = world.simulation.actors.get("writer")
    started = first is not None or world.machine.lives
    met = "writer.after_appended" in world.simulation.marks_passed
    return bool(started and met and found is not None and found is not first)


def answers(world: World) -> Counter[Status]:
    world.simulation.run_until(world.settled, STEPS_MAX)
    senders = world.model.senders.values()
    found = Counter(receipt.status for s in senders for receipt in s.receipts.values())
    scenario.stop_cleanly(world)
    world.machine.start()  # the oracle compares positions, and finds none twice
    return found


@pytest.mark.parametrize("deaths", [1, 2, 5])
def test_writers_that_die_before_the_answer_change_nothing(deaths: int) -> None:
    """Each of them learns from the log what the one before it did not get to say."""
    world = scenario.new_world(5)
    simulation = world.simulation
    simulation.run_until(lambda: "writer" in simulation.actors, STEPS_MAX)
    dead_after_append(world)
    for _ in range(deaths - 1):
        before = simulation.actors["writer"]
        world.machine.kill_agent(Role.WRITER)
        simulation.run_until(partial(_has_another, world, before), STEPS_MAX)
    found = answers(world)
    assert found[Status.DUPLICATE] > 0
    assert found[Status.UNKNOWN_POSITION] == 0


def test_a_kill_of_everything_behind_a_writers_death_changes_nothing() -> None:
    world = scenario.new_world(5)
    simulation = world.simulation
    simulation.run_until(lambda: "writer" in simulation.actors, STEPS_MAX)
    dead_after_append(world)
    kill_everything(world)
    world.machine.plans.supervisor = ()
    assert answers(world)[Status.DUPLICATE] > 0


def test_what_is_kept_for_answers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who does not come back holds up `settled` for so many bytes and no longer."""
    monkeypatch.setattr(unanswered, "UNANSWERED_BYTES_MAX", 8192)
    world = scenario.new_world(5)
    simulation, machine = world.simulation, world.machine
    simulation.run_until(lambda: "writer" in simulation.actors, STEPS_MAX)
    dead_after_append(world)
    for producer in list(world.producers):
        producer.die()
    world.producers.clear()
    world.add_producer(120)
    simulation.run_until(world.settled, STEPS_MAX)
    assert machine.board is not None
    behind = machine.board.word(layout.BOARD_APPENDED) - machine.board.word(layout.BOARD_SETTLED)
    assert 0 <= behind <= 8192


def test_a_refusal_that_nobody_heard_is_not_called_stored() -> None:
    """Drained from the ring of a session that ended, on a full disk: it is tried again instead."""
    world = scenario.new_world(5)
    simulation, machine = world.simulation, world.machine
    simulation.run_until(lambda: machine.running, STEPS_MAX)
    scenario.fill_the_disk(world)
    for _ in range(10):
        world.more_traffic()
        full = world.model.tally["DISK_FULL"]
        simulation.run_until(partial(_is_full_again, world, full), STEPS_MAX)
        scenario.drop_a_connection(world)
    scenario.make_room(world)
    found = answers(world)
    assert found[Status.DISK_FULL] > 0
    assert found[Status.UNKNOWN_POSITION] == 0


def _is_full_again(world: World, before: int) -> bool:
    return world.model.tally["DISK_FULL"] > before or all(p.done for p in world.producers)
