"""Derived files may be deleted or damaged on a stopped store: the next start makes them again."""

from __future__ import annotations

import pytest

from gantrymq.shm import layout
from gantrymq.shm.codes import ParkMode, Status
from gantrymq.shm.storage import read_file
from gantrymq.workers.scheduler.note import FILE as NOTE
from gantrymq.workers.scheduler.note import Note, read_note
from tests.sim import scenario
from tests.sim.downfalls import STEPS_MAX
from tests.sim.scenario import World
from tests.support.delivering import check_all_delivered
from tests.support.simproducer import SimProducer
from tests.support.simstorage import SimStorage
from tests.support.trials import mends

ONE_BY_ONE = (
    "consumequeue",
    "consumequeue/plain/0",
    "gantry/segments",
    "gantry/queues.json",
    "gantry/producers",
    "checkpoint",
)


def stopped_world() -> World:
    world = scenario.new_world(13)
    for producer in world.producers:
        producer.delays = False  # what is delivered at the next start would change the queues
        producer.send_more(60)
    world.simulation.run_until(world.settled, STEPS_MAX)
    scenario.stop_cleanly(world)
    return world


def files_under(storage: SimStorage, *roots: str) -> dict[str, bytes]:
    """Contents of all files that are one of `roots` or inside of one."""
    names = [name for name, inode in storage.disk.names.entries.items() if inode is not None]
    return {
        name: read_file(storage, name)
        for name in names
        for root in roots
        if name == root or name.startswith(f"{root}/")
    }


def start_and_stop(world: World) -> None:
    """One more life in which the reader gets to the log's end, and a clean stop."""
    world.machine.start()
    scenario.stop_cleanly(world)


@pytest.mark.parametrize("lost", [*[(name,) for name in ONE_BY_ONE], ONE_BY_ONE])
def test_what_was_deleted_is_made_again(lost: tuple[str, ...]) -> None:
    """P14. The oracle compares ConsumeQueues and log at each start as well."""
    world = stopped_world()
    storage = SimStorage(world.machine.disk)
    before = files_under(storage, *ONE_BY_ONE)
    for name in files_under(storage, *lost):
        storage.unlink(name)
    start_and_stop(world)
    after = files_under(storage, *ONE_BY_ONE)
    assert after.keys() == before.keys()
    same = {name for name in before if not name.startswith("gantry/producers")}
    assert {name for name in same if after[name] != before[name]} == set()
    assert _producers(after) == _producers(before)


@pytest.mark.parametrize("lost", ["index", "gantry/index.json", "oldest", "newest"])
def test_the_index_is_made_again(lost: str) -> None:
    """P14: names apart. The oracle compares index and log after each clean stop as well."""
    world = stopped_world()
    storage = SimStorage(world.machine.disk)
    before = files_under(storage, "index")
    assert len(before) > 2
    one = {"oldest": min(before), "newest": max(before)}.get(lost, lost)
    for name in files_under(storage, one):
        storage.unlink(name)
    world.machine.index_holds = False
    start_and_stop(world)
    world.machine.index_holds = True
    after = files_under(storage, "index")
    assert [after[name] for name in sorted(after)] == [before[name] for name in sorted(before)]
    start_and_stop(world)


@pytest.mark.parametrize("name", ["gantry/producers", "gantry/queues.json"])
@pytest.mark.parametrize("damage", ["empty", "cut", "changed", "noise"])
def test_what_was_damaged_is_made_again(name: str, damage: str) -> None:
    world = stopped_world()
    storage = SimStorage(world.machine.disk)
    before = files_under(storage, *ONE_BY_ONE)
    good = before[name]
    bad = {
        "empty": b"",
        "cut": good[:-1],
        "changed": good[:20] + bytes([good[20] ^ 1]) + good[21:],
        "noise": bytes(range(256)),
    }[damage]
    storage.unlink(name)
    storage.create(name).write_at(bad, 0)
    start_and_stop(world)
    after = files_under(storage, *ONE_BY_ONE)
    assert _producers(after) == _producers(before)
    assert after["gantry/queues.json"] == before["gantry/queues.json"]


@pytest.mark.parametrize("damage", ["kept", "deleted", "changed"])
def test_a_message_sent_again_is_known_without_the_table_of_producers(damage: str) -> None:
    """P6: its receipt was lost with a broker's restart, so its producer submits it once more."""
    world = scenario.new_world(13)
    producer = world.producers[0]
    world.simulation.run_until(world.settled, STEPS_MAX)
    scenario.stop_cleanly(world)
    storage = SimStorage(world.machine.disk)
    if damage == "deleted":
        storage.unlink("gantry/producers")
    elif damage == "changed":
        storage.open("gantry/producers", write=True).write_at(b"\xff", 40)
    again = SimProducer("again", world.machine, 5)
    known = again.inherit(producer, 3)
    world.machine.start()
    world.producers.append(again)
    world.simulation.add(again)
    world.add_consumer()
    world.simulation.run_until(world.settled, STEPS_MAX)
    receipts = world.model.senders[again.producer.hex()].receipts
    answers = {receipts[seq].status for seq in known}
    assert answers <= {Status.DUPLICATE, Status.UNKNOWN_POSITION}
    scenario.stop_cleanly(world)
    world.machine.start()  # the oracle finds none twice


@mends("S217")
def test_what_had_no_topic_is_delivered_without_the_scheduler_s_note() -> None:
    """P9, P14: a topic that nobody can make for one life is there again in the next."""
    world = scenario.new_world(13)
    machine, usual = world.machine, world.machine.topics
    machine.topics = {**usual, "rare": (1, "written")}
    for producer in world.producers:
        producer.topics = list(usual)
    late = world.add_producer(0)
    late.topics, late.at_once, late.waits = ["rare"], 0.0, [(ParkMode.LEVEL, 3)]
    for _ in range(8):
        late.send_more(1)  # of a batch nothing is due later
        world.simulation.run_until(world.settled, STEPS_MAX)
    assert machine.metadata is not None, "it is running"
    machine.metadata.delete("rare")
    scenario.stop_cleanly(world)
    machine.topics = usual
    machine.start()
    scenario.wait(world)
    scenario.stop_cleanly(world)
    assert len(stored_note(world).absent) == 8
    SimStorage(machine.disk).unlink(NOTE)
    machine.topics = {**usual, "rare": (1, "written")}
    machine.start()
    scenario.wait(world)
    wall_ms = world.simulation.clock.wall_ms()
    scenario.stop_cleanly(world)
    machine.start()  # the oracle finds none twice
    check_all_delivered(world.model, wall_ms, scenario.WAIT_MS)


def stored_note(world: World) -> Note:
    """The scheduler's."""
    note = read_note(SimStorage(world.machine.disk))
    assert note is not None, "it is there and whole"
    return note


def _producers(files: dict[str, bytes]) -> dict[bytes, int]:
    data = files["gantry/producers"]
    rows = range(layout.PRODUCERS_HEAD.size, len(data), layout.PRODUCER.size)
    found = (layout.PRODUCER.unpack(data, at) for at in rows)
    return {row["producer"]: row["last_seq"] for row in found}
