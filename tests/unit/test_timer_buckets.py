"""Bucket files of timers on a disk that forgets what was not synced."""

from __future__ import annotations

import random

import numpy as np

from tests.support.simdisk import Disk
from tests.support.simstorage import SimStorage
from workers.scheduler.timerbuckets import TimerBuckets
from workers.scheduler.timerpool import ENTRY

MADE = "1"
MS = 1_700_000_000_000


def entries(*positions: int) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    found = np.zeros(len(positions), ENTRY)
    found["ms"], found["position"] = MS, positions
    return found


def take_over(storage: SimStorage, position: int) -> TimerBuckets:
    buckets = TimerBuckets(storage)
    assert buckets.begin(MADE, position)
    return buckets


def test_a_successor_makes_the_names_of_files_durable_that_it_has_found() -> None:
    """F2: who made them has died before it could."""
    for seed in range(20):
        storage = SimStorage(Disk())
        first = TimerBuckets(storage)
        first.belong_to(MADE)
        storage.sync_directory("gantry")
        storage.sync_directory("")
        first.append(entries(100))
        first.close()

        second = take_over(storage, -1)
        second.append(entries(100, 200))
        while not second.sync_some(4):
            pass
        second.close()

        storage.disk.power_cut(random.Random(seed))
        third = take_over(SimStorage(storage.disk), 200)
        assert third.look_on(MS, {}, 1 << 20)[0]["position"].tolist()[-2:] == [100, 200]
        third.close()
