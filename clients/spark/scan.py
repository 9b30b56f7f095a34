"""What a Spark read does, without Spark: plan ranges of segments, and read one as Arrow batches.

Sealed segments never change: those with a sidecar are cut, pruned and checked by it, a store
without `gantry/` (a real RocketMQ's) is walked record by record. Nothing is written.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from clients.spark.bodies import Refuse, split_batches, unpack_bodies
from clients.spark.columns import Rows
from clients.spark.options import ReadOptions
from shm import layout, sidecar
from shm.errors import Corrupt, SettingIllegal, StoreFailed
from shm.ranges import Ranges, ranges_of
from shm.record import Filler
from shm.record_columns import (
    RecordColumns,
    check_bodies,
    check_trailers,
    find_lost,
    number_topics,
    read_records,
)
from shm.segment import Segment, open_files
from shm.sidecar import Sidecar
from shm.storage import PosixStorage, read_file

if TYPE_CHECKING:
    from numpy.typing import NDArray

COMMIT_LOG: Final = "commitlog"
#: A store that GantryMQ has run on has this.
RANGE_BYTES: Final = 64 << 20
BATCH_RECORDS: Final = 1 << 16
BATCH_BYTES: Final = 16 << 20
#: With this many segments there is enough to do at once: each is one range and need not be walked
#: while planning.
_WALKED_SEGMENTS_MAX: Final = 8


@dataclass(frozen=True, slots=True)
class SegmentRange:
    """Records of one segment from byte `start` on that begin before byte `end` (None: its end).

    `sealed` segments end with a filler; in the active one anything else than a record is the end.
    """

    base: int
    start: int
    end: int | None
    sealed: bool

    @property
    def name(self) -> str:
        """The file, relative to the store's root."""
        return f"{COMMIT_LOG}/{self.base:020d}"


# ----------------------------------------------------------------------------------------- planning


def plan(options: ReadOptions) -> list[SegmentRange]:
    """Ranges of about 64 MiB that hold all records that the options ask for, in log order.

    Raises SettingIllegal if the store has no commit log.
    """
    storage = PosixStorage(options.store)
    if not storage.is_directory(COMMIT_LOG):
        raise SettingIllegal(f"no {COMMIT_LOG}/ in {options.store!r}: is it a store's root?")
    used = [Segment(*file) for file in open_files(storage, COMMIT_LOG)]
    while used and not _first_ms(used[-1].view):  # made ahead, not used yet
        used.pop()
    following = [_first_ms(segment.view) for segment in used[1:]] + [None]
    walk = len(used) <= _WALKED_SEGMENTS_MAX
    ranges: list[SegmentRange] = []
    for segment, next_ms in zip(used, following, strict=True):
        known = load_sidecar(storage, segment)
        if known is not None:
            ranges += _by_sidecar(known, options)
        elif next_ms is None:
            ranges += _active(segment, ranges_of(storage)) if options.include_active else []
        elif options.overlaps(_first_ms(segment.view) or 0, next_ms):
            bounds = sidecar.walk(segment.view, segment.base) if walk else None
            ranges += _cut(segment.base, bounds, sealed=True)
    return ranges


def load_sidecar(storage: PosixStorage, segment: Segment) -> Sidecar | None:
    """A segment's sidecar; None without one, or if it is damaged or another segment's."""
    name = f"{sidecar.DIRECTORY}/{segment.base:020d}"
    try:
        found = sidecar.parse(read_file(storage, name), name)
    except (FileNotFoundError, Corrupt):
        return None
    same = (found.base, found.segment_bytes) == (segment.base, len(segment.view))
    return found if same else None


def _first_ms(view: NDArray[np.uint8]) -> int | None:
    """The storeTimestamp of a segment's first record; None if there is none."""
    if len(view) < layout.RECORD_BYTES_MIN:
        return None
    columns = read_records(view, np.zeros(1, np.int64), np.full(1, len(view)), 0)
    return int(columns.store_timestamp[0]) or None


def _by_sidecar(known: Sidecar, options: ReadOptions) -> list[SegmentRange]:
    wanted = any(options.wants(name) for name in known.names)
    if not wanted or not options.overlaps(known.first_ms, known.last_ms):
        return []
    return _cut(known.base, known.bounds(), sealed=True)


def _active(segment: Segment, written: Ranges) -> list[SegmentRange]:
    """The segment that is being written, up to its last whole record; more may follow any time."""
    bounds = sidecar.walk(segment.view, segment.base)
    while len(bounds) > 1 and _is_torn(segment, bounds[-2:], written):
        bounds = bounds[:-1]
    return _cut(segment.base, bounds, sealed=False) if len(bounds) > 1 else []


