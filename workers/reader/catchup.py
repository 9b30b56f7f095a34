"""Bits of a filter for messages that were dispatched before the reader knew of it, in spare time.

The records of a topic are read once for each such filter, queue by queue, in short steps; a reader
that has no time to spare makes one now and then all the same. When all are done and the files are
synced, consumers hear that the filter's bits are known from the log's beginning on. A step that a
kill cuts short is done again: a bit is set or it is not.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Final

import numpy as np

from gantrymq.shm import layout, limits
from gantrymq.shm.codes import Stop
from gantrymq.shm.kernels import extend
from gantrymq.shm.kernels.scan import CHECK_BODY, CHECK_TRAILER
from gantrymq.shm.lognames import segment_name
from gantrymq.shm.queuenames import queue_directory
from gantrymq.shm.ranges import ranges_of
from gantrymq.shm.storage import is_disk_full, map_file

if TYPE_CHECKING:
    from gantrymq.shm.bitmapnote import Covered
    from gantrymq.shm.board import Board
    from gantrymq.shm.storage import Storage
    from gantrymq.workers.reader.extensions import Extensions
    from gantrymq.workers.reader.filters import Bound

#: Units that a step looks at, and bitmaps that it writes: about a millisecond, as is
#: limits.CATCH_UP_WORK, at which it ends as well.
STEP_UNITS: Final = 2048
STEP_BITMAPS: Final = 256
#: After a failure for want of space.
RETRY_NS: Final = 1_000_000_000
#: A step so often while the reader never rests: a twentieth of its time.
TURN_NS: Final = 20_000_000
#: Consumers hear of filters that are done so often.
TELL_NS: Final = 1_000_000_000
#: As workers.reader.extensions has it.
work_max = limits.CATCH_UP_WORK


class CatchUp:
    """Works on one filter at a time; `step` returns how much it did."""

    def __init__(self, storage: Storage, board: Board, extensions: Extensions) -> None:
        self._storage = storage
        self._board = board
        self._extensions = extensions
        self._steps: Generator[int, None, None] | None = None
        self._done: set[Covered] = set()  # what consumers do not know yet
        self._told_ns = 0
        self._retry_ns = 0
        self._turn_ns = 0
        self._form = np.zeros(extend.FORM_WORDS, np.int64)
        self._form[extend.WORK_MAX] = work_max
        self._found = np.zeros(STEP_BITMAPS, np.int64)
        self._log = (-1, np.empty(0, np.uint8))
        #: Who wrote what; the broker has opened its range before agents start.
        self._ranges = ranges_of(storage)

    def step(self, now_ns: int, *, busy: bool = False) -> int:
        """A short piece of work; 0 if there is none, or the reader is busy and it is no turn yet.

        Raises OSError, StoreFailed.
        """
        if now_ns < self._retry_ns or (busy and now_ns - self._turn_ns < TURN_NS):
            return 0
        self._turn_ns = now_ns
        try:
            if self._steps is None and not self._begin(now_ns):
                return 0
            return next(self._steps) if self._steps is not None else 1
        except StopIteration:
            self._forget()
            return 1
        except OSError as error:
            self._forget()
            if not is_disk_full(error):
                raise
            self._retry_ns = now_ns + RETRY_NS
            return 0

    def _begin(self, now_ns: int) -> bool:
        """Go on with another filter, or tell of those that are done; False if there is neither.

        That costs syncs, and a look at the note by each consumer: once a second, or in the end.
        """
        waiting = self._waiting()
        if self._done and (waiting is None or now_ns - self._told_ns >= TELL_NS):
            assert self._extensions.filters is not None, "they have been caught up"
            if self._extensions.sync_bits():
                return True
            self._told_ns = now_ns
            self._extensions.filters.lower(self._done)
            self._done = set()
            return True
        if waiting is not None:
            self._steps = self._catch_up(waiting)
        return waiting is not None

    def _forget(self) -> None:
        self._steps = None
        self._log = (-1, np.empty(0, np.uint8))

    def _waiting(self) -> Bound | None:
        """The filter whose bits begin first, above the log's beginning."""
        low = self._board.word(layout.BOARD_LOW)
        filters = self._extensions.filters
        found = [
            item
            for item in (filters.bound.values() if filters is not None else ())
            if item.covered.start > low and item.covered not in self._done
        ]
        return min(found, key=lambda item: item.covered.start, default=None)

    def _catch_up(self, bound: Bound) -> Generator[int, None, None]:
        covered, filters = bound.covered, self._extensions.filters
        assert filters is not None, "nothing waits without filters"
        topic = self._board.topic_named(covered.topic)
        for queue_id in range(topic.queue_count if topic else 0):
            assert topic is not None
            for done in self._catch_up_queue(bound, topic.queue_base + queue_id, queue_id):
                if covered.key not in filters.bound:
                    return  # the group is forgotten, or wants something else now
                yield done
        self._done.add(covered)

    def _catch_up_queue(
        self, bound: Bound, queue: int, queue_id: int
    ) -> Generator[int, None, None]:
        at = self._board.queue_at(queue)
        written = self._board.word(at + layout.QUEUE_WRITTEN)
        offset = self._board.word(at + layout.QUEUE_MIN_OFFSET)
        per_file = self._board.cq_bytes // layout.CQ_UNIT_BYTES
        folder = queue_directory(self._storage, bound.covered.topic, queue_id)
        self._form[extend.END_POSITION] = bound.covered.start
        self._form[extend.LOG_END] = self._board.word(layout.BOARD_APPENDED)
        while offset < written:
            first = offset // per_file * per_file
            name = f"{folder}/{first * layout.CQ_UNIT_BYTES:020d}"
            end = min(written, first + per_file, offset + STEP_UNITS)
            before = offset
            offset = max(self._match(bound, queue, name, (first, offset, end)), before)
            offset = max(offset, self._board.word(at + layout.QUEUE_MIN_OFFSET))
            yield 1 + offset - before

    def _match(self, bound: Bound, queue: int, name: str, units: tuple[int, int, int]) -> int:
        """Units [offset, end) of the file that begins with `first`; how far it came."""
        first, offset, end = units
        if not self._storage.exists(name):
            return end  # retention was here
        view = map_file(self._storage, name)
        form = self._form
        form[extend.INDEX], form[extend.END_INDEX] = offset - first, end - first
        form[extend.SPENT] = 0
        while form[extend.INDEX] < form[extend.END_INDEX]:
            stop = Stop(
                extend.match_units(
                    view, self._log[1], form, bound.alone.ctypes.data, self._found
                )
            )  # fmt: skip
            for address in self._found[: int(form[extend.FOUND])].tolist():
                self._extensions.set_bits(queue, address, bound.covered.positions)
            if stop is Stop.LIMIT:
                break
            if stop is Stop.ROLL and not self._enter(view, int(form[extend.INDEX])):
                self._set_unread(bound, queue, view)
                form[extend.INDEX] += 1
        return first + int(form[extend.INDEX])

    def _set_unread(
        self, bound: Bound, queue: int, units: np.ndarray[tuple[int], np.dtype[np.uint8]]
    ) -> None:
        """Set the bits of a unit that leads to no record: whoever reads it finds out why."""
        at = int(self._form[extend.INDEX]) * layout.CQ_UNIT_BYTES
        code = layout.CQ_UNIT.unpack(units, at)["tags_code"]
        if code <= layout.CQ_EXT_ADDRESS_MAX:
            address = code & layout.CQ_EXT_ADDRESS_MASK
            self._extensions.set_bits(queue, address, bound.covered.positions)

    def _enter(self, units: np.ndarray[tuple[int], np.dtype[np.uint8]], index: int) -> bool:
        """Map the segment of a unit's record, find out who wrote it there.

        False if it is gone, or all that is at hand.
        """
        position = layout.CQ_UNIT.unpack(units, index * layout.CQ_UNIT_BYTES)["physical_offset"]
        size = self._board.segment_bytes
        base = position // size * size
        stretch = self._ranges.stretch(position)
        known = int(self._form[extend.STRETCH_FROM]), int(self._form[extend.STRETCH_END])
        if base == self._log[0] and known == (stretch.start, stretch.end):
            return False
        if base != self._log[0]:
            try:
                self._log = (base, map_file(self._storage, segment_name(base)))
            except (FileNotFoundError, ValueError):
                return False
        self._form[extend.BASE] = base
        self._form[extend.STRETCH_FROM], self._form[extend.STRETCH_END] = stretch.start, stretch.end
        self._form[extend.CHECKS] = CHECK_TRAILER if stretch.ours else CHECK_BODY
        return True
