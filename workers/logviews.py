"""Segments and ConsumeQueue files as an agent reads them: read-only maps, the last few kept."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from gantrymq.shm import layout
from gantrymq.shm.errors import Corrupt
from gantrymq.shm.lognames import segment_name
from gantrymq.shm.queuenames import queue_directory
from gantrymq.shm.record import STRUCTURE, Record, parse_record
from gantrymq.shm.storage import map_file

if TYPE_CHECKING:
    from gantrymq.shm.storage import Storage

VIEWS_MAX: Final = 32
#: A unit as RocketMQ stores it.
UNIT: Final = np.dtype([("position", ">i8"), ("size", ">i4"), ("code", ">i8")])
assert UNIT.itemsize == layout.CQ_UNIT_BYTES


class Sizes(Protocol):
    """Bytes of a segment and of a ConsumeQueue file: those of a board, or of a stopped store."""

    @property
    def segment_bytes(self) -> int:
        """Of a segment."""

    @property
    def cq_bytes(self) -> int:
        """Of a ConsumeQueue file."""


def record_in(view: NDArray[np.uint8], base: int, position: int) -> Record | None:
    """The record at a log position of a segment's map; None if there is none."""
    found = parse_record(view.data, position - base, view.size, STRUCTURE, position)
    return found if isinstance(found, Record) else None


class LogRecords(ABC):
    """Records of a log by their positions, whoever finds its segments."""

    @abstractmethod
    def segment(self, position: int) -> tuple[int, NDArray[np.uint8]]:
        """First position and map of the segment that holds a log position.

        Raises FileNotFoundError if it is gone.
        """

    def record(self, position: int) -> Record | None:
        """A record of the log, for what is rare; None if it is gone, or cannot be read."""
        try:
            base, view = self.segment(position)
        except FileNotFoundError:
            return None
        return record_in(view, base, position)


class LogViews(LogRecords):
    """Maps by file name. A map of a file that grows in place shows what is written later."""

    def __init__(self, storage: Storage, board: Sizes) -> None:
        self._storage = storage
        self._board = board
        self._views: OrderedDict[str, NDArray[np.uint8]] = OrderedDict()

    def segment(self, position: int) -> tuple[int, NDArray[np.uint8]]:
        """Its first position follows from the size of all. Raises FileNotFoundError, Corrupt."""
        base = position // self._board.segment_bytes * self._board.segment_bytes
        name = segment_name(base)
        view = self._view(name)
        if position >= base + len(view):  # a kernel would ask for another view for ever
            raise Corrupt(
                f"{name} ends before log position {position}: it was cut short; stop the broker and"
                " run `gantrymq store verify`",
                path=name,
                position=position,
            )
        return base, view

    def units(self, topic: str, queue_id: int, offset: int, end: int) -> NDArray[np.void]:
        """Units [offset, end) of a queue, as far as they are in one file.

        Raises FileNotFoundError if it is gone.
        """
        per_file = self._board.cq_bytes // UNIT.itemsize
        first = offset // per_file * per_file
        name = f"{queue_directory(self._storage, topic, queue_id)}/{first * UNIT.itemsize:020d}"
        view = self._view(name)[: self._board.cq_bytes]
        found: NDArray[np.void] = view.view(UNIT)[offset - first : end - first]
        return found

    def drop(self) -> None:
        """Give the maps back, those of removed files above all."""
        self._views.clear()

    def _view(self, name: str) -> NDArray[np.uint8]:
        view = self._views.get(name)
        if view is not None:
            self._views.move_to_end(name)
            return view
        view = self._views[name] = map_file(self._storage, name)
        if len(self._views) > VIEWS_MAX:
            self._views.popitem(last=False)
        return view
