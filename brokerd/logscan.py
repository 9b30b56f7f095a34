"""Walks the log over segment boundaries with the scan kernel.

For recovery, the writer's start and `store verify`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gantrymq.shm.codes import Stop
from gantrymq.shm.kernels import census, scan
from gantrymq.shm.lognames import segment_name
from gantrymq.shm.storage import Storage, map_still

if TYPE_CHECKING:
    from gantrymq.shm.ranges import Ranges

ROWS_PER_CALL = 4096  # and what else is done with them finds their bytes in the cache still
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
        view = map_still(storage, name)
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


class QueueRows(NamedTuple):
    """Of a queue in a piece: queue offsets of its first record and its highest one.

    If the queue begins anew amid the piece, those of its records from there on: see `begins`.
    """

    first: int
    highest: int
    position: int  # in the log, of the first one
    begins_amid: bool

    def begins(self, following: int) -> bool:
        """Whether the queue begins anew at `position`, `following` being its next offset before.

        Offset 0 comes once more where another broker has deleted its topic and made it again
        (CQ-109): what lies below in the log is of the topic before, whose name it has.
        """
        return self.begins_amid or (self.first == 0 and following > 0)


def queue_offsets(piece: Piece) -> dict[tuple[str, int], QueueRows]:
    """What a piece has of each (topic, queue id) of which a record has a place in it (SF-42)."""
    return {key: offsets for key, offsets in queues_of(piece).items() if offsets.first >= 0}


def queues_of(piece: Piece) -> dict[tuple[str, int], QueueRows]:
    """The same of all queues of its records: -1 where none has a place in its queue."""
    rows = piece.rows
    table = np.empty(len(rows) * census.QUEUE_WORDS, np.int64)
    index = census_index(len(rows))
    count = census.find_queues(piece.view, rows.reshape(-1), table, index)
    found = {}
    queues = table[: count * census.QUEUE_WORDS].reshape(count, census.QUEUE_WORDS)
    for number, first, highest, began, back in queues.tolist():
        row = rows[number]
        position = piece.base + int(rows[began, scan.AT]) if began >= 0 else -1
        at = int(row[scan.TOPIC_AT])
        name = piece.view[at : at + int(row[scan.TOPIC_SIZE])].tobytes()
        found[name.decode(errors="surrogateescape"), int(row[scan.QUEUE_ID])] = QueueRows(
            first, highest, position, back > 0
        )
    return found


def starts_in(
    storage: Storage, segment_bytes: int, ranges: Ranges, low: int, end: int
) -> dict[tuple[str, int], int]:
    """Log positions of what another broker wrote to offset 0 of a queue, the last of each.

    Records of the queue below that are of a topic that is gone: see `QueueRows.begins`.
    """
    found = {}
    for stretch in ranges.stretches(low, end):
        pieces = walk(storage, segment_bytes, stretch.start, stretch.end, 0)
        for piece in () if stretch.ours else pieces:
            for key, seen in queue_offsets(piece).items():
                if seen.first == 0:
                    found[key] = seen.position
    return found


def census_index(rows: int) -> NDArray[np.int64]:
    """An empty index for the kernels of shm.kernels.census."""
    return np.zeros((1 << (2 * rows).bit_length()) + 1, np.int64)
