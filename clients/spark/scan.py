"""What a Spark read does, without Spark: read a range of a segment as Arrow batches.

Segments with a sidecar are checked by it; a store without `gantry/` (a real RocketMQ's) is walked
record by record. What ranges there are: clients/spark/planning.py. Nothing is written.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gantrymq.clients.spark.bodies import Refuse, split_batches, unpacked
from gantrymq.clients.spark.chain import Chain, chain, sums_hold, why_broken
from gantrymq.clients.spark.columns import Rows, bodies_of
from gantrymq.clients.spark.damage import Damage, Stretch
from gantrymq.clients.spark.jsonbodies import BodyDecoder
from gantrymq.clients.spark.options import ReadOptions
from gantrymq.clients.spark.planning import SegmentRange, load_sidecar
from gantrymq.clients.spark.selection import sound_rows, wanted_messages, wanted_records
from gantrymq.shm import layout, sidecar
from gantrymq.shm.errors import Corrupt, StoreFailed
from gantrymq.shm.ranges import Ranges, ranges_of
from gantrymq.shm.record import Filler
from gantrymq.shm.record_columns import (
    RecordColumns,
    check_trailers,
    number_topics,
    read_records,
)
from gantrymq.shm.segment import Segment
from gantrymq.shm.sidecar import Sidecar
from gantrymq.shm.storage import PosixStorage

if TYPE_CHECKING:
    from numpy.typing import NDArray

_log = logging.getLogger(__name__)

BATCH_RECORDS: Final = 1 << 16
BATCH_BYTES: Final = 16 << 20


def read(part: SegmentRange, options: ReadOptions, schema: Any) -> Iterator[Any]:  # noqa: ANN401
    """Record batches of the pyarrow schema with the records of one range.

    Raises Corrupt at the first damaged record, or body that is not what the schema says, unless the
    options say that they be reported, and StoreFailed if the segment is gone, unless
    `failOnDataLoss` is false: then that is logged, and what is left of the range is left out.
    Bodies are unpacked if they are asked for.
    """
    try:
        yield from _batches_of(part, options, schema)
    except StoreFailed as error:
        if options.fail_on_data_loss or PosixStorage(options.store).exists(part.name):
            raise
        _log.warning(f"{error}; what was left of it is not read")


def _batches_of(part: SegmentRange, options: ReadOptions, schema: Any) -> Iterator[Any]:  # noqa: ANN401
    with_bodies = "body" in schema.names
    decoder = BodyDecoder(schema.field("body").type) if with_bodies and options.is_json else None
    refuse = _refusal(part, options)
    for rows in read_plain(part, options, bodies=with_bodies):
        if len(rows):
            typed = rows if decoder is None else _with_types(rows, decoder, refuse)
            yield _checked(typed.batch(schema), part, options)
        if rows.damage is not None:
            for damage in rows.damage.batches():
                yield _checked(damage.batch(schema), part, options)


def _removed(part: SegmentRange) -> StoreFailed:
    """As failOnDataLoss of Spark's Kafka source: a read never leaves out silently what expired."""
    end = "its end" if part.end is None else part.base + part.end
    text = (
        f"{part.name} is gone since the read of positions {part.base + part.start} to {end} was"
        " planned: retention has removed it; read again from what is there, or hold the log by a"
        " pin (docs/operate.md, Retention) while you read"
    )
    return StoreFailed(text, path=part.name)


def _checked(made: Any, part: SegmentRange, options: ReadOptions) -> Any:  # noqa: ANN401
    """What was made of a range's bytes, if they were still there then."""
    require_there(part, options)
    return made


def require_there(part: SegmentRange, options: ReadOptions) -> None:
    """Raise StoreFailed if the segment is gone: it leaves its name before its bytes change."""
    if not PosixStorage(options.store).exists(part.name):
        raise _removed(part)


def _with_types(rows: Rows, decoder: BodyDecoder, refuse: Refuse) -> Rows:
    typed = decoder.decode(bodies_of(rows))
    if typed.errors.null_count < len(typed.errors):
        row = int(np.argmin(typed.errors.is_null().to_numpy(zero_copy_only=False)))
        what = f"the body is not JSON of the schema ({typed.errors[row].as_py()})"
        refuse(rows.base + int(rows.records.at[row]), what)
    return replace(rows, typed=typed)


def read_plain(part: SegmentRange, options: ReadOptions, *, bodies: bool) -> Iterator[Rows]:
    """As `read`, before columns are made; some come with damage alone."""
    for rows in read_rows(part, options):
        if bodies:
            yield from unpacked(rows, _refusal(part, options))
        else:
            yield rows


