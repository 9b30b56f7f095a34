"""Records by key, newest first: of the index what it has, of the log what it has not (yet).

Records decide, not hashes. A page goes on where another ended by a log position, so that messages
that come meanwhile shift nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from heapq import merge
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from gantrymq.clients.queries.inner import MISPLACED, units
from gantrymq.clients.queries.view import NO_END, StoreView, read_ahead
from gantrymq.shm import layout
from gantrymq.shm.codes import Stop
from gantrymq.shm.errors import Corrupt
from gantrymq.shm.fromhandlers import require_ours
from gantrymq.shm.indexreader import EVER_MS, Entry, FileUnfit, IndexFile, IndexReader
from gantrymq.shm.lognames import bases_of, segment_name

if TYPE_CHECKING:
    from gantrymq.shm.record import Record

#: So much of the log is looked through for a query where the index ends; a second's work.
SCAN_BYTES: Final = 1 << 30
_POSITION: Final = attrgetter("position")
_HEAD: Final = layout.FILLER.size
#: Index files, and hashes, whose slots are read ahead.
_AHEAD: Final = 8


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is looked for: any of these hashes, a record that `matches`, times in Unix ms.

    Batches of `topics` are candidates by themselves: no index has the keys of their messages.
    """

    codes: Sequence[int]
    matches: Callable[[Record], bool]
    begin_ms: int = -EVER_MS
    end_ms: int = EVER_MS
    before: int = NO_END  # log position
    topics: Sequence[str] = ()

    def may_have(self, entry: Entry) -> bool:
        """Whether its record may have been stored at a time that is wanted."""
        return entry.latest_ms >= self.begin_ms and entry.earliest_ms <= self.end_ms

    @property
    def is_timed(self) -> bool:
        """Whether there is a time at which a record is not wanted."""
        return self.begin_ms > -EVER_MS or self.end_ms < EVER_MS

    def has_time(self, store_ms: int) -> bool:
        """Whether a record stored then is wanted; both ends count."""
        return self.begin_ms <= store_ms <= self.end_ms


