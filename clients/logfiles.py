"""Read-only maps of a store's segments and ConsumeQueue files, found by arithmetic."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from gantrymq.clients.message import MessageQueue
from gantrymq.shm import layout
from gantrymq.shm.bitmapnote import Covered, extension_directory, read_covered
from gantrymq.shm.errors import Corrupt
from gantrymq.shm.fromhandlers import Suppressed, require_ours
from gantrymq.shm.lognames import segment_name
from gantrymq.shm.queuenames import DIRECTORY, queue_directory
from gantrymq.shm.ranges import ranges_of
from gantrymq.shm.record import STORED_MS_BYTES, stored_ms
from gantrymq.shm.storage import PosixStorage, Storage, map_file

#: Segments that stay mapped, and bytes of them: what is mapped cannot leave the page cache.
_SEGMENTS_MAX: Final = 8
_SEGMENTS_BYTES_MAX: Final = 1 << 30
_QUEUE_FILES_MAX: Final = 1024
#: Where extensions are missing the next ones are looked for so much further on.
_GAP_BYTES: Final = 1 << 20

View = NDArray[np.uint8]


class Sizes(Protocol):
    """Bytes of a segment and of a ConsumeQueue file: those of a board, or of a stopped store."""

    @property
    def segment_bytes(self) -> int:
        """Of a segment."""

    @property
    def cq_bytes(self) -> int:
        """Of a ConsumeQueue file."""


class LogFiles:
    """Maps kept while they are used; the least recently used go first.

    `show`: `map_still` for who asks for what was written before.
    """

    def __init__(
        self, store: str, sizes: Sizes, show: Callable[[Storage, str], View] = map_file
    ) -> None:
        self._storage = PosixStorage(store)
        self._show = show
        self.segment_bytes = sizes.segment_bytes
        self._segments_max = max(2, min(_SEGMENTS_MAX, _SEGMENTS_BYTES_MAX // self.segment_bytes))
        self.queue_file_units = sizes.cq_bytes // layout.CQ_UNIT_BYTES
        #: What this broker wrote; it does not change as long as the broker lives.
        self.ranges = ranges_of(self._storage)
        self._segments: OrderedDict[str, View] = OrderedDict()
        self._queue_files: OrderedDict[str, View] = OrderedDict()
        self._extensions: OrderedDict[str, View] = OrderedDict()
        self._folders: dict[MessageQueue, str] = {}

    def segment(self, position: int) -> tuple[int, View]:
        """Base position and bytes of the segment around a position. Raises FileNotFoundError."""
        base = position // self.segment_bytes * self.segment_bytes
        return base, self._map(self._segments, segment_name(base), self._segments_max)

    def queue_file(
        self, queue: MessageQueue, offset: int, *, fresh: bool = False
    ) -> tuple[int, View]:
        """First queue offset and bytes of the file that has the unit; `fresh` maps it anew.

        Raises FileNotFoundError.
        """
        first = offset // self.queue_file_units * self.queue_file_units
        start = first * layout.CQ_UNIT_BYTES
        name = f"{self._folder(queue)}/{start:020}"
        if fresh:
            self._queue_files.pop(name, None)
        return first, self._map(self._queue_files, name, _QUEUE_FILES_MAX)

    def _folder(self, queue: MessageQueue) -> str:
        """Where a queue's files are; that does not change as long as the broker lives."""
        folder = self._folders.get(queue)
        if folder is None:
            folder = queue_directory(self._storage, queue.topic, queue.queue_id)
            self._folders[queue] = folder
        return folder

    def covered(self) -> list[Covered]:
        """Filters whose bits are in extensions."""
        return read_covered(self._storage)

    def extensions(self, queue: MessageQueue, address: int) -> tuple[int, int, View | None]:
        """Addresses [from, end) around one, and the bytes there: of the file that has it.

        None: there is no such file.
        """
        folder = extension_directory(queue.topic, queue.queue_id)
        bases = sorted(int(name) for name in self._storage.list(folder) if name.isdigit())
        place = bisect_right(bases, address)
        if place:
            base = bases[place - 1]
            try:
                view = self._map(self._extensions, f"{folder}/{base:020d}", _QUEUE_FILES_MAX)
            except FileNotFoundError as error:  # retention was quicker
                require_ours(error)
                return address, address + 1, None
            if address < base + len(view):
                return base, base + len(view), view
        return address, min([*bases[place : place + 1], address + _GAP_BYTES]), None

    def _map(self, views: OrderedDict[str, View], name: str, most: int) -> View:
        view = views.get(name)
        if view is not None:
            views.move_to_end(name)
            return view
        view = views[name] = self._show(self._storage, name)
        while len(views) > most:
            views.popitem(last=False)
        return view

    def position(self, queue: MessageQueue, offset: int) -> int:
        """Log position of the message at a queue offset; -1 if its unit is gone.

        Raises Corrupt if the unit says what no broker writes.
        """
        position = self._position(queue, offset)
        if position is None:
            return -1
        if position < 0:
            raise _misplaced(queue, offset, position)
        return position

    def _position(self, queue: MessageQueue, offset: int) -> int | None:
        """What a unit says, whatever that is; None if it is gone."""
        try:
            first, units = self.queue_file(queue, offset)
        except FileNotFoundError as error:
            require_ours(error)
            return None
        at = (offset - first) * layout.CQ_UNIT_BYTES
        return int.from_bytes(units[at : at + 8].tobytes(), "big", signed=True)

    def is_misplaced(self, queue: MessageQueue, offset: int) -> bool:
        """Whether a unit whose record is not in the log is damaged: retention did not take that.

        Positions are never negative and rise within a queue, so what it takes lies before the rest.
        """
        position = self._position(queue, offset)
        if position is None:
            return False
        before = self._position(queue, offset - 1) if offset else None
        return position < max(0, before or 0)

    def store_ms(self, queue: MessageQueue, offset: int) -> int:
        """When the message at a queue offset was stored, Unix ms; 0 or less if it is gone.

        Raises Corrupt if the unit is damaged.
        """
        position = self.position(queue, offset)
        if position < 0:
            return 0
        try:
            base, log = self.segment(position)
        except FileNotFoundError as error:
            require_ours(error)
            if self.is_misplaced(queue, offset):
                raise _misplaced(queue, offset, position) from None
            return 0
        at = position - base
        return stored_ms(log[at : at + STORED_MS_BYTES].tobytes())

    def all_store_ms(self, queue: MessageQueue, start: int, end: int) -> NDArray[np.int64]:
        """The same of each offset in [start, end)."""
        positions = self.positions(queue, start, end)
        bases = positions // self.segment_bytes * self.segment_bytes
        times = np.zeros(len(positions), np.int64)
        for base in np.unique(bases).tolist():
            try:
                log = self.segment(base)[1]
            except FileNotFoundError as error:
                require_ours(error)
                continue
            last = base + log.size - STORED_MS_BYTES
            chosen = (bases == base) & (positions >= 0) & (positions <= last)
            times[chosen] = _stored_ms(log, positions[chosen] - base)
        return times

    def positions(self, queue: MessageQueue, start: int, end: int) -> NDArray[np.int64]:
        """Of each offset in [start, end); -1 where the unit is gone. Raises Corrupt as one does."""
        found = np.full(end - start, -1, np.int64)
        at, size = start, layout.CQ_UNIT_BYTES
        while at < end:
            stop = min(end, (at // self.queue_file_units + 1) * self.queue_file_units)
            with Suppressed(FileNotFoundError):  # expired
                first, units = self.queue_file(queue, at)
                rows = units[(at - first) * size : (stop - first) * size].reshape(-1, size)
                words = np.ascontiguousarray(rows[:, :8]).view(">i8")[:, 0]
                found[at - start : stop - start] = words
                if len(wrong := np.flatnonzero(words < 0)):
                    raise _misplaced(queue, at + int(wrong[0]), int(words[wrong[0]]))
            at = stop
        return found


def _misplaced(queue: MessageQueue, offset: int, position: int) -> Corrupt:
    return Corrupt(
        f"the unit of message {offset} of {queue.topic}/{queue.queue_id} is damaged, it says log"
        f" position {position}: `gantrymq store verify` lists all damage",
        path=f"{DIRECTORY}/{queue.topic}/{queue.queue_id}",
        position=position,
        queue=queue,
        queue_offset=offset,
    )


def _stored_ms(log: View, at: NDArray[np.int64]) -> NDArray[np.int64]:
    """`stored_ms` of records that begin at these places."""
    wide = log[at + layout.RECORD_SYS_FLAG + 3] & layout.SYS_BORN_V6 != 0
    places = at + layout.RECORD_STORE_MS + (STORED_MS_BYTES - 8 - layout.RECORD_STORE_MS) * wide
    words = np.ascontiguousarray(log[places[:, None] + np.arange(8)])
    found: NDArray[np.int64] = words.view(">i8").ravel().astype(np.int64)
    return found
