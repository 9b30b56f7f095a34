"""Blocks that a start on a full disk gives back (F7)."""

from __future__ import annotations

import errno

from brokerd import reserve
from tests.support.faults import Fault, FaultPlan
from tests.support.simdisk import Disk
from tests.support.simstorage import SimStorage


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


def test_a_disk_that_gets_full_meanwhile_is_no_error() -> None:
    disk = Disk()
    plan = FaultPlan([Fault(1, error=errno.ENOSPC, kinds=("allocate",), under=reserve.NAME)])
    storage = SimStorage(disk, "start", plan)
    storage.make_directory("gantry")
    reserve.keep(storage)
    assert not storage.exists(reserve.NAME)
