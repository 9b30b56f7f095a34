"""The simulated disk keeps its word: what it may lose, what it may not, and what faults do."""

from __future__ import annotations

import errno
import random

import numpy as np
import pytest

from gantrymq.shm.storage import File, Storage, read_file, replace_file
from tests.support.faults import Fault, FaultPlan, KilledError, Moment, fail_at, kill_at
from tests.support.simdisk import PAGE_BYTES, SECTOR_BYTES, Disk
from tests.support.simstorage import SimStorage
from tests.support.trials import mends

ROUNDS = 60


def machine(*faults: Fault, seed: int = 1) -> SimStorage:
    return SimStorage(Disk(), "test", FaultPlan(faults, random.Random(seed)))


def durable_file(storage: SimStorage, name: str, data: bytes) -> File:
    """A file whose contents, name and folders are all synced."""
    file = storage.create(name)
    file.write_at(data, 0)
    file.sync()
    folder = name
    while folder:
        folder = folder.rpartition("/")[0]
        storage.sync_directory(folder)
    return file


def after_power_cut(storage: SimStorage, seed: int) -> SimStorage:
    """The machine after a power cut; the given one goes on unharmed."""
    disk = storage.disk.clone()
    disk.power_cut(random.Random(seed))
    return SimStorage(disk)


def test_it_is_a_storage() -> None:
    storage: Storage = machine()
    file: File = storage.create("a/b")
    file.write_at(b"hello", 3)
    assert (read_file(storage, "a/b"), storage.list("a")) == (b"\0\0\0hello", ["b"])
    assert storage.list("nowhere") == []
    assert storage.is_directory("a")
    assert not storage.is_directory("a/b")
    assert storage.size_of("a/b") == 8


@pytest.mark.parametrize("missing", ["x", "a/x"])
def test_errors_are_those_of_an_operating_system(missing: str) -> None:
    storage = machine()
    storage.create("a/b")
    with pytest.raises(FileNotFoundError):
        storage.open(missing)
    with pytest.raises(FileNotFoundError):
        storage.unlink(missing)
    with pytest.raises(FileExistsError):
        storage.create("a/b")
    with pytest.raises(OSError, match="bad file descriptor"):
        storage.open("a/b").write_at(b"read-only", 0)


def test_what_is_synced_survives_every_power_cut() -> None:
    storage = machine()
    file = durable_file(storage, "a/b", b"x" * 5000)
    file.write_at(b"y" * 100, 4990)
    for seed in range(ROUNDS):
        assert read_file(after_power_cut(storage, seed), "a/b")[:4608] == b"x" * 4608


def test_an_unsynced_write_may_vanish_stay_or_tear_by_sectors() -> None:
    storage = machine()
    file = durable_file(storage, "f", b"x" * 4 * SECTOR_BYTES)
    file.write_at(b"y" * 4 * SECTOR_BYTES, 0)
    seen = set()
    for seed in range(10 * ROUNDS):
        data = read_file(after_power_cut(storage, seed), "f")
        sectors = [set(data[i : i + SECTOR_BYTES]) for i in range(0, len(data), SECTOR_BYTES)]
        assert all(len(sector) == 1 for sector in sectors)
        seen.add(bytes(value for sector in sectors for value in sector))
    assert len(seen) == 16  # every subset of four sectors


def test_a_sector_written_twice_may_keep_its_first_contents() -> None:
    storage = machine()
    file = durable_file(storage, "f", b"0" * SECTOR_BYTES)
    file.write_at(b"1" * SECTOR_BYTES, 0)
    file.write_at(b"2" * SECTOR_BYTES, 0)
    left = {read_file(after_power_cut(storage, seed), "f")[:1] for seed in range(ROUNDS)}
    assert left == {b"0", b"1", b"2"}


def test_a_length_that_was_not_synced_may_be_any_of_those_it_had() -> None:
    storage = machine()
    file = durable_file(storage, "f", b"x" * 10)
    file.truncate(3)
    file.truncate(20)
    seen = {read_file(after_power_cut(storage, seed), "f") for seed in range(ROUNDS)}
    assert {len(data) for data in seen} == {3, 10, 20}
    assert {data for data in seen if len(data) == 20} <= {
        b"x" * 3 + b"\0" * 17,
        b"x" * 10 + b"\0" * 10,
    }