def _is_torn(segment: Segment, bounds: NDArray[np.int64], written: Ranges) -> bool:
    """Whether a part of one record is not visible yet: what is written becomes so page by page."""
    record = read_records(segment.view, bounds[:1], np.diff(bounds), segment.base)
    no_end = record.properties_bytes[0] > 0 and segment.view[bounds[1] - 1] == 0
    return bool(no_end or not _sums_hold(segment, record, written)[0])


def _cut(base: int, bounds: NDArray[np.int64] | None, *, sealed: bool) -> list[SegmentRange]:
    """Ranges that begin at records, each of about RANGE_BYTES; one if the bounds are not known.

    The last one of a sealed segment has no end, so that its reader looks at what follows.
    """
    if bounds is None:
        return [SegmentRange(base, 0, None, sealed)]
    targets = np.arange(0, max(int(bounds[-1]), 1), RANGE_BYTES)
    starts = np.unique(bounds[np.searchsorted(bounds, targets)])
    starts = starts[starts < max(bounds[-1], 1)]
    ends: list[int | None] = [*starts[1:].tolist(), None if sealed else int(bounds[-1])]
    return [
        SegmentRange(base, start, end, sealed)
        for start, end in zip(starts.tolist(), ends, strict=True)
    ]


# ------------------------------------------------------------------------------------------ reading


def read(part: SegmentRange, options: ReadOptions, schema: Any) -> Iterator[Any]:  # noqa: ANN401
    """Record batches of the pyarrow schema with the records of one range.

    Raises Corrupt at the first damaged record unless the options say that they be reported, and
    StoreFailed if the segment is gone. Bodies are unpacked if they are asked for.
    """
    for rows in read_rows(part, options):
        plain = unpack_bodies(rows, _refusal(part, options)) if "body" in schema.names else rows
        yield plain.batch(schema)


def read_rows(part: SegmentRange, options: ReadOptions) -> Iterator[Rows]:
    """As `read`, before columns are made; inner batches are split into their messages."""
    storage = PosixStorage(options.store)
    segment = _open(storage, part)
    known = load_sidecar(storage, segment)
    if known is None:
        found = _walked(segment, part, options, ranges_of(storage))
    else:
        found = _known(segment, known, part, options)
    for rows in found:
        selected = _selected(rows, options)
        if not storage.exists(part.name):  # it leaves this name before its bytes change
            raise _removed(part)
        if not options.report_bad_records and not selected.crc_ok.all():
            position = part.base + int(selected.records.at[~selected.crc_ok][0])
            raise _corrupt(part, position, "a checksum or a length of the record is wrong")
        split = split_batches(selected, _refusal(part, options))
        if len(split.records):
            yield split


def _refusal(part: SegmentRange, options: ReadOptions) -> Refuse:
    """Ends the read at what is wrong inside of a whole record, unless it is to be reported."""

    def refuse(position: int, what: str) -> None:
        if not options.report_bad_records:
            raise _corrupt(part, position, what)

    return refuse


def _open(storage: PosixStorage, part: SegmentRange) -> Segment:
    try:
        file = storage.open(part.name)
    except FileNotFoundError:
        raise _removed(part) from None
    try:
        return Segment(part.base, file.view())
    finally:
        file.close()


def _removed(part: SegmentRange) -> StoreFailed:
    """As failOnDataLoss of Spark's Kafka source: a read never leaves out silently what expired."""
    text = (
        f"{part.name} is gone since the read was planned: retention has removed it; read again from"
        " what is there, or hold the log by a pin (docs/operate.md, Retention) while you read"
    )
    return StoreFailed(text, path=part.name)


def _corrupt(part: SegmentRange, position: int, what: str) -> Corrupt:
    text = (
        f"{part.name}: {what} at position {position};"
        " option badRecords=report shows such records with crc_ok = false instead"
    )
    return Corrupt(text, path=part.name, position=position)


def _batches(bounds: NDArray[np.int64]) -> Iterator[slice]:
    """Slices of records of at most BATCH_RECORDS and, but for one, BATCH_BYTES."""
    first = 0
    while first < len(bounds) - 1:
        by_bytes = int(np.searchsorted(bounds, bounds[first] + BATCH_BYTES, side="right")) - 1
        last = min(max(by_bytes, first + 1), first + BATCH_RECORDS, len(bounds) - 1)
        yield slice(first, last)
        first = last


