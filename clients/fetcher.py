"""Reads queues into columns: maps files, calls the kernel, and knows what its stops mean."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gantrymq.clients.assigned import Assigned
from gantrymq.clients.columns import Columns
from gantrymq.clients.filtertable import FilterTable
from gantrymq.clients.logfiles import LogFiles
from gantrymq.shm import layout
from gantrymq.shm.board import Board
from gantrymq.shm.codes import Stop
from gantrymq.shm.errors import Corrupt
from gantrymq.shm.filter import Filter, SqlFilter
from gantrymq.shm.fromhandlers import require_ours
from gantrymq.shm.kernels import fetch, poll, scan, tags
from gantrymq.shm.lognames import segment_name
from gantrymq.shm.ranges import Stretch

CONTENT_BYTES: Final = 4 << 20
_LARGE_MAX: Final = 4
#: Few messages go into small columns: whoever keeps the batch keeps little memory.
_SMALL_ROWS: Final = 256
_SMALL_BYTES: Final = 256 << 10
_SMALL_MAX: Final = 16
#: Queues whose files are kept mapped for the kernel: a process may have 65,530 maps.
_UNITS_MAX: Final = 1024
_NO_SEGMENT: Final[tuple[int, NDArray[np.uint8]]] = (0, np.empty(0, np.uint8))


class ColumnPool:
    """Columns that no batch shows any more are used again: fresh memory costs page faults."""

    def __init__(self, most: int) -> None:
        self._most = most
        # How many references an unused one has differs between versions of Python.
        self._pool: list[Columns] = [Columns(1, 8)]
        for columns in self._pool:
            self._unused = (sys.getrefcount(columns), sys.getrefcount(columns.memory))

    def take(self, rows: int, content_bytes: int) -> Columns:
        """Columns with room for so many rows, and at least so many bytes of bodies."""
        for columns in self._pool:
            if columns.rows == rows and columns.bodies.size >= content_bytes and columns.spare:
                held = (sys.getrefcount(columns), sys.getrefcount(columns.memory))
                if held == self._unused:
                    return columns
        fresh = Columns(rows, content_bytes)
        self._pool = [fresh, *self._pool[: self._most - 1]]
        return fresh


class Fetcher:
    """Fetches for one session: the common way in one kernel call, the rest here.

    A signal handler that raises may end any of it at any place, and the kernel reads what words
    name: so at each place they name nothing but memory that is held here.
    """

    def __init__(
        self, board: Board, files: LogFiles, filters: Mapping[str, Filter], group: str = ""
    ) -> None:
        """`filters` by topic; those of a `group` may have bits in extensions."""
        self._group = group
        self._sql = {t: chosen for t, chosen in filters.items() if isinstance(chosen, SqlFilter)}
        self._bits_seen = -1
        self._extensions: dict[int, NDArray[np.uint8]] = {}  # by queue, as `_units`
        self._board = board
        self._files = files
        self._tables = {topic: FilterTable.of(chosen) for topic, chosen in filters.items()}
        self._form = np.zeros(fetch.FORM_WORDS, np.int64)
        self._small = ColumnPool(_SMALL_MAX)
        self._large = ColumnPool(_LARGE_MAX)
        self._content_bytes = CONTENT_BYTES
        self._turn = 0
        self._segment = _NO_SEGMENT  # and log position of its first byte
        self._log = _NO_SEGMENT[1]  # whose address is in the state
        self._stretch = Stretch(0, 0, False)
        self._active: list[Assigned] = []
        self._held: list[Assigned] = []
        self._rows: list[NDArray[np.int64]] = []  # whose addresses are in the state
        self._row_places = np.zeros(0, np.int64)
        self._units: dict[int, NDArray[np.uint8]] = {}  # by queue: the file that its row means
        self.state = np.zeros(poll.STATE_WORDS, np.int64)
        self._words = self.state.data  # quicker, one by one
        self._board_bytes = board.array()
        self._words[poll.BOARD] = self._board_bytes.ctypes.data
        self._words[poll.FORM] = self._form.ctypes.data
        self._words[poll.OWN] = self.state.ctypes.data

    def attach(
        self, arena: NDArray[np.uint8], lane: NDArray[np.int64], sockets: Sequence[int]
    ) -> None:
        """Use a session's arena, the words of its groups lane, its bell and control socket."""
        self._session_memory = (arena, lane)
        self._words[poll.ARENA] = arena.ctypes.data
        self._words[poll.LANE] = lane.ctypes.data
        for index, descriptor in enumerate(sockets):
            self._words[poll.DESCRIPTORS + index] = descriptor

    def follow(self, held: Iterable[Assigned]) -> None:
        """Fetch from these queues from now on, as far as they are neither revoked nor paused."""
        queues = list(held)
        rows = [assigned.row for assigned in queues]
        places = np.array([row.ctypes.data for row in rows], np.int64)
        self._words[poll.COUNT] = 0  # until all that the kernel will read is held
        self._active = [a for a in queues if not a.revoked and not a.paused]
        for assigned in queues:
            table = self._tables[assigned.queue.topic]
            words = assigned.words
            words[poll.PLACE] = self._board.queue_at(assigned.number)
            words[poll.ACTIVE] = not assigned.revoked and not assigned.paused
            words[poll.TAGS], words[poll.TAG_BYTES] = table.addresses
            words[poll.TAG_COUNT] = table.words.size // tags.TAG_WORDS
            words[poll.FILTER] = table.kind
            words[poll.BITS] = table.bits_address
        self._held = queues
        numbers = {assigned.number for assigned in queues}
        self._units = {n: units for n, units in self._units.items() if n in numbers}
        self._extensions = {n: view for n, view in self._extensions.items() if n in numbers}
        self._rows, self._row_places = rows, places
        self._words[poll.QUEUES] = places.ctypes.data
        self._words[poll.COUNT] = len(queues)

    def poll(self, rows: int, mode: int, *, restless: bool, attended: bool = False) -> int:
        """Rows fetched into `columns`, up to so many, or poll.ATTEND; `mode` as poll.MODE.

        Moves `position` of each queue. Raises Corrupt if the very first message in its way is
        damaged; what lies before a damage is returned first.
        """
        words = self._words
        if self._sql:
            self._learn_bits()
        self.columns = self._small.take(_SMALL_ROWS, _SMALL_BYTES)
        words[poll.COLUMNS] = self.columns.address
        words[poll.WANTED] = rows
        words[poll.MODE] = mode
        words[poll.ATTENTION] = restless
        words[poll.ATTENDED] = attended
        got = poll.poll(self.state)
        if got >= poll.ATTEND:
            return got
        no_room = words[poll.STOP] == Stop.LIMIT and not self._form[fetch.ROWS]
        if got == poll.CROWDED or no_room:
            self.columns = self._large.take(rows, self._content_bytes)
            words[poll.COLUMNS] = self.columns.address
            words[poll.ATTENDED] = True
            got = poll.poll(self.state)
        if got == poll.STOPPED:
            got = poll.hand_out(self.state, self._fetch(rows))
        return got

    def begin(self) -> None:
        """Before a call whose rows `put_back` is to mean: there are none yet."""
        self._form[fetch.ROWS] = 0

    def put_back(self) -> None:
        """The rows of the last call have come to nobody: they are fetched again."""
        count = int(self._form[fetch.ROWS])
        if not count:
            return  # maybe nothing was ever fetched, and there are no columns
        queues = {queue.number: queue for queue in self._held}
        numbers, offsets = (
            self.columns.column(which, count).tolist()
            for which in (fetch.QUEUE_NUMBER, fetch.QUEUE_OFFSET)
        )
        for number, offset in zip(numbers, offsets, strict=True):
            queue = queues[number]
            queue.position = min(queue.position, offset)
            queue.delivered = min(queue.delivered, offset)

    def _learn_bits(self) -> None:
        """Look which filters have bits, if that has changed."""
        changes = self._board.half(layout.BOARD_BITMAP_CHANGES)
        if changes == self._bits_seen:
            return
        known = {covered.key: covered for covered in self._files.covered()}
        for assigned in self._held:
            assigned.words[poll.BITS] = 0  # while what they name may go
        for topic, chosen in self._sql.items():
            key = (topic, self._group, chosen.dialect.value, chosen.text)
            self._tables[topic].learn_bits(known.get(key))
        for assigned in self._held:
            assigned.words[poll.BITS] = self._tables[assigned.queue.topic].bits_address
        self._bits_seen = changes

    def _fetch(self, rows: int) -> int:
        """Go on where the kernel has stopped: other files, segments, stretches, and damage.

        Ends once a filter has passed many units over, as the kernel does.
        """
        columns, form = self.columns, self._form
        rows = min(rows, columns.rows)
        self._turn += 1
        start = self._turn % max(1, len(self._active))
        waiting = [*self._active[start:], *self._active[:start]]
        passed = 0
        while waiting and form[fetch.ROWS] < rows:
            share = max(1, (rows - int(form[fetch.ROWS])) // len(waiting))
            left = []
            for queue in waiting:
                there = self._board.word(self._slot(queue) + layout.QUEUE_MAX_OFFSET)
                end = min(there, queue.words[poll.END])
                before = queue.position
                form[fetch.ROWS_END] = min(rows, int(form[fetch.ROWS]) + share)
                if not self._fetch_queue(queue, min(end, before + _units(queue, share)), columns):
                    return int(form[fetch.ROWS])
                if queue.position < end:
                    left.append(queue)
                passed += queue.position - before
                if poll.cost_of(form, passed) >= poll.SCAN_COST:
                    return int(form[fetch.ROWS])
            waiting = left
        return int(form[fetch.ROWS])

    def _slot(self, queue: Assigned) -> int:
        return self._board.queue_at(queue.number)

    def _fetch_queue(self, queue: Assigned, end: int, columns: Columns) -> bool:
        """Fetch up to an offset, or as far as a filter's work may go; False if there is no room."""
        fresh = False
        while queue.position < end and self._form[fetch.ROWS] < self._form[fetch.ROWS_END]:
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
            elif stop is Stop.DONE and self._form[fetch.SPENT] >= self._form[fetch.WORK_MAX]:
                break
        return True

    def _skip_removed(self, queue: Assigned) -> None:
        low = self._board.word(self._slot(queue) + layout.QUEUE_MIN_OFFSET)
        queue.position = max(queue.position, low)

    def sate(self, sated: bool) -> None:
        """While sated, `poll.rest` sleeps whatever there is to fetch."""
        self._words[poll.SATED] = sated

    def _run(self, queue: Assigned, end: int, columns: Columns, fresh: bool) -> tuple[Stop, bool]:
        """One kernel call, within a queue file, a segment, a stretch; and: map the file anew."""
        form = self._form
        try:
            form[fetch.CQ_BASE], units = self._files.queue_file(
                queue.queue, queue.position, fresh=fresh
            )
        except FileNotFoundError as error:
            require_ours(error)
            return self._missing(queue), False
        self._keep(queue, int(form[fetch.CQ_BASE]), units)
        form[fetch.OFFSET], form[fetch.END_OFFSET] = queue.position, end
        form[fetch.QUEUE] = queue.number
        form[fetch.EXTENSIONS : fetch.BITS + 1] = queue.row[poll.EXTENSIONS : poll.BITS + 1]
        form[fetch.LOW] = self._board.word(layout.BOARD_LOW)
        before = form[: fetch.WANTED_SIZE + 1].copy()
        stop = self._call(queue.queue.topic, units, columns)
        if self._overtaken(before, columns):
            form[: before.size] = before
            return Stop.REMOVED, False
        if stop is Stop.INVALID and self._is_removed(int(form[fetch.WANTED_POSITION])):
            stop = Stop.REMOVED  # it was there when the kernel looked at LOW
        moved = int(form[fetch.OFFSET]) > queue.position
        queue.position = int(form[fetch.OFFSET])
        if stop is Stop.TRUNCATED:
            # The file was mapped before it was as long as now, or it is too short.
            return (Stop.INVALID, False) if fresh and not moved else (stop, not moved)
        if stop is Stop.ROLL:
            return self._roll(queue), False
        self._answer(queue, stop)
        if stop is Stop.REMOVED:
            if self._files.is_misplaced(queue.queue, queue.position):
                return Stop.INVALID, False
            queue.position += 1  # its record is gone, or going
        return stop, False

    def _answer(self, queue: Assigned, stop: Stop) -> None:
        """Give the kernel what it has stopped for."""
        if stop is Stop.EXTENSION:
            self._map_extensions(queue, int(self._form[fetch.WANTED_EXTENSION]))
        elif stop is Stop.ASKED:
            self._judge(queue.queue.topic)

    def _judge(self, topic: str) -> None:
        """Say what a filter's reference says of the record that its program leaves open."""
        row = self._form[fetch.ROW_AT : fetch.SCRATCH_AT]
        at = int(row[scan.PROPERTIES_AT])
        stored = self._segment[1][at : at + int(row[scan.PROPERTIES_SIZE])].tobytes()
        table = self._tables[topic]
        wanted = table.matches(stored)
        self._form[fetch.SPENT] += table.work_of(len(stored))
        mark = int(self._form[fetch.WANTED_POSITION]) + 1
        self._form[fetch.VERDICT] = mark if wanted else -mark

    def _keep(self, queue: Assigned, base: int, units: NDArray[np.uint8]) -> None:
        """Let the kernel read this file from now on."""
        words = queue.words
        if queue.number not in self._units and len(self._units) >= _UNITS_MAX:
            words[poll.UNITS_HELD] = 0
            return
        words[poll.UNITS_HELD] = 0  # while what it has read may go
        self._units[queue.number] = units
        words[poll.UNITS] = units.ctypes.data
        words[poll.UNITS_BASE] = base
        words[poll.UNITS_HELD] = units.size // layout.CQ_UNIT_BYTES

    def _map_extensions(self, queue: Assigned, address: int) -> None:
        """Let the kernel read the file of extensions around an address, or know there is none."""
        start, end, view = self._files.extensions(queue.queue, address)
        words = queue.words
        words[poll.EXTENSIONS_END] = words[poll.EXTENSIONS] = 0
        known = queue.number in self._extensions or len(self._extensions) < _UNITS_MAX
        if view is not None and known:
            self._extensions[queue.number] = view
            words[poll.EXTENSIONS] = view.ctypes.data
        words[poll.EXTENSIONS_FROM] = start
        words[poll.EXTENSIONS_END] = end

    def _call(self, topic: str, units: NDArray[np.uint8], columns: Columns) -> Stop:
        table = self._tables[topic]
        self._form[fetch.FILTER] = table.kind
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

    def _is_removed(self, position: int) -> bool:
        return position < self._board.word(layout.BOARD_LOW)

    def _roll(self, queue: Assigned) -> Stop:
        wanted = int(self._form[fetch.WANTED_POSITION])
        stretch = self._files.ranges.stretch(wanted)
        try:
            base, log = self._files.segment(wanted)
        except (FileNotFoundError, ValueError) as error:
            require_ours(error)
            return self._missing(queue)
        if base == self._segment[0] and log is self._segment[1] and stretch == self._stretch:
            return Stop.INVALID  # inside by its name, behind the end by its length
        self._form[fetch.STRETCH_END] = 0  # in no stretch: whoever reads comes here again
        self._segment = _NO_SEGMENT
        self._words[poll.LOG_BYTES] = 0
        self._log = log
        self._words[poll.LOG] = log.ctypes.data
        self._words[poll.LOG_BYTES] = log.size
        self._form[fetch.LOG_BASE] = base
        self._form[fetch.OURS] = stretch.ours
        self._form[fetch.STRETCH_FROM] = stretch.start
        self._form[fetch.STRETCH_END] = stretch.end
        self._segment, self._stretch = (base, log), stretch
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
        columns.grow(wanted)

    def _damage(self, queue: Assigned) -> Corrupt:
        position = int(self._form[fetch.WANTED_POSITION])
        base = position // self._files.segment_bytes * self._files.segment_bytes
        return Corrupt(
            f"message {queue.position} of {queue.queue.topic}/{queue.queue.queue_id} at log"
            f" position {position} is not what its queue says: run `gantrymq store verify`, or"
            " seek beyond it",
            path=segment_name(max(base, 0)),
            position=position,
            queue=queue.queue,
            queue_offset=queue.position,
        )


def _units(queue: Assigned, share: int) -> int:
    """How many units of a queue are looked at for so many rows."""
    if queue.words[poll.FILTER] == fetch.EVERYTHING:
        return share
    return max(share, poll.SCAN_UNITS)
