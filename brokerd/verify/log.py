"""The log, segment by segment: names, lengths, every record, and what lies where none is."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

from gantrymq.brokerd.logscan import OURS, THEIRS, Piece, walk
from gantrymq.brokerd.verify.holes import first_nonzero
from gantrymq.shm import layout
from gantrymq.shm.codes import Stop
from gantrymq.shm.kernels import scan
from gantrymq.shm.kernels.units import rows_of_topic
from gantrymq.shm.lognames import DIRECTORY, is_position, segment_name
from gantrymq.shm.record import OWN, RECORD_MAGICS, RECOVERY, Filler, Invalid, parse_record
from gantrymq.shm.record_columns import find_lost, number_names

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gantrymq.brokerd.verify.report import Report
    from gantrymq.brokerd.verify.scope import Scope
    from gantrymq.shm.storage import Storage

Progress = Callable[[int, int, str], None]

_MAGICS: Final = tuple(magic.to_bytes(4, "big") for magic in RECORD_MAGICS)
_SEARCH_BYTES: Final = 1 << 24
_TIMES_LISTED: Final = 20


@dataclass(slots=True)
class Records:
    """Sound records of one call: rows of scan.ROW_WORDS with places from `base`, topic numbers."""

    base: int
    rows: NDArray[np.int64]
    topics: NDArray[np.int64]


@dataclass(slots=True)
class SegmentRecords:
    """One segment's records, for its sidecar: bytes from its start, topic numbers, times."""

    base: int
    view: NDArray[np.uint8]
    starts: list[NDArray[np.int64]] = field(default_factory=list)
    topics: list[NDArray[np.int64]] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    end: int = 0  # log position behind the last record
    sealed: bool = False
    damaged: bool = False

    def take(self, records: Records, end: int) -> None:
        """Add the records of one call, which end at log position `end`."""
        if len(records.rows):
            self.starts.append(records.rows[:, scan.AT].copy())
            self.topics.append(records.topics)
            times = records.rows[:, scan.STORE_MS]
            self.times += [int(times[0]), int(times[-1])]
            self.end = end


def _nobody() -> None:
    """Where nothing can expire."""


@dataclass(frozen=True, slots=True)
class Takers:
    """Who gets each call's records, who each whole segment, who hears that all that has expired."""

    take: Callable[[Records], None]
    sealed: Callable[[SegmentRecords], None]
    begin_anew: Callable[[], None] = _nobody


def _count_lost(piece: Piece) -> int:
    """Records of a piece that only stand for lost ones."""
    places = piece.rows[:, scan.PROPERTIES_AT], piece.rows[:, scan.PROPERTIES_SIZE]
    return len(find_lost(piece.view, *places))


