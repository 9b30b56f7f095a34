"""Bucket files of timers on a disk that forgets what was not synced."""

from __future__ import annotations

import random

import numpy as np
import pytest

from gantrymq.workers.scheduler.timerbuckets import (
    DIRECTORY,
    MINUTE_MS,
    Looked,
    TimerBuckets,
    bucket_names,
    entries_at,
)
from gantrymq.workers.scheduler.timerfiling import TimerFiling
from gantrymq.workers.scheduler.timerpool import DELETE_BIT, ENTRY
from tests.support.simdisk import Disk
from tests.support.simstorage import SimStorage
from tests.support.trials import mends

MADE = "1"
MS = 1_700_000_000_000


def entries(*positions: int) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    found = np.zeros(len(positions), ENTRY)
    found["ms"], found["position"], found["size"] = MS, positions, 100
    return found


def recalls(*positions: int) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    found = entries(*positions)
    found["size"] |= DELETE_BIT
    return found


def take_over(
    storage: SimStorage, position: int, noted: dict[str, int] | None = None
) -> TimerBuckets:
    buckets = TimerBuckets(storage)
    assert buckets.begin(MADE, position, noted or {})
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


@mends("S80")
@pytest.mark.parametrize("seed", range(20))
def test_what_was_filed_last_is_found_first_and_nothing_is_read_twice(seed: int) -> None:
    """However many wait in the same minute; more are filed between two looks."""
    chance = random.Random(seed)
    buckets, filed = TimerBuckets(SimStorage(Disk())), 0

    def file_some(count: int) -> None:
        nonlocal filed
        buckets.append(entries(*range(filed, filed + count)))
        filed += count

    buckets.belong_to(MADE)
    file_some(chance.randint(1, 50))
    places: dict[str, Looked] = {}
    seen: list[int] = []
    while True:
        newest = filed - 1
        found, is_all = buckets.look_on(MS, places, chance.randint(1, 9))
        assert len(found)
        assert newest in [*seen, *found["position"]] or found["position"].min() > max(seen)
        seen += found["position"].tolist()
        if is_all:
            break
        file_some(chance.choice([0, 0, 0, 1, 20]))
    assert sorted(seen) == list(range(filed))
    assert not len(buckets.look_on(MS, places, 9)[0])
    buckets.close()


@mends("S80", "S88")
def test_what_is_gathered_is_in_memory_until_it_is_filed() -> None:
    """Each timer at one place, at each step: who looks in both finds it."""
    buckets = TimerBuckets(SimStorage(Disk()))
    buckets.belong_to(MADE)
    buckets.follow(MS + 50 * MINUTE_MS)  # each minute gets a file
    filing = TimerFiling(buckets)

    def gather(first: int) -> None:
        spread = entries(*range(first, first + 50))
        spread["ms"] += np.arange(50) * MINUTE_MS
        filing.gather(spread, (first, first + 50), first + 49, 1_000 + first)

    gather(0)
    steps, known = 0, 50
    counted: list[tuple[int, int]] = []
    while filing:
        gathered = [n for run in filing.runs() for n in run["position"].tolist()]
        filed = [
            n
            for minute in range(50)
            for n in buckets.look_on(MS + minute * MINUTE_MS, {}, 9)[0]["position"].tolist()
        ]
        assert sorted(gathered + filed) == list(range(known))
        assert filing.next == known
        assert filing.since == 1_000 + (counted[-1][0] if counted else 0)
        if steps in (2, 4):
            gather(known)
            known += 50
            assert filing.next == known
        behind = filing.file_some()
        counted += [behind] if behind is not None else []
        steps += 1
    assert counted == [(50, 49), (150, 149)]  # what came meanwhile is filed together
    assert not list(filing.runs())
    assert filing.next == filing.since == -1
    buckets.close()


@mends("S80")
def test_who_waits_for_what_is_filed_does_not_look_back_meanwhile() -> None:
    buckets = TimerBuckets(SimStorage(Disk()))
    buckets.belong_to(MADE)
    buckets.append(entries(*range(10)))
    places: dict[str, Looked] = {}

    def look(*, back: bool) -> tuple[list[int], bool]:
        found, is_all = buckets.look_on(MS, places, 4, back=back)
        return found["position"].tolist(), is_all

    assert look(back=False) == ([6, 7, 8, 9], False)
    assert look(back=False) == ([], False)
    buckets.append(entries(10))
    assert look(back=False) == ([10], False)
    assert look(back=True) == ([2, 3, 4, 5], False)
    assert look(back=True) == ([0, 1], True)
    buckets.close()


