"""Read-only maps of a store's segments and ConsumeQueue files, found by arithmetic."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from typing import Final

import numpy as np
from numpy.typing import NDArray

from clients.message import MessageQueue
from shm import layout
from shm.bitmapnote import Covered, extension_directory, read_covered
from shm.board import Board
from shm.lognames import segment_name
from shm.ranges import EVERYTHING, read_ranges
from shm.record import STORED_MS_BYTES, stored_ms
from shm.storage import PosixStorage

_SEGMENTS_MAX: Final = 8
_QUEUE_FILES_MAX: Final = 1024
#: Where extensions are missing the next ones are looked for so much further on.
_GAP_BYTES: Final = 1 << 20

View = NDArray[np.uint8]


class LogFiles:
    """Maps kept while they are used; the least recently used go first."""

    def __init__(self, store: str, board: Board) -> None:
        self._storage = PosixStorage(store)
        self.segment_bytes = board.segment_bytes
        self.queue_file_units = board.cq_bytes // layout.CQ_UNIT_BYTES
        #: What this broker wrote; it does not change as long as the broker lives.
        self.ranges = read_ranges(self._storage) or EVERYTHING
        self._segments: OrderedDict[str, View] = OrderedDict()
        self._queue_files: OrderedDict[str, View] = OrderedDict()
        self._extensions: OrderedDict[str, View] = OrderedDict()

    def segment(self, position: int) -> tuple[int, View]:
        """Base position and bytes of the segment around a position. Raises FileNotFoundError."""
        base = position // self.segment_bytes * self.segment_bytes
        return base, self._map(self._segments, segment_name(base), _SEGMENTS_MAX)

    def queue_file(
        self, queue: MessageQueue, offset: int, *, fresh: bool = False
    ) -> tuple[int, View]:
        """First queue offset and bytes of the file that has the unit; `fresh` maps it anew.

        Raises FileNotFoundError.
        """
        first = offset // self.queue_file_units * self.queue_file_units
        start = first * layout.CQ_UNIT_BYTES
        name = f"consumequeue/{queue.topic}/{queue.queue_id}/{start:020}"
        if fresh:
            self._queue_files.pop(name, None)
        return first, self._map(self._queue_files, name, _QUEUE_FILES_MAX)

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
            except FileNotFoundError:  # retention was quicker
                return address, address + 1, None
            if address < base + len(view):
                return base, base + len(view), view
        return address, min([*bases[place : place + 1], address + _GAP_BYTES]), None

    def _map(self, views: OrderedDict[str, View], name: str, most: int) -> View:
        view = views.get(name)
        if view is not None:
            views.move_to_end(name)
            return view
        file = self._storage.open(name)
        try:
            view = views[name] = file.view()
        finally:
            file.close()
        while len(views) > most:
            views.popitem(last=False)
        return view

    def store_ms(self, queue: MessageQueue, offset: int) -> int:
        """When the message at a queue offset was stored, Unix ms. Raises FileNotFoundError."""
        first, units = self.queue_file(queue, offset)
        unit = layout.CQ_UNIT.unpack(units, (offset - first) * layout.CQ_UNIT_BYTES)
        base, log = self.segment(unit["physical_offset"])
        at = unit["physical_offset"] - base
        return stored_ms(log[at : at + STORED_MS_BYTES].tobytes())

    def offset_at(self, queue: MessageQueue, low: int, high: int, time_ms: int) -> int:
        """First offset in [low, high) stored at `time_ms` or later, else `high` (CQ-62, LOWER)."""
        while low < high:
            middle = (low + high) // 2
            if self.store_ms(queue, middle) < time_ms:
                low = middle + 1
            else:
                high = middle
        return low
