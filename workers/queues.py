"""ConsumeQueue files as the reader writes them: sparse, full length, found by number (SF-64)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from shm import layout
from shm.board import Board
from shm.storage import File, Storage

DIRECTORY = "consumequeue"
OPEN_FILES_MAX = 512


def queue_directory(topic: str, queue_id: int) -> str:
    """Folder of a queue's files (SF-8)."""
    return f"{DIRECTORY}/{topic}/{queue_id}"


class QueueFiles:
    """Writes units of all queues; keeps the files used last open."""

    def __init__(self, storage: Storage, board: Board) -> None:
        self._storage = storage
        self._board = board
        self._bytes = board.cq_bytes
        self._open: OrderedDict[tuple[int, int], File] = OrderedDict()
        self._directories: dict[int, str] = {}
        self._dirty: set[str] = set()

    def write(self, queue: int, first: int, units: memoryview) -> None:
        """Write units of a board queue from queue offset `first` on. Raises OSError."""
        at = first * layout.CQ_UNIT_BYTES
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
            return file
        name = f"{self._directory(queue)}/{base:020d}"
        self._dirty.add(name)
        if self._storage.exists(name):
            file = self._storage.open(name, write=True)
        else:
            file = self._storage.create(name)
            file.truncate(self._bytes)
        self._open[queue, base] = file
        if len(self._open) > OPEN_FILES_MAX:
            self._open.popitem(last=False)[1].close()
        return file

    def _directory(self, queue: int) -> str:
        found = self._directories.get(queue)
        if found is None:
            row = self._board.queue(queue)
            topic = self._board.topic(row["topic"])
            if topic is None:
                raise ValueError(f"queue {queue} belongs to no topic")
            found = self._directories[queue] = queue_directory(topic.name, row["queue_id"])
        return found

    def sync(self) -> None:
        """Make all units durable, names included. Raises OSError."""
        folders: set[str] = set()
        for name in self._dirty:
            if self._storage.exists(name):
                file = self._storage.open(name, write=True)
                file.sync()
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


def _parents(name: str) -> Iterator[str]:
    while "/" in name:
        name = name.rpartition("/")[0]
        yield name