def test_a_file_may_lose_its_name_until_the_directory_is_synced() -> None:
    storage = machine()
    durable_file(storage, "a/there", b"")
    file = storage.create("a/new")
    file.write_at(b"synced", 0)
    file.sync()
    seen = {after_power_cut(storage, seed).exists("a/new") for seed in range(ROUNDS)}
    assert seen == {True, False}
    storage.sync_directory("a")
    assert all(after_power_cut(storage, seed).exists("a/new") for seed in range(ROUNDS))


def test_a_name_is_gone_with_its_directory() -> None:
    storage = machine()
    storage.create("a/b/c").sync()
    storage.sync_directory("a/b")
    seen = {after_power_cut(storage, seed).exists("a/b/c") for seed in range(ROUNDS)}
    assert seen == {True, False}


def test_changes_of_names_may_be_lost_one_by_one() -> None:
    storage = machine()
    durable_file(storage, "a", b"")
    storage.create("b")
    storage.unlink("a")
    seen = {tuple(after_power_cut(storage, seed).list("")) for seed in range(2 * ROUNDS)}
    assert seen == {(), ("a",), ("b",), ("a", "b")}


def test_a_file_that_was_replaced_whole_is_the_old_or_the_new_one() -> None:
    storage = machine()
    durable_file(storage, "gantry/store.json", b"old" * 1000)
    for call in range(1, 20):
        storage.faults = FaultPlan([kill_at(call, Moment.AFTER)])
        storage.dead = False
        try:
            replace_file(storage, "gantry/store.json", b"new" * 1000)
        except KilledError:
            for seed in range(ROUNDS):
                left = read_file(after_power_cut(storage, seed), "gantry/store.json")
                assert left in (b"old" * 1000, b"new" * 1000)
        else:
            break
    assert call > 4
    ends = {read_file(after_power_cut(storage, s), "gantry/store.json") for s in range(ROUNDS)}
    assert ends == {b"new" * 1000}


def test_views_follow_the_file_and_are_read_only() -> None:
    storage = machine()
    file = storage.create("f")
    file.allocate(10)
    view = storage.open("f").view()
    file.write_at(b"now", 2)
    assert (view.size, view[2:5].tobytes()) == (10, b"now")
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1


def test_views_of_a_file_that_was_cut_show_poison() -> None:
    storage = machine()
    file = storage.create("f")
    file.write_at(b"x" * 10, 0)
    view = file.view()
    file.truncate(4)
    assert view.tobytes() == b"x" * 4 + b"\xdb" * 6
    file.truncate(10)
    assert file.view().tobytes() == b"x" * 4 + b"\0" * 6


def test_a_killed_process_leaves_what_it_wrote_and_can_do_nothing_more() -> None:
    storage = machine(kill_at(2, Moment.AFTER, ("write",)))
    file = storage.create("f")
    file.write_at(b"one", 0)
    with pytest.raises(KilledError):
        file.write_at(b"two", 3)
    assert read_file(SimStorage(storage.disk), "f") == b"onetwo"
    for refused in (file.sync, file.size, lambda: storage.exists("f"), file.view):
        with pytest.raises(KilledError):
            refused()


def test_a_write_may_be_torn_by_a_kill_at_any_page() -> None:
    lengths = set()
    for seed in range(ROUNDS):
        storage = machine(kill_at(1, Moment.MIDDLE, ("write",)), seed=seed)
        with pytest.raises(KilledError):
            storage.create("f").write_at(b"x" * (3 * PAGE_BYTES), 100)
        data = read_file(SimStorage(storage.disk), "f")
        assert set(data[100:]) <= {ord("x")}
        lengths.add(len(data))
    assert lengths == {PAGE_BYTES, 2 * PAGE_BYTES, 3 * PAGE_BYTES}


