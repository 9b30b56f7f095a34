"""A log as a stream, without Spark: where micro-batches end, and what lies between two ends."""

from __future__ import annotations

from typing import Final

from clients.spark.options import ReadOptions
from clients.spark.planning import SegmentRange, survey
from shm.errors import Incompatible

_LOST: Final = " before the stream had them: retention removed them"
_HINT: Final = "; failOnDataLoss=false goes on behind them, a pin (docs/operate.md) holds them"


def first_position(options: ReadOptions) -> int:
    """Where a stream without a checkpoint begins: at what is there, or where it is told to.

    Raises StoreFailed if what it is told is gone, unless `failOnDataLoss` is false: then that is
    logged. Position 0 stands for the log's beginning, wherever that is by now; one within a record
    for the next one.
    """
    start = options.start_offset
    found = survey(options, start)
    if 0 < start < found.low:
        found.require_whole(start, found.low, _LOST, _HINT)
    return found.next_record(max(found.low, start))


def next_position(
    options: ReadOptions, start: int, target: int | None, limits: tuple[int | None, int | None]
) -> int:
    """Where a micro-batch from `start` on ends, by limits in rows and bytes; not behind `target`.

    `start` itself if there is nothing new.
    """
    found = survey(options, start, durable_only=True)
    high = min(found.high, options.end_offset, found.high if target is None else target)
    return found.limited(start, high, *limits) if high > start else start


def parts_between(options: ReadOptions, start: int, end: int) -> list[SegmentRange]:
    """Ranges of the records that begin in [start, end).

    Raises StoreFailed if a part of them is gone, unless `failOnDataLoss` is false: then the gap is
    logged; Incompatible if the log ends before `end`.
    """
    found = survey(options, start, durable_only=True)
    if end > found.high:
        raise Incompatible(
            f"the stream has offsets up to {end}, and the log of {options.store} may be read up to"
            f" {found.high}: another store, or includeActive was true before"
        )
    found.require_whole(start, end, _LOST, _HINT)
    return list(found.ranges(start, end))
