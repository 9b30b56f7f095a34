"""What sessions and `groups` say to each other: msgpack bodies of REQUEST and NOTICE entries.

A queue is named by its number on the board. `offset` is always the next one to consume. A request
may be handled twice after a restart of `groups` (the ring keeps it until the answer is published),
so every request may be repeated without harm.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import Final

import msgspec

from gantrymq.shm import packed
from gantrymq.shm.limits import PROGRESS_WINDOW
from gantrymq.shm.packed import decode_packed
from gantrymq.shm.valueranges import (
    ConsumeFromCode,
    DelayMs,
    Deliveries,
    Digest,
    Lease,
    Name,
    Offset,
    PatienceMs,
    QueueNumber,
    Serial,
    Text,
    TopicNumber,
    Word,
)


class ConsumeFrom(IntEnum):
    """Where a group begins in a queue that it has no offset for."""

    LAST_OFFSET = 0
    FIRST_OFFSET = 1
    TIMESTAMP = 2  # the session resolves it and sends `starts`


#: (first offset, offset behind the last, deliveries that failed without a retry record)
Attempts = tuple[int, int, int]
#: Ranges of attempts that one notice carries; older ranges beyond are merged to the higher count.
ATTEMPTS_MAX: Final = 512
#: (first offset, offset behind the last): done with, though `offset` has not passed them.
Done = tuple[Offset, Offset]
#: Characters of a subscription's text, and of the reason of a send-back.
SUBSCRIPTION_CHARACTERS: Final = 1000
WHY_CHARACTERS: Final = 1000

#: Characters of an expression that bits are made for, and expressions in one request.
FILTER_CHARACTERS: Final = 2000
FILTERS_PER_JOIN: Final = 8

#: `SendBack.delays`: RocketMQ's ladder (RD-19), and the dead-letter queue at once.
LADDER: Final = 0
DEAD_LETTER: Final = -1
#: How queues are spread over members: few are moved, or as RocketMQ's clients do it (CQ-46).
STICKY: Final = "sticky"
AVERAGE: Final = "average"
ASSIGNMENTS: Final = (STICKY, AVERAGE)


def bad_assignment(name: object) -> str:
    """What is said of a name that is none of ASSIGNMENTS."""
    return f"{name!r} is no assignment: {' or '.join(ASSIGNMENTS)}"


class Request(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Session to groups."""


class Join(Request, frozen=True):
    """Become a member, or change the subscription; `topics` are topic slots of the board.

    With `queues` (board queues) the member takes these by hand and none by balancing. All members
    of a group that state a `digest` (of topics and filters; 0: not stated) must state the same, and
    the same `max_attempts` (0: not stated) and `orderly`; `subscription` is what people are shown
    of it. `assignment` is a
    name of ASSIGNMENTS, the same for all that state one ("": not stated). `filters` are SQL92
    expressions that bits may be made for: topic slot, dialect, text.
    """

    serial: Serial
    group: Name
    topics: list[TopicNumber]
    consume_from: ConsumeFromCode = ConsumeFrom.LAST_OFFSET
    starts: dict[QueueNumber, Offset] = {}
    queues: list[QueueNumber] | None = None
    max_attempts: Deliveries = 0
    digest: Digest = 0
    orderly: bool = False
    subscription: Text = ""
    assignment: Word = ""
    filters: list[tuple[TopicNumber, Word, str]] = []


class Commit(Request, frozen=True):
    """Offsets to store, and how far messages have been handed out, by leases still held.

    Also how a session seeks. Serial 0 is answered only where a lease was over. `done` has, for
    queues without words in the progress table, what is done with above the offset.
    """

    serial: Serial
    leases: dict[QueueNumber, Lease]
    offsets: dict[QueueNumber, Offset] = {}
    started: dict[QueueNumber, Offset] = {}
    done: dict[QueueNumber, list[Done]] = {}


class Released(Request, frozen=True):
    """A revoked queue is finished: nothing of it is being worked on any more.

    `done` has what is done with above the offset.
    """

    queue: QueueNumber
    lease: Lease
    offset: Offset
    done: list[Done] = []


class Leave(Request, frozen=True):
    """Nothing is being worked on any more: all queues may go to others."""

    serial: Serial


class SendBack(Request, frozen=True):
    """Messages of a queue have failed, or their attempts are used up: deliver them again, or never.

    `offsets` are started and not done with. `delays`: LADDER, DEAD_LETTER, or ms from now; `whys`
    the failures' types and texts: one of each for every offset, or one that goes for all. Answered,
    in one notice or in several that name each offset once, by `SentBack` once the copies are in the
    log and the ledger says that the messages are done with (the session then sets their bits, or
    commits behind them), or by `Refused`.
    """

    serial: Serial
    queue: QueueNumber
    lease: Lease
    max_attempts: Deliveries
    offsets: list[Offset]
    delays: list[DelayMs]
    whys: list[Text]

    def __post_init__(self) -> None:
        """Raises ValueError, of a decoder its ValidationError, if columns do not fit together."""
        if not 1 <= len(self.offsets) <= PROGRESS_WINDOW:
            raise ValueError(f"{len(self.offsets)} offsets of one window")
        for column in (self.delays, self.whys):
            if len(column) not in (1, len(self.offsets)):
                raise ValueError(f"{len(column)} values for {len(self.offsets)} offsets")

    def failures(self) -> Iterator[tuple[int, int, str]]:
        """Offset, delay and reason of each message."""
        count = len(self.offsets)
        delays = self.delays if len(self.delays) == count else self.delays * count
        whys = self.whys if len(self.whys) == count else self.whys * count
        return zip(self.offsets, delays, whys, strict=True)


