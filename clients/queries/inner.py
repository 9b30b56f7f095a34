"""Messages of inner batches (RD-70): one record of a BatchCQ topic is many of them.

A batch's own properties are what a RocketMQ's index knows; those of its messages are in the body.
Loads no numpy.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from heapq import merge
from typing import TYPE_CHECKING, Final, NamedTuple

from clients.stored_body import is_inner_batch, members
from shm import layout
from shm.errors import Corrupt
from shm.properties import java_int
from shm.record import HEAD_CODECS, V6_BITS, Record

if TYPE_CHECKING:
    from clients.queries.found import Results
    from shm.storage import Storage

#: Where RocketMQ keeps them.
QUEUES: Final = "batchconsumequeue"
_UNIT: Final = layout.BATCH_CQ_UNIT
#: Units that are read in one go.
_AT_ONCE: Final = 256


class Part(NamedTuple):
    """A message, and where in the log it begins: its record, or its body amid that of a batch."""

    place: int
    record: Record


class Unit(NamedTuple):
    """Of a queue of type BatchCQ: log position and bytes of a record, and when it was stored."""

    position: int
    size: int
    store_ms: int


def parts(record: Record, has: Callable[[Record], bool] | None = None) -> list[Part]:
    """The messages of a record, in their order: itself, or those of an inner batch.

    With `has` those of a batch of which it is true; all if the batch has what none of them has: its
    own id, which receipts of RocketMQ's clients name. A member has the batch's place in the log,
    times and hosts (RD-73). Raises Corrupt if a batch is damaged inside.
    """
    if not is_inner_batch(record.sys_flag):
        return [Part(record.physical_offset, record)]
    every = _members(record)
    if has is None:
        return every
    return [part for part in every if has(part.record)] or (every if has(record) else [])


def _members(record: Record) -> list[Part]:
    body = memoryview(record.body)
    body_at = record.physical_offset + HEAD_CODECS[record.sys_flag & V6_BITS].size
    base = java_int(record.property_map().get("INNER_BASE", ""))
    base = record.queue_offset if base is None else base  # SF-75
    found = []
    try:
        for number, member in enumerate(members(body)):
            own = replace(
                record,
                flag=member.flag,
                body=bytes(body[member.body_at :][: member.body_bytes]),
                properties=bytes(body[member.properties_at :][: member.properties_bytes]),
                queue_offset=base + number,
            )
            found.append(Part(body_at + member.body_at, own))
    except ValueError as error:
        raise Corrupt(
            f"the inner batch at log position {record.physical_offset} is damaged: {error}. Its"
            " checksum holds: so it was sent",
            path="commitlog",
            position=record.physical_offset,
        ) from error
    return found


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
    return merge(*(_of_queue(storage, queue) for queue in queues), reverse=True)


def _of_queue(storage: Storage, folder: str) -> Iterator[Unit]:
    for name in reversed(storage.list(folder)):
        path = f"{folder}/{name}"
        try:
            end = storage.size_of(path) // _UNIT.size
            end = bisect_left(range(end), True, key=lambda at: not _read(storage, path, at, 1))
            while end > 0:
                start = max(0, end - _AT_ONCE)
                yield from reversed(_read(storage, path, start, end - start))
                end = start
        except FileNotFoundError:
            return  # expired, and all that is older


def _read(storage: Storage, path: str, first: int, count: int) -> list[Unit]:
    """Units of a file from the `first` on; blank ones are left out."""
    data = bytearray(count * _UNIT.size)
    with closing(storage.open(path)) as file:
        file.read_into(data, first * _UNIT.size)
    rows = (_UNIT.unpack(data, at) for at in range(0, len(data), _UNIT.size))
    return [
        Unit(row["physical_offset"], row["size"], row["store_timestamp"])
        for row in rows
        if row["size"] > 0
    ]