@mends("R7.2")
@pytest.mark.parametrize("lost", [(0, 8), (0, 16), (0, 24), (8, 24), (16, 24)])
def test_a_torn_entry_is_none(lost: tuple[int, int]) -> None:
    """A sector that is missing reads as zeroes; its unit is read again, behind the note."""
    storage = SimStorage(Disk())
    first = TimerBuckets(storage)
    first.belong_to(MADE)
    first.follow(MS)
    first.append(entries(100))
    first.append(entries(200))
    first.close()
    name = f"{DIRECTORY}/{(MS - 1) // MINUTE_MS}"
    file = storage.open(name, write=True)
    file.write_at(bytes(lost[1] - lost[0]), ENTRY.itemsize + lost[0])
    successor = take_over(storage, 100)
    successor.follow(MS)
    (bucket,) = bucket_names(storage.list(DIRECTORY))
    seen = [found["position"].tolist() for found, _end in entries_at(storage, bucket, 0)]
    assert seen in ([[100]], [[100, 200]])
    opened = successor.open_next()
    assert opened is not None
    assert opened[0]["position"].tolist() == [100]
    successor.close()


@mends("S96")
def test_a_successor_counts_timers_and_neither_recalls_nor_what_was_filed_twice() -> None:
    storage = SimStorage(Disk())
    first = TimerBuckets(storage)
    first.belong_to(MADE)
    first.append(np.concatenate([entries(*range(100, 110)), recalls(300, 400)]))
    first.append(entries(500, 600))
    assert first.waiting == 10
    first.close()

    second = take_over(storage, 500)  # 600 is read again
    assert second.waiting == 9
    second.append(entries(600))
    assert second.waiting == 10
    second.close()

    third = take_over(storage, 600)
    third.follow(MS + MINUTE_MS)
    assert third.waiting == 10
    while third.waiting and third.unopened():
        third.open_next()
    assert third.waiting == 0
    assert not third.unopened()
    third.close()


def noted_file(storage: SimStorage) -> tuple[str, dict[str, int]]:
    """A bucket of four timers, three of which a note counts; its path, and what the note says."""
    first = TimerBuckets(storage)
    first.belong_to(MADE)
    first.append(entries(100, 200, 300))
    noted = first.sizes(0)
    first.append(entries(400))
    first.close()
    (name,) = noted
    return f"{DIRECTORY}/{name}", noted


@mends("S137")
def test_any_bit_of_what_a_note_counts_is_missed() -> None:
    """Then all is made anew, and the file is named; behind the note nothing is damage."""
    for bit in range(4 * 8 * ENTRY.itemsize):
        storage = SimStorage(Disk())
        path, noted = noted_file(storage)
        file, byte = storage.open(path, write=True), bytearray(1)
        file.read_into(memoryview(byte), bit // 8)
        byte[0] ^= 1 << bit % 8
        file.write_at(bytes(byte), bit // 8)
        buckets = TimerBuckets(storage)
        is_counted = bit < 3 * 8 * ENTRY.itemsize
        assert buckets.begin(MADE, 300, noted) is not is_counted, bit
        assert buckets.take_damage() == ([path] if is_counted else [])
        assert storage.exists(path) is not is_counted
        buckets.close()


@mends("S137")
@pytest.mark.parametrize("size", [None, 0, ENTRY.itemsize, 3 * ENTRY.itemsize - 1])
def test_a_file_that_lacks_something_is_made_anew(size: int | None) -> None:
    storage = SimStorage(Disk())
    path, noted = noted_file(storage)
    if size is None:
        storage.unlink(path)
    else:
        storage.open(path, write=True).truncate(size)
    buckets = TimerBuckets(storage)
    assert not buckets.begin(MADE, 300, noted)
    assert (buckets.take_damage(), buckets.take_damage()) == ([path], [])
    assert not storage.list(DIRECTORY)


@mends("S137")
def test_what_a_successor_takes_out_is_whole_for_the_next() -> None:
    """A note may count what was filed behind its units; it is overwritten, and no damage."""
    storage = SimStorage(Disk())
    path, noted = noted_file(storage)
    noted = dict.fromkeys(noted, 4 * ENTRY.itemsize)
    for _life in range(2):
        buckets = take_over(storage, 200, noted)
        assert (buckets.waiting, buckets.take_damage()) == (2, [])
        buckets.close()
    assert storage.exists(path)


@mends("S137")
def test_a_file_of_recalls_alone_is_whole() -> None:
    """An adopted store may have them without their timers: they count as less than nothing."""
    storage = SimStorage(Disk())
    first = TimerBuckets(storage)
    first.belong_to(MADE)
    first.append(recalls(300, 400))
    noted = first.sizes(0)
    first.close()
    assert take_over(storage, 400, noted).waiting == -2