def read_rows(part: SegmentRange, options: ReadOptions) -> Iterator[Rows]:
    """The same with bodies as stored; inner batches are split into their messages."""
    storage = PosixStorage(options.store)
    segment = _open(storage, part)
    known = load_sidecar(storage, segment)
    if known is None:
        found = _walked(segment, part, options, ranges_of(storage))
    else:
        found = _known(segment, known, part, options)
    refuse = _refusal(part, options)
    for rows in found:
        sound = sound_rows(rows, topics_are_sure=known is not None)
        selected = wanted_records(sound, options)
        require_there(part, options)
        if selected.damage is not None and not options.report_bad_records:
            first = selected.damage.stretches[0]
            raise _corrupt(part, selected.damage.base + first.at, first.reason)
        messages = wanted_messages(split_batches(selected, refuse), options)
        if len(messages) or messages.damage is not None:
            require_there(part, options)
            yield messages


def _refusal(part: SegmentRange, options: ReadOptions) -> Refuse:
    """Ends the read at what is wrong inside of a whole record, unless it is to be reported."""

    def refuse(position: int, what: str) -> None:
        require_there(part, options)
        if not options.report_bad_records:
            raise _corrupt(part, position, what)

    return refuse


def _open(storage: PosixStorage, part: SegmentRange) -> Segment:
    try:
        file = storage.open(part.name)
    except FileNotFoundError:
        raise _removed(part) from None
    try:
        return Segment(part.base, file.still_view())
    finally:
        file.close()


def _corrupt(part: SegmentRange, position: int, what: str) -> Corrupt:
    text = (
        f"{part.name}: {what} at position {position};"
        " option badRecords=report makes it a row that says so instead"
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
    """Records found by their sizes, checked by trailers or bodies, and what is none of them."""
    found, behind = _items(segment, part, options, written)
    for batch in _batches(found.bounds):
        edges, broken = found.bounds[batch.start : batch.stop + 1], found.broken[batch]
        at, size = edges[:-1][~broken], np.diff(edges)[~broken]
        records = read_records(segment.view, at, size, segment.base)
        numbers, names = number_topics(segment.view, records)
        crc_ok = sums_hold(segment, records, written)
        between = (
            Stretch(at, end - at, why_broken(segment, at))
            for at, end in zip(edges[:-1][broken].tolist(), edges[1:][broken].tolist(), strict=True)
        )
        damage = _damage_of(segment, between)
        yield Rows(segment.view, segment.base, records, numbers, names, crc_ok, damage)
    if behind is not None:
        yield _nothing(segment, behind)


def _items(
    segment: Segment, part: SegmentRange, options: ReadOptions, written: Ranges
) -> tuple[Chain, Stretch | None]:
    """The items of a range, and what is wrong where they end."""
    length = len(segment.view)
    end = length if part.end is None else part.end
    if not options.report_bad_records:
        bounds = sidecar.walk(segment.view, segment.base, part.start, part.end)
        last = int(bounds[-1])
        fits = last == end or isinstance(segment.item_at(segment.base + last), Filler)
        behind = None if fits else Stretch(last, end - last, "no record and no filler")
        return Chain(bounds, np.zeros(len(bounds) - 1, np.bool_)), behind
    if part.expected_bytes is None or not part.sealed:
        return chain(segment, written, part.start, end), None
    end = min(end, part.expected_bytes)
    found = chain(Segment(segment.base, segment.view[:end]), written, part.start, end)
    if len(found.broken) and found.broken[-1]:  # one row stands for all that is wrong at the end
        found = Chain(found.bounds[:-1], found.broken[:-1])
    last, wanted = int(found.bounds[-1]), part.expected_bytes
    reason = f"the file has {length} bytes, not {wanted} as its neighbours"
    return found, Stretch(last, max(length, wanted) - last, reason)


def _damage_of(segment: Segment, stretches: Iterable[Stretch]) -> Damage | None:
    found = tuple(stretches)
    return Damage(segment.view, segment.base, found) if found else None


def _nothing(segment: Segment, stretch: Stretch) -> Rows:
    """No record, and damage."""
    none = np.empty(0, np.int64)
    records = read_records(segment.view, none, none, segment.base)
    numbers, sound = np.empty(0, np.uint16), np.empty(0, np.bool_)
    damage = _damage_of(segment, (stretch,))
    return Rows(segment.view, segment.base, records, numbers, [], sound, damage)
