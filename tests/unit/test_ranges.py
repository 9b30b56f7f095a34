"""`gantry/ranges.json`: which log positions are ours."""

from __future__ import annotations

import contextlib
import zlib
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantrymq.shm.errors import Corrupt
from gantrymq.shm.ranges import EVERYTHING, FILE, OPEN, Ranges, Stretch, read_ranges, write_ranges
from gantrymq.shm.storage import read_file
from tests.support.faults import FaultPlan, KilledError, Moment, kill_at
from tests.support.simdisk import Disk
from tests.support.simstorage import SimStorage

TWO = Ranges(((0, 100), (250, OPEN)), "0123-boot", "2f0001")
#: TWO as it was written before lives had names there.
OF_VERSION_1 = (
    b'{"boot_id": "0123-boot", "crc": CRC, "ranges": [[0, 100], [250, null]], "version": 1}'
)

spans = st.lists(st.integers(0, 300), max_size=8, unique=True).map(
    lambda bounds: tuple(pairwise(sorted(bounds)))[::2]
)


def new_storage() -> SimStorage:
    disk = Disk(file_bytes_max=4096)
    storage = SimStorage(disk)
    storage.make_directory("gantry")
    storage.sync_directory("")
    return storage


def test_the_file_says_what_was_written() -> None:
    storage = new_storage()
    assert read_ranges(storage) is None
    for ranges in (Ranges(), EVERYTHING, TWO, TWO.closed(300)):
        write_ranges(storage, ranges)
        assert read_ranges(storage) == ranges


def test_a_file_of_version_1_names_no_life() -> None:
    storage = new_storage()
    compact = b'{"boot_id":"0123-boot","ranges":[[0,100],[250,null]],"version":1}'
    file = storage.create(FILE)
    file.write_at(OF_VERSION_1.replace(b"CRC", b"%d" % zlib.crc32(compact)), 0)
    file.close()
    assert read_ranges(storage) == Ranges(TWO.spans, TWO.boot_id)


def test_any_changed_bit_is_damage() -> None:
    """P13."""
    storage = new_storage()
    write_ranges(storage, TWO)
    good = read_file(storage, FILE)
    for at in range(len(good)):
        for bit in range(8):
            bad = bytearray(good)
            bad[at] ^= 1 << bit
            file = storage.open(FILE, write=True)
            file.write_at(bytes(bad), 0)
            file.close()
            with pytest.raises(Corrupt, match=FILE):
                read_ranges(storage)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "{}", '{"ranges": 3, "boot_id": ""}'])
def test_what_is_no_ranges_file_is_damage(text: str) -> None:
    storage = new_storage()
    file = storage.create(FILE)
    file.write_at(text.encode(), 0)
    file.close()
    with pytest.raises(Corrupt, match="delete it"):
        read_ranges(storage)


def test_ranges_that_overlap_or_touch_are_damage() -> None:
    storage = new_storage()
    for wrong in (((0, 100), (50, 200)), ((0, 100), (100, 200)), ((5, 5),), ((9, 3),)):
        write_ranges(storage, Ranges(wrong))
        with pytest.raises(Corrupt):
            read_ranges(storage)


def test_a_kill_at_any_call_leaves_the_old_or_the_new() -> None:
    for at in range(1, 20):
        for moment in Moment:
            storage = new_storage()
            write_ranges(storage, EVERYTHING)
            storage.faults = FaultPlan([kill_at(at, moment)])
            with contextlib.suppress(KilledError):
                write_ranges(storage, TWO)
            after = read_ranges(SimStorage(storage.disk))
            assert after in (EVERYTHING, TWO)
            assert after == TWO or storage.faults.met


def test_a_life_that_follows_ours_makes_the_range_longer() -> None:
    first = Ranges().opened(0, "a", "1").closed(100)
    assert first.spans == ((0, 100),)
    assert first.opened(100, "b", "2") == Ranges(((0, OPEN),), "b", "2")


def test_a_life_that_follows_another_brokers_begins_a_range() -> None:
    first = Ranges().opened(0, "a", "1").closed(100)
    assert first.opened(250, "b", "2").spans == ((0, 100), (250, OPEN))
    again = first.opened(250, "b", "2").closed(250)
    assert again == Ranges(((0, 100),), "b", "2"), "nothing was written"


@given(spans, st.integers(0, 300), st.integers(0, 300))
def test_stretches_cut_a_span_into_what_one_side_wrote(
    written: tuple[tuple[int, int], ...], left: int, right: int
) -> None:
    ranges = Ranges(written)
    start, end = sorted((left, right))
    found = list(ranges.stretches(start, end))
    places = [(at, part.ours) for part in found for at in range(part.start, part.end)]
    ours = {at for first, last in written for at in range(first, last)}
    assert places == [(at, at in ours) for at in range(start, end)]
    assert all(before.ours != after.ours for before, after in pairwise(found))
    assert all(ranges.contains(at) == (at in ours) for at in range(start, end))


def test_a_stretch_reaches_to_its_neighbours() -> None:
    assert TWO.stretch(99) == Stretch(0, 100, True)
    assert TWO.stretch(100) == TWO.stretch(249) == Stretch(100, 250, False)
    assert TWO.stretch(250) == Stretch(250, OPEN, True)
    assert TWO.closed(300).stretch(300) == Stretch(300, OPEN, False)
