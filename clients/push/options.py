"""What a push consumer can be told beside group, subscription and listener."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Final, TypedDict

from clients.queries.moments import milliseconds
from shm.errors import GroupIllegal
from shm.groupwire import ASSIGNMENTS, STICKY, ConsumeFrom, bad_assignment

#: Deliveries in all: RocketMQ's 16 retries (RD-22).
MAX_ATTEMPTS: Final = 17
CONSUME_TIMEOUT_S: Final = 900.0
_CONCURRENCY_MAX: Final = 1000
_TIMEOUT_MAX_S: Final = 10 * 365 * 86_400


class MessageModel(Enum):
    """Who gets a message: one member of the group, or each."""

    CLUSTERING = "clustering"
    BROADCASTING = "broadcasting"


class PushOptions(TypedDict, total=False):
    """Keyword arguments of `PushConsumer`, as `Options` explains them."""

    concurrency: int
    orderly: bool
    model: MessageModel
    max_attempts: int
    consume_from: ConsumeFrom
    consume_timestamp: datetime | None
    consume_timeout: float
    instance: str
    assignment: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Checked when it is made. Raises GroupIllegal; TypeError for a name that is not there."""

    #: Threads that call the listener.
    concurrency: int = 8
    #: One message of a queue at a time, in order.
    orderly: bool = False
    model: MessageModel = MessageModel.CLUSTERING
    #: Deliveries in all, before a message goes to the dead-letter queue.
    max_attempts: int = MAX_ATTEMPTS
    #: Where a group begins that has no offset yet; TIMESTAMP needs `consume_timestamp`.
    consume_from: ConsumeFrom = ConsumeFrom.LAST_OFFSET
    consume_timestamp: datetime | None = None
    #: Seconds after which a message that a listener still has is given to another member.
    consume_timeout: float = CONSUME_TIMEOUT_S
    #: Tells broadcasting consumers of one group and user apart: each has offsets of its own.
    instance: str = "default"
    #: How queues are spread over members: "sticky" moves few, "average" does as RocketMQ (CQ-46).
    assignment: str = STICKY

    def __post_init__(self) -> None:
        """Check all of it."""
        _require(
            _is_count(self.concurrency) and self.concurrency <= _CONCURRENCY_MAX,
            f"concurrency is a number of threads, 1 to {_CONCURRENCY_MAX}, not"
            f" {self.concurrency!r}",
        )
        _require(
            _is_count(self.max_attempts) and self.max_attempts < 1 << 31,
            f"max_attempts counts deliveries, 1 or more, not {self.max_attempts!r}",
        )
        _require(isinstance(self.orderly, bool), f"orderly is True or False, not {self.orderly!r}")
        _require(
            isinstance(self.consume_timeout, int | float)
            and 0 < self.consume_timeout <= _TIMEOUT_MAX_S,
            f"consume_timeout is seconds above 0, up to {_TIMEOUT_MAX_S} (ten years), not"
            f" {self.consume_timeout!r}",
        )
        _require(
            isinstance(self.model, MessageModel), f"model is a MessageModel, not {self.model!r}"
        )
        _require(
            isinstance(self.consume_from, ConsumeFrom),
            f"consume_from is a ConsumeFrom, not {self.consume_from!r}",
        )
        _require(self.assignment in ASSIGNMENTS, bad_assignment(self.assignment))
        _require(
            isinstance(self.consume_timestamp, datetime | None),
            f"consume_timestamp is a datetime, not {self.consume_timestamp!r}",
        )
        _require(
            self.consume_from is not ConsumeFrom.TIMESTAMP or self.consume_timestamp is not None,
            "consume_from TIMESTAMP needs consume_timestamp",
        )

    @property
    def is_broadcast(self) -> bool:
        """Whether every member gets all messages."""
        return self.model is MessageModel.BROADCASTING

    @property
    def consume_ms(self) -> int:
        """`consume_timestamp` as Unix ms, 0 without."""
        return milliseconds(self.consume_timestamp) if self.consume_timestamp else 0


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _require(holds: bool, text: str) -> None:
    if not holds:
        raise GroupIllegal(text)
