"""ConsumeQueue files as readers leave them to one another, and their progress."""

from __future__ import annotations

import random

import pytest

from shm import layout
from shm.board import Board
from shm.storage import read_file
from tests.support.faults import FaultPlan, KilledError, Moment, kill_at
from tests.support.memory_sessions import memory_board
from tests.support.simdisk import Disk
from tests.support.simstorage import SimStorage
from workers.logviews import LogViews
from workers.reader.queues import PROGRESS_FILE, QueueFiles, read_progress, save_progress

UNITS_PER_FILE = 1000  # of a memory board
ROUNDS = 20


def write_units(files: QueueFiles, board: Board, first: int, count: int) -> None:
    """As the reader does: units, then `written`."""
    unit = layout.CQ_UNIT.pack(physical_offset=1, size=100, tags_code=7)
    files.write(0, first, memoryview(unit * count))
    board.set_word(board.queue_at(0) + layout.QUEUE_WRITTEN, first + count)


def test_a_file_whose_maker_died_over_it_gets_its_length() -> None:
    """SF-64: who maps a file once sees what is written later."""
    board, disk = memory_board({"orders": 1}), Disk()
    plan = FaultPlan((kill_at(1, Moment.AFTER, ("create",)),))
    with pytest.raises(KilledError):
        write_units(QueueFiles(SimStorage(disk, "dead", plan), board), board, 0, 1)
    storage = SimStorage(disk)
    successor, views = QueueFiles(storage, board), LogViews(storage, board)
    write_units(successor, board, 0, 1)
    assert len(views.units("orders", 0, 0, 1)) == 1
    write_units(successor, board, 1, 2)
    assert views.units("orders", 0, 1, 3)["size"].tolist() == [100, 100]


@pytest.mark.parametrize("saved", [0, 300, 999])
def test_a_new_reader_syncs_what_a_dead_one_has_left_unsynced(saved: int) -> None:
    """P14: progress counts all units, so all of them must outlast a power cut."""
    board = memory_board({"orders": 1})
    storage = SimStorage(Disk())
    storage.make_directory("gantry")
    storage.sync_directory("")
    dead = QueueFiles(storage, board)
    if saved:
        write_units(dead, board, 0, saved)
        dead.sync()
        save_progress(storage, 5000, {("orders", 0): saved})
    write_units(dead, board, saved, 1500 - saved)
    dead.close()
    successor = QueueFiles(storage, board)
    write_units(successor, board, 1500, 600)
    successor.sync()
    save_progress(storage, 9000, {("orders", 0): 2100})
    for seed in range(ROUNDS):
        disk = storage.disk.clone()
        disk.power_cut(random.Random(seed))
        after = SimStorage(disk)
        assert read_progress(after) == (9000, {("orders", 0): 2100})
        data = b"".join(
            read_file(after, f"consumequeue/orders/0/{base * layout.CQ_UNIT_BYTES:020d}")
            for base in range(0, 2100, UNITS_PER_FILE)
        )
        sizes = [
            layout.CQ_UNIT.unpack(data, offset * layout.CQ_UNIT_BYTES)["size"]
            for offset in range(2100)
        ]
        assert sizes == [100] * 2100


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"position": "x"}', b'{"position": 1}'])
def test_damaged_progress_is_none(content: bytes) -> None:
    storage = SimStorage(Disk())
    storage.create(PROGRESS_FILE).write_at(content, 0)
    assert read_progress(storage) is None
