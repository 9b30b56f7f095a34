"""The lists of filters that kernels go by, on a disk without room for the note of them."""

from __future__ import annotations

import ctypes
import errno
import gc
import random
from types import SimpleNamespace

import numpy as np
import pytest

from gantrymq.shm import layout
from gantrymq.shm.bitmapnote import FILE, extension_directory, read_covered
from gantrymq.shm.bloom import BloomForm
from gantrymq.shm.errors import StoreFailed
from gantrymq.workers.filterfile import FilterEntry, write_filters
from gantrymq.workers.reader import filters
from gantrymq.workers.reader.extensions import Extensions
from gantrymq.workers.reader.filters import Filters
from tests.support.faults import Fault, FaultPlan
from tests.support.memory_sessions import memory_board
from tests.support.simdisk import Disk
from tests.support.simstorage import SimStorage
from tests.support.trials import mends

FORM = BloomForm.of(20, 32)
SETTINGS = SimpleNamespace(
    max_error_rate_of_bloom_filter=20, expect_consumer_num_use_filter=32,
    enable_calc_filter_bit_map=True, mapped_file_size_consume_queue_ext=1 << 16,
)  # fmt: skip
FULL = Fault(1, error=errno.ENOSPC, kinds=("create",), persistent=True, under=FILE)


class Store:
    """A board with topic `t`, a disk, and the filters that are stated."""

    def __init__(self) -> None:
        self.faults = FaultPlan()
        self.storage = SimStorage(Disk(), faults=self.faults)
        self.board = memory_board({"t": 2, "u": 1})
        self.state("a > 5")
        self.extensions = Extensions(self.storage, self.board, SETTINGS)
        self.extensions.refresh(100)
        assert self.extensions.filters is not None
        self.filters: Filters = self.extensions.filters

    def state(self, *texts: str) -> None:
        """These are the filters from now on, one of each group."""
        entries = [FilterEntry("t", f"g{n}", text, "sql", 1 + n, 1) for n, text in enumerate(texts)]
        write_filters(self.storage, entries, FORM)
        self.board.count_change(layout.BOARD_FILTER_CHANGES)

    @property
    def listed(self) -> list[int]:
        """How many filters the kernel finds for each of the three queues; 0: it has no list."""
        addresses = self.extensions._lists[:3].tolist()
        return [
            ctypes.c_int64.from_address(address).value if address else 0 for address in addresses
        ]

    @property
    def noted(self) -> dict[str, int]:
        """From where on the bits of each group are known to be there."""
        return {item.group: item.start for item in read_covered(self.storage)}


@mends("S27")
def test_without_room_for_the_note_kernels_keep_their_lists() -> None:
    """F7: the address of a list that nobody holds is that of anything; later, all change."""
    store = Store()
    assert (store.listed, store.noted) == ([1, 1, 0], {"g0": 100})
    before = store.extensions._lists[:3].tolist()
    store.state("a > 5", "b > 7")
    store.faults.faults = (FULL,)
    for now_ns in (1, 2, filters.RETRY_NS // 2):
        store.extensions.refresh(200, now_ns)
    gc.collect()
    rubbish = [np.full(size, 77, np.int64) for size in range(1, 40) for _ in range(9)]
    assert store.extensions._lists[:3].tolist() == before
    assert store.listed == [1, 1, 0]
    assert len(store.faults.met) == 1, "once a second"
    assert {key[1] for key in store.filters.bound} == {"g0"}
    store.faults.faults = ()
    store.extensions.refresh(300, 2 * filters.RETRY_NS)
    assert (store.listed, store.noted) == ([2, 2, 0], {"g0": 100, "g1": 300})
    assert rubbish


def test_a_start_without_room_for_the_note_fails() -> None:
    """It would leave out bits that the note of a life before says are there."""
    store = Store()
    store.state("b > 7")
    store.faults.faults = (FULL,)
    again = Filters(store.storage, store.board, SETTINGS)
    for _ in range(2):
        with pytest.raises(OSError, match="ENOSPC"):
            again.refresh(200)
    store.faults.faults = ()
    assert again.refresh(300)
    assert store.noted == {"g0": 300}


def test_bits_that_were_added_are_told_of_once_there_is_room() -> None:
    """A note that could not be written is not taken for one that was."""
    store = Store()
    done = [item.covered for item in store.filters.bound.values()]
    store.faults.faults = (FULL,)
    with pytest.raises(OSError, match="ENOSPC"):
        store.filters.lower(done)
    assert store.noted == {"g0": 100}
    store.faults.faults = ()
    store.filters.lower(done)
    assert store.noted == {"g0": 0}


@mends("S264")
def test_bits_for_what_retention_has_removed_make_no_file() -> None:
    store = Store()
    assert not store.extensions.set_bits(0, 0, (1, 2))
    assert not store.storage.exists("consumequeue_ext")
    assert not store.extensions.sync_bits()


@mends("S288")
@pytest.mark.usefixtures("nothing_reaches_the_disk")
def test_bits_that_a_failed_sync_has_dropped_are_written_again() -> None:
    """P3: they are set in the cache, so the next reader would find nothing to write, or to sync."""
    store = Store()
    size = store.extensions._unit_bytes
    bitmap_bytes = size - layout.CQ_EXT_UNIT_BYTES
    unit = layout.CQ_EXT_UNIT.pack(size=size, bitmap_bytes=bitmap_bytes) + bytes(bitmap_bytes)
    name = f"{extension_directory('t', 0)}/{0:020d}"
    file = store.storage.create(name)
    file.write_at(unit.ljust(SETTINGS.mapped_file_size_consume_queue_ext, b"\0"), 0)
    file.sync()
    store.storage.sync_directory(extension_directory("t", 0))
    store.faults.faults = (Fault(1, error=errno.EIO, kinds=("sync",)),)
    assert store.extensions.set_bits(0, 0, (3, 9))
    with pytest.raises(StoreFailed):
        store.extensions.sync_bits()
    again = Extensions(SimStorage(store.storage.disk), store.board, SETTINGS)
    assert again.set_bits(0, 0, (3, 9))
    assert again.sync_bits()
    disk = store.storage.disk.clone()
    inode = disk.names.entries[name]
    assert inode is not None
    inode.power_cut(random.Random(1))
    left = inode.durable[layout.CQ_EXT_BITMAP : size].tobytes()
    assert [at for at in range(8 * bitmap_bytes) if left[at // 8] >> at % 8 & 1] == [3, 9]
