"""A log as a stream, without Spark: where micro-batches end, and what lies between two ends.

An offset is `{"position": P}`, all records that begin before P, and beside it what tells whether a
log is still the same (clients/spark/continuity.py).
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from gantrymq.clients.spark.continuity import Proof, proof_at, require_same
from gantrymq.clients.spark.options import ReadOptions
from gantrymq.clients.spark.planning import SegmentRange, Survey, survey
from gantrymq.shm.errors import Incompatible
from gantrymq.shm.valueranges import is_offset

#: As Spark keeps it in its checkpoint: numbers and texts by name.
Offset = dict[str, Any]

_LOST: Final = " before the stream had them: retention removed them"
_HINT: Final = "; failOnDataLoss=false goes on behind them, a pin (docs/operate.md) holds them"
_OWNER: Final = "this stream's checkpoint"
_REMEDY: Final = "a stream of this store needs a checkpointLocation of its own"


def first_offset(options: ReadOptions) -> Offset:
    """Where a stream without a checkpoint begins: at what is there, or where it is told to.

    Raises StoreFailed if what it is told is gone, unless `failOnDataLoss` is false: then that is
    logged. Position 0 stands for the log's beginning, wherever that is by now; one within a record
    for the next one.
    """
    start = options.start_offset
    found = survey(options, start)
    if 0 < start < found.low:
        found.require_whole(start, found.low, _LOST, _HINT)
    return _offset(found, found.next_record(max(found.low, start)))


def next_offset(
    options: ReadOptions, start: Offset, target: int | None, limits: tuple[int | None, int | None]
) -> Offset:
    """Where a micro-batch from `start` on ends, by limits in rows and bytes; not behind `target`.

    `start` itself if there is nothing new. Raises Incompatible if it is of another log.
    """
    found, at = _looked(options, start)
    high = min(found.high, options.end_offset, found.high if target is None else target)
    return _offset(found, found.limited(at, high, *limits), start) if high > at else start


def end_position(options: ReadOptions, start: int) -> int:
    """How far the log may be read; `start` is where a record begins that was there before."""
    found = survey(options, start, durable_only=True)
    return max(min(found.high, options.end_offset), start)


def parts_between(options: ReadOptions, start: Offset, end: Offset) -> list[SegmentRange]:
    """Ranges of the records that begin in [start, end).

    Raises StoreFailed if a part of them is gone, unless `failOnDataLoss` is false: then the gap is
    logged; Incompatible if an offset is of another log, or the log may not be read up to `end`.
    """
    found, first = _looked(options, start)
    last = _position(end)
    require_same(found, _proof(end), last, _OWNER, _REMEDY)
    if last > found.high:
        raise Incompatible(
            f"the stream has offsets up to {last}, and the log of {options.store} may be read up to"
            f" {found.high}: another store, or includeActive was true before"
        )
    found.require_whole(first, last, _LOST, _HINT)
    return list(found.ranges(first, last))


def _looked(options: ReadOptions, start: Offset) -> tuple[Survey, int]:
    """The log from an offset on, if it is of this log, and its position."""
    position = _position(start)
    found = survey(options, position, durable_only=True)
    require_same(found, _proof(start), position, _OWNER, _REMEDY)
    return found, position


def _offset(found: Survey, position: int, before: Offset | None = None) -> Offset:
    proof = proof_at(found, position, _proof(before) if before else None)
    return {"position": position, **msgspec.structs.asdict(proof)}


def _proof(offset: Offset) -> Proof:
    """Offsets of an older version are a position and no more. Raises Incompatible."""
    try:
        return msgspec.convert({k: v for k, v in offset.items() if k != "position"}, Proof)
    except msgspec.ValidationError as error:
        raise Incompatible(f"{_OWNER} has an offset that is none: {error}") from None


def _position(offset: Offset) -> int:
    """Raises Incompatible."""
    position = offset.get("position")
    if not is_offset(position):
        raise Incompatible(f"{_OWNER} has an offset without a position")
    assert isinstance(position, int), "it is one"
    return position
