"""Bucket files of timers on a disk that forgets what was not synced."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from gantrymq.shm.limits import DELIVER_MS_MAX
from gantrymq.shm.storage import PosixStorage, read_file
from gantrymq.workers.scheduler.timerbuckets import (
    DIRECTORY,
    MINUTE_MS,
    Looked,
    TimerBuckets,
    _name_of,
    bucket_names,
    damage_in,
    entries_at,
    span_of,
    strangers,
)
from gantrymq.workers.scheduler.timerfiling import BUCKETS_MAX, TimerFiling
from gantrymq.workers.scheduler.timerpool import DELETE_BIT, ENTRY
from gantrymq.workers.scheduler.timerseals import MS_MAX, sealed, unsealed
from tests.support.faults import Fault, FaultPlan, Moment
from tests.support.simdisk import Disk
from tests.support.simstorage import SimFile, SimStorage
from tests.support.trials import mends

if TYPE_CHECKING:
    from gantrymq.workers.scheduler.timerpool import Entries

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


@mends("S249")
def test_a_step_looks_once_at_where_its_timers_belong(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for each bucket by itself; and what no write was done for is filed by the next step."""
    buckets = TimerBuckets(SimStorage(Disk()))
    buckets.belong_to(MADE)
    buckets.follow(MS + 50 * MINUTE_MS)
    filing, looks = TimerFiling(buckets), [0]
    keys, write = buckets.keys, buckets.write

    def keys_once(rows: Entries) -> object:
        looks[0] += 1
        return keys(rows)

    def write_or_fail(part: tuple[str, Entries]) -> None:
        writes.append(part[0])
        if len(writes) % 5 == 0:
            raise OSError(errno.ENOSPC, "no room")
        write(part)

    spread = entries(*range(100))
    spread["ms"] += np.arange(100) // 2 * MINUTE_MS
    filing.gather(spread, (0, 100), 99, 1_000)
    monkeypatch.setattr(buckets, "keys", keys_once)
    monkeypatch.setattr(buckets, "write", write_or_fail)
    writes: list[str] = []
    while filing:
        looks[0], begun = 0, len(writes)
        with suppress(OSError):
            filing.file_some()
        assert looks[0] <= 1
        assert len(writes) - begun <= BUCKETS_MAX
    assert len(set(writes)) == 50
    for minute in range(50):
        found = buckets.look_on(MS + minute * MINUTE_MS, {}, 9)[0]["position"].tolist()
        assert sorted(found) == [2 * minute, 2 * minute + 1]
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


def opened(buckets: TimerBuckets) -> list[int]:
    found = buckets.open_next()
    assert found is not None
    return sorted(found[0]["position"].tolist())


def looked_into(buckets: TimerBuckets) -> list[int]:
    (name,) = buckets.unopened()
    found = buckets.look_into(name)
    assert found is not None
    return sorted(found["position"].tolist())


def looked_on(buckets: TimerBuckets) -> list[int]:
    return sorted(buckets.look_on(MS, {}, 100)[0]["position"].tolist())


def sought(buckets: TimerBuckets) -> list[int]:
    found = []
    for position in (100, 200, 300):
        with pytest.raises(StopIteration) as end:
            next(buckets.seek(position, 100_000))
        found += end.value.value["position"].tolist()
    return found


def split(buckets: TimerBuckets) -> list[int]:
    (name,) = buckets.unopened()
    buckets._split_some(name)
    return looked_into(buckets) if buckets.unopened() else []


LOOKS = [opened, looked_into, looked_on, sought, split]


def cut(storage: SimStorage, path: str, size: int | None) -> None:
    if size is None:
        storage.unlink(path)
    else:
        storage.open(path, write=True).truncate(size)


