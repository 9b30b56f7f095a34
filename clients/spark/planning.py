"""What there is to read in a store's log, and how it is cut into ranges. Nothing is written.

Positions are those of the log, in bytes. Sealed segments never change; the one that is being
written is looked at only if it is asked for: by a batch read up to its last whole record, by
whoever keeps a position (`durable_only`) up to what no power cut takes away.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from gantrymq.clients.spark.chain import chain
from gantrymq.clients.spark.logfiles import first_ms, times_behind, used_segments
from gantrymq.clients.spark.options import ReadOptions
from gantrymq.clients.spark.tail import checkpoint_of, tail_of
from gantrymq.shm import sidecar
from gantrymq.shm.errors import Corrupt, SettingIllegal, StoreFailed
from gantrymq.shm.lognames import DIRECTORY as COMMIT_LOG
from gantrymq.shm.lognames import segment_name
from gantrymq.shm.ranges import Ranges, ranges_of
from gantrymq.shm.segment import Segment
from gantrymq.shm.sidecar import Sidecar
from gantrymq.shm.storage import PosixStorage, read_file

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gantrymq.shm.checkpoint import Checkpoint

_log = logging.getLogger(__name__)

RANGE_BYTES: Final = 64 << 20
#: With this many segments there is enough to do at once: each is one range and need not be walked
#: while planning.
_WALKED_SEGMENTS_MAX: Final = 8


@dataclass(frozen=True, slots=True)
class SegmentRange:
    """Records of one segment from byte `start` on that begin before byte `end` (None: its end).

    `sealed` segments end with a filler; in the active one anything else than a record is the end.
    `expected_bytes` is what the file should have, if it has another length.
    """

    base: int
    start: int
    end: int | None
    sealed: bool
    expected_bytes: int | None = None

    @property
    def name(self) -> str:
        """The file, relative to the store's root."""
        return segment_name(self.base)


@dataclass(frozen=True, slots=True)
class Piece:
    """One segment that may be read: a whole one, or (`open`) the first records of one.

    `length` is what its file must have. `next_ms` is the time of the first record behind it. `over`
    is there if damage is to be passed over: which parts of the log are ours. `open` has the bytes
    where its records begin and where the last of them ends.
    """

    segment: Segment
    length: int
    known: Sidecar | None
    next_ms: int | None
    over: Ranges | None = None
    open: NDArray[np.int64] | None = None

    @property
    def end(self) -> int:
        """Log position up to which it may be read."""
        return self.segment.base + (self.length if self.open is None else int(self.open[-1]))

    @property
    def is_cheap(self) -> bool:
        """Whether its bounds need no walk over its records."""
        return self.known is not None or self.open is not None

    def bounds(self) -> NDArray[np.int64]:
        """Bytes from the segment's start where records begin, and where the last one ends."""
        if self.open is not None:
            return self.open
        if self.known is not None:
            return self.known.bounds()
        if self.over is None:
            return sidecar.walk(self.segment.view, self.segment.base)
        end = min(self.length, len(self.segment.view))
        return chain(self.segment, self.over, 0, end).bounds


