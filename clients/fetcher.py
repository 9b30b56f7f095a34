"""Reads queues into columns: maps files, calls the kernel, and knows what its stops mean."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from clients.batch import Columns
from clients.logfiles import LogFiles
from clients.member import Assigned
from shm import layout
from shm.board import Board
from shm.codes import Stop
from shm.errors import Corrupt
from shm.filter import TagFilter
from shm.kernels import fetch
from shm.ranges import Stretch

CONTENT_BYTES: Final = 4 << 20
_POOL_MAX: Final = 4


class _TagTable:
    """A filter as the kernel takes it."""

    def __init__(self, chosen: TagFilter) -> None:
        ordered = chosen.ordered()
        ends = np.cumsum([len(text) for _, text in ordered], dtype=np.int64)
        table = np.zeros((len(ordered), fetch.TAG_WORDS), np.int64)
        table[:, fetch.TAG_HASH] = [code for code, _ in ordered]
        table[:, fetch.TAG_END] = ends
        table[1:, fetch.TAG_AT] = ends[:-1]
        self.words = table.reshape(-1)
        self.texts = np.frombuffer(b"".join(text for _, text in ordered), np.uint8)
        self.selective = int(chosen.selective)


class ColumnPool:
    """Columns that no batch shows any more are used again: fresh memory costs page faults."""

    def __init__(self) -> None:
        self._pool: list[Columns] = []
        # How many references an unused one has differs between versions of Python.
        self._pool.append(Columns(1, 8))
        for columns in self._pool:
            self._unused = _references(columns)

    def take(self, rows: int, content_bytes: int) -> Columns:
        """Columns with room for so many rows, and at least so many bytes of bodies."""
        for columns in self._pool:
            fits = columns.rows == rows and columns.bodies.size >= content_bytes
            if fits and _references(columns) == self._unused:
                return columns
        fresh = Columns(rows, content_bytes)
        self._pool = [*self._pool[-(_POOL_MAX - 1) :], fresh]
        return fresh


def _references(columns: Columns) -> tuple[int, ...]:
    """References to columns and to each of its arrays; views and memoryviews count."""
    return (
        sys.getrefcount(columns),
        sys.getrefcount(columns.bodies),
        sys.getrefcount(columns.properties),
        sys.getrefcount(columns.body_offsets),
        sys.getrefcount(columns.property_offsets),
        sys.getrefcount(columns.numbers),
        sys.getrefcount(columns.hosts),
    )


class Fetcher:
    """Fetches for one session."""

    def __init__(self, board: Board, files: LogFiles, filters: Mapping[str, TagFilter]) -> None:
        """`filters` by topic."""
        self._board = board
        self._files = files
        self._tables = {topic: _TagTable(chosen) for topic, chosen in filters.items()}
        self._form = np.zeros(fetch.FORM_WORDS, np.int64)
        self._pool = ColumnPool()
        self._content_bytes = CONTENT_BYTES
        self._turn = 0
        self._segment: tuple[int, NDArray[np.uint8]] = (0, np.empty(0, np.uint8))
        self._stretch = Stretch(0, 0, False)

    def fetch(self, queues: Sequence[Assigned], rows: int) -> tuple[Columns, int]:
        """Fill columns from queues in turn, each at most its share, then whatever is left.

        Moves `position` of each queue. Returns columns and rows. Raises Corrupt if the very first
        message in its way is damaged; what lies before a damage is returned first.
        """
        columns = self._pool.take(rows, self._content_bytes)
        form = self._form
        form[fetch.ROWS] = form[fetch.BODY_USED] = form[fetch.PROPERTIES_USED] = 0
        self._turn += 1
        start = self._turn % max(1, len(queues))
        waiting = [*queues[start:], *queues[:start]]
        while waiting and form[fetch.ROWS] < rows:
            share = max(1, (rows - int(form[fetch.ROWS])) // len(waiting))
            left = []
            for queue in waiting:
                end = self._board.word(self._slot(queue) + layout.QUEUE_MAX_OFFSET)
                if not self._fetch_queue(queue, min(end, queue.position + share), columns):
                    return columns, int(form[fetch.ROWS])
                if queue.position < end:
                    left.append(queue)
            waiting = left
        return columns, int(form[fetch.ROWS])

    def _slot(self, queue: Assigned) -> int:
        return self._board.queue_at(queue.number)

    def _fetch_queue(self, queue: Assigned, end: int, columns: Columns) -> bool:
        """Fetch up to an offset; False if the columns are full."""
        fresh = False
        while queue.position < end:
            self._skip_removed(queue)
            stop, fresh = self._run(queue, end, columns, fresh)
            if stop is Stop.LIMIT:
                if self._form[fetch.ROWS]:
                    return False
                self._grow(columns)
            elif stop is Stop.INVALID:
                if self._form[fetch.ROWS]:
                    return False
                raise self._damage(queue)
        return True

    def _skip_removed(self, queue: Assigned) -> None:
        low = self._board.word(self._slot(queue) + layout.QUEUE_MIN_OFFSET)
        queue.position = max(queue.position, low)

    def _run(self, queue: Assigned, end: int, columns: Columns, fresh: bool) -> tuple[Stop, bool]:
        """One kernel call, within a queue file, a segment, a stretch; and: map the file anew."""
        form = self._form
        try:
            form[fetch.CQ_BASE], units = self._files.queue_file(
                queue.queue, queue.position, fresh=fresh
            )
        except FileNotFoundError:
            return self._missing(queue), False
        form[fetch.OFFSET], form[fetch.END_OFFSET] = queue.position, end
        form[fetch.QUEUE] = queue.number
        form[fetch.LOW] = self._board.word(layout.BOARD_LOW)
        before = form[: fetch.WANTED_SIZE + 1].copy()
        stop = self._call(queue.queue.topic, units, columns)
        if self._overtaken(before, columns):
            form[: before.size] = before
            return Stop.REMOVED, False
        moved = int(form[fetch.OFFSET]) > queue.position
        queue.position = int(form[fetch.OFFSET])
        if stop is Stop.TRUNCATED:
            # The file was mapped before it was as long as now, or it is too short.
            return (Stop.INVALID, False) if fresh and not moved else (stop, not moved)
        if stop is Stop.ROLL:
            return self._roll(queue), False
        if stop is Stop.REMOVED:
            queue.position += 1  # its record is gone, or going
        return stop, False

    def _call(self, topic: str, units: NDArray[np.uint8], columns: Columns) -> Stop:
        table = self._tables[topic]
        self._form[fetch.LOG_BASE] = self._segment[0]
        self._form[fetch.STRETCH_FROM] = self._stretch.start
        self._form[fetch.STRETCH_END] = self._stretch.end
        self._form[fetch.OURS] = self._stretch.ours
        self._form[fetch.FILTER] = table.selective
        return Stop(
            fetch.fetch(
                units, self._segment[1], self._form, table.words, table.texts,
                columns.bodies, columns.body_offsets,
                columns.properties, columns.property_offsets, columns.numbers, columns.hosts,
            )
        )  # fmt: skip

    def _overtaken(self, before: NDArray[np.int64], columns: Columns) -> bool:
        """True if retention has reached a record that the last call copied."""
        rows = int(before[fetch.ROWS])
        if int(self._form[fetch.ROWS]) == rows:
            return False
        first = int(columns.column(fetch.POSITION, rows + 1)[rows])
        return first < self._board.word(layout.BOARD_LOW)

    def _roll(self, queue: Assigned) -> Stop:
        wanted = int(self._form[fetch.WANTED_POSITION])
        known, stretch = self._segment, self._stretch
        self._stretch = self._files.ranges.stretch(wanted)
        try:
            self._segment = self._files.segment(wanted)
        except (FileNotFoundError, ValueError):
            return self._missing(queue)
        same = known[0] == self._segment[0] and known[1] is self._segment[1]
        if same and stretch == self._stretch:
            return Stop.INVALID  # inside by its name, behind the end by its length
        return Stop.ROLL

    def _missing(self, queue: Assigned) -> Stop:
        """A file is not there: removed by retention, or else that is damage."""
        before = queue.position
        self._skip_removed(queue)
        return Stop.REMOVED if queue.position > before else Stop.INVALID

    def _grow(self, columns: Columns) -> None:
        """Make room for one record larger than all columns so far."""
        wanted = int(self._form[fetch.WANTED_SIZE])
        self._content_bytes = max(self._content_bytes, wanted)
        columns.bodies = np.empty(wanted, np.uint8)
        columns.properties = np.empty(wanted, np.uint8)

    def _damage(self, queue: Assigned) -> Corrupt:
        position = int(self._form[fetch.WANTED_POSITION])
        base = position // self._files.segment_bytes * self._files.segment_bytes
        return Corrupt(
            f"message {queue.position} of {queue.queue.topic}/{queue.queue.queue_id} at log"
            f" position {position} is not what its queue says: run `gantrymq store verify`, or"
            " seek beyond it",
            path=f"commitlog/{base:020}",
            position=position,
            queue=queue.queue,
            queue_offset=queue.position,
        )
