"""P14: whatever is derived may be gone from a stopped store; a start makes the same of the log."""

from __future__ import annotations

from copy import deepcopy
from functools import cache

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gantrymq.brokerd.rebuild import DERIVED
from gantrymq.shm import layout
from gantrymq.shm.indexnote import NOTE_FILE
from gantrymq.shm.storage import read_file
from gantrymq.workers.scheduler.note import FILE as SCHEDULE_FILE
from gantrymq.workers.transactions.note import FILE as TRANSACTIONS_FILE
from tests.sim import scenario
from tests.sim.downfalls import STEPS_MAX
from tests.sim.scenario import World
from tests.support.simdisk import Disk
from tests.support.simstorage import SimStorage

EXAMPLES = 40
#: RocketMQ's checkpoint is derived as well, and made by the same stop.
DELETED_TOO = (*DERIVED, "checkpoint")
#: The other files of config/ are written anew at each stop.
TRUTH = ("commitlog/", "config/topics.json", "config/consumerOffset.json")


@cache
def stopped_world() -> tuple[World, Disk]:
    """A stopped store, and its disk to be copied."""
    world = scenario.new_world(29)
    for producer in world.producers:
        producer.delays = False  # what waits would hold segments, and be delivered at a start
        producer.send_more(60)
    world.simulation.run_until(world.settled, STEPS_MAX)
    scenario.stop_cleanly(world)
    disk = world.machine.disk
    disk.pause = Disk().pause  # copies are no part of this world, which would be copied with them
    return world, deepcopy(disk)


def files(storage: SimStorage, *roots: str) -> dict[str, bytes]:
    names = [name for name, inode in storage.disk.names.entries.items() if inode is not None]
    notes = (SCHEDULE_FILE, TRANSACTIONS_FILE)  # made by their agents' next start
    return {
        name: read_file(storage, name)
        for name in names
        if name.startswith(roots) and not name.endswith(".bak") and name not in notes
    }


def without_names(found: dict[str, bytes]) -> dict[str, bytes]:
    """Index files by number, without the note that names them: names are times of their making."""
    index = sorted(name for name in found if name.startswith("index/"))
    rest = {name: found[name] for name in found.keys() - {*index, NOTE_FILE}}
    return rest | {f"index/{number}": found[name] for number, name in enumerate(index)}


def last_seqs(found: dict[str, bytes]) -> dict[bytes, int]:
    """What the table of producers says; its times are of no promise."""
    data = found.pop("gantry/producers")
    places = range(layout.PRODUCERS_HEAD.size, len(data), layout.PRODUCER.size)
    rows = (layout.PRODUCER.unpack(data, at) for at in places)
    return {row["producer"]: row["last_seq"] for row in rows}


@settings(
    max_examples=EXAMPLES, deadline=None, database=None, derandomize=True,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
@given(st.data())
def test_any_subset_of_derived_files_may_be_deleted(data: st.DataObject) -> None:
    """Messages, queue offsets, sidecars, index and seqs are the same; log and commits stay."""
    world, disk = stopped_world()
    world.machine.disk = deepcopy(disk)
    storage = SimStorage(world.machine.disk)
    before = files(storage, *DELETED_TOO)
    assert any(name.startswith("index/") for name in before)
    truth = files(storage, *TRUTH)
    lost = data.draw(st.sets(st.sampled_from(sorted(before))), label="deleted")
    for name in lost:
        storage.unlink(name)
    world.machine.index_holds = False
    world.machine.start()
    scenario.stop_cleanly(world)
    world.machine.index_holds = True
    after = files(storage, *DELETED_TOO)
    assert last_seqs(after) == last_seqs(before)
    assert after.keys() >= {NOTE_FILE, "gantry/queues.json"}
    assert without_names(after) == without_names(before)
    assert files(storage, *TRUTH) == truth
