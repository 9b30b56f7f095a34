"""ConsumeQueue files as the reader writes them: sparse, full length, found by number (SF-64)."""

from __future__ import annotations

import json
import os
from collections import OrderedDict
from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from shm import layout
from shm.board import Board
from shm.errors import StoreFailed
from shm.jsonsum import sum_holds, with_sum
from shm.kernels import unitfiles
from shm.queuenames import queue_directory
from shm.storage import File, Storage, mark_failed_change, read_file, replace_file

PROGRESS_FILE = "gantry/queues.json"
OPEN_FILES_MAX = 4096


def save_progress(storage: Storage, position: int, written: Mapping[tuple[str, int], int]) -> None:
    """Note that these units, of all records below `position`, are durable. Raises OSError."""
    save_table(storage, PROGRESS_FILE, ("position", position), written)


def read_progress(storage: Storage) -> tuple[int, dict[tuple[str, int], int]] | None:
    """What was saved last; None if it is gone or damaged, for it is derived from the log."""
    return read_table(storage, PROGRESS_FILE, "position")


def save_table(
    storage: Storage, path: str, position: tuple[str, int], offsets: Mapping[tuple[str, int], int]
) -> None:
    """Write a log position, under its name, and a queue offset for each queue. Raises OSError."""
    name, value = position
    queues = {f"{topic}@{queue_id}": offset for (topic, queue_id), offset in offsets.items()}
    content = json.dumps({name: value, "queues": queues})
    replace_file(storage, path, with_sum(content).encode())


def read_table(
    storage: Storage, path: str, position: str
) -> tuple[int, dict[tuple[str, int], int]] | None:
    """What `save_table` wrote; None if it is gone or damaged."""
    try:
        data = read_file(storage, path)
        if sum_holds(data) is False:
            return None
        content = json.loads(data)
        parts = ((key.rpartition("@"), offset) for key, offset in content["queues"].items())
        offsets = {(topic, int(queue_id)): int(offset) for (topic, _, queue_id), offset in parts}
        return int(content[position]), offsets
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        return None


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
        self._dirty = set(self._unsynced())

    def _unsynced(self) -> Iterator[str]:
        """Files with units that a reader before this one may have left unsynced."""
        progress = read_progress(self._storage)
        synced = progress[1] if progress else {}
        for topic in self._board.topics():
            for queue_id in range(topic.queue_count):
                at = self._board.queue_at(topic.queue_base + queue_id)
                end = self._board.word(at + layout.QUEUE_WRITTEN) * layout.CQ_UNIT_BYTES
                start = synced.get((topic.name, queue_id), 0) * layout.CQ_UNIT_BYTES
                folder = queue_directory(self._storage, topic.name, queue_id)
                for base in range(start // self._bytes * self._bytes, end, self._bytes):
                    yield f"{folder}/{base:020d}"

    def note_written(self, name: str) -> None:
        """A file beside those of units has been written: `sync` makes it durable as well."""
        self._dirty.add(name)

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
        self._dirty.add(name)
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

    def sync(self) -> None:
        """Make all units durable, names included. Raises StoreFailed, OSError."""
        folders: set[str] = set()
        for name in self._dirty:
            if self._storage.exists(name):
                file = self._storage.open(name, write=True)
                try:
                    file.sync()
                except OSError as error:  # final, also if space was short
                    raise StoreFailed(f"sync of {name}: {error}", errno=error.errno) from error
                finally:
                    file.close()
                folders.update(_parents(name))
        for folder in sorted(folders, reverse=True):
            self._storage.sync_directory(folder)
        # Files that stay open may be written again without passing `_file`'s first branch.
        kept = {f"{self._directory(queue)}/{base:020d}" for queue, base in self._open}
        self._dirty = kept

    def close(self) -> None:
        """Close all files."""
        for file in self._open.values():
            file.close()
        self._open.clear()
        self._last.clear()
        self._natives[:] = -1


def _parents(name: str) -> Iterator[str]:
    while "/" in name:
        name = name.rpartition("/")[0]
        yield name
    yield ""
