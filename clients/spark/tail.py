"""The segment that is being written: how far it may be read, and what of it has to be there.

What is durable must be sound, like all that is sealed. Only behind it may a record be torn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from gantrymq.clients.spark.chain import chain, ends_at, sums_hold
from gantrymq.clients.spark.logfiles import LOOK_BYTES
from gantrymq.shm import sidecar
from gantrymq.shm.checkpoint import FILE as CHECKPOINT
from gantrymq.shm.checkpoint import Checkpoint, newest_slot
from gantrymq.shm.ranges import Ranges, ranges_of
from gantrymq.shm.record import Filler
from gantrymq.shm.record_columns import read_records
from gantrymq.shm.storage import PosixStorage, read_file

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gantrymq.shm.segment import Segment

#: It is there while a broker runs, and after one that was killed (SF-85).
_ABORT: Final = "abort"


@dataclass(frozen=True, slots=True)
class Tail:
    """The last segment's end. `durable` is in bytes from its start, and may be outside of it.

    What lies before it has to be there; behind it whole records may be read, unless `durable_only`.
    """

    written: Ranges
    durable: int
    durable_only: bool

    def bounds(self, segment: Segment, first: int, *, over_damage: bool) -> NDArray[np.int64]:
        """Bounds of what may be read from byte `first` on, where an item begins.

        Damage before the durable position is among it: whoever reads there finds it.
        """
        limit = max(min(self.durable, len(segment.view)), first)
        if over_damage:
            known = chain(segment, self.written, first, limit).bounds
        else:
            known = sidecar.walk(segment.view, segment.base, first, limit)
            if not ends_at(segment, self.written, int(known[-1]), limit):
                known = np.append(known, limit)
        if self.durable_only:
            return known
        more = sidecar.walk(segment.view, segment.base, int(known[-1]))
        while len(more) > 1 and self._is_torn(segment, more[-2:]):
            more = more[:-1]
        return np.concatenate((known, more[1:]))

    def _is_torn(self, segment: Segment, bounds: NDArray[np.int64]) -> bool:
        """Whether a part of a record is not visible yet: bytes become so page by page."""
        record = read_records(segment.view, bounds[:1], np.diff(bounds), segment.base)
        no_end = record.properties_bytes[0] > 0 and segment.view[bounds[1] - 1] == 0
        return bool(no_end or not sums_hold(segment, record, self.written)[0])


def tail_of(storage: PosixStorage, segment: Segment, *, durable_only: bool) -> Tail:
    """The tail as it is now. Raises Corrupt if the store does not say which part of it is ours.

    What a broker wrote that was stopped in order counts as durable, RocketMQ's too: it has synced
    all. With `durable_only` our own broker's word alone counts where there is one: positions of who
    goes on later must not move.
    """
    last = checkpoint_of(storage)
    durable = last.durable - segment.base if last else 0
    if not (durable_only and last) and not storage.exists(_ABORT):
        durable = max(durable, _written_end(segment))
    return Tail(ranges_of(storage), durable, durable_only)


def checkpoint_of(storage: PosixStorage) -> Checkpoint | None:
    """What our broker last said of the log; None in a RocketMQ's store."""
    try:
        return newest_slot(read_file(storage, CHECKPOINT))
    except FileNotFoundError:
        return None


def _written_end(segment: Segment) -> int:
    """Behind the last record or, if something else follows it, behind what is not zero."""
    end = int(sidecar.walk(segment.view, segment.base)[-1])
    if isinstance(segment.item_at(segment.base + end), Filler):
        return end
    for at in range(end, len(segment.view), LOOK_BYTES):
        used = np.flatnonzero(segment.view[at : at + LOOK_BYTES])
        if not len(used):
            break
        end = at + int(used[-1]) + 1
    return end
