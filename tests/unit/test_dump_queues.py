"""Queues in memory: what recovery scans, adds and cuts, on small files."""

from __future__ import annotations

from pathlib import Path

import pytest

from gantrymq.brokerd.dump.queues import BatchQueue, Dispatched, Queue, load_queues
from gantrymq.shm import layout
from gantrymq.shm.errors import Incompatible
from gantrymq.shm.storage import PosixStorage

FILE_BYTES = 40  # two units
Unit = tuple[int, int, int]


def write_queue(root: Path, units: list[Unit], first_file: int = 0) -> PosixStorage:
    """Files of two units each, the rest of the last one zero."""
    directory = root / "consumequeue" / "t" / "0"
    directory.mkdir(parents=True)
    data = b"".join(
        layout.CQ_UNIT.pack(physical_offset=at, size=size, tags_code=tags)
        for at, size, tags in units
    )
    for at in range(0, len(data), FILE_BYTES):
        part = data[at : at + FILE_BYTES].ljust(FILE_BYTES, b"\0")
        (directory / f"{first_file * FILE_BYTES + at:020d}").write_bytes(part)
    return PosixStorage(str(root))


def loaded(storage: PosixStorage) -> Queue:
    (queue,) = load_queues(storage, FILE_BYTES, 0)
    return queue


def positions(queue: Queue) -> list[tuple[int, int]]:
    return [(number, unit[0]) for number, unit in queue.units(queue.first)]


def record(position: int, queue_offset: int, count: int = 1) -> Dispatched:
    return Dispatched(position, 10, 0, 0, queue_offset, count)


def units_of(count: int) -> list[Unit]:
    return [(10 * number, 10, number) for number in range(count)]


@pytest.mark.parametrize(("bad", "end"), [(0, 8), (1, 8), (2, 2), (3, 3), (7, 7)])
def test_the_last_three_files_are_scanned(store_dir: Path, bad: int, end: int) -> None:
    """SF-68, SF-88."""
    units = units_of(8)
    units[bad] = (0, 0, 0)
    queue = loaded(write_queue(store_dir, units))
    assert queue.max_offset == end
    assert queue.max_physical == (-1 if bad == 2 else 10 * end)


@pytest.mark.parametrize("unit", [(-1, 10, 0), (10, 0, 0), (10, -5, 0)])
def test_what_ends_a_queue(store_dir: Path, unit: Unit) -> None:
    """SF-68; a filler unit does not (SF-65)."""
    filler = (0, layout.CQ_FILLER_SIZE, 0)
    queue = loaded(write_queue(store_dir, [filler, filler, (20, 10, 0), unit]))
    assert queue.max_offset == 3


@pytest.mark.parametrize(
    ("end", "kept"), [(100, 5), (50, 5), (41, 5), (40, 4), (39, 4), (20, 2), (10, 1), (0, 0)]
)
def test_units_at_or_behind_the_end_are_cut(store_dir: Path, end: int, kept: int) -> None:
    """SF-92: also where a file's first unit is the first to go."""
    queue = loaded(write_queue(store_dir, units_of(5)))
    queue.cut(end)
    assert positions(queue) == [(number, 10 * number) for number in range(kept)]
    assert queue.max_physical == (10 * kept if kept else end)


def test_added_units_follow_and_duplicates_do_not(store_dir: Path) -> None:
    """SF-65."""
    queue = loaded(write_queue(store_dir, units_of(3)))
    for number in (1, 2, 3, 4):
        queue.add(record(10 * number, number))
    assert positions(queue) == [(number, 10 * number) for number in range(5)]
    queue.add(record(90, 2))  # its offset is taken
    queue.add(record(100, 9))  # its offset is ahead: appended all the same
    assert positions(queue)[5:] == [(5, 100)]
    assert queue.max_physical == 110


def test_a_new_queue_that_does_not_start_at_0_gets_fillers() -> None:
    """SF-65: from its file's start to its first unit; min offset behind them."""
    queue = Queue("t", 0, FILE_BYTES)
    queue.add(record(500, 7))
    queue.correct_min(0)
    assert list(queue.units(0)) == [(6, (0, layout.CQ_FILLER_SIZE, 0)), (7, (500, 10, 0))]
    assert (queue.first, queue.min_offset, queue.max_offset) == (6, 7, 8)


@pytest.mark.parametrize(
    ("log_min", "first"), [(0, 4), (40, 4), (41, 5), (50, 5), (51, 4), (70, 7)]
)
def test_min_offset_is_sought_in_the_oldest_file(store_dir: Path, log_min: int, first: int) -> None:
    """SF-67: min stays if the whole oldest file should have gone; it is max if all units should."""
    queue = loaded(write_queue(store_dir, units_of(7)[4:], first_file=2))
    queue.correct_min(log_min)
    assert (queue.min_offset, queue.max_offset) == (first, 7)


def test_a_batch_queue_counts_messages() -> None:
    """SF-75."""
    queue = BatchQueue("t", 0, 460)
    for position, base, count in ((0, 0, 5), (10, 5, 1), (10, 5, 1), (20, 6, 4)):
        queue.add(record(position, base, count))
    queue.correct_min(0)
    assert (queue.min_offset, queue.max_offset) == (0, 10)
    assert [(unit[4], unit[5], unit[6]) for _, unit in queue.units(0)] == [
        *((0, 5, -1), (5, 1, -1), (6, 4, -1))
    ]
    queue.correct_min(10)
    assert (queue.min_offset, queue.max_offset) == (5, 10)


def test_another_file_length_is_refused(store_dir: Path) -> None:
    """SF-11."""
    storage = write_queue(store_dir, units_of(2))
    with pytest.raises(Incompatible, match="has 40 bytes, not 60"):
        load_queues(storage, 60, 0)


def test_directories_that_are_no_numbers_are_skipped(store_dir: Path) -> None:
    """SF-77."""
    storage = write_queue(store_dir, units_of(1))
    (store_dir / "consumequeue" / "t" / "x").mkdir()
    assert [queue.queue_id for queue in load_queues(storage, FILE_BYTES, 0)] == [0]