class LogCheck:
    """Walks the log once and hands its records on."""

    def __init__(
        self, storage: Storage, segment_bytes: int, scope: Scope, report: Report,
        progress: Progress | None, *, any_length: bool = False,
    ) -> None:  # fmt: skip
        self._storage = storage
        self._any_length = any_length
        self.segment_bytes = segment_bytes
        self._scope = scope
        self._report = report
        self._progress = progress
        #: Highest storeTimestamp so far, Unix ms.
        self.last_ms = 0
        self._numbers: dict[str, int] = {}
        self.names: list[str] = []
        #: Ranges of log positions without sound records, where there should be some.
        self.lost: list[tuple[int, int]] = []

    def run(self, takers: Takers) -> None:
        """Check all segments."""
        found = self._segments()
        report, bound = self._report, self._scope.log_end
        if found:
            report.log_start = report.log_end = found[0]
        bases = self._without_empty(found)
        if bound is not None:
            bases = [base for base in bases if base < bound]
        for number, base in enumerate(bases):
            if base >= report.log_start:  # else it has expired with one before it
                self._look_at(base, base == bases[-1], takers)
            if self._progress:
                done = (number + 1) * self.segment_bytes
                self._progress(done, len(bases) * self.segment_bytes, "checking the log")
        report.segments = sum(1 for base in found if base >= report.log_start)
        if bound is None:
            report.judged_to = max(report.log_end, self._scope.sure)
        else:
            report.judged_to = max(bound, report.log_start)
        if report.log_end < report.judged_to and not self.lost:
            self._tell_early_end(report.log_end, report.judged_to)

    def _look_at(self, base: int, last: bool, takers: Takers) -> None:
        """Check one segment. If retention has taken it by then, all up to it is void.

        It moves a segment away before it changes its bytes: what was read of one that is in its
        place afterwards was whole.
        """
        mark = self._report.mark()
        try:
            segment = self._check_segment(base, last, takers.take)
            if segment.sealed:
                takers.sealed(segment)
        except FileNotFoundError:
            if not self._has_expired(base):
                raise
        if self._has_expired(base):
            start = self._scope.low()
            self._report.begin_anew(start, mark)
            self.lost = [span for span in self.lost if span[1] > start]
            takers.begin_anew()

    def _has_expired(self, base: int) -> bool:
        """Whether a segment is gone, and rightly so."""
        return not self._storage.exists(segment_name(base)) and base < self._scope.low()

    def _tell_early_end(self, end: int, wanted: int) -> None:
        """The log ends before `wanted`: records were cut off, or whole segments are gone."""
        first = end // self.segment_bytes * self.segment_bytes
        gone = [
            base
            for base in range(first, wanted, self.segment_bytes)
            if not self._storage.exists(segment_name(base))
        ]
        for base in gone:
            self._report.add(segment_name(base), None, "missing segment")
        self.lost.append((end, -(-wanted // self.segment_bytes) * self.segment_bytes))
        if first not in gone:
            self._add(end, "the log ends here", f"records up to {wanted}")

    def _without_empty(self, bases: list[int]) -> list[int]:
        """Without segments at the end that were made ahead of need: the log ends before them."""
        kept = list(bases)
        while len(kept) > 1 and first_nonzero(self._path(kept[-1]), 0, self.segment_bytes) is None:
            kept.pop()
        return kept

    # ------------------------------------------------------------------------------------ files

    def _segments(self) -> list[int]:
        """Bases of the segments that can be walked."""
        found: list[int] = []
        names = self._storage.list(DIRECTORY)
        for name in names:
            path = f"{DIRECTORY}/{name}"
            if not is_position(name) or int(name) % self.segment_bytes:
                self._report.add(
                    path, None, "stray file", f"multiples of {self.segment_bytes} as names"
                )
                continue
            size = self._size_of(path)
            if size == 0 and name == names[-1] and int(name) >= self._scope.sure:
                continue  # what a kill leaves of RocketMQ's preallocation (SF-11)
            if size is not None and self._is_readable(path, size):
                found.append(int(name))
        found = self._without_expired(found)
        for before, after in pairwise(found):
            for base in range(before + self.segment_bytes, after, self.segment_bytes):
                if not self._storage.exists(segment_name(base)):
                    self._report.add(segment_name(base), None, "missing segment")
                    self.lost.append((base, base + self.segment_bytes))
        return found

    def _without_expired(self, bases: list[int]) -> list[int]:
        """Without segments that go: what index files had of them may have gone before."""
        low = self._scope.low()  # behind the look at the index files, and at the segments
        self.lost = [(start, end) for start, end in self.lost if end > low]
        return [base for base in bases if base >= low]

    def _size_of(self, path: str) -> int | None:
        """Length of a file; None if it has expired since it was listed."""
        try:
            return self._storage.size_of(path)
        except FileNotFoundError:
            if not self._has_expired(int(path.rpartition("/")[2])):
                raise
            return None

    def _is_readable(self, path: str, size: int) -> bool:
        if size == self.segment_bytes:
            return True
        self._report.add(path, None, "wrong length", f"{self.segment_bytes}", f"{size} bytes")
        if self._any_length and size:
            return True
        base = int(path.rpartition("/")[2])
        self.lost.append((base, base + self.segment_bytes))
        return False

    # ---------------------------------------------------------------------------------- records

    def _check_segment(
        self, base: int, last: bool, take: Callable[[Records], None]
    ) -> SegmentRecords:
        file = self._storage.open(segment_name(base))
        segment = SegmentRecords(base, file.still_view())
        file.close()
        segment.end = at = base
        end = base + self.segment_bytes
        if self._scope.log_end is not None:
            end = min(end, self._scope.log_end)
        while at < end:
            at, stop = self._stretch(segment, at, end, take)
            if stop == Stop.FILLER:
                segment.sealed = True
                self._check_behind_filler(segment)
                at = base + self.segment_bytes
            elif stop != Stop.LIMIT:
                behind = self._explain(segment, at, stop, last)
                if behind is None:
                    break
                at = behind
        self._report.log_end = at if segment.sealed else segment.end
        return segment

    def _stretch(
        self, segment: SegmentRecords, at: int, end: int, take: Callable[[Records], None]
    ) -> tuple[int, Stop]:
        """Walk from log position `at` to where something else than a record is."""
        stop = Stop.LIMIT
        for part in self._scope.written.stretches(at, end):
            checks = OURS if part.ours else THEIRS
            for piece in walk(self._storage, self.segment_bytes, part.start, part.end, checks):
                records = self._columns(piece)
                behind = piece.next
                if len(piece.rows):
                    behind = int(piece.base + piece.rows[-1, scan.AT] + piece.rows[-1, scan.SIZE])
                    self._check_times(piece, part.ours)
                    self._report.records += len(piece.rows)
                    self._report.lost += _count_lost(piece)
                    take(records)
                    segment.take(records, behind)
                stop, at = piece.stop, behind if piece.stop == Stop.FILLER else piece.next
            if stop != Stop.LIMIT:
                break
        return at, stop

    def _columns(self, piece: Piece) -> Records:
        places = piece.rows[:, scan.TOPIC_AT], piece.rows[:, scan.TOPIC_SIZE]
        if len(piece.rows):
            at, size = int(places[0][0]), int(places[1][0])
            first = piece.view[at : at + size]
            if rows_of_topic(piece.view, piece.rows.reshape(-1), first) == len(piece.rows):
                number = self._number(bytes(first).decode(errors="replace"))
                return Records(piece.base, piece.rows, np.full(len(piece.rows), number, np.int64))
        numbers, names = number_names(piece.view, *places)
        ours = [self._number(name) for name in names]
        topics = np.array(ours, np.int64)[numbers] if ours else np.empty(0, np.int64)
        return Records(piece.base, piece.rows, topics)

    def _number(self, name: str) -> int:
        number = self._numbers.setdefault(name, len(self._numbers))
        if number == len(self.names):
            self.names.append(name)
        return number

    def _check_times(self, piece: Piece, ours: bool) -> None:
        """LW-3: storeTimestamp does not go back in what we wrote; RocketMQ's may (SF-41)."""
        times = piece.rows[:, scan.STORE_MS]
        before = np.concatenate([[self.last_ms], np.maximum.accumulate(times)[:-1]])
        for index in np.flatnonzero(times < before)[: _TIMES_LISTED * ours].tolist():
            at = piece.base + int(piece.rows[index, scan.AT])
            wanted = f"at least {int(before[index])}"
            self._add(at, "storeTimestamp goes back", wanted, str(int(times[index])))
        self.last_ms = max(self.last_ms, int(times.max()))

    # ------------------------------------------------------------------------ where no record is

    def _explain(self, segment: SegmentRecords, at: int, stop: Stop, last: bool) -> int | None:
        """Report what is not the log's end; the position of the next sound record, or None."""
        base, place = segment.base, at - segment.base
        nonzero = first_nonzero(self._path(base), place, self.segment_bytes)
        if stop == Stop.END and last and self._scope.log_end is None and nonzero is None:
            return None
        following = self._find_record(segment, place + 1) if nonzero is not None else None
        at_end = last and following is None and self._scope.log_end is None
        if at_end and not self._scope.whole:
            return None  # the torn tail of a broker that was killed
        segment.damaged = True
        self.lost.append((at, base + self.segment_bytes if following is None else following))
        if at_end and stop == Stop.END:
            if self._is_ours(at):
                self._add(base + (nonzero or 0), "bytes behind the log's end", "zeroes")
            return None
        what, detail = self._verdict(segment, place)
        expected = "a record or filler" if following is None else f"a record; next at {following}"
        self._add(at, what, expected, detail)
        return following

    def _verdict(self, segment: SegmentRecords, place: int) -> tuple[str, str]:
        """What the reference reader says of the bytes at a place."""
        position = segment.base + place
        check = OWN if self._scope.written.contains(position) else RECOVERY
        item = parse_record(segment.view.data, place, len(segment.view), check, position)
        if isinstance(item, Invalid):
            return f"no record: {item.fault}", item.detail
        if isinstance(item, Filler):
            return "wrong filler", f"size {item.size}"
        return "no sound record", f"topic {item.topic!r}"

    def _find_record(self, segment: SegmentRecords, start: int) -> int | None:
        """Log position of the next sound record in a segment from byte `start` on."""
        row = np.zeros(scan.ROW_WORDS, np.int64)
        for begin in range(start, self.segment_bytes, _SEARCH_BYTES):
            window = segment.view[begin : begin + _SEARCH_BYTES + layout.FILLER.size].tobytes()
            for at in sorted(_finds(window)):
                place = begin + at - layout.RECORD_MAGIC
                if place < start:
                    continue
                ours = self._scope.written.contains(segment.base + place)
                checks = OURS if ours else THEIRS
                form = np.array([place, segment.base, checks, 0, 0, 0], np.int64)
                scan.scan_log(segment.view, form, row)
                if form[5]:
                    return segment.base + place
        return None

    def _check_behind_filler(self, segment: SegmentRecords) -> None:
        """What follows the last record of ours was zero then (SF-20 allows anything)."""
        if not self._is_ours(segment.end):
            return
        start = segment.end - segment.base + layout.FILLER.size
        nonzero = first_nonzero(self._path(segment.base), start, self.segment_bytes)
        if nonzero is not None:
            self._add(segment.base + nonzero, "bytes behind a filler", "zeroes")

    def _is_ours(self, end: int) -> bool:
        """Whether we wrote what ends at a log position, and cleared what lies behind."""
        return self._scope.written.contains(max(end - 1, 0))

    def _path(self, base: int) -> str:
        return os.path.join(self._storage.root, segment_name(base))

    def _add(self, position: int, what: str, expected: str = "", found: str = "") -> None:
        """Note a finding at a log position."""
        base = position // self.segment_bytes * self.segment_bytes
        self._report.add(segment_name(base), position - base, what, expected, found)


def _finds(window: bytes) -> set[int]:
    places = set()
    for magic in _MAGICS:
        at = window.find(magic)
        while at >= 0:
            places.add(at)
            at = window.find(magic, at + 1)
    return places