@dataclass(frozen=True, slots=True)
class Survey:
    """The log as it is now: `low` <= what may be read < `high` <= `log_end`, with what lies in it.

    `log_end` is where the last segment in use ends. `pieces` may leave holes, see `gaps`.
    """

    options: ReadOptions
    pieces: tuple[Piece, ...]
    low: int
    high: int
    log_end: int

    def gaps(self, start: int, end: int) -> list[tuple[int, int]]:
        """Parts of [start, end) that no segment holds any more."""
        found = []
        at = start
        for piece in self.pieces:
            if at < min(piece.segment.base, end):
                found.append((at, min(piece.segment.base, end)))
            at = max(at, piece.end)
        known = min(end, max(self.low, self.high))
        if at < known:
            found.append((at, known))
        return found

    def next_record(self, position: int) -> int:
        """Where the first item at or behind a position begins; the position itself if unknown."""
        for piece in self.pieces:
            if piece.segment.base < position < piece.end:
                places = piece.segment.base + piece.bounds()
                number = int(np.searchsorted(places, position))
                return int(places[number]) if number < len(places) else position
        return position

    def record_before(self, position: int) -> tuple[int, int] | None:
        """Position and size of the last item that ends at or before a position; None if unknown.

        A filler counts as the end of the record before it.
        """
        for piece in reversed(self.pieces):
            base = piece.segment.base
            if base < position:
                bounds = piece.bounds()
                number = int(np.searchsorted(bounds, position - base, side="right")) - 1
                if number > 0:
                    first, end = bounds[number - 1 : number + 1].tolist()
                    return base + first, end - first
        return None

    def require_whole(self, start: int, end: int, what: str, hint: str) -> None:
        """Raise StoreFailed if a part of [start, end) is gone; `what` and `hint` end its text.

        If `failOnDataLoss` is false, each gap is logged instead.
        """
        for first, last in self.gaps(start, end):
            text = f"the log of {self.options.store} has lost positions {first} to {last}{what}"
            if self.options.fail_on_data_loss:
                raise StoreFailed(text + hint, path=self.options.store, position=first)
            _log.warning(text)

    def ranges(self, start: int, end: int) -> Iterator[SegmentRange]:
        """Ranges of about RANGE_BYTES of what the options ask for in [start, end), in log order.

        Records count where they begin. Raises Corrupt for a file of a wrong length whose end is
        asked for, unless that is to be reported.
        """
        walk = len(self.pieces) <= _WALKED_SEGMENTS_MAX
        for piece in self.pieces:
            base = piece.segment.base
            first = max(start - base, 0)
            last = end - base if end < piece.end else None
            if first >= piece.end - base or (last is not None and last <= 0):
                continue
            if self._is_wanted(piece):
                by_record = walk or first > 0 or last is not None or piece.is_cheap
                bounds = piece.bounds() if by_record else None
                parts = _cut(base, bounds, (first, last), sealed=piece.open is None)
                yield from parts if last is not None else self._with_length(piece, parts)

    def _with_length(self, piece: Piece, parts: list[SegmentRange]) -> list[SegmentRange]:
        """The ranges of a piece up to its end; the last one says so if the file's length is wrong.

        A cut at a record's end, or bytes too many, show nowhere else.
        """
        if len(piece.segment.view) == piece.length:
            return parts
        name = segment_name(piece.segment.base)
        text = f"{name} has {len(piece.segment.view)} bytes, not {piece.length} as its neighbours"
        if not self.options.report_bad_records:
            hint = ": put it back from a backup; badRecords=report reads what is there"
            raise Corrupt(text + hint, path=name, position=piece.segment.base)
        _log.warning(text)
        return [*parts[:-1], *(replace(part, expected_bytes=piece.length) for part in parts[-1:])]

    def limited(self, start: int, end: int, rows: int | None, size: int | None) -> int:
        """The largest position in (start, end] with at most so many rows and bytes before it.

        At least one record is passed. Rows of topics that nobody asks for do not count where a
        sidecar tells them; an inner batch counts as one.
        """
        if rows is None and size is None:
            return end
        passed, count = 0, 0
        for piece in self.pieces:
            if piece.end <= start or piece.segment.base >= end:
                continue
            edges, weights = self._weights(piece, start, end)
            running = count + np.cumsum(weights)
            fits = np.ones(len(weights), np.bool_)
            if rows is not None:
                fits &= running <= rows
            if size is not None:
                fits &= edges[1:] - start <= size
            if not fits.all():
                first = int(np.argmin(fits))
                return int(edges[first if passed or first else 1])
            passed += len(weights)
            count += int(weights.sum())
        return end

    def _weights(
        self, piece: Piece, start: int, end: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Positions of n records in [start, end) and where the last one ends; n rows or none."""
        edges = piece.segment.base + piece.bounds()
        first, last = np.searchsorted(edges[:-1], (start, end)).tolist()
        counts = np.ones(last - first, np.int64)
        if piece.known is not None:
            wanted = np.array([self.options.wants(name) for name in piece.known.names], np.int64)
            counts = wanted[piece.known.topic_numbers[first:last]]
        return edges[first : last + 1], counts

    def _is_wanted(self, piece: Piece) -> bool:
        known = piece.known
        if known is not None:
            topics = any(self.options.wants(name) for name in known.names)
            return topics and self.options.overlaps(known.first_ms, known.last_ms)
        return self.options.overlaps(first_ms(piece.segment.view) or 0, piece.next_ms)


def plan(options: ReadOptions) -> list[SegmentRange]:
    """Ranges of about 64 MiB that hold all records that the options ask for, in log order.

    What retention took from the log's beginning is not missed. Raises SettingIllegal if the store
    has no commit log, and StoreFailed if a segment behind its beginning is missing, unless
    `failOnDataLoss` is false: then that is logged.
    """
    found = survey(options, options.start_offset)
    end = min(options.end_offset, found.high)
    found.require_whole(
        max(options.start_offset, found.low),
        end,
        ": segments in its middle are missing",
        "; put them back, or failOnDataLoss=false reads the rest",
    )
    return list(found.ranges(options.start_offset, end))


def survey(options: ReadOptions, start: int = 0, *, durable_only: bool = False) -> Survey:
    """Look at the segments from the one that holds position `start` on.

    With `durable_only` what a power cut may take away is left out; of a store that does not say
    what is durable (a RocketMQ's), that is the whole last segment. Raises SettingIllegal if the
    store has no commit log.
    """
    storage = PosixStorage(options.store)
    if not storage.is_directory(COMMIT_LOG):
        home = storage.is_directory(f"store/{COMMIT_LOG}")
        hint = f"it is a home: use {options.store}/store" if home else "is it a store's root?"
        raise SettingIllegal(f"no {COMMIT_LOG}/ in {options.store!r}: {hint}")
    used, lengths = used_segments(storage, options)
    low = used[0].base if used else 0
    log_end = used[-1].base + lengths[-1] if used else 0
    found = zip(used, lengths, times_behind(used), strict=True)
    placed = [one for one in found if one[0].base + one[1] > start]
    last = checkpoint_of(storage) if durable_only else None
    pieces: list[Piece] = []
    high = placed[0][0].base if placed else log_end
    over = ranges_of(storage) if options.report_bad_records else None
    for segment, length, next_ms in placed:
        piece = Piece(segment, length, load_sidecar(storage, segment), next_ms, over)
        is_last = segment is placed[-1][0]
        if piece.known is None and (is_last or not _is_whole(segment, last)):
            high = segment.base  # what is missing before it is missed
            if options.include_active:
                tail = tail_of(storage, segment, durable_only=durable_only)
                first = max(start - segment.base, 0) if durable_only else 0
                bounds = tail.bounds(segment, first, over_damage=options.report_bad_records)
                if len(bounds) > 1:
                    pieces.append(replace(piece, open=bounds))
                    high = pieces[-1].end
            break
        pieces.append(piece)
        high = piece.end
    return Survey(options, tuple(pieces), low, high, log_end)


def _is_whole(segment: Segment, last: Checkpoint | None) -> bool:
    """Whether all of a segment behind which another one is used is there for good.

    What is behind the durable position counts only while a broker of ours runs or was killed.
    """
    return last is None or last.clean or segment.end <= last.durable


def unread_bytes(options: ReadOptions, position: int) -> int:
    """Bytes of records behind a position of the segment that is being written; they are there."""
    used, _ = used_segments(PosixStorage(options.store), options)
    if not used or position < used[-1].base:
        return 0
    first = position - used[-1].base
    return int(sidecar.walk(used[-1].view, used[-1].base, first)[-1]) - first


def load_sidecar(storage: PosixStorage, segment: Segment) -> Sidecar | None:
    """A segment's sidecar; None without one, or if it is damaged or another segment's."""
    name = f"{sidecar.DIRECTORY}/{segment.base:020d}"
    try:
        found = sidecar.parse(read_file(storage, name), name)
    except (FileNotFoundError, Corrupt):
        return None
    same = (found.base, found.segment_bytes) == (segment.base, len(segment.view))
    return found if same else None


def _cut(
    base: int,
    bounds: NDArray[np.int64] | None,
    span: tuple[int, int | None] = (0, None),
    *,
    sealed: bool,
) -> list[SegmentRange]:
    """Ranges that begin at records, each of about RANGE_BYTES; one if the bounds are not known.

    Records count that begin in `span`, from the first byte up to the second (None: all). The last
    range of a sealed segment has no end then, so that its reader looks at what follows. Cuts do not
    depend on the span.
    """
    first, limit = span
    if bounds is None:
        return [SegmentRange(base, first, limit, sealed)]
    stop = int(bounds[-1])
    if limit is not None:
        stop = int(bounds[min(int(np.searchsorted(bounds, limit)), len(bounds) - 1)])
    next_cut = (first // RANGE_BYTES + 1) * RANGE_BYTES
    targets = np.append(first, np.arange(next_cut, max(stop, 1), RANGE_BYTES))
    places = np.minimum(np.searchsorted(bounds, targets), len(bounds) - 1)
    starts = np.unique(bounds[places])
    starts = starts[starts < max(stop, 1)]
    ends: list[int | None] = [*starts[1:].tolist(), None if sealed and limit is None else stop]
    return [
        SegmentRange(base, start, end, sealed)
        for start, end in zip(starts.tolist(), ends[: len(starts)], strict=True)
    ]
