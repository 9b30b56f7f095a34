"""Failed messages that `groups` has been told of: as requests, and as copies on their way."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING

from gantrymq.shm.properties import DLQ_PREFIX, RETRY_PREFIX
from gantrymq.workers.groups.progress import QueueKey
from gantrymq.workers.groups.retrycopy import NOWHERE, Parking

if TYPE_CHECKING:
    from gantrymq.shm import groupwire
    from gantrymq.shm.record import Record

Where = tuple[str, QueueKey]  # group, queue
Name = tuple[str, QueueKey, int]  # and offset


class Pending:
    """A copy that is to be put, or was put and has no outcome yet."""

    __slots__ = ("asked", "attempt", "dead", "durable", "end", "entry", "offset", "origin", "where")

    def __init__(
        self, where: Where, offset: int, entry: bytes, origin: int, attempt: int, dead: bool
    ) -> None:
        self.where, self.offset = where, offset
        self.entry = entry  # as `outlet.entry_of` makes it
        self.origin, self.attempt = origin, attempt
        self.dead = dead
        self.durable = False  # True: the session hears of it only when the copy is durable
        self.asked: list[tuple[int, int, int]] = []  # session, serial, board queue
        self.end = -1  # of the copy in the log

    @property
    def name(self) -> Name:
        """Of the message."""
        return *self.where, self.offset


class InFlight:
    """Copies that are to be put or have no outcome, by queue and offset."""

    def __init__(self) -> None:
        self.count = self.bytes = 0
        self._queues: dict[Where, dict[int, Pending]] = {}  # none that is empty

    def __iter__(self) -> Iterator[Pending]:
        return chain.from_iterable(queue.values() for queue in self._queues.values())

    def of(self, group: str, key: QueueKey) -> dict[int, Pending]:
        """Those of a queue, by offset; not to be changed."""
        return self._queues.get((group, key), {})

    def get(self, name: Name) -> Pending | None:
        """The copy of a message, if there is one."""
        group, key, offset = name
        return self.of(group, key).get(offset)

    def add(self, pending: Pending) -> None:
        """From now on it counts."""
        self._queues.setdefault(pending.where, {})[pending.offset] = pending
        self.count += 1
        self.bytes += len(pending.entry)

    def drop(self, where: Where, pendings: Iterable[Pending]) -> None:
        """Copies of a queue have their outcome."""
        queue = self._queues.get(where, {})
        for pending in pendings:
            if queue.pop(pending.offset, None) is not None:
                self.count -= 1
                self.bytes -= len(pending.entry)
        if not queue:
            self._queues.pop(where, None)


@dataclass(slots=True)
class Asked:
    """A request, and what becomes of its messages at once."""

    session: int
    request: groupwire.SendBack
    taken: int = 0  # messages, from the first on, that have been looked at
    done: list[tuple[int, bool]] = field(default_factory=list)
    refused: dict[tuple[str, str], list[int]] = field(default_factory=lambda: defaultdict(list))
    parking: Parking = NOWHERE  # of its group, when it was looked at last
    durable: bool = False  # its topic
    sending: dict[int, int] = field(default_factory=dict)  # offset -> the copy's attempt

    @property
    def who(self) -> tuple[int, int, int]:
        """Session, serial and board queue."""
        return self.session, self.request.serial, self.request.queue


def whose(record: Record) -> tuple[str, int]:
    """Group and attempt of a copy; a record of another kind has no group."""
    topic = record.topic
    if not topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        topic = record.property_map().get("REAL_TOPIC", "")
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if topic.startswith(prefix):
            return topic.removeprefix(prefix), record.reconsume_times
    return "", record.reconsume_times
