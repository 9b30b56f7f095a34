"""Messages of inner batches (RD-70): one record of a BatchCQ topic is many of them.

A batch's own properties are what a RocketMQ's index knows; those of its messages are in the body.
Loads no numpy.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from heapq import merge
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from gantrymq.shm import layout
from gantrymq.shm.errors import Corrupt
from gantrymq.shm.fromhandlers import require_ours
from gantrymq.shm.innerbatch import Part, is_inner_batch, messages_of
from gantrymq.shm.record import Record

if TYPE_CHECKING:
    from gantrymq.clients.message import MessageQueue
    from gantrymq.clients.queries.found import Results
    from gantrymq.shm.storage import Storage

#: Where RocketMQ keeps them.
QUEUES: Final = "batchconsumequeue"
_UNIT: Final = layout.BATCH_CQ_UNIT
#: Units that are read in one go.
_AT_ONCE: Final = 256
_PLACE: Final = attrgetter("place")
#: Why a search leaves out what lies behind the unit before a damaged one.
MISPLACED: Final = (
    "a unit of a queue of type BatchCQ is damaged (`gantrymq store verify` lists all damage)"
)


class Unit(NamedTuple):
    """Of a queue of type BatchCQ: log position and bytes of a record, and when it was stored.

    Its messages have the queue offsets from `first` to before `end`. `older`: position of the unit
    before it, -1 without one.
    """

    position: int
    size: int
    store_ms: int
    first: int
    end: int
    older: int = -1

    @property
    def is_misplaced(self) -> bool:
        """Whether its position is damaged: they rise within a queue, and none is negative."""
        return self.position < max(0, self.older)

    @property
    def place(self) -> int:
        """Behind which position its record lies, or where: units of a queue are in that order."""
        return self.older if self.is_misplaced else self.position

    def is_below(self, low: int) -> bool:
        """Whether retention has taken it, and so all units before it."""
        return self.position < low and not self.is_misplaced


def parts(record: Record, has: Callable[[Record], bool] | None = None) -> list[Part]:
    """The messages of a record, in their order: itself, or those of an inner batch.

    With `has` those of a batch of which it is true; all if the batch has what none of them has: its
    own id, which receipts of RocketMQ's clients name. A member has the batch's place in the log,
    times and hosts (RD-73). Raises Corrupt if a batch is damaged inside.
    """
    if not is_inner_batch(record.sys_flag):
        return [Part(record.physical_offset, record)]
    every = messages_of(record)
    if has is None:
        return every
    return [part for part in every if has(part.record)] or (every if has(record) else [])


class Messages:
    """Iterator of the messages of records, newest first: of a batch the last one first.

    After Corrupt it goes on behind the damaged record.
    """

    def __init__(self, records: Results, has: Callable[[Record], bool], before: int) -> None:
        """`before`: only messages that begin below that log position."""
        #: Where the last message begins: messages below are those that were not handed out yet.
        self.before: int | None = None
        self._records = records
        self._has = has
        self._end = before
        self._waiting: list[Part] = []

    def __iter__(self) -> Iterator[Record]:
        return self

    def __next__(self) -> Record:
        """The next older message. Raises Corrupt."""
        while not self._waiting:
            record = next(self._records)
            try:
                self._waiting = [p for p in parts(record, self._has) if p.place < self._end]
            except Corrupt:
                self.before = record.physical_offset
                raise
        self.before, message = self._waiting.pop()
        return message

    @property
    def unsearched(self) -> list[tuple[int, int]]:
        """Stretches [start, end) of the log that the answer so far leaves out."""
        return self._records.unsearched

    @property
    def reasons(self) -> list[str]:
        """Why messages may be missing."""
        return self._records.reasons


# ----------------------------------------------------------------------------------------- queues


def units(storage: Storage, topics: Iterable[str]) -> Iterator[Unit]:
    """What the queues of type BatchCQ of some topics list, newest first."""
    there = set(storage.list(QUEUES)).intersection(topics)
    folders = [f"{QUEUES}/{topic}" for topic in there]
    queues = [f"{at}/{name}" for at in folders for name in storage.list(at) if name.isdecimal()]
    return merge(*(_of_queue(storage, queue) for queue in queues), key=_PLACE, reverse=True)


def batch_offsets(storage: Storage, queue: MessageQueue, low: int) -> tuple[int, int]:
    """First offset whose record lies at log position `low` or above, and the next one; 0, 0."""
    first = end = 0
    for unit in units_of(storage, queue):
        end = end or unit.end
        if unit.is_below(low):
            return first or end, end
        first = unit.first
    return first, end


def offset_in_batches(
    storage: Storage, queue: MessageQueue, span: tuple[int, int], time_ms: int, *, upper: bool
) -> int:
    """The offset in a span that a time means, of RocketMQ's units: as `bytime.offset_at`."""
    low, found = span
    listed = [unit for unit in units_of(storage, queue) if unit.first >= low]
    if upper:
        return next((unit.end - 1 for unit in listed if unit.store_ms <= time_ms), low)
    for unit in listed:
        if unit.store_ms >= time_ms:
            found = unit.first
    return found


def units_of(storage: Storage, queue: MessageQueue) -> Iterator[Unit]:
    """What one queue of type BatchCQ lists, newest first."""
    return _of_queue(storage, f"{QUEUES}/{queue.topic}/{queue.queue_id}")


def _of_queue(storage: Storage, folder: str) -> Iterator[Unit]:
    """Each unit knows the one before it."""
    newer: Unit | None = None
    for unit in _listed(storage, folder):
        if newer is not None:
            yield newer._replace(older=unit.position)
        newer = unit
    if newer is not None:
        yield newer


def _listed(storage: Storage, folder: str) -> Iterator[Unit]:
    for name in reversed(storage.list(folder)):
        path = f"{folder}/{name}"
        try:
            end = storage.size_of(path) // _UNIT.size
            end = bisect_left(range(end), True, key=lambda at: not _read(storage, path, at, 1))
            while end > 0:
                start = max(0, end - _AT_ONCE)
                yield from reversed(_read(storage, path, start, end - start))
                end = start
        except FileNotFoundError as error:
            require_ours(error)
            return  # expired, and all that is older


def _read(storage: Storage, path: str, first: int, count: int) -> list[Unit]:
    """Units of a file from the `first` on; blank ones are left out."""
    data = bytearray(count * _UNIT.size)
    with closing(storage.open(path)) as file:
        file.read_into(data, first * _UNIT.size)
    rows = (_UNIT.unpack(data, at) for at in range(0, len(data), _UNIT.size))
    return [
        Unit(
            row["physical_offset"],
            row["size"],
            row["store_timestamp"],
            row["base_offset"],
            row["base_offset"] + row["batch_size"],
        )
        for row in rows
        if row["size"] > 0
    ]
