"""What became of a message that waits no more: by the key index, which has all that has a key.

A key may be that of a million messages: a trace goes on step by step.

A parked record has the handle's UNIQ_KEY in its topic; so has a record that took it out; the copy
has it in the real one. Without an index, or where it lags, there is only the time to go by.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Final

from gantrymq.shm import layout
from gantrymq.shm.errors import Rejected
from gantrymq.shm.indexnote import DIRECTORY
from gantrymq.shm.indexreader import IndexReader
from gantrymq.shm.properties import TIMER_TOPIC
from gantrymq.shm.schedulerwire import ALREADY_DELIVERED, CANCELLED, UNKNOWN_HANDLE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gantrymq.shm.board import Board
    from gantrymq.shm.indexnote import Shape
    from gantrymq.shm.record import Record
    from gantrymq.shm.schedulerwire import Handle
    from gantrymq.shm.storage import Storage
    from gantrymq.workers.logwindow import LogWindow


def names_target(record: Record, handle: Handle, *, is_recall: bool) -> bool:
    """Whether a record of the timer topic is what a handle names, or takes that out (DT-73)."""
    named = record.property_map()
    if named.get("TIMER_OUT_MS") != str(handle.due_ms - 1):
        return False
    if is_recall:
        key = named.get("TIMER_DEL_UNIQKEY")
        return key in (handle.unique, f"{handle.topic}+{handle.unique}")
    return (named.get("UNIQ_KEY"), named.get("REAL_TOPIC")) == (handle.unique, handle.topic)


#: Entries of the index that one step looks at.
STEP_ENTRIES: Final = 8

#: A trace that goes on: what is yielded says nothing, what is returned is the outcome.
Trace = Generator[None, None, str | int | None]


class RecallTrace:
    """Looks handles up in the index."""

    def __init__(
        self, storage: Storage, board: Board, window: LogWindow, shape: Shape | None
    ) -> None:
        """`shape` of the index files; None: there are none."""
        self.board = self._board = board
        self._storage = storage
        self._window = window
        self._shape = shape

    @property
    def has_index(self) -> bool:
        """Whether it is worth to wait for an index that is behind."""
        return self._shape is not None

    def begin(self, handle: Handle, appended: int) -> Trace:
        """Find out what became of the message, or the log position of a record that still waits.

        None if the index does not go up to `appended` (yet).
        """
        if self._shape is None or not self._storage.exists(DIRECTORY):
            return None
        index = IndexReader(self._storage, self._shape)
        indexed = self._board.word(layout.BOARD_INDEXED)
        try:
            found = yield from self._what_is_sure(index, handle)
            sure = isinstance(found, str) or indexed >= appended
        except (Rejected, FileNotFoundError):
            return None  # files are being made anew, or removed
        if not sure:
            return None
        return UNKNOWN_HANDLE if found is None else found

    def _what_is_sure(self, index: IndexReader, handle: Handle) -> Trace:
        """Whatever the index does not have yet; a position: nothing has become of that record."""
        recalled = False
        for record in self._records(index, TIMER_TOPIC, handle.unique):  # newest first
            if record is None:
                yield
            elif names_target(record, handle, is_recall=True):
                if record.origin >= 0:
                    return CANCELLED
                recalled = True  # by a RocketMQ: it may have been too late
            elif names_target(record, handle, is_recall=False):
                if (yield from self._has_copy(index, handle, record.physical_offset)):
                    return ALREADY_DELIVERED
                return CANCELLED if recalled else record.physical_offset
        # Retention may have taken the parked record, but not yet its copy.
        return ALREADY_DELIVERED if (yield from self._has_copy(index, handle, -1)) else None

    def _has_copy(
        self, index: IndexReader, handle: Handle, position: int
    ) -> Generator[None, None, bool]:
        """Whether the copy of a parked record is in the log; -1: of one that is gone."""
        low = self._board.word(layout.BOARD_LOW)
        for record in self._records(index, handle.topic, handle.unique):
            if record is None:
                yield
                continue
            origin = record.origin
            if record.property_map().get("UNIQ_KEY") != handle.unique:
                continue
            if origin == position or (position < 0 <= origin < low):
                return True
        return False

    def _records(self, index: IndexReader, topic: str, key: str) -> Iterator[Record | None]:
        """Records of a key, newest first, and None now and then: where a step ends."""
        for number, position in enumerate(index.positions(topic, key), 1):
            if number % STEP_ENTRIES == 0:
                yield None
            record = self._window.record(position)
            if record is not None and record.topic == topic:
                yield record
