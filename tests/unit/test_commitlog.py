"""Segments come one after the other, in every state that a power cut may leave of them."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path

import pytest

from gantrymq.brokerd.commitlog import (
    MARGIN_PARTS,
    CommitLog,
    prepare_spare,
    room_for_segment,
    segment_bases,
)
from gantrymq.shm.errors import StoreFailed
from gantrymq.shm.lognames import segment_name
from gantrymq.shm.storage import PosixStorage, is_disk_full, read_file
from tests.support.simdisk import DISK_BYTES, PAGE_BYTES, Disk
from tests.support.simstorage import SimStorage
from tests.support.trials import mends

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
    successor = CommitLog(storage, SEGMENT_BYTES, 2 * SEGMENT_BYTES)
    assert successor.end == 2 * SEGMENT_BYTES
    successor.roll()
    assert storage.exists(segment_name(2 * SEGMENT_BYTES))
    assert bases_after_cuts(disk) == {
        (0, SEGMENT_BYTES), (0, SEGMENT_BYTES, 2 * SEGMENT_BYTES)
    }  # fmt: skip


def test_a_start_where_the_next_segment_is_due_waits_for_room() -> None:
    """F7: a writer comes up on a full disk, refuses what is sent, goes on once there is room."""
    disk = Disk()
    storage = SimStorage(disk)
    CommitLog(storage, SEGMENT_BYTES, 0)
    disk.allocate_max = 0
    log = CommitLog(storage, SEGMENT_BYTES, SEGMENT_BYTES)
    log.clear_behind(SEGMENT_BYTES, 1 << 20)
    with pytest.raises(OSError, match="no room"):
        log.roll()
    assert (log.base, log.end) == (0, SEGMENT_BYTES)
    disk.allocate_max = SEGMENT_BYTES
    log.roll()
    log.append(memoryview(b"x" * 100), SEGMENT_BYTES)
    assert storage.list("commitlog") == [f"{0:020d}", f"{SEGMENT_BYTES:020d}"]


@mends("S319")
@pytest.mark.parametrize("end", [5, SEGMENT_BYTES // 2])
def test_a_segment_that_came_without_blocks_gets_them_before_an_append(
    tmp_path: Path, end: int
) -> None:
    """F7: what is appended there finds room, whoever else fills the disk."""
    storage = PosixStorage(str(tmp_path))
    name = segment_name(0)
    with contextlib.closing(storage.create(name)) as file:
        file.write_at(b"x" * end, 0)
        file.truncate(SEGMENT_BYTES)
    log = CommitLog(storage, SEGMENT_BYTES, end)
    assert (log.base, log.limit, log.end) == (0, end, SEGMENT_BYTES)
    assert not log.is_next_coming(0), "it waits for no segment, but makes this one whole"
    log.clear_behind(end, 1 << 20)
    with contextlib.closing(storage.open(name)) as file:
        assert file.bytes_without_blocks() > 0, "zeroes would need room"
    log.go_on()
    assert (log.base, log.limit) == (0, SEGMENT_BYTES)
    with contextlib.closing(storage.open(name)) as file:
        assert file.bytes_without_blocks() == 0
    assert read_file(storage, name) == (b"x" * end).ljust(SEGMENT_BYTES, b"\0")
    log.append(memoryview(b"y"), end)
    log.close()
    assert CommitLog(storage, SEGMENT_BYTES, end + 1).limit == SEGMENT_BYTES


@mends("S319")
def test_a_segment_without_blocks_for_which_there_is_no_room_takes_nothing() -> None:
    """A failed allocation has all that is free; a full segment needs no blocks any more."""
    disk = Disk()
    storage = SimStorage(disk)
    log = CommitLog(storage, SEGMENT_BYTES, 0)
    log.append(memoryview(b"x" * 100), 0)
    inode = disk.names.entries[segment_name(0)]
    assert inode is not None
    inode.lose_blocks()
    wanted = SEGMENT_BYTES - PAGE_BYTES + SEGMENT_BYTES // MARGIN_PARTS
    disk.capacity = disk.used() + wanted - 1
    log = CommitLog(storage, SEGMENT_BYTES, 100)
    for _ in range(2):
        with pytest.raises(OSError, match="are free") as failed:
            log.go_on()
        assert is_disk_full(failed.value)
        assert (log.limit, storage.free_bytes()) == (100, wanted - 1)
    disk.capacity += 1
    log.go_on()
    assert (log.base, log.limit) == (0, SEGMENT_BYTES)
    inode.lose_blocks()
    full = CommitLog(storage, SEGMENT_BYTES, SEGMENT_BYTES)
    assert full.limit == SEGMENT_BYTES
    disk.capacity = DISK_BYTES
    full.go_on()
    assert (full.base, full.limit) == (SEGMENT_BYTES, 2 * SEGMENT_BYTES)


def test_nothing_is_written_over_what_was_appended() -> None:
    log = CommitLog(SimStorage(Disk()), SEGMENT_BYTES, 0)
    log.append(memoryview(b"x" * 100), 0)
    for position in (0, 99):
        with pytest.raises(StoreFailed, match="the log ends at 100"):
            log.append(memoryview(b"y"), position)
    log.append(memoryview(b"y"), 100)
    with pytest.raises(StoreFailed, match=f"its segment at {SEGMENT_BYTES}"):
        log.append(memoryview(b"y"), SEGMENT_BYTES)


@mends("S29")
@pytest.mark.parametrize("short", [1, SEGMENT_BYTES // 2, SEGMENT_BYTES])
def test_a_segment_that_does_not_fit_takes_nothing_from_others(short: int) -> None:
    """F7: a failed allocation has all that is free until its file is removed."""
    disk = Disk()
    storage = SimStorage(disk)
    log = CommitLog(storage, SEGMENT_BYTES, 0)
    wanted = room_for_segment(SEGMENT_BYTES)
    disk.capacity = disk.used() + wanted - short
    free = [storage.free_bytes()]
    disk.watch = lambda *_: free.append(storage.free_bytes())
    for _ in range(2):
        with pytest.raises(OSError, match="are free") as failed:
            prepare_spare(storage, SEGMENT_BYTES, "spare.flusher")
        assert is_disk_full(failed.value)
        with pytest.raises(OSError, match="are free"):
            log.roll()
    assert set(free) == {wanted - short}
    disk.capacity += short
    log.roll()
    assert 0 < SEGMENT_BYTES // MARGIN_PARTS <= min(free) < PAGE_BYTES


def test_the_first_segment_and_one_behind_all_that_went_are_made() -> None:
    """Retention, or a salvage, may have left nothing that the log's end lies in."""
    for appended in (0, 4 * SEGMENT_BYTES):
        storage = SimStorage(Disk())
        assert CommitLog(storage, SEGMENT_BYTES, appended).base == appended
        assert storage.exists(segment_name(appended))
