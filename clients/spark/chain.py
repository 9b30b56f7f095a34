"""Records of a segment without a sidecar, one behind the other, also where damage broke the chain.

A record says how long it is and where it lies. Where that is wrong, the next sound record is looked
for: known magic, its own position, lengths and checksums that hold. Nothing here imports numba.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from gantrymq.clients.spark.damage import RECORD_WRONG
from gantrymq.shm import layout, sidecar
from gantrymq.shm.record import OWN, RECORD_MAGICS, RECOVERY, Filler, Invalid, Record, parse_record
from gantrymq.shm.record_columns import RecordColumns, check_bodies, check_trailers, read_records

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gantrymq.shm.ranges import Ranges
    from gantrymq.shm.segment import Segment

#: Bytes that are walked at once: few behind damage, as there may be more.
_STEP_MIN: Final = 1 << 16
_STEP_MAX: Final = 1 << 24
_SEARCH_BYTES: Final = 1 << 20
_SIZE_BYTES: Final = 4
_MAGIC_BYTES: Final = 4
_MAGICS: Final = tuple(
    magic.to_bytes(_MAGIC_BYTES, "big") for magic in (*RECORD_MAGICS, layout.FILLER_MAGIC)
)


@dataclass(frozen=True, slots=True)
class Chain:
    """Items of a segment: bytes from its start where they begin, and where the last one ends.

    `broken[i]` is True where item i is no record but what lies between two of them. Lengths of the
    others add up; their checksums have not been looked at.
    """

    bounds: NDArray[np.int64]
    broken: NDArray[np.bool_]


def chain(segment: Segment, written: Ranges, start: int, end: int) -> Chain:
    """All items of [start, end), up to a filler; `start` must be where one begins.

    A sound record that reaches beyond `end` is left out, as what has not come yet.
    """
    parts = [np.array([start], np.int64)]
    broken: list[NDArray[np.bool_]] = []
    at, step = start, _STEP_MIN
    while at < end:
        found = _unbroken(segment, at, min(at + max(step, _size_at(segment, at)), end))
        if len(found) > 1:
            parts.append(found[1:])
            broken.append(np.zeros(len(found) - 1, np.bool_))
            at, step = int(found[-1]), min(2 * step, _STEP_MAX)
            continue
        item = _sound_at(segment, written, at)
        if isinstance(item, Filler) or (isinstance(item, Record) and at + item.total_size > end):
            break
        at, step = _next_sound(segment, written, at + 1, end), _STEP_MIN
        parts.append(np.array([at], np.int64))
        broken.append(np.ones(1, np.bool_))
    return Chain(np.concatenate(parts), np.concatenate([np.zeros(0, np.bool_), *broken]))


def sums_hold(segment: Segment, records: RecordColumns, written: Ranges) -> NDArray[np.bool_]:
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


def ends_at(segment: Segment, written: Ranges, at: int, end: int) -> bool:
    """Whether a chain may end at byte `at` before `end`: at a filler, or at a record beyond it."""
    return at >= end or not isinstance(_sound_at(segment, written, at), Invalid)


def why_broken(segment: Segment, at: int) -> str:
    """What is wrong with the bytes where a record should begin."""
    found = parse_record(segment.view.data, at, len(segment.view), RECOVERY, segment.base + at)
    return f"no record: {found.fault}" if isinstance(found, Invalid) else RECORD_WRONG


def _unbroken(segment: Segment, at: int, end: int) -> NDArray[np.int64]:
    """Bounds of the records from `at` on that lie before `end`, up to one with wrong lengths."""
    bounds = sidecar.walk(segment.view, segment.base, at, end)
    records = read_records(segment.view, bounds[:-1], np.diff(bounds), segment.base)
    wrong = np.flatnonzero(~records.intact)
    return bounds[: int(wrong[0]) + 1] if len(wrong) else bounds


def _size_at(segment: Segment, at: int) -> int:
    return int.from_bytes(segment.view[at : at + _SIZE_BYTES].tobytes(), "big")


def _sound_at(segment: Segment, written: Ranges, at: int) -> Record | Filler | Invalid:
    position = segment.base + at
    check = OWN if written.contains(position) else RECOVERY
    return parse_record(segment.view.data, at, len(segment.view), check, position)


def _next_sound(segment: Segment, written: Ranges, start: int, end: int) -> int:
    """Where the next sound record or the filler begins in [start, end); else `end`."""
    for at in _candidates(segment.view, start, end):
        found = _sound_at(segment, written, at)
        if isinstance(found, Record) or (
            isinstance(found, Filler) and at + found.size == len(segment.view)
        ):
            return at
    return end


def _candidates(view: NDArray[np.uint8], start: int, end: int) -> Iterator[int]:
    """Places in [start, end) behind which the magic of a record or a filler stands."""
    for begin in range(start, end, _SEARCH_BYTES):
        behind = min(begin + _SEARCH_BYTES, end) + layout.RECORD_MAGIC
        window = view[begin + layout.RECORD_MAGIC : behind + _MAGIC_BYTES - 1].tobytes()
        yield from sorted(begin + at for magic in _MAGICS for at in _finds(window, magic))


def _finds(window: bytes, wanted: bytes) -> Iterator[int]:
    at = window.find(wanted)
    while at >= 0:
        yield at
        at = window.find(wanted, at + 1)
