"""ConsumeQueue files as readers leave them to one another, and their progress."""

from __future__ import annotations

import errno
import os
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from gantrymq.brokerd.queuefiles import write_units as write_units_of
from gantrymq.shm import layout
from gantrymq.shm.board import Board
from gantrymq.shm.kernels import dispatch
from gantrymq.shm.storage import PosixStorage, lengths_below, read_file
from gantrymq.workers.housekeeper.progress import PROGRESS_FILE, read_progress, save_progress
from gantrymq.workers.housekeeper.queuesync import QueueSync
from gantrymq.workers.logviews import LogViews
from gantrymq.workers.reader.queues import QueueFiles
from tests.sim.storage_calls import build, losses
from tests.support.faults import FaultPlan, KilledError, Moment, kill_at
from tests.support.memory_sessions import memory_board
from tests.support.simdisk import Change, Disk
from tests.support.simstorage import SimStorage
from tests.support.trials import mends

UNITS_PER_FILE = 1000  # of a memory board
ROUNDS = 20


def write_units(files: QueueFiles, board: Board, first: int, count: int) -> None:
    """As the reader does: units, then `written`."""
    unit = layout.CQ_UNIT.pack(physical_offset=1, size=100, tags_code=7)
    files.write(0, first, memoryview(unit * count))
    board.set_word(board.queue_at(0) + layout.QUEUE_WRITTEN, first + count)


def sync_and_note(storage: SimStorage, board: Board, position: int) -> None:
    """As a housekeeper does that knows of nothing but the disk and the board."""
    board.set_word(layout.BOARD_DISPATCHED, position)
    round_ = QueueSync(storage, board).round()
    try:
        while True:
            next(round_)
    except StopIteration as ended:
        save_progress(storage, ended.value.position, ended.value.written)


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


@mends("R7.3")
def test_a_write_of_units_that_fails_is_not_tried_again(store_dir: Path) -> None:
    """By the kernel, whose queue files are open: the error is told, with its number."""
    board = memory_board({"orders": 1})
    files = QueueFiles(PosixStorage(str(store_dir)), board)
    write_units(files, board, 0, 1)
    units = np.frombuffer(layout.CQ_UNIT.pack(physical_offset=1, size=100) * 3, np.uint8)
    touched = np.zeros(dispatch.TOUCH_WORDS, np.int64)
    touched[[dispatch.TOUCH_FIRST, dispatch.TOUCH_COUNT, dispatch.TOUCH_START]] = 1, 3, units.size
    assert files.write_many(touched, 0, 1, units.ctypes.data) == 1
    name = next(store_dir.rglob(f"{0:020d}"))
    fresh = os.open(name, os.O_RDONLY)
    for path in Path("/proc/self/fd").iterdir():  # from now on its writes fail
        if path.exists() and path.samefile(name) and int(path.name) != fresh:
            os.dup2(fresh, int(path.name))
    os.close(fresh)
    with pytest.raises(OSError, match="consumequeue") as caught:
        files.write_many(touched, 0, 1, units.ctypes.data)
    assert caught.value.errno == errno.EBADF
    files.close()


@pytest.mark.parametrize("saved", [0, 300, 999])
def test_all_units_are_synced_whoever_has_died_over_them(saved: int) -> None:
    """P14: progress counts all units, so all of them must outlast a power cut."""
    board = memory_board({"orders": 1})
    storage = SimStorage(Disk())
    storage.make_directory("gantry")
    storage.sync_directory("")
    dead = QueueFiles(storage, board)
    if saved:
        write_units(dead, board, 0, saved)
        sync_and_note(storage, board, 5000)
    write_units(dead, board, saved, 1500 - saved)
    dead.close()
    successor = QueueFiles(storage, board)
    write_units(successor, board, 1500, 600)
    sync_and_note(storage, board, 9000)
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


def touch(queue: int, first: int, count: int, end: int) -> list[int]:
    """A row as `dispatch_log` leaves it: its units end at a byte."""
    return [queue, first, count, end * layout.CQ_UNIT_BYTES]


def write_touched(files: QueueFiles, rows: list[list[int]], units: NDArray[np.uint8]) -> int:
    """As the reader does; how many queues the kernel left to Python."""
    touched, done, left = np.array(rows, np.int64).reshape(-1), 0, 0
    while True:
        done = files.write_many(touched, done, len(rows), units.ctypes.data)
        if done == len(rows):
            return left
        queue, first, count, end = rows[done]
        files.write(queue, first, units[end - count * layout.CQ_UNIT_BYTES : end].data)
        done, left = done + 1, left + 1


def test_a_kernel_writes_what_python_writes(tmp_path: Path) -> None:
    """SF-64: queues in any order, over ends of files; the first units of a file go by Python."""
    board, dice = memory_board({"orders": 3}), random.Random(5)
    stores = [PosixStorage(str(tmp_path / name)) for name in ("kernel", "python")]
    native, plain = (QueueFiles(storage, board) for storage in stores)
    ends, left, calls = [0, 0, 0], 0, 0
    for _ in range(60):
        rows, total = [], 0
        for queue in dice.sample(range(3), dice.randint(1, 3)):
            count = dice.randint(1, 120)
            total += count
            rows.append(touch(queue, ends[queue], count, total))
            ends[queue] += count
        units = np.frombuffer(dice.randbytes(total * layout.CQ_UNIT_BYTES), np.uint8).copy()
        left += write_touched(native, rows, units)
        calls += len(rows)
        for queue, first, count, end in rows:
            plain.write(queue, first, units[end - count * layout.CQ_UNIT_BYTES : end].data)
    assert min(ends) > UNITS_PER_FILE
    assert left < calls / 3
    for queue, end in enumerate(ends):
        for base in range(0, end, UNITS_PER_FILE):
            name = f"consumequeue/orders/{queue}/{base * layout.CQ_UNIT_BYTES:020d}"
            assert read_file(stores[0], name) == read_file(stores[1], name)
    native.close()
    plain.close()


def test_an_error_that_a_kernel_meets_is_raised_by_the_storage(tmp_path: Path) -> None:
    """It is not passed over: the queue counts as not written, and Python tries it again."""
    board, storage = memory_board({"orders": 1}), PosixStorage(str(tmp_path / "store"))
    files = QueueFiles(storage, board)
    units = np.zeros(2 * layout.CQ_UNIT_BYTES, np.uint8)
    assert write_touched(files, [touch(0, 0, 1, 1)], units) == 1
    assert write_touched(files, [touch(0, 1, 1, 1)], units) == 0
    file = next(iter(files._open.values()))
    reader = os.open(tmp_path / "store" / file.name, os.O_RDONLY)
    os.dup2(reader, file.native)
    os.close(reader)
    with pytest.raises(OSError, match="Bad file descriptor"):
        write_touched(files, [touch(0, 2, 1, 1)], units)
    files.close()


@mends("S286")
def test_no_power_cut_leaves_a_file_of_another_broker_shorter_than_its_queues_others() -> None:
    """Its length tells the setting of all: by a torn first one, the next would be as short."""
    disk, lengths = Disk(file_bytes_max=1 << 10), Counter[int]()
    script: list[Change] = []
    storage, disk.journal = SimStorage(disk), script
    units = memoryview(bytes(range(1, 201)))
    write_units_of(storage, "batchconsumequeue/b/0", 128, 0, units, lambda _name: None)
    for end in range(len(script) + 1):
        for lost in losses(script[:end]):
            left = SimStorage(build(script[:end], lost, torn=False))
            lengths.update(lengths_below(left, "batchconsumequeue", 2))
    assert set(lengths) == {128}
