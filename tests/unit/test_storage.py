"""`shm.storage`: what both storages, the operating system's and the simulator's, must agree on."""

from __future__ import annotations

import errno
import os
import random
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from gantrymq.shm.held import Descriptor
from gantrymq.shm.storage import (
    PosixFile,
    PosixStorage,
    Storage,
    is_failed_change,
    read_file,
    replace_file,
)
from tests.support.simdisk import Disk
from tests.support.simstorage import SimStorage
from tests.support.trials import mends

KIB = 1 << 10
SIZE = 256 * KIB  # as large as files of the simulated disk get


@pytest.fixture(params=["posix", "simulated"])
def storage(request: pytest.FixtureRequest, store_dir: Path) -> Storage:
    return PosixStorage(str(store_dir)) if request.param == "posix" else SimStorage(Disk())


@pytest.mark.parametrize("prepare", ["allocate", "truncate"])
def test_outside_of_the_extents_all_is_zero(storage: Storage, prepare: str, seed: int) -> None:
    """Recovery zeroes by them and `store verify` looks by them: a byte left out is never seen."""
    dice = random.Random(seed)
    file = storage.create("a/b")
    getattr(file, prepare)(SIZE)
    for _ in range(8):
        file.write_at(dice.randbytes(dice.randrange(1, 6 * KIB)), dice.randrange(SIZE - 6 * KIB))
    file.punch(SIZE // 2, 50 * KIB)
    content = read_file(storage, "a/b")
    asked = [(0, SIZE), (0, 2 * SIZE), (5, 5), (SIZE, 2 * SIZE)]
    asked += [tuple(sorted(dice.choices(range(SIZE), k=2))) for _ in range(50)]  # type: ignore[misc]
    for start, stop in asked:
        left, at = bytearray(content[start:stop]), start
        for begin, end in file.extents(start, stop):
            assert at <= begin < end <= min(stop, SIZE), "in order, inside, none of them empty"
            left[begin - start : end - start] = bytes(end - begin)
            at = end
        assert not any(left), (start, stop)
    file.close()


def test_an_empty_file_has_no_extents(storage: Storage) -> None:
    file = storage.create("empty")
    assert file.extents(0, SIZE) == []
    file.write_at(b"x", 0)
    assert file.extents(0, SIZE) == [(0, 1)]
    assert file.extents(1, SIZE) == []
    file.close()


def test_blocks_that_were_only_allocated_are_not_read(tmp_path: Path) -> None:
    """A start would otherwise read a whole segment that is prepared ahead."""
    storage = PosixStorage(str(tmp_path))
    file = storage.create("ahead")
    file.truncate(256 * SIZE)
    assert os.stat(tmp_path / "ahead").st_blocks * 512 < SIZE
    file.write_at(b"record", 0)
    file.write_at(b"another", 128 * SIZE)
    found = file.extents(0, 256 * SIZE)
    assert len(found) == 2
    assert [begin <= at < end for (begin, end), at in zip(found, (0, 128 * SIZE), strict=True)]
    assert sum(end - begin for begin, end in found) <= SIZE
    file.close()


@mends("S177")
@pytest.mark.parametrize("spare", [0, 1, 4095])
def test_a_still_view_is_the_file_and_takes_no_room_for_holes(spare: int, seed: int) -> None:
    """On a tmpfs a look at a hole through a map takes a page, or is SIGBUS where none is left."""
    dice = random.Random(seed)
    size = 64 * SIZE + spare
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="gantrymq-test-holes-") as folder:
        file = PosixStorage(folder).create("sparse")
        file.truncate(size)
        for count in (1, 5 * KIB, 9 * SIZE, 12 * SIZE):  # copied, and mapped
            file.write_at(dice.randbytes(count), dice.randrange(size - count))
        file.write_at(b"end", size - 3)
        before = os.stat(f"{folder}/sparse").st_blocks
        view = file.still_view()
        assert view.tobytes() == read_file(PosixStorage(folder), "sparse")
        assert not view.flags.writeable
        assert os.stat(f"{folder}/sparse").st_blocks == before
        file.close()


def test_a_replaced_file_is_the_new_one_whole(storage: Storage) -> None:
    for data in (b"first, and longer", b"second", b""):
        replace_file(storage, "gantry/small", data)
        assert read_file(storage, "gantry/small") == data
        assert storage.list("gantry") == ["small"]


LOOKS: dict[str, Callable[[PosixFile], object]] = {
    "read_into": lambda file: file.read_into(bytearray(1), 0),
    "let_go": lambda file: file.let_go(0, 1),
    "extents": lambda file: file.extents(0, 1),
    "size": PosixFile.size,
    "view": PosixFile.view,
    "still_view": PosixFile.still_view,
}
CHANGES: dict[str, Callable[[PosixFile], object]] = {
    "write_at": lambda file: file.write_at(b"x", 0),
    "zero_range": lambda file: file.zero_range(0, 1),
    "sync": PosixFile.sync,
    "allocate": lambda file: file.allocate(1),
    "punch": lambda file: file.punch(0, 1),
    "truncate": lambda file: file.truncate(1),
}


@pytest.mark.parametrize("call", LOOKS | CHANGES)
def test_an_error_says_of_which_file_it_is(call: str) -> None:
    """The calls of the operating system have a descriptor only."""
    opened = Descriptor(os.open, os.devnull, os.O_RDWR)
    file = PosixFile(opened, "a/file")
    opened.close()
    file.descriptor = 1 << 30  # nobody has so many
    with pytest.raises(OSError, match="a/file") as caught:
        (LOOKS | CHANGES)[call](file)
    assert caught.value.errno == errno.EBADF
    assert is_failed_change(caught.value) == (call in CHANGES)
