"""Deleted topics of which no record is left: what a start forgets of them, and in which order."""

from __future__ import annotations

import errno
import random
from collections import Counter
from pathlib import Path, PurePath

import pytest

from gantrymq.brokerd.gonetopics import forget_gone
from gantrymq.brokerd.queuefiles import QueueKey
from gantrymq.brokerd.queuestarts import read_starts, save_starts
from gantrymq.shm.layout import CQ_UNIT_BYTES
from gantrymq.shm.queuenames import queue_directory
from gantrymq.shm.storage import PosixStorage
from gantrymq.workers.housekeeper.progress import read_progress, save_progress
from tests.support.faults import Fault, FaultPlan, KilledError, Moment, kill_at
from tests.support.simdisk import Disk
from tests.support.simstorage import SimStorage
from tests.support.trials import mends

#: Units of each queue, and the first that is still there.
UNITS: dict[QueueKey, tuple[int, int]] = {
    ("gone", 0): (5, 5), ("gone", 1): (0, 0), ("partly", 0): (5, 5), ("partly", 1): (4, 3),
    ("there", 0): (6, 6), ("half", 0): (2, 2),
}  # fmt: skip
DELETED = {"gone", "partly", "half"}
CQ_BYTES = 20 * CQ_UNIT_BYTES


def filled() -> Disk:
    """A store whose notes and files have these queues."""
    storage = SimStorage(Disk())
    for key in UNITS:
        file = storage.create(f"{queue_directory(storage, *key)}/{0:020d}")
        file.truncate(CQ_BYTES)
        file.sync()
        folder = queue_directory(storage, *key)
        for name in (folder, *map(str, PurePath(folder).parents)):
            storage.sync_directory("" if name == "." else name)
    save_progress(storage, 900, {key: units for key, (units, _first) in UNITS.items()})
    save_starts(storage, 800, {key: first for key, (_units, first) in UNITS.items()})
    storage.sync_directory("")
    return storage.disk


def forget(storage: SimStorage) -> set[str]:
    """As a start does; the topics that it still knows. `half` has records without a queue."""
    queues = {key: (units, units, first) for key, (units, first) in UNITS.items()}
    forget_gone(storage, DELETED, queues, {"half", "there"})
    return {name for name, _queue_id in queues}


@mends("S47")
def test_what_was_deleted_and_has_no_record_is_forgotten() -> None:
    """Not the other queues of a topic that has some; not a topic that was not deleted."""
    storage = SimStorage(filled())
    assert forget(storage) == {"partly", "there", "half"}
    progress, starts = read_progress(storage), read_starts(storage)
    assert progress is not None
    assert starts is not None
    kept = {key: numbers for key, numbers in UNITS.items() if key[0] != "gone"}
    assert progress == (900, {key: units for key, (units, _first) in kept.items()})
    assert starts == (800, {key: first for key, (_units, first) in kept.items()})
    files = Counter(key for key in UNITS if storage.list(queue_directory(storage, *key)))
    assert set(files) == set(kept)


@mends("S210")
def test_what_is_no_file_of_a_queue_stays_and_keeps_no_start_from_going_on(store_dir: Path) -> None:
    """Nobody has made that folder but who put it there."""
    storage = PosixStorage(str(store_dir))
    folder = queue_directory(storage, "gone", 0)
    storage.make_directory(f"{folder}/notes")
    storage.create(f"{folder}/{0:020d}").close()
    queues = {("gone", 0): (5, 5, 5)}
    forget_gone(storage, DELETED, queues, ())
    assert (queues, storage.list(folder)) == ({}, ["notes"])


@pytest.mark.parametrize("moment", list(Moment))
def test_no_file_goes_before_the_notes_that_tell_of_it(moment: Moment) -> None:
    """Killed at any call, with a power cut and without one."""
    for call in range(1, 100):
        storage = SimStorage(filled(), "test", FaultPlan((kill_at(call, moment),)))
        try:
            forget(storage)
        except KilledError:
            require_order(storage.disk.clone())
            for seed in range(20):
                cut = storage.disk.clone()
                cut.power_cut(random.Random(seed))
                require_order(cut)
        else:
            break
    assert 5 < call < 99


def require_order(disk: Disk) -> None:
    storage = SimStorage(disk)
    progress, starts = read_progress(storage), read_starts(storage)
    assert progress is not None
    assert starts is not None
    for key in UNITS:
        has_file = bool(storage.list(queue_directory(storage, *key)))
        assert has_file or (key not in progress[1] and key not in starts[1]), key
    # As a start does, which knows of a queue by its progress.
    first = {key: begin for key, (_units, begin) in UNITS.items()}
    queues = {key: (units, units, first[key]) for key, units in progress[1].items()}
    forget_gone(storage, DELETED, queues, {"half", "there"})
    assert {name for name, _queue_id in queues} == {"partly", "there", "half"}
    for table in (read_progress(storage), read_starts(storage)):
        assert table is not None
        assert "gone" not in {name for name, _queue_id in table[1]}


def test_on_a_full_disk_all_stays_as_it_is() -> None:
    full = Fault(1, error=errno.ENOSPC, kinds=("write",), persistent=True)
    storage = SimStorage(filled(), "test", FaultPlan([full]))
    assert forget(storage) == {"gone", "partly", "there", "half"}
    assert all(storage.list(queue_directory(storage, *key)) for key in UNITS)
