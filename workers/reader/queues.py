"""ConsumeQueue files as the reader writes them: sparse, full length, found by number (SF-64).

The housekeeper makes them durable.
"""

from __future__ import annotations

import os
from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray

from gantrymq.shm import layout
from gantrymq.shm.board import Board
from gantrymq.shm.kernels import unitfiles
from gantrymq.shm.queuenames import queue_directory
from gantrymq.shm.storage import File, Storage, mark_failed_change

OPEN_FILES_MAX = 4096


class QueueFiles:
    """Writes units of all queues; keeps the files used last open."""

    def __init__(self, storage: Storage, board: Board) -> None:
        self._storage = storage
        self._board = board
        self._bytes = board.cq_bytes
        self._open: OrderedDict[tuple[int, int], File] = OrderedDict()
        self._last: dict[int, tuple[int, File]] = {}  # each queue's file, all open
        self._natives = np.full(board.queues_max * unitfiles.FILE_WORDS, -1, np.int64)
        self._directories: dict[int, str] = {}

    def write_many(self, touched: NDArray[np.int64], first: int, end: int, units: int) -> int:
        """Write units as kernels leave them at an address; the first touched queue that is left.

        Raises OSError.
        """
        place = unitfiles.write_units(touched, first, end, self._natives, self._bytes, units)
        if place < 0:
            error = OSError(-place, os.strerror(-place), "a file of consumequeue/")
            mark_failed_change(error)
            raise error
        return place

    def write(self, queue: int, first: int, units: memoryview) -> None:
        """Write units of a board queue from queue offset `first` on. Raises OSError."""
        at = first * layout.CQ_UNIT_BYTES
        if last := self._last.get(queue):
            base, file = last
            if 0 <= at - base <= self._bytes - len(units):
                file.write_at(units, at - base)
                return
        while units:
            base = at // self._bytes * self._bytes
            piece = units[: base + self._bytes - at]
            self._file(queue, base).write_at(piece, at - base)
            at += len(piece)
            units = units[len(piece) :]

    def _file(self, queue: int, base: int) -> File:
        file = self._open.get((queue, base))
        if file is not None:
            self._open.move_to_end((queue, base))
            self._use(queue, base, file)
            return file
        self._close_passed(queue, base)
        name = f"{self._directory(queue)}/{base:020d}"
        file = self._existing(name) or self._made(name)
        self._open[queue, base] = file
        self._use(queue, base, file)
        if len(self._open) > OPEN_FILES_MAX:
            (old_queue, old_base), old = self._open.popitem(last=False)
            last = self._last.get(old_queue)
            if last is not None and last[0] == old_base:
                self._forget(old_queue)
            old.close()
        return file

    def _use(self, queue: int, base: int, file: File) -> None:
        """What comes next of a queue goes to this file, as a rule."""
        self._last[queue] = (base, file)
        row = queue * unitfiles.FILE_WORDS
        self._natives[row + unitfiles.BASE] = base
        self._natives[row + unitfiles.DESCRIPTOR] = file.native

    def _forget(self, queue: int) -> None:
        """A queue's file is closed next."""
        del self._last[queue]
        self._natives[queue * unitfiles.FILE_WORDS + unitfiles.DESCRIPTOR] = -1

    def _close_passed(self, queue: int, base: int) -> None:
        """A file that is full may be removed some day: held open, it would keep its blocks."""
        last = self._last.get(queue)
        if last is not None and last[0] < base and (queue, last[0]) in self._open:
            self._forget(queue)
            self._open.pop((queue, last[0])).close()

    def _existing(self, name: str) -> File | None:
        try:
            file = self._storage.open(name, write=True)
        except FileNotFoundError:
            return None
        if file.size() < self._bytes:  # its maker died over it; maps see no more than there is
            file.truncate(self._bytes)
        return file

    def _made(self, name: str) -> File:
        file = self._storage.create(name)
        file.truncate(self._bytes)
        return file

    def _directory(self, queue: int) -> str:
        found = self._directories.get(queue)
        if found is None:
            row = self._board.queue(queue)
            topic = self._board.topic(row["topic"])
            if topic is None:
                raise ValueError(f"queue {queue} belongs to no topic")
            found = self._directories[queue] = queue_directory(
                self._storage, topic.name, row["queue_id"]
            )
        return found

    def close(self) -> None:
        """Close all files."""
        for file in self._open.values():
            file.close()
        self._open.clear()
        self._last.clear()
        self._natives[:] = -1
