"""What a push consumer can be told beside group, subscription and listener."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final, TypedDict

from gantrymq.clients.arguments import TABLE, check_start, judged
from gantrymq.clients.push.messagemodel import MessageModel
from gantrymq.clients.queries.moments import milliseconds
from gantrymq.shm.groupwire import STICKY, ConsumeFrom

#: Deliveries in all: RocketMQ's 16 retries (RD-22).
MAX_ATTEMPTS: Final = 17
CONSUME_TIMEOUT_S: Final = 900.0


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
        names = tuple(TABLE["PushOptions"])
        values = judged("PushOptions", *(getattr(self, name) for name in names))
        for name, value in zip(names, values, strict=True):
            object.__setattr__(self, name, value)
        check_start(self.consume_from, self.consume_timestamp)

    @property
    def is_broadcast(self) -> bool:
        """Whether every member gets all messages."""
        return self.model is MessageModel.BROADCASTING

    @property
    def consume_ms(self) -> int:
        """`consume_timestamp` as Unix ms, 0 without."""
        return milliseconds(self.consume_timestamp) if self.consume_timestamp else 0
