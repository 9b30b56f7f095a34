"""Parked records that a RocketMQ has settled, kept as `gantry/imported.json` (ADR 0017).

Its copies have no origins, so the scheduler could not tell them. A start looks whether another
broker has written since the file was made; what the log means is then worked out once.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

import numpy as np

from gantrymq.brokerd.handover.pending import Parked, Pending, Progress, read_pending
from gantrymq.shm.bitmapnote import forget_covered
from gantrymq.shm.errors import Corrupt
from gantrymq.shm.imported import Imported, Settled, read_imported, write_imported
from gantrymq.shm.ranges import Ranges, read_ranges
from gantrymq.workers.groups.deadletternote import forget_marks

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from gantrymq.shm.storage import Storage


def import_foreign(
    storage: Storage, segment_bytes: int, low: int, end: int, progress: Progress | None = None,
    alone: AbstractContextManager[None] | None = None,
) -> Pending | None:  # fmt: skip
    """Bring the file up to date with a recovered log [low, end); None: there was nothing to do.

    Marks of dead letters that are gone go before it, `alone` among those who change them: entered
    for that only, since a `dlq resend` that waits for this broker to come back has its lock. Raises
    OSError.
    """
    ranges = read_ranges(storage)
    if ranges is None or _known_end(storage) >= _foreign_end(ranges, low, end):
        return None
    forget_covered(storage)  # it made bits by its own rules, or none
    pending = read_pending(storage, segment_bytes, ranges, end, progress)
    if pending.visit is not None:
        with alone or nullcontext():
            forget_marks(storage, pending.visit)
    write_imported(storage, imported_of(pending))
    return pending


def imported_of(pending: Pending) -> Imported:
    """The file's content."""
    settled = {key: _settled(parked) for key, parked in sorted(pending.parked.items())}
    return Imported(pending.end, settled, pending.visit)


def _settled(parked: Parked) -> Settled:
    first = parked.next_offset
    behind = parked.records["offset"] >= first
    offsets = parked.records["offset"][behind] - first
    count = int(offsets[-1]) + 1 if len(offsets) else 0
    bits = np.ones(count, np.bool_)  # an offset without a record has nothing to deliver
    bits[offsets] = parked.settled[behind]
    return Settled(first, count, np.packbits(bits, bitorder="little").tobytes())


def _known_end(storage: Storage) -> int:
    try:
        found = read_imported(storage)
    except Corrupt:
        return 0  # it is made again
    return found.end if found else 0


def _foreign_end(ranges: Ranges, low: int, end: int) -> int:
    """Where the last part of the log ends that another broker wrote; 0: nowhere."""
    return max((s.end for s in ranges.stretches(low, end) if not s.ours), default=0)
