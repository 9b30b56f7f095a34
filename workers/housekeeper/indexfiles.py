"""IndexFiles as the indexer keeps them: which may be kept, their names, and the writing.

Layout: shm/layout.py INDEX_HEADER, INDEX_ENTRY. What of them is sure: shm/indexnote.py.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gantrymq.shm import layout
from gantrymq.shm.errors import StoreFailed
from gantrymq.shm.indexnote import DIRECTORY, Header, Note, Shape, parse_header, read_note
from gantrymq.shm.kernels import index as kernels
from gantrymq.shm.lognames import segment_name
from gantrymq.shm.storage import File, Storage, clear_behind, is_shortage, map_file

PAGE_BYTES: Final = 1 << kernels.PAGE_SHIFT
#: Room for entries that are not in the file yet: few enough to be in a cache when they are written.
PENDING_MAX: Final = 1 << 16
#: In a flood slots are written once so many entries have come: that takes along most of the pages.
SLOTS_AFTER: Final = 1 << 20
WRITE_BYTES: Final = 128 * 1024
WRITES_MAX: Final = 24
COMPARED_BYTES: Final = 1 << 20
#: Entries go to the disk in such pieces while more are made: a sync then has little left to do.
STARTED_BYTES: Final = 1 << 20
_NAME_FORM: Final = "%Y%m%d%H%M%S"


def choose(storage: Storage, shape: Shape, low: int, end: int) -> Note:
    """Which files of a store may be kept: a start of what was noted. `low` and `end` are the log's.

    What comes behind is to be made again from the position given, and all of it in a store that
    another broker has made: it may have lost entries (LW-7). All of it, too, where segments are
    back of which keys have gone: a power cut may bring them back, and earlier versions removed
    keys while a stop could still leave the segments.
    """
    known = read_note(storage)
    if known is None or known[0] != shape or known[1].position > end or known[1].low > low:
        return Note(low, low=low)
    note = known[1]
    kept: list[tuple[str, Header]] = []
    for name, header in note.files:
        found = _header_on_disk(storage, shape, name)
        last = name == note.files[-1][0]
        if found is None and header.end_position < low and not kept:
            continue  # gone with its records
        if found is None or (found != header and not last):
            return _behind(storage, shape, kept, low)
        kept.append((name, header))
    return Note(max(note.position, low), 0, tuple(kept), note.full_ms, low)


def without_last(storage: Storage, shape: Shape, note: Note, low: int) -> Note:
    """The same without the newest file, which does not hold."""
    return _behind(storage, shape, list(note.files[:-1]), low)


def _header_on_disk(storage: Storage, shape: Shape, name: str) -> Header | None:
    path = f"{DIRECTORY}/{name}"
    if not storage.exists(path) or storage.size_of(path) != shape.file_bytes:
        return None
    data = bytearray(layout.INDEX_HEADER_BYTES)
    file = storage.open(path)
    file.read_into(data, 0)
    file.close()
    return parse_header(data)


def _behind(storage: Storage, shape: Shape, kept: list[tuple[str, Header]], low: int) -> Note:
    """Go on behind full files: keys of the record at their end may be in the last of them."""
    if not kept or kept[-1][1].end_position < low:
        return Note(low, 0, tuple(kept), kept[-1][1].end_ms if kept else 0, low)
    name, header = kept[-1]
    file = storage.open(f"{DIRECTORY}/{name}")
    entries = file.view()[shape.entry_at(1) : shape.entry_at(header.count)]
    file.close()
    at = layout.INDEX_POSITION
    positions = entries.reshape(-1, layout.INDEX_ENTRY_BYTES)[::-1, at : at + 8]
    wanted = np.frombuffer(header.end_position.to_bytes(8, "big"), np.uint8)
    key = 0
    while key < len(positions) and (positions[key] == wanted).all():
        key += 1
    return Note(header.end_position, key, tuple(kept), header.end_ms, low)


def next_name(last: str, now_ms: int) -> str:
    """The local time with milliseconds (SF-8's exception), behind the last file's in any case."""
    seconds, ms = divmod(now_ms, 1000)
    name = time.strftime(_NAME_FORM, time.localtime(seconds)) + f"{ms:03d}"
    if name > last:
        return name
    try:
        before = datetime.strptime(last[:-3], _NAME_FORM)
        after = before + timedelta(milliseconds=int(last[-3:]) + 1)
        return after.strftime(_NAME_FORM) + f"{after.microsecond // 1000:03d}"
    except ValueError:
        return f"{int(last) + 1:017d}"


@dataclass(slots=True)
class Segment:
    """The map of the segment that is read."""

    storage: Storage
    _base: int = field(default=-1)
    _view: NDArray[np.uint8] = field(default_factory=lambda: np.empty(0, np.uint8))

    def view(self, base: int) -> NDArray[np.uint8]:
        """Of the segment at a log position. Raises FileNotFoundError if it is gone."""
        if base != self._base:
            self._view = map_file(self.storage, segment_name(base))
            self._base = base
        return self._view


@dataclass(slots=True)
class OpenFile:
    """The newest file: its front in memory, entries that wait, and how far both are on the disk."""

    storage: Storage
    shape: Shape
    name: str
    front: NDArray[np.uint8]
    dirty: NDArray[np.uint8]
    pending: NDArray[np.uint8]
    file: File
    written: int = 1  # entries with a lower number are in the file
    _page: int = field(default=0)

    def write_entries(self, made: int, done: int) -> int:
        """Write some of `made` waiting entries, of which `done` are written; how many are now."""
        size = layout.INDEX_ENTRY_BYTES
        stop = min(made, done + WRITE_BYTES // size)
        data = self.pending[done * size : stop * size].data
        start = self.shape.entry_at(self.written)
        self.file.write_at(data, start)
        self.written += stop - done
        before, now = start // STARTED_BYTES, (start + len(data)) // STARTED_BYTES
        if now > before:
            self.file.start_sync(before * STARTED_BYTES, (now - before) * STARTED_BYTES)
        return stop

    def write_header(self, header: Header) -> None:
        """Before the slots: a slot may not name an entry that the header does not count."""
        self.front[: layout.INDEX_HEADER_BYTES] = np.frombuffer(header.encode(), np.uint8)
        self.file.write_at(self.front[: layout.INDEX_HEADER_BYTES].data, 0)
        self._page = 0

    def write_slots(self) -> bool:
        """Write some of the changed pages; True if none is left."""
        pages = self._page + np.flatnonzero(self.dirty[self._page :])
        if not pages.size:
            return True
        left = pages[: WRITE_BYTES // PAGE_BYTES]
        cuts = [0, *(np.flatnonzero(np.diff(left) > 1) + 1).tolist(), len(left)][: WRITES_MAX + 1]
        for first, last in pairwise(cuts):
            start, stop = int(left[first]), int(left[last - 1]) + 1
            data = self.front[start * PAGE_BYTES : stop * PAGE_BYTES].data
            self.file.write_at(data, start * PAGE_BYTES)
            self.dirty[start:stop] = 0
            self._page = stop
        return not self.dirty[self._page :].any()

    @property
    def tables(self) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Front and marks of changed pages, for the kernel."""
        return self.front, self.dirty

    def compare(self, page: int) -> int:
        """Mark pages that differ from the file's, a MiB from `page` on; the next page, 0 = done."""
        start, size = page * PAGE_BYTES, self.front.size
        stop = min(size, start + COMPARED_BYTES)
        there = np.zeros(stop - start, np.uint8)
        self.file.read_into(there.data, start)
        places = np.flatnonzero(self.front[start:stop] != there)
        self.dirty[page + (places >> kernels.PAGE_SHIFT)] = 1
        return stop // PAGE_BYTES if stop < size else 0

    def start_sync(self) -> None:
        """Begin to write out what was changed, slots above all."""
        self.file.start_sync(0, self.shape.file_bytes)

    def sync(self) -> None:
        """Make the file durable. Raises StoreFailed: a failed sync is final."""
        try:
            self.file.sync()
            self.storage.sync_directory(DIRECTORY)
            self.storage.sync_directory("")  # or a power cut takes the files with its name
        except OSError as error:
            if is_shortage(error):
                raise
            raise StoreFailed(f"sync of {self.name}: {error}", errno=error.errno) from error

    def close(self) -> None:
        """Give the descriptor back."""
        self.file.close()


def open_file(
    storage: Storage, shape: Shape, name: str, header: Header, pending: NDArray[np.uint8]
) -> OpenFile:
    """A file to go on with, or a new one; what lies behind its entries becomes a hole.

    It never gets shorter meanwhile: a power cut would leave it so, though a note calls it sure.
    The slots are still to be set (`relink`). Raises OSError.
    """
    path = f"{DIRECTORY}/{name}"
    file = storage.open(path, write=True) if storage.exists(path) else storage.create(path)
    try:
        kept = shape.entry_at(header.count) if header.count > 1 else 0
        clear_behind(file, kept, shape.file_bytes)
        file.write_at(header.encode(), 0)
    except OSError:
        file.close()
        if header.count <= 1:
            storage.unlink(path)  # another try has another name
        raise
    front = np.zeros(shape.front_bytes, np.uint8)
    dirty = np.zeros((shape.front_bytes >> kernels.PAGE_SHIFT) + 1, np.uint8)
    return OpenFile(storage, shape, name, front, dirty, pending, file, header.count)
