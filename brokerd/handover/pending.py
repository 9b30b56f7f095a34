"""What is still to be done in a store, told by one pass over its log (HO-10, HO-82).

Pending is a parked record without a copy and without a recall. In what we wrote the copy's origin
names the parked record (preparedTransactionOffset = -1 - position); a RocketMQ's copies are linked
and counted by properties. So neither progress files nor positions of any broker are believed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from brokerd.commitlog import segment_bases
from brokerd.handover.halves import Half, Halves
from brokerd.handover.links import Links, columns_of, level_key, properties_of, settle, timer_key
from brokerd.handover.names import PARKING, REVIVE_PREFIX
from brokerd.logscan import OURS, THEIRS, Piece, queue_offsets, walk
from shm.kernels import scan
from shm.lognames import segment_name
from shm.properties import TIMER_TOPIC, java_hash, parse_properties
from shm.record_columns import number_names

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shm.ranges import Ranges, Stretch
    from shm.storage import Storage

Progress = Callable[[int, int, str], None]
QueueKey = tuple[str, int]
#: One parked record; `property_bytes` and `property_at` (from the record's start) lead to the rest.
PARKED: Final = np.dtype(
    [
        *(("position", "i8"), ("offset", "i8"), ("store_ms", "i8"), ("size", "i4")),
        *(("property_at", "i4"), ("property_bytes", "i4")),
    ]
)
_CK: Final = java_hash("ck")


@dataclass(slots=True)
class Parked:
    """Records of one queue of a parking topic, in order; `settled` says which are done."""

    records: NDArray[Any]
    settled: NDArray[np.bool_]

    @property
    def pending(self) -> NDArray[Any]:
        """Those that are not."""
        return np.asarray(self.records[~self.settled])

    @property
    def next_offset(self) -> int:
        """Queue offset of the first that is pending, else behind the last."""
        waiting = self.pending
        if len(waiting):
            return int(waiting["offset"][0])
        return int(self.records["offset"][-1]) + 1 if len(self.records) else 0

    @property
    def out_of_order(self) -> int:
        """How many are settled behind the first that is pending."""
        behind = self.records["offset"] >= self.next_offset
        return int((self.settled & behind).sum())


@dataclass(slots=True)
class Pending:
    """The log up to `end`: what is parked, open halves, POP checkpoints; queues' (first, next)."""

    low: int = 0
    end: int = 0
    records: int = 0
    foreign: int = 0  # records that another broker wrote
    store_ms: int = 0
    parked: dict[QueueKey, Parked] = field(default_factory=dict)
    recalls: int = 0
    halves: list[Half] = field(default_factory=list)
    queues: dict[QueueKey, tuple[int, int]] = field(default_factory=dict)
    checkpoints: dict[QueueKey, list[int]] = field(default_factory=dict)  # of POP: queue offsets

    def waiting(self, topic: str) -> Iterator[tuple[int, NDArray[Any]]]:
        """Queue ids of a parking topic and what is pending there."""
        for (name, queue_id), parked in sorted(self.parked.items()):
            if name == topic:
                yield queue_id, parked.pending


def read_pending(
    storage: Storage, segment_bytes: int, ranges: Ranges, end: int | None,
    progress: Progress | None = None,
) -> Pending:  # fmt: skip
    """Read a log from its first record to `end`; None: to where records end, and check them.

    Changes nothing. Raises OSError.
    """
    bases = segment_bases(storage, segment_bytes)
    if not bases:
        return Pending()
    limit = bases[-1] + segment_bytes if end is None else end
    stretches = list(ranges.stretches(bases[0], limit))
    reading = _Pass(any(not stretch.ours for stretch in stretches))
    found = reading.found
    found.low = found.end = bases[0]
    for stretch in stretches:
        for piece in walk(
            storage, segment_bytes, stretch.start, stretch.end, _checks(stretch, end)
        ):
            reading.take(piece, stretch.ours)
            if progress:
                progress(found.end - found.low, limit - found.low, "reading the log")
        if found.end < stretch.end:
            break
    reading.finish(storage, segment_bytes)
    return found


def messages(
    storage: Storage, segment_bytes: int, records: NDArray[Any]
) -> Iterator[dict[str, str]]:
    """Properties of parked records, which are in order of their positions. Raises OSError."""
    base, view = -1, np.empty(0, np.uint8)
    for position, at, size in records[["position", "property_at", "property_bytes"]].tolist():
        if base < 0 or position >= base + segment_bytes:
            base = position // segment_bytes * segment_bytes
            file = storage.open(segment_name(base))
            view = file.view()
            file.close()
        start = position - base + at
        yield parse_properties(view[start : start + size].tobytes())


def _checks(stretch: Stretch, end: int | None) -> int:
    """None where somebody else has checked the log."""
    if end is not None:
        return 0
    return OURS if stretch.ours else THEIRS