def _known(
    segment: Segment, known: Sidecar, part: SegmentRange, options: ReadOptions
) -> Iterator[Rows]:
    """Records of wanted topics by a sidecar, checked by its block CRCs."""
    bounds = known.bounds()
    end = int(bounds[-1]) if part.end is None else part.end
    first, last = np.searchsorted(bounds, (part.start, end)).tolist()
    bad_blocks = _bad_blocks(segment, known, part.start, end)
    wanted = np.array([options.wants(name) for name in known.names], bool)
    for batch in _batches(bounds[first : last + 1]):
        place = slice(first + batch.start, first + batch.stop)
        numbers = known.topic_numbers[place]
        keep = wanted[numbers]
        edges = bounds[place.start : place.stop + 1]
        at, size, numbers = edges[:-1][keep], np.diff(edges)[keep], numbers[keep]
        records = read_records(segment.view, at, size, segment.base)
        crc_ok = _check_in_blocks(segment.view, records, bad_blocks)
        yield Rows(segment.view, segment.base, records, numbers, list(known.names), crc_ok)


def _bad_blocks(segment: Segment, known: Sidecar, start: int, end: int) -> NDArray[np.int64]:
    step = layout.SIDECAR_BLOCK_BYTES
    first, last = start // step, -(-end // step)
    found = sidecar.block_crcs(segment.view.data, first, last - first)
    return first + np.flatnonzero(found != known.block_crcs[first:last])


def _check_in_blocks(
    view: NDArray[np.uint8], records: RecordColumns, bad_blocks: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """In a block that differs from its CRC a record counts as whole only if its trailer says so."""
    if not len(bad_blocks):
        return records.intact
    step = layout.SIDECAR_BLOCK_BYTES
    first, last = records.at // step, (records.at + records.size - 1) // step
    touched = np.searchsorted(bad_blocks, first) < np.searchsorted(bad_blocks, last, side="right")
    _, holds = check_trailers(view, records)
    return np.asarray(records.intact & (holds | ~touched), np.bool_)


def _walked(
    segment: Segment, part: SegmentRange, options: ReadOptions, written: Ranges
) -> Iterator[Rows]:
    """Records found by their sizes, checked by trailers or bodies; then what follows the last."""
    bounds = sidecar.walk(segment.view, segment.base, part.start, part.end)
    for batch in _batches(bounds):
        edges = bounds[batch.start : batch.stop + 1]
        records = read_records(segment.view, edges[:-1], np.diff(edges), segment.base)
        numbers, names = number_topics(segment.view, records)
        crc_ok = _sums_hold(segment, records, written)
        yield Rows(segment.view, segment.base, records, numbers, names, crc_ok)
    end = int(bounds[-1])
    expected = len(segment.view) if part.end is None else part.end
    if end == expected or _is_filler(segment, end):
        return
    if not options.report_bad_records:
        raise _corrupt(part, part.base + end, "no record and no filler")
    if expected - end >= layout.RECORD_BYTES_MIN:
        # One row stands for the bytes up to the range's end: where records begin is lost in them.
        records = read_records(
            segment.view, np.array([end]), np.array([expected - end]), segment.base
        )
        yield Rows(
            segment.view, segment.base, records, np.zeros(1, np.uint16), [""], records.intact
        )


def _is_filler(segment: Segment, at: int) -> bool:
    return isinstance(segment.item_at(segment.base + at), Filler)


def _sums_hold(segment: Segment, records: RecordColumns, written: Ranges) -> NDArray[np.bool_]:
    """Whether each body's sum is true and, in what GantryMQ wrote, the trailer (SF-22)."""
    found = check_bodies(segment.view, records)
    if not len(records):
        return found
    places = segment.base + records.at
    ours = np.zeros(len(records), np.bool_)
    for stretch in written.stretches(int(places[0]), int(places[-1]) + 1):
        if stretch.ours:
            ours |= (places >= stretch.start) & (places < stretch.end)
    if ours.any():
        _, holds = check_trailers(segment.view, records)
        found = found & (holds | ~ours)
    return np.asarray(found, np.bool_)


def _selected(rows: Rows, options: ReadOptions) -> Rows:
    """The rows of wanted topics and times."""
    wanted = np.array([options.wants(name) for name in rows.topics], bool)
    keep = wanted[rows.topic_numbers]
    if options.start_ms is not None:
        keep &= rows.records.store_timestamp >= options.start_ms
    if options.end_ms is not None:
        keep &= rows.records.store_timestamp < options.end_ms
    if not options.include_lost:
        places, sizes = rows.records.properties_at, rows.records.properties_bytes
        keep[find_lost(rows.view, places, sizes * rows.crc_ok)] = False
    if keep.all():
        return rows
    numbers = rows.topic_numbers[keep]
    records = rows.records.where(keep)
    return Rows(rows.view, rows.base, records, numbers, rows.topics, rows.crc_ok[keep])
