"""A log as a stream, without Spark: where micro-batches end, and what lies between two ends."""

from __future__ import annotations

import logging

from clients.spark.options import ReadOptions
from clients.spark.planning import SegmentRange, survey
from shm.errors import Incompatible, StoreFailed

_log = logging.getLogger(__name__)


def first_position(options: ReadOptions) -> int:
    """Where a stream without a checkpoint begins: at what is there, or where it is told to."""
    return max(survey(options, options.start_offset).low, options.start_offset)


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
    for first, last in found.gaps(start, end):
        text = (
            f"the log of {options.store} has lost positions {first} to {last} before the stream"
            " had them: retention removed them"
        )
        if options.fail_on_data_loss:
            hint = "; failOnDataLoss=false goes on behind them, a pin (docs/operate.md) holds them"
            raise StoreFailed(text + hint, path=options.store, position=first)
        _log.warning(text)
    return list(found.ranges(start, end))