class _Pass:
    """The pass itself. `linked`: parts of the log are another broker's, so properties link."""

    def __init__(self, linked: bool) -> None:
        self.found = Pending()
        self._linked = linked
        self._links = Links()
        self._halves = Halves()
        self._origins: list[NDArray[np.int64]] = []
        self._parked: dict[QueueKey, list[NDArray[Any]]] = {}
        self._keys: dict[QueueKey, list[bytes]] = {}
        self._rolled: set[int] = set()
        self._over: list[int] = []  # positions of recalls: they are never delivered

    def take(self, piece: Piece, ours: bool) -> None:
        """Read the records of a piece, all of them written by one side."""
        found, rows = self.found, piece.rows
        found.end = piece.next
        if not len(rows):
            return
        found.records += len(rows)
        found.foreign += 0 if ours else len(rows)
        found.store_ms = max(found.store_ms, int(rows[:, scan.STORE_MS].max()))
        self._note_queues(piece)
        topics, names = number_names(piece.view, rows[:, scan.TOPIC_AT], rows[:, scan.TOPIC_SIZE])
        if ours:
            prepared = rows[:, scan.PREPARED]
            self._origins.append(-1 - prepared[prepared < 0])
        else:
            self._links.learn_copies(piece, topics, names)
        self._halves.learn(piece, topics, names)
        for number, name in enumerate(names):
            if name in PARKING:
                self._park(piece, np.flatnonzero(topics == number), name, ours)
            elif name.startswith(REVIVE_PREFIX):
                self._note_checkpoints(rows[topics == number], name)

    def finish(self, storage: Storage, segment_bytes: int) -> None:
        """Decide what is settled."""
        origins = np.unique(np.concatenate([*self._origins, np.array(self._over, np.int64)]))
        for key, pieces in self._parked.items():
            records = np.concatenate(pieces)
            done = np.isin(records["position"], origins)
            if self._linked:
                settle(self._keys[key], records["position"], done, self._rolled, self._links.copies)
            parked = self.found.parked[key] = Parked(records, done)
            if key[0] == TIMER_TOPIC and self._links.recalls:
                self._recall(storage, segment_bytes, parked)
        self.found.halves = self._halves.open()

    def _recall(self, storage: Storage, segment_bytes: int, parked: Parked) -> None:
        waiting = np.flatnonzero(~parked.settled)
        found = messages(storage, segment_bytes, parked.records[waiting])
        parked.settled[waiting] = [self._links.is_recalled(properties) for properties in found]

    def _park(self, piece: Piece, chosen: NDArray[np.int64], topic: str, ours: bool) -> None:
        rows = piece.rows[chosen]
        records = np.empty(len(rows), PARKED)
        records["position"] = rows[:, scan.AT] + piece.base
        records["offset"], records["store_ms"] = rows[:, scan.QUEUE_OFFSET], rows[:, scan.STORE_MS]
        records["size"] = rows[:, scan.SIZE]
        records["property_at"] = rows[:, scan.PROPERTIES_AT] - rows[:, scan.AT]
        records["property_bytes"] = rows[:, scan.PROPERTIES_SIZE]
        timers = topic == TIMER_TOPIC
        if self._linked:
            keys = self._look_at_all(piece, chosen, timers, ours)
        elif timers:
            keys = []
            self._find_our_recalls(piece, rows)
        for queue_id in np.unique(rows[:, scan.QUEUE_ID]).tolist():
            at = np.flatnonzero(rows[:, scan.QUEUE_ID] == queue_id)
            self._parked.setdefault((topic, queue_id), []).append(records[at])
            if self._linked:
                self._keys.setdefault((topic, queue_id), []).extend(keys[i] for i in at.tolist())

    def _look_at_all(
        self, piece: Piece, chosen: NDArray[np.int64], timers: bool, ours: bool
    ) -> list[bytes]:
        """Keys by which copies of another broker are linked; its rolls and recalls are noted."""
        rows, columns = piece.rows[chosen], columns_of(piece, chosen)
        keys = []
        for at, properties in enumerate(properties_of(piece, rows)):
            position = int(columns.physical_offset[at])
            if not timers:
                keys.append(level_key(properties, int(columns.reconsume_times[at])))
                continue
            keys.append(timer_key(properties))
            if "TIMER_DEL_UNIQKEY" in properties:
                self._note_recall(position)
                if not ours:
                    self._links.recall(properties)
            elif not ours and properties.get("TIMER_ROLL_TIMES", "0") != "0":
                self._rolled.add(position)
        return keys

    def _find_our_recalls(self, piece: Piece, rows: NDArray[np.int64]) -> None:
        """A recall of ours has the origin of the timer that it ends."""
        derived = rows[rows[:, scan.PREPARED] < 0]
        for row, properties in zip(derived, properties_of(piece, derived), strict=True):
            if "TIMER_DEL_UNIQKEY" in properties:
                self._note_recall(piece.base + int(row[scan.AT]))

    def _note_recall(self, position: int) -> None:
        self._over.append(position)
        self.found.recalls += 1

    def _note_queues(self, piece: Piece) -> None:
        for key, (first, last) in queue_offsets(piece).items():
            before = self.found.queues.get(key, (first, 0))
            self.found.queues[key] = (before[0], max(before[1], last + 1))

    def _note_checkpoints(self, rows: NDArray[np.int64], topic: str) -> None:
        """POP: consumers hold messages that a checkpoint names until it is settled (CQ-80)."""
        for row in rows[rows[:, scan.TAGS_CODE] == _CK]:
            offsets = self.found.checkpoints.setdefault((topic, int(row[scan.QUEUE_ID])), [])
            offsets.append(int(row[scan.QUEUE_OFFSET]))
