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

from gantrymq.brokerd.commitlog import segment_bases
from gantrymq.brokerd.handover.halves import Halves, Transactions
from gantrymq.brokerd.handover.links import (
    Links,
    columns_of,
    level_key,
    properties_of,
    settle,
    timer_key,
)
from gantrymq.brokerd.handover.names import HALVES, PARKING, REVIVE_PREFIX
from gantrymq.brokerd.handover.parked import Parked, messages, rows_of
from gantrymq.brokerd.logscan import OURS, THEIRS, Piece, queue_offsets, walk
from gantrymq.shm.imported import Visit
from gantrymq.shm.kernels import scan
from gantrymq.shm.properties import TIMER_TOPIC, java_hash
from gantrymq.shm.record_columns import number_names

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gantrymq.shm.ranges import Ranges, Stretch
    from gantrymq.shm.storage import Storage

__all__ = ["Parked", "Pending", "Progress", "messages", "read_pending"]
Progress = Callable[[int, int, str], None]
QueueKey = tuple[str, int]
_CK: Final = java_hash("ck")


@dataclass(slots=True)
class Pending:
    """The log up to `end`: what is parked, transactions, POP checkpoints; queues' (first, next)."""

    low: int = 0
    end: int = 0
    records: int = 0
    foreign: int = 0  # records that another broker wrote
    store_ms: int = 0
    parked: dict[QueueKey, Parked] = field(default_factory=dict)
    recalls: int = 0
    transactions: Transactions = field(default_factory=Transactions)
    queues: dict[QueueKey, tuple[int, int]] = field(default_factory=dict)
    checkpoints: dict[QueueKey, list[int]] = field(default_factory=dict)  # of POP: queue offsets
    visit: Visit | None = None

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
    theirs = [stretch for stretch in stretches if not stretch.ours]
    reading = _Pass(theirs[-1] if theirs else None)
    found = reading.found
    found.low = found.end = bases[0]
    for stretch in stretches:
        for piece in walk(
            storage, segment_bytes, stretch.start, stretch.end, _checks(stretch, end)
        ):
            reading.take(piece, stretch)
            if progress:
                progress(found.end - found.low, limit - found.low, "reading the log")
        if found.end < stretch.end:
            break
    reading.finish(storage, segment_bytes)
    return found


def _checks(stretch: Stretch, end: int | None) -> int:
    """None where somebody else has checked the log."""
    if end is not None:
        return 0
    return OURS if stretch.ours else THEIRS


class _Pass:
    """The pass itself. If parts of the log are another broker's, properties link."""

    def __init__(self, last: Stretch | None) -> None:
        """`last`: the last part that another broker wrote."""
        self.found = Pending()
        self._last = last
        self._firsts: dict[QueueKey, int] = {}
        self._starts: dict[QueueKey, int] = {}
        self._linked = last is not None
        self._links = Links()
        self._halves = Halves()
        self._origins: list[NDArray[np.int64]] = []
        self._parked: dict[QueueKey, list[NDArray[Any]]] = {}
        self._keys: dict[QueueKey, list[bytes]] = {}
        self._rolled: set[int] = set()
        self._over: list[int] = []  # positions of recalls: they are never delivered

    def take(self, piece: Piece, stretch: Stretch) -> None:
        """Read the records of a piece of a stretch."""
        found, rows, ours = self.found, piece.rows, stretch.ours
        found.end = piece.next
        if not len(rows):
            return
        found.records += len(rows)
        found.foreign += 0 if ours else len(rows)
        found.store_ms = max(found.store_ms, int(rows[:, scan.STORE_MS].max()))
        self._note_queues(piece, is_last=self._last is not None and stretch.end == self._last.end)
        topics, names = number_names(piece.view, rows[:, scan.TOPIC_AT], rows[:, scan.TOPIC_SIZE])
        if ours:
            prepared = rows[:, scan.PREPARED]
            self._origins.append(-1 - prepared[prepared < 0])
        else:
            self._links.learn_copies(piece, topics, names)
        self._halves.learn(piece, topics, names, ours)
        for number, name in enumerate(names):
            if name in PARKING:
                self._park(piece, np.flatnonzero(topics == number), name, ours)
            elif name.startswith(REVIVE_PREFIX):
                self._note_checkpoints(rows[topics == number], name)

    def finish(self, storage: Storage, segment_bytes: int) -> None:
        """Decide what is settled."""
        if self._last is not None:
            end = min(self._last.end, self.found.end)
            self.found.visit = Visit(self._last.start, end, self._firsts, self._starts)
        origins = np.unique(np.concatenate([*self._origins, np.array(self._over, np.int64)]))
        for key, pieces in self._parked.items():
            records = np.concatenate(pieces)
            done = np.isin(records["position"], origins)
            if self._linked:
                settle(self._keys[key], records["position"], done, self._rolled, self._links.copies)
            parked = self.found.parked[key] = Parked(records, done)
            if key[0] == TIMER_TOPIC and self._links.recalls:
                self._recall(storage, segment_bytes, parked)
        self.found.transactions = self._halves.judged(self.found.queues)
        if self.found.transactions.parked is not None:
            self.found.parked[HALVES] = self.found.transactions.parked

    def _recall(self, storage: Storage, segment_bytes: int, parked: Parked) -> None:
        waiting = np.flatnonzero(~parked.settled)
        found = messages(storage, segment_bytes, parked.records[waiting])
        parked.settled[waiting] = [self._links.is_recalled(properties) for properties in found]

    def _park(self, piece: Piece, chosen: NDArray[np.int64], topic: str, ours: bool) -> None:
        rows = piece.rows[chosen]
        records = rows_of(rows, piece.base)
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

    def _note_queues(self, piece: Piece, *, is_last: bool) -> None:
        for key, seen in queue_offsets(piece).items():
            first, following = self.found.queues.get(key, (seen.first, 0))
            if is_last:
                self._firsts.setdefault(key, seen.first)
            if seen.begins(following):
                first = following = 0
                self._starts[key] = seen.position
            self.found.queues[key] = (first, max(following, seen.highest + 1))

    def _note_checkpoints(self, rows: NDArray[np.int64], topic: str) -> None:
        """POP: consumers hold messages that a checkpoint names until it is settled (CQ-80)."""
        for row in rows[rows[:, scan.TAGS_CODE] == _CK]:
            offsets = self.found.checkpoints.setdefault((topic, int(row[scan.QUEUE_ID])), [])
            offsets.append(int(row[scan.QUEUE_OFFSET]))
