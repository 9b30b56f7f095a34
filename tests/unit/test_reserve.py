"""Blocks that a start on a full disk gives back (F7)."""

from __future__ import annotations

import errno
import random
from functools import partial

import pytest

from gantrymq.brokerd import reserve
from gantrymq.brokerd.epoch import Life, boot_id, mark_running, mark_stopped
from gantrymq.shm.ranges import read_ranges
from tests.support.faults import Fault, FaultPlan
from tests.support.simdisk import Disk
from tests.support.simstorage import SimStorage
from tests.support.trials import mends


def filled(disk: Disk, left: int) -> SimStorage:
    """Storage whose disk has so many bytes left."""
    storage = SimStorage(disk)
    disk.capacity = disk.used() + left
    return storage


def test_blocks_are_kept_where_there_is_room_and_given_back_where_there_is_none() -> None:
    disk = Disk()
    storage = SimStorage(disk)
    storage.make_directory("gantry")
    reserve.keep(storage)
    assert storage.size_of(reserve.NAME) == reserve.RESERVE_BYTES
    assert not reserve.give_back(storage)
    full = filled(disk, reserve.RESERVE_BYTES - 1)
    assert reserve.give_back(full)
    assert not full.exists(reserve.NAME)
    assert not reserve.give_back(full)
    reserve.keep(full)
    assert not full.exists(reserve.NAME)
    reserve.keep(filled(disk, reserve.FREE_BYTES_MIN))
    assert full.exists(reserve.NAME)


@mends("S319")
def test_a_copy_that_has_no_blocks_is_made_anew() -> None:
    """As a back-up or `cp --sparse` makes of what holds nothing."""
    disk = Disk()
    storage = SimStorage(disk)
    storage.make_directory("gantry")
    reserve.keep(storage)
    inode = disk.names.entries[reserve.NAME]
    assert inode is not None
    inode.lose_blocks()
    used = disk.used()
    reserve.keep(storage)
    assert disk.used() == used + reserve.RESERVE_BYTES


def test_a_disk_that_gets_full_meanwhile_is_no_error() -> None:
    disk = Disk()
    plan = FaultPlan([Fault(1, error=errno.ENOSPC, kinds=("allocate",), under=reserve.NAME)])
    storage = SimStorage(disk, "start", plan)
    storage.make_directory("gantry")
    reserve.keep(storage)
    assert not storage.exists(reserve.NAME)


@mends("S19")
@pytest.mark.parametrize("number", [errno.EDQUOT, errno.ENOSPC])
@pytest.mark.parametrize("kind", ["create", "allocate"])
def test_blocks_are_given_back_where_a_write_finds_no_room(number: int, kind: str) -> None:
    """A quota that is used up, and a disk without an inode, have room left by `statvfs`."""
    disk = Disk()
    storage = SimStorage(disk)
    storage.make_directory("gantry")
    reserve.keep(storage)
    plan = FaultPlan([Fault(1, error=number, kinds=(kind,), under="gantry/")])
    full = SimStorage(disk, "start", plan)
    assert reserve.give_back(full)
    assert plan.met
    assert full.list("gantry") == []


@mends("S19")
@pytest.mark.parametrize("number", [errno.EDQUOT, errno.ENOSPC])
@pytest.mark.parametrize("kind", ["create", "allocate", "sync"])
def test_a_start_does_without_blocks_for_the_next_one(number: int, kind: str) -> None:
    disk = Disk()
    plan = FaultPlan([Fault(1, error=number, kinds=(kind,), under=reserve.NAME)])
    storage = SimStorage(disk, "start", plan)
    storage.make_directory("gantry")
    reserve.keep(storage)
    assert plan.met
    assert storage.list("gantry") == []


@mends("S19")
@pytest.mark.parametrize("blocks", [True, False])
def test_a_clean_stop_on_a_full_disk_takes_the_blocks(blocks: bool) -> None:
    """Without them it says so, and leaves what a start after a kill finds."""
    disk = Disk()
    storage = SimStorage(disk)
    storage.make_directory("gantry")
    if blocks:
        reserve.keep(storage)
    life = Life(1 << 16, boot_id(), "", "store")
    mark_running(storage, life, 0)
    full = filled(disk, 0)
    if not blocks:
        with pytest.raises(OSError, match="no space"):
            reserve.with_room(full, partial(mark_stopped, full, 5))
        return
    assert not reserve.with_room(full, partial(mark_stopped, full, 5))
    assert full.exists(reserve.NAME), "for the start"
    assert not full.exists("abort")
    ranges = read_ranges(full)
    assert ranges is not None
    assert ranges.spans == ((0, 5),)


@mends("R7.1")
@pytest.mark.parametrize("seed", range(20))
def test_blocks_outlive_a_power_cut(seed: int) -> None:
    disk = Disk()
    storage = SimStorage(disk)
    storage.make_directory("gantry")
    storage.sync_directory("")
    reserve.keep(storage)
    disk.power_cut(random.Random(seed))
    assert SimStorage(disk).size_of(reserve.NAME) == reserve.RESERVE_BYTES


@mends("R7.1")
@pytest.mark.parametrize("length", [0, 4096, reserve.RESERVE_BYTES + 1])
def test_blocks_that_a_power_cut_has_taken_are_kept_anew(length: int) -> None:
    """Stores of before did not sync them."""
    storage = SimStorage(Disk(file_bytes_max=2 * reserve.RESERVE_BYTES))
    storage.create(reserve.NAME).truncate(length)
    reserve.keep(storage)
    assert storage.size_of(reserve.NAME) == reserve.RESERVE_BYTES