@mends("S147")
@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("size", [0, 1, ENTRY.itemsize, 3 * ENTRY.itemsize - 1])
@pytest.mark.parametrize("successor", [False, True])
def test_what_is_cut_off_at_work_is_told(
    look: Callable[[TimerBuckets], list[int]], size: int, successor: bool
) -> None:
    """However it is met, by who wrote it and by who found it; the next start reads the log."""
    storage = SimStorage(Disk())
    buckets = TimerBuckets(storage)
    buckets.belong_to(MADE)
    buckets.follow(MS)  # it gets a file of its minute
    buckets.append(entries(100, 200, 300))
    (name,) = noted = buckets.sizes(0)
    if successor:
        buckets.close()
        buckets = take_over(storage, 300, noted)
        buckets.follow(MS)
    cut(storage, f"{DIRECTORY}/{name}", size)
    assert look(buckets) == [100, 200, 300][: size // ENTRY.itemsize]
    assert (buckets.take_damage(), buckets.take_damage()) == ([f"{DIRECTORY}/{name}"], [])
    buckets.disown(MADE)
    buckets.close()
    assert not TimerBuckets(storage).begin(MADE, 300, noted)


@mends("S147")
@pytest.mark.parametrize("size", [None, 0, ENTRY.itemsize])
def test_what_is_filed_behind_a_cut_does_not_hide_it(size: int | None) -> None:
    storage = SimStorage(Disk())
    path, noted = noted_file(storage)
    buckets = take_over(storage, 400, noted)
    buckets.close()  # as if others had been opened since
    cut(storage, path, size)
    buckets.append(entries(500, 600))
    assert looked_on(buckets)[-2:] == [500, 600]
    assert buckets.take_damage() == [path]
    buckets.close()


@mends("S147")
def test_no_note_owns_files_that_were_damaged_before_the_first_was_written() -> None:
    storage = SimStorage(Disk())
    path, noted = noted_file(storage)
    buckets = take_over(storage, 400, noted)
    cut(storage, path, 0)
    assert looked_on(buckets) == []
    buckets.belong_to("2")
    buckets.close()
    assert not TimerBuckets(storage).begin("2", 400, {})


@mends("S147")
def test_damage_of_what_was_made_anew_is_told_as_well() -> None:
    storage = SimStorage(Disk())
    path, noted = noted_file(storage)
    cut(storage, path, 0)
    buckets = TimerBuckets(storage)
    assert not buckets.begin(MADE, 400, noted)
    assert buckets.take_damage() == [path]
    buckets.append(entries(100, 200, 300))
    cut(storage, path, 0)
    assert looked_on(buckets) == []
    assert buckets.take_damage() == [path]
    buckets.close()


class Unreadable(SimStorage):
    """Whose disk does not answer for a while."""

    is_broken = True

    def open(self, name: str, *, write: bool = False) -> SimFile:
        if self.is_broken:
            raise OSError(errno.EIO, "no answer", name)
        return super().open(name, write=write)


@mends("S147")
@pytest.mark.parametrize("torn", range(5))
def test_what_was_not_to_be_read_at_the_start_is_whole_as_far_as_the_note_says(torn: int) -> None:
    """And what was filed since; between these a life before may have left it torn."""
    disk = Disk()
    path, noted = noted_file(SimStorage(disk))
    storage = Unreadable(disk)
    buckets = take_over(storage, 400, noted)
    storage.is_broken = False
    buckets.append(entries(500))
    SimStorage(disk).open(path, write=True).write_at(bytes(ENTRY.itemsize), torn * ENTRY.itemsize)
    assert looked_on(buckets) == [n for n in (100, 200, 300, 400, 500) if n != 100 * (torn + 1)]
    assert buckets.take_damage() == ([] if torn == 3 else [path])
    buckets.close()


def filed(storage: SimStorage, ms: int, now_ms: int) -> tuple[str, dict[str, int]]:
    """Three timers of a time, in whatever file they get by then."""
    buckets = TimerBuckets(storage)
    buckets.belong_to(MADE)
    buckets.follow(now_ms)
    some = entries(100, 200, 300)
    some["ms"] = ms
    buckets.append(some)
    noted = buckets.sizes(0)
    (name,) = noted
    buckets.close()
    return name, noted


#: A minute, one of 64 minutes, one of 64 of these.
AHEAD_MS = [0, 200 * MINUTE_MS, 10_000 * MINUTE_MS]


@mends("S148")
@pytest.mark.parametrize("ahead_ms", AHEAD_MS)
@pytest.mark.parametrize("other_ms", [ahead_ms + MS for ahead_ms in (*AHEAD_MS, MINUTE_MS)])
def test_whole_entries_of_another_file_are_damage(ahead_ms: int, other_ms: int) -> None:
    """For the start, for `store verify`, for retention, and for a scheduler at work."""
    if MS + ahead_ms == other_ms:
        return
    theirs = SimStorage(Disk())
    other = read_file(theirs, f"{DIRECTORY}/{filed(theirs, other_ms, MS)[0]}")
    storage = SimStorage(Disk())
    name, noted = filed(storage, MS + ahead_ms, MS)
    path = f"{DIRECTORY}/{name}"
    assert damage_in(storage, name, noted[name]) == -1
    at_work = take_over(storage, 300, noted)
    storage.open(path, write=True).write_at(other, 0)
    assert damage_in(storage, name, noted[name]) == 0
    assert [len(found) for found, _end in entries_at(storage, name, 0)] == [0]
    assert not len(at_work.look_on(MS + ahead_ms, {}, 100)[0])
    assert at_work.take_damage() == [path]
    at_work.close()
    buckets = TimerBuckets(storage)
    assert not buckets.begin(MADE, 300, noted)
    assert buckets.take_damage() == [path]


@mends("S148")
def test_a_copy_under_a_name_of_no_note_has_nothing() -> None:
    storage = SimStorage(Disk())
    name, noted = filed(storage, MS, MS)
    later = str(int(name) + 3)
    file = storage.create(f"{DIRECTORY}/{later}")
    file.write_at(read_file(storage, f"{DIRECTORY}/{name}"), 0)
    buckets = take_over(storage, 300, noted)
    assert (buckets.waiting, buckets.take_damage()) == (3, [])
    buckets.close()


@mends("S148")
def test_first_and_last_millisecond_of_a_file_are_its_own() -> None:
    """A time belongs to the bucket of the millisecond before it, whatever the file."""
    for name in ("28333333", "28333333.00", "28333333.59", "442708-1", "0", "0-5"):
        start, end = span_of(name)
        some = entries(1, 2, 3, 4)
        some["ms"] = [start, start + 1, end, end + 1]
        _found, whole = unsealed(sealed(some), (start, end))
        assert whole.tolist() == [False, True, True, False]


STRANGERS = [
    "12x", "12~", "12.bak", "12.60", "12.5", "12.555", "12-0", "12-6", "12-1-1", "012", "-1",
    "12-1.05", "\u0661\u0662", "\u00b2", "99999999999999999999", "9999999999", "notes", ".12.swp",
]  # fmt: skip


@mends("S149")
def test_names_that_no_scheduler_makes_are_passed_over(tmp_path: Path) -> None:
    storage = PosixStorage(str(tmp_path))
    buckets = TimerBuckets(storage)
    buckets.belong_to(MADE)
    buckets.follow(MS)
    buckets.append(entries(100, 200))
    noted = buckets.sizes(0)
    buckets.close()
    own = storage.list(DIRECTORY)
    for name in STRANGERS:
        storage.create(f"{DIRECTORY}/{name}").close()
    storage.make_directory(f"{DIRECTORY}/old/12")
    found = storage.list(DIRECTORY)
    assert bucket_names(found) == list(noted)
    assert sorted(strangers(storage)) == sorted(
        f"{DIRECTORY}/{name}" for name in (*STRANGERS, "old")
    )
    buckets = TimerBuckets(storage)
    assert buckets.begin(MADE, 200, noted)
    assert buckets.waiting == 2
    buckets.close()
    assert not TimerBuckets(storage).begin("2", 200, noted), "all is made anew"
    assert storage.list(DIRECTORY) == sorted({*found} - {*own}), "but what is nobody's"


@mends("S149")
def test_all_names_that_a_scheduler_makes_are_known() -> None:
    buckets = TimerBuckets(SimStorage(Disk()))
    some = entries(*range(7))
    some["ms"] = [1, 59_999, 60_001, MS, DELIVER_MS_MAX, DELIVER_MS_MAX + 1, MS_MAX]
    names = {_name_of(int(key)) for key in buckets.keys(some)}
    buckets._split.update(["0", "1", str(MS // MINUTE_MS)])
    buckets.follow(MS_MAX)
    names |= {_name_of(int(key)) for key in buckets.keys(some)}
    assert sorted(bucket_names(sorted(names))) == sorted(names)
    assert {"." in name for name in names} == {"-" in name for name in names} == {True, False}


def make_directory(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()
    (path / "kept").touch()


def make_link(path: Path) -> None:
    elsewhere = path.with_name("elsewhere")
    if path.exists():
        path.rename(elsewhere)
    path.symlink_to(elsewhere)


def make_pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


@mends("S149")
@pytest.mark.parametrize("obstruct", [make_directory, make_link, make_pipe])
@pytest.mark.parametrize("is_noted", [True, False])
def test_what_is_no_file_in_a_buckets_place_is_damage(
    tmp_path: Path, obstruct: Callable[[Path], None], is_noted: bool
) -> None:
    """It is told of, moved aside or removed, and all is made anew; twice makes no difference."""
    storage = PosixStorage(str(tmp_path))
    for _time in range(2):
        buckets = TimerBuckets(storage)
        buckets.belong_to(MADE)
        buckets.follow(MS)
        buckets.append(entries(100, 200))
        noted = buckets.sizes(0)
        (name,) = noted
        buckets.close()
        name = name if is_noted else str(int(name) + 5)
        obstruct(tmp_path / DIRECTORY / name)
        buckets = TimerBuckets(storage)
        assert not buckets.begin(MADE, 200, noted)
        assert buckets.take_damage() == [f"{DIRECTORY}/{name}"]
        assert not bucket_names(storage.list(DIRECTORY))
    left = sorted(str(path.relative_to(tmp_path / DIRECTORY)) for path in tmp_path.rglob("kept"))
    assert left == ([f"aside-{name}-/kept", f"aside-{name}/kept"] if left else [])
    assert bool(left) is (obstruct is make_directory)


@mends("S149")
@pytest.mark.parametrize("obstruct", [make_directory, make_link])
def test_a_scheduler_at_work_goes_on_where_a_directory_is_in_the_way(
    tmp_path: Path, obstruct: Callable[[Path], None]
) -> None:
    storage = PosixStorage(str(tmp_path))
    buckets = TimerBuckets(storage)
    buckets.belong_to(MADE)
    buckets.follow(MS)
    buckets.append(entries(100, 200))
    (name,) = buckets.sizes(0)
    buckets.close()  # as if others had been opened since
    obstruct(tmp_path / DIRECTORY / name)
    buckets.append(entries(300))
    assert opened(buckets) == [300]
    assert buckets.take_damage() == [f"{DIRECTORY}/{name}"]
    buckets.close()


@mends("S300")
@pytest.mark.usefixtures("nothing_reaches_the_disk")
def test_what_a_life_takes_out_and_fails_to_sync_is_taken_out_by_the_next() -> None:
    """P3: or a timer that is filed anew at another time counts twice after a power cut."""
    disk = Disk()
    first = take_over_none(SimStorage(disk))

    def due_in(minute: int, position: int) -> Entries:
        found = entries(position)
        found["ms"] = minute * MINUTE_MS + 500
        return found

    first.append(due_in(5, 40))
    sync_all(first)
    first.belong_to(MADE)
    noted = first.sizes(0)
    first.append(due_in(5, 100))  # behind the note
    sync_all(first)
    fails = Fault(1, Moment.BEFORE, errno.EIO, ("sync",), under=DIRECTORY)
    second = take_over(SimStorage(disk, "second", FaultPlan([fails])), 50, noted)
    with pytest.raises(OSError, match="EIO"):
        sync_all(second)
    third = take_over(SimStorage(disk, "third"), 50, noted)
    third.append(due_in(9, 100))
    sync_all(third)
    noted = third.sizes(0)
    disk.power_cut(random.Random(3))
    assert take_over(SimStorage(disk), 150, noted).waiting == 2


@mends("S308")
@pytest.mark.usefixtures("nothing_reaches_the_disk")
def test_what_a_life_takes_out_of_noted_entries_is_taken_out_by_the_next() -> None:
    """P3: a note says how long a file was as it was written, which is later than its position."""
    disk = Disk()
    first = take_over_none(SimStorage(disk))
    first.append(entries(40, 60, 100))
    sync_all(first)
    first.belong_to(MADE)
    noted = first.sizes(0)
    fails = Fault(1, Moment.BEFORE, errno.EIO, ("sync",), under=DIRECTORY)
    second = take_over(SimStorage(disk, "second", FaultPlan([fails])), 50, noted)
    with pytest.raises(OSError, match="EIO"):
        sync_all(second)
    third = take_over(SimStorage(disk, "third"), 50, noted)
    sync_all(third)
    disk.power_cut(random.Random(3))
    assert take_over(SimStorage(disk), 150, noted).waiting == 1


def take_over_none(storage: SimStorage) -> TimerBuckets:
    buckets = TimerBuckets(storage)
    assert not buckets.begin("", 0, {})
    return buckets


def sync_all(buckets: TimerBuckets) -> None:
    while not buckets.sync_some(10):
        pass
