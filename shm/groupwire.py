"""What sessions and `groups` say to each other: msgpack bodies of REQUEST and NOTICE entries.

A queue is named by its number on the board. `offset` is always the next one to consume. A request
may be handled twice after a restart of `groups` (the ring keeps it until the answer is published),
so every request may be repeated without harm.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import msgspec

from shm.packed import decode_packed


class ConsumeFrom(IntEnum):
    """Where a group begins in a queue that it has no offset for."""

    LAST_OFFSET = 0
    FIRST_OFFSET = 1
    TIMESTAMP = 2  # the session resolves it and sends `starts`


#: (first offset, offset behind the last, deliveries begun by sessions that died)
Attempts = tuple[int, int, int]
#: Ranges of attempts that one notice carries; older ranges beyond are merged to the higher count.
ATTEMPTS_MAX: Final = 64


class Request(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Session to groups."""


class Join(Request, frozen=True):
    """Become a member, or change the subscription; `topics` are topic slots of the board.

    With `queues` (board queues) the member takes these by hand and none by balancing.
    """

    serial: int
    group: str
    topics: list[int]
    consume_from: int = ConsumeFrom.LAST_OFFSET
    starts: dict[int, int] = {}
    queues: list[int] | None = None


class Commit(Request, frozen=True):
    """Offsets to store, and how far messages have been handed out, by leases still held.

    Also how a session seeks. Serial 0 is answered only where a lease was over.
    """

    serial: int
    leases: dict[int, int]
    offsets: dict[int, int] = {}
    started: dict[int, int] = {}


class Released(Request, frozen=True):
    """A revoked queue is finished: nothing of it is being worked on any more."""

    queue: int
    lease: int
    offset: int


class Leave(Request, frozen=True):
    """Nothing is being worked on any more: all queues may go to others."""

    serial: int


class Notice(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Groups to session."""


class Joined(Notice, frozen=True):
    """The session is a member; what could be granted at once came before, as `Granted`."""

    serial: int


class Granted(Notice, frozen=True):
    """The session owns a queue from now on."""

    queue: int
    lease: int
    offset: int
    attempts: list[Attempts]


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


class Rejoin(Notice, frozen=True):
    """`groups` was replaced: say `Join` again. Leases are as before."""


class Refused(Notice, frozen=True):
    """The request was not carried out: an error of shm.errors by class name."""

    serial: int
    error: str
    text: str


AnyRequest = Join | Commit | Released | Leave
AnyNotice = Joined | Granted | Revoke | Committed | Left | Rejoin | Refused

_ENCODER = msgspec.msgpack.Encoder()
_REQUESTS: msgspec.msgpack.Decoder[AnyRequest] = msgspec.msgpack.Decoder(AnyRequest)
_NOTICES: msgspec.msgpack.Decoder[AnyNotice] = msgspec.msgpack.Decoder(AnyNotice)


def encode(body: Request | Notice) -> bytes:
    """Body of an entry."""
    return _ENCODER.encode(body)


def decode_request(data: bytes) -> AnyRequest:
    """A request. Raises msgspec.DecodeError or its ValidationError if it is none."""
    return decode_packed(_REQUESTS, data)


def decode_notice(data: bytes) -> AnyNotice:
    """A notice. Raises msgspec.DecodeError or its ValidationError if it is none."""
    return decode_packed(_NOTICES, data)