class Search:
    """Iterator of records, newest first. After Corrupt it goes on behind the damaged record.

    `unsearched`: stretches [start, end) of the log that were not looked through, and `reasons`.
    """

    def __init__(
        self, view: StoreView, wanted: Wanted, scan_bytes: int = SCAN_BYTES, index: bool = True
    ) -> None:
        self.unsearched: list[tuple[int, int]] = []
        self.reasons: list[str] = []
        self._view = view
        self._wanted = wanted
        self._reader = view.reader
        self._left_bytes = scan_bytes
        self._last = NO_END  # position of the last candidate
        self._over = False
        self._candidates = self._walk(index) if wanted.codes else iter(())
        if index and wanted.topics:
            batches = self._of_batches(view.indexed)
            self._candidates = merge(self._candidates, batches, reverse=True)

    def __iter__(self) -> Iterator[Record]:
        return self

    def __next__(self) -> Record:
        """The next older record. Raises Corrupt."""
        for position in self._candidates:
            if position >= self._last:
                continue  # a key twice in one message
            self._last = position
            record = self._reader.named(position)
            if record is None or not self._view.shows(record):
                continue  # expired, or not durable yet
            if self._wanted.has_time(record.store_timestamp):
                if self._wanted.matches(record):
                    return record
            elif record.store_timestamp < self._wanted.begin_ms and self._rises_to(position):
                break
        self._candidates = iter(())
        raise StopIteration

    def _rises_to(self, position: int) -> bool:
        """Whether everything stored before a position has no later time: where we wrote."""
        return self._reader.ranges.contains(position)

    # -------------------------------------------------------------------------------- candidates

    def _walk(self, use_index: bool) -> Iterator[int]:
        view = self._view
        indexed = view.indexed if use_index else -1
        low, top = view.low, min(self._wanted.before, view.end)
        sure = max(indexed, low)
        if indexed >= 0 and view.end == NO_END:
            self._read_ahead(sure)
        yield from self._scanned(sure, top)
        if indexed < 0:
            return
        if view.doubt:
            self.reasons.append(view.doubt)
        reader = IndexReader(view.storage, view.shape)
        for path in reader.names():
            with reader.open(path) as file:
                if file is not None:
                    yield from self._of_file(file, min(sure, top), low)
            if self._over:
                return
        if view.indexed < indexed:  # a start has dropped a file that was read
            self._leave_out(view.indexed, indexed, "the index is being made again")

    def _read_ahead(self, end: int) -> None:
        """Have what is read first of a store that nobody has in memory read at the same time."""
        view = self._view
        at = end % view.segment_bytes if view.segment_bytes else 0
        slots = [
            (path, view.shape.slot_at(code), layout.INDEX_SLOT_BYTES)
            for path in IndexReader(view.storage, view.shape).names()[:_AHEAD]
            for code in self._wanted.codes[:_AHEAD]
        ]
        read_ahead(view.storage, [(segment_name(end - at), at, _HEAD), *slots])

    def _of_file(self, file: IndexFile, top: int, low: int) -> Iterator[int]:
        header = file.header
        if header.count <= 1 or header.begin_position >= top:
            return
        if header.end_ms < self._wanted.begin_ms and self._rises_to(header.end_position):
            self._over = True
            return
        seen = top
        try:
            for entry in self._entries(file):
                if entry.position < low or self._is_past(entry):
                    self._over = True
                    return
                if entry.position < top:
                    seen = entry.position
                    if self._wanted.may_have(entry):
                        yield entry.position
        except FileUnfit as error:
            self.reasons.append(f"{error}: the log was searched instead")
            yield from self._scanned(max(header.begin_position, low), seen)

    def _entries(self, file: IndexFile) -> Iterator[Entry]:
        """Entries of all hashes, newest first."""
        chains = [file.chain(code) for code in self._wanted.codes]
        if len(chains) == 1:
            return chains[0]
        return merge(*chains, key=_POSITION, reverse=True)

    def _is_past(self, entry: Entry) -> bool:
        """Whether this entry's record and all older ones are too old."""
        return entry.latest_ms < self._wanted.begin_ms and self._rises_to(entry.position)

    def _of_batches(self, indexed: int) -> Iterator[int]:
        """Records of topics of type BatchCQ, below what is scanned: any may be a batch with it."""
        wanted, low = self._wanted, self._view.low
        end = min(wanted.before, indexed)
        for unit in units(self._view.storage, wanted.topics):
            if unit.is_below(low):
                return
            if unit.is_misplaced:
                self._leave_out(max(low, unit.place), end, MISPLACED)
            elif unit.position < end and wanted.has_time(unit.store_ms):
                if self._left_bytes <= 0:
                    behind = unit.position + unit.size
                    self._leave_out(low, behind, "no index has the keys of messages in batches")
                    return
                self._left_bytes -= unit.size
                yield unit.position

    # ---------------------------------------------------------------------------------- the log

    def _scanned(self, start: int, stop: int) -> Iterator[int]:
        """Candidates of [start, stop), segment by segment, the newest first."""
        if start >= stop:
            return
        bases = bases_of(self._view.storage)
        while bases:
            base = bases.pop()
            span = max(start, base), min(stop, base + self._view.segment_bytes)
            if span[0] >= span[1]:
                continue
            first_ms = self._first_ms(base) if self._wanted.is_timed else None
            if (
                first_ms is not None
                and first_ms > self._wanted.end_ms
                and self._rises_to(span[1] - 1)
            ):
                continue
            yield from self._scan(base, span)
            if first_ms is not None and first_ms < self._wanted.begin_ms and self._rises_to(base):
                return  # all below is older

    def _first_ms(self, base: int) -> int | None:
        """When a segment's first record was stored; None if it is gone, or nobody can say."""
        try:
            record = self._reader.named(base)
        except Corrupt:
            return None
        return None if record is None else record.store_timestamp

    def _scan(self, base: int, span: tuple[int, int]) -> Iterator[int]:
        if self._left_bytes <= 0:
            self._leave_out(*span, "the index ends below")
            return
        wanted = self._wanted
        try:
            if self._view.end == NO_END and self._is_blank(base, span[0]):
                return  # nearly always: the index of a store that was stopped has it all
            from gantrymq.clients.queries.logscan import scan_segment

            times = (wanted.begin_ms, wanted.end_ms)
            found = scan_segment(self._view.storage, base, span, wanted.codes, times)
        except FileNotFoundError as error:
            require_ours(error)
            return  # expired
        self._left_bytes -= found.end - span[0]
        ends = found.stop in (Stop.FILLER, Stop.LIMIT) or found.end >= span[1]
        if not ends and span[1] > self._view.low and not self._is_end(found.stop):
            self._leave_out(found.end, span[1], f"no record begins at {found.end}")
        yield from reversed(found.positions)

    def _is_blank(self, base: int, position: int) -> bool:
        """Whether a segment ends there, without the kernels that look through records."""
        head = bytearray(_HEAD)
        with closing(self._view.storage.open(segment_name(base))) as file:
            file.read_into(head, position - base)
        return not any(head)

    def _is_end(self, stop: Stop) -> bool:
        """Whether the log of a stopped store may end so."""
        return self._view.end == NO_END and stop in (Stop.END, Stop.TRUNCATED)

    def _leave_out(self, start: int, end: int, why: str) -> None:
        self.unsearched.append((start, end))
        if why not in self.reasons:
            self.reasons.append(why)
