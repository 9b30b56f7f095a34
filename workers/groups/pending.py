"""Failed messages that `groups` has been told of: as requests, and as copies on their way."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shm.properties import DLQ_PREFIX, RETRY_PREFIX
from workers.groups.ledger import QueueKey
from workers.groups.retrycopy import NOWHERE, Parking

if TYPE_CHECKING:
    from shm import groupwire
    from shm.record import Record
    from workers.outlet import Copy

Name = tuple[str, QueueKey, int]  # group, queue, offset


@dataclass(slots=True)
class Pending:
    """A copy that is to be put, or was put and has no outcome yet."""

    name: Name
    copy: Copy
    dead: bool
    bytes: int  # what it holds of the memory
    durable: bool  # whether the session hears of it only when the copy is durable
    asked: list[tuple[int, int, int]] = field(default_factory=list)  # session, serial, board queue
    end: int = -1  # of the copy in the log


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
