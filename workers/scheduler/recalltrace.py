"""What became of a message that waits no more: by the key index, which has all that has a key.

A parked record has the handle's UNIQ_KEY in its topic; so has a record that took it out; the copy
has it in the real one. Without an index, or where it lags, there is only the time to go by.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shm import layout
from shm.errors import Rejected
from shm.indexnote import DIRECTORY
from shm.indexreader import IndexReader
from shm.properties import TIMER_TOPIC
from shm.schedulerwire import ALREADY_DELIVERED, CANCELLED, UNKNOWN_HANDLE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shm.board import Board
    from shm.indexnote import Shape
    from shm.record import Record
    from shm.schedulerwire import Handle
    from shm.storage import Storage
    from workers.logviews import LogViews


def names_target(record: Record, handle: Handle, *, is_recall: bool) -> bool:
    """Whether a record of the timer topic is what a handle names, or takes that out (DT-73)."""
    named = record.property_map()
    if named.get("TIMER_OUT_MS") != str(handle.due_ms - 1):
        return False
    if is_recall:
        key = named.get("TIMER_DEL_UNIQKEY")
        return key in (handle.unique, f"{handle.topic}+{handle.unique}")
    return (named.get("UNIQ_KEY"), named.get("REAL_TOPIC")) == (handle.unique, handle.topic)


class RecallTrace:
    """Looks handles up in the index; a few reads each."""

    def __init__(
        self, storage: Storage, board: Board, views: LogViews, shape: Shape | None
    ) -> None:
        """`shape` of the index files; None: there are none."""
        self._storage = storage
        self._board = board
        self._views = views
        self._shape = shape

    @property
    def has_index(self) -> bool:
        """Whether it is worth to wait for an index that is behind."""
        return self._shape is not None

    def outcome(self, handle: Handle, appended: int) -> str | int | None:
        """What became of the message, or the log position of a record that still waits.

        None if the index does not go up to `appended` (yet).
        """
        if self._shape is None or not self._storage.exists(DIRECTORY):
            return None
        index = IndexReader(self._storage, self._shape)
        try:
            found = self._what_is_sure(index, handle)
            sure = isinstance(found, str) or self._board.word(layout.BOARD_INDEXED) >= appended
        except (Rejected, FileNotFoundError):
            return None  # files are being made anew, or removed
        if not sure:
            return None
        return UNKNOWN_HANDLE if found is None else found

    def _what_is_sure(self, index: IndexReader, handle: Handle) -> str | int | None:
        """Whatever the index does not have yet; a position: nothing has become of that record."""
        recalled = False
        for record in self._records(index, TIMER_TOPIC, handle.unique):  # newest first
            if names_target(record, handle, is_recall=True):
                if record.origin >= 0:
                    return CANCELLED
                recalled = True  # by a RocketMQ: it may have been too late
            elif names_target(record, handle, is_recall=False):
                if self._has_copy(index, handle, record.physical_offset):
                    return ALREADY_DELIVERED
                return CANCELLED if recalled else record.physical_offset
        # Retention may have taken the parked record, but not yet its copy.
        return ALREADY_DELIVERED if self._has_copy(index, handle, -1) else None

    def _has_copy(self, index: IndexReader, handle: Handle, position: int) -> bool:
        """Whether the copy of a parked record is in the log; -1: of one that is gone."""
        low = self._board.word(layout.BOARD_LOW)
        for record in self._records(index, handle.topic, handle.unique):
            origin = record.origin
            if record.property_map().get("UNIQ_KEY") != handle.unique:
                continue
            if origin == position or (position < 0 <= origin < low):
                return True
        return False

    def _records(self, index: IndexReader, topic: str, key: str) -> Iterator[Record]:
        for position in index.positions(topic, key):
            record = self._record(position)
            if record is not None and record.topic == topic:
                yield record

    def _record(self, position: int) -> Record | None:
        if position < self._board.word(layout.BOARD_LOW):
            return None
        return self._views.record(position)