class Failed(Request, frozen=True):
    """A delivery has failed and the message stays where it is (ordered consumption).

    `attempts` is how many the session knew of before, from `Granted` and `Counted`: so a request
    that is said twice counts once. Answered `Counted`.
    """

    serial: Serial
    queue: QueueNumber
    lease: Lease
    offset: Offset
    attempts: Deliveries


class Reset(Request, frozen=True):
    """Set a group's offsets: board queue -> next offset to consume.

    What members hold of these queues is asked back first; what they have not given back after
    `patience_ms` ends their sessions. Answered `WasReset`.
    """

    serial: Serial
    group: Name
    offsets: dict[QueueNumber, Offset]
    patience_ms: PatienceMs = 30_000


class DeleteGroup(Request, frozen=True):
    """Forget a group that has no members: how far it is, in its retry topic too.

    Answered `GroupDeleted`, or refused.
    """

    serial: Serial
    group: Name


class Notice(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Groups to session."""


class Joined(Notice, frozen=True):
    """The session is a member; what could be granted at once came before, as `Granted`."""

    serial: int


class Granted(Notice, frozen=True):
    """The session owns a queue from now on.

    Who had it under a lease below `since` goes on from nowhere but `offset`: that was set back or
    reset behind its back. `previous` is the last lease before this one.
    """

    queue: int
    lease: int
    offset: int
    attempts: list[Attempts]
    done: list[Done] = []
    since: int = 0
    previous: int = 0


class Revoke(Notice, frozen=True):
    """Finish what has been begun of this queue, commit, and release it."""

    queue: int
    lease: int


class Committed(Notice, frozen=True):
    """Offsets are in the ledger, except of `lost`: queues whose lease (the value) was over."""

    serial: int
    lost: dict[int, int]


class Left(Notice, frozen=True):
    """The session is no member any more."""

    serial: int


class SentBack(Notice, frozen=True):
    """Copies are in the log: in the dead-letter queue (where `dead` says so), or parked for retry.

    `offsets` are some or all of the request's.
    """

    serial: int
    queue: int
    offsets: list[int]
    dead: list[bool]


class Counted(Notice, frozen=True):
    """The failed delivery is in the ledger; `attempts` have failed by now."""

    serial: int
    queue: int
    offset: int
    attempts: int


class WasReset(Notice, frozen=True):
    """The offsets are in the ledger: board queue -> offset before (-1: none) and now."""

    serial: int
    before: dict[int, int]
    after: dict[int, int]


class GroupDeleted(Notice, frozen=True):
    """The ledger knows nothing of the group any more; `known`: it did before."""

    serial: int
    known: bool


class Rejoin(Notice, frozen=True):
    """`groups` was replaced: say `Join` again. Leases are as before."""


class Refused(Notice, frozen=True):
    """The request was not carried out: an error of shm.errors by class name.

    Of a `SendBack` only its `offsets` were not; none are named where no offset was.
    """

    serial: int
    error: str
    text: str
    offsets: list[int] = []


AnyRequest = Join | Commit | Released | Leave | SendBack | Failed | Reset | DeleteGroup
AnyNotice = (
    Joined | Granted | Revoke | Committed | Left | SentBack | Counted | WasReset | GroupDeleted
    | Rejoin | Refused
)  # fmt: skip

_ENCODER = msgspec.msgpack.Encoder()
_REQUESTS: msgspec.msgpack.Decoder[AnyRequest] = msgspec.msgpack.Decoder(AnyRequest)
_NOTICES: msgspec.msgpack.Decoder[AnyNotice] = msgspec.msgpack.Decoder(AnyNotice)


def encode(body: Request | Notice) -> bytes:
    """Body of an entry."""
    return _ENCODER.encode(body)


def decode_request(data: bytes) -> AnyRequest:
    """A request. Raises Misfit, msgspec.DecodeError or its ValidationError if it is none."""
    return packed.decode_request(_REQUESTS, data)


def decode_notice(data: bytes) -> AnyNotice:
    """A notice. Raises msgspec.DecodeError or its ValidationError if it is none."""
    return decode_packed(_NOTICES, data)


def merged(ranges: Iterable[Done]) -> list[Done]:
    """The same messages in as few ranges as there can be, in order."""
    found: list[Done] = []
    for first, end in sorted(ranges):
        if found and first <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        elif first < end:
            found.append((first, end))
    return found
