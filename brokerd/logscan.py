"""Walks the log over segment boundaries with the scan kernel.

For recovery, the writer's start and `store verify`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shm import layout
from shm.codes import Stop
from shm.kernels import scan
from shm.lognames import segment_name
from shm.record_columns import number_names
from shm.storage import Storage

ROWS_PER_CALL = 16_384
#: Checks of what GantryMQ wrote (shm.ranges): every record has a true trailer.
OURS = scan.CHECK_PLACE | scan.CHECK_TRAILER
#: Another broker's has none, or maybe one that was true of another record (SF-22, SF-24).
THEIRS = scan.CHECK_PLACE | scan.CHECK_BODY


@dataclass(frozen=True, slots=True)
class Piece:
    """Records of one call: rows of scan.ROW_WORDS, places relative to the segment's view."""

    view: NDArray[np.uint8]
    base: int
    rows: NDArray[np.int64]
    next: int  # log position behind them
    stop: Stop
    last_ms: int


def walk(
    storage: Storage, segment_bytes: int, start: int, end: int | None, checks: int,
    *, last_ms: int = -1,
) -> Iterator[Piece]:  # fmt: skip
    """Pieces from log position `start` to `end` (None: as far as there are records).

    The last piece's `stop` says why the walk ended: LIMIT at `end`, END at zeroes or where the
    next segment is missing, INVALID or TRUNCATED at something that is no record. `last_ms` >= 0
    refuses a storeTimestamp that goes back.
    """
    position = start
    rising = last_ms >= 0
    while end is None or position < end:
        base = position // segment_bytes * segment_bytes
        name = segment_name(base)
        if not storage.exists(name):
            none = np.empty((0, scan.ROW_WORDS), np.int64)
            yield Piece(np.empty(0, np.uint8), base, none, position, Stop.END, last_ms)
            return
        file = storage.open(name)
        view = file.view()
        file.close()
        limit = view if end is None or end - base >= segment_bytes else view[: end - base]
        stop = Stop.LIMIT
        while stop == Stop.LIMIT and (end is None or position < end):
            form = np.array([position - base, base, checks, last_ms, rising, 0], np.int64)
            rows = np.empty(ROWS_PER_CALL * scan.ROW_WORDS, np.int64)
            stop = Stop(scan.scan_log(limit, form, rows))
            found = rows[: form[5] * scan.ROW_WORDS].reshape(-1, scan.ROW_WORDS)
            position = base + int(form[0])
            last_ms = int(form[3]) if len(found) else last_ms
            if stop == Stop.FILLER:
                position = base + segment_bytes
            elif stop == Stop.END and end is not None and position >= end:
                stop = Stop.LIMIT
            yield Piece(view, base, found, position, stop, last_ms)
        if stop not in (Stop.LIMIT, Stop.FILLER):
            return


def queue_offsets(piece: Piece) -> dict[tuple[str, int], tuple[int, int]]:
    """First and highest queue offset per (topic, queue id) among a piece's records (SF-42)."""
    kinds = piece.rows[:, scan.SYS_FLAG] & layout.SYS_TRANSACTION
    rows = piece.rows[(kinds == 0) | (kinds == layout.SYS_COMMIT)]
    if not len(rows):
        return {}
    numbers, names = number_names(piece.view, rows[:, scan.TOPIC_AT], rows[:, scan.TOPIC_SIZE])
    keys = numbers.astype(np.int64) << 32 | rows[:, scan.QUEUE_ID]
    unique, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    offsets = rows[:, scan.QUEUE_OFFSET]
    highest = np.full(len(unique), -1, np.int64)
    np.maximum.at(highest, inverse, offsets)
    return {
        (names[key >> 32], key & 0xFFFF_FFFF): (begin, end)
        for key, begin, end in zip(
            unique.tolist(), offsets[first].tolist(), highest.tolist(), strict=True
        )
    }