@pytest.mark.parametrize("moment", [Moment.BEFORE, Moment.AFTER])
def test_every_kind_of_change_can_be_the_last(moment: Moment) -> None:
    def script(storage: Storage) -> None:
        file = storage.create("a/b")
        file.allocate(100)
        file.write_at(b"data", 0)
        file.sync()
        file.truncate(50)
        storage.sync_directory("a")
        storage.rename("a/b", "a/c")
        storage.unlink("a/c")

    whole = machine()
    script(whole)
    for call in range(1, whole.faults.calls + 1):
        storage = machine(kill_at(call, moment))
        with pytest.raises(KilledError):
            script(storage)
        assert len(storage.disk.log) == call
    assert whole.faults.calls == 9


def test_a_failed_sync_loses_pages_that_a_later_sync_does_not_bring_back() -> None:
    survived = set()
    for seed in range(ROUNDS):
        storage = machine(fail_at(2, errno.EIO, ("sync",)), seed=seed)
        file = durable_file(storage, "f", b"x" * SECTOR_BYTES)
        file.write_at(b"y" * SECTOR_BYTES, 0)
        with pytest.raises(OSError, match="EIO"):
            file.sync()
        assert read_file(storage, "f") == b"y" * SECTOR_BYTES  # the cache still has it
        file.sync()
        survived.add(read_file(after_power_cut(storage, seed), "f")[:1])
        file.write_at(b"z" * SECTOR_BYTES, 0)
        file.sync()
        assert read_file(after_power_cut(storage, seed), "f")[:1] == b"z"
    assert survived == {b"x", b"y"}


def test_a_persistent_error_meets_all_later_calls() -> None:
    storage = machine(fail_at(2, errno.EIO, ("write",), persistent=True))
    file = storage.create("f")
    file.write_at(b"1", 0)
    for _ in range(3):
        with pytest.raises(OSError, match="EIO"):
            file.write_at(b"2", 0)
    assert read_file(storage, "f") == b"1"


def test_a_full_disk_refuses_writes_but_not_what_is_allocated() -> None:
    storage = SimStorage(Disk(capacity=4 * PAGE_BYTES))
    file = storage.create("f")
    file.allocate(3 * PAGE_BYTES)
    other = storage.create("g")
    other.write_at(b"x" * PAGE_BYTES, 0)
    assert storage.free_bytes() == 0
    with pytest.raises(OSError, match="no space"):
        other.write_at(b"x", PAGE_BYTES)
    file.write_at(b"y" * 3 * PAGE_BYTES, 0)
    storage.unlink("g")
    assert storage.free_bytes() == PAGE_BYTES


def test_a_failed_allocation_has_all_that_is_free_until_its_file_is_removed() -> None:
    """As ext4 does; tmpfs takes as much meanwhile."""
    storage = SimStorage(Disk(capacity=4 * PAGE_BYTES))
    file = storage.create("f")
    with pytest.raises(OSError, match="no space"):
        file.allocate(5 * PAGE_BYTES)
    assert (file.size(), storage.free_bytes()) == (0, 0)
    storage.unlink("f")
    assert storage.free_bytes() == 4 * PAGE_BYTES


def test_the_same_seed_leaves_the_same_disk() -> None:
    storage = machine()
    for number in range(20):
        storage.create(f"d/{number}").write_at(bytes([number]) * 3000, number)
    one, two = after_power_cut(storage, 7), after_power_cut(storage, 7)
    assert one.disk.names.entries.keys() == two.disk.names.entries.keys()
    for name in one.list("d"):
        assert read_file(one, f"d/{name}") == read_file(two, f"d/{name}")
    assert np.array_equal(
        storage.open("d/0").view(), SimStorage(storage.disk.clone()).open("d/0").view()
    )


@mends("S275")
@pytest.mark.parametrize("kind", ["write", "sync"])
def test_what_could_not_be_replaced_leaves_nothing_beside_it(kind: str) -> None:
    """A full disk: a clean stop afterwards leaves a store with no file that nobody knows."""
    storage = machine()
    replace_file(storage, "gantry/note", b"old")
    storage.faults.faults = (Fault(1, error=errno.ENOSPC, kinds=(kind,)),)
    with pytest.raises(OSError, match=r"ENOSPC|No space"):
        replace_file(storage, "gantry/note", b"new")
    assert storage.list("gantry") == ["note"]
    assert read_file(storage, "gantry/note") == b"old"
