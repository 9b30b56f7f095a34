"""Segments come one after the other, in every state that a power cut may leave of them."""

from __future__ import annotations

import random

from brokerd.commitlog import CommitLog, prepare_spare, segment_bases
from shm.lognames import segment_name
from tests.support.simdisk import Disk
from tests.support.simstorage import SimStorage

SEGMENT_BYTES = 16 * 1024
CUTS = 60


def bases_after_cuts(disk: Disk) -> set[tuple[int, ...]]:
    """What a start counts as segments, in many of the states that a power cut may leave."""
    found = set()
    for number in range(CUTS):
        left = disk.clone()
        left.power_cut(random.Random(number))
        found.add(tuple(segment_bases(SimStorage(left), SEGMENT_BYTES)))
    return found


def test_rolls_that_no_flusher_has_synced_leave_whole_segments_without_a_gap() -> None:
    """SF-11, F6: a flusher that died, or waits for the disk, is behind by more than a segment."""
    disk = Disk()
    storage = SimStorage(disk)
    log = CommitLog(storage, SEGMENT_BYTES, 0)
    for base in (0, SEGMENT_BYTES, 2 * SEGMENT_BYTES):
        assert bases_after_cuts(disk) == {
            tuple(range(0, end, SEGMENT_BYTES)) for end in (base, base + SEGMENT_BYTES)
        }
        prepare_spare(storage, SEGMENT_BYTES, "spare.flusher")
        log.roll()
    for name in storage.list("commitlog"):
        assert storage.size_of(f"commitlog/{name}") == SEGMENT_BYTES


def test_a_writer_that_died_before_its_first_record_there_leaves_no_gap() -> None:
    """Its successor makes the segment behind the last one, whose name may not be durable yet."""
    disk = Disk()
    storage = SimStorage(disk)
    CommitLog(storage, SEGMENT_BYTES, 0).roll()
    CommitLog(storage, SEGMENT_BYTES, 2 * SEGMENT_BYTES)
    assert storage.exists(segment_name(2 * SEGMENT_BYTES))
    assert bases_after_cuts(disk) == {
        (0, SEGMENT_BYTES), (0, SEGMENT_BYTES, 2 * SEGMENT_BYTES)
    }  # fmt: skip
