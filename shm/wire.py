"""Control frames: what supervisor, clients and agents say over Unix sockets (msgpack).

One frame is one SOCK_SEQPACKET packet of at most FRAME_BYTES_MAX. Descriptors travel beside it
(SCM_RIGHTS).
"""

from __future__ import annotations

import array
import errno
import hashlib
import os
import socket
from io import FileIO
from itertools import repeat
from typing import Any, Final

import msgspec

from gantrymq.shm import errors
from gantrymq.shm.held import hold
from gantrymq.shm.packed import decode_packed
from gantrymq.shm.valueranges import (
    Digest,
    Name,
    Pid,
    ProducerSecret,
    QueueCount,
    RingBytes,
    Serial,
    SessionNumber,
    Word,
)

FRAME_BYTES_MAX: Final = 64 * 1024
DESCRIPTORS_MAX: Final = 8
PRODUCER_BYTES: Final = 10
_ANCILLARY_BYTES: Final = socket.CMSG_LEN(DESCRIPTORS_MAX * 4)


class Frame(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Base of all frames; the class name is the tag.

    An answer has the `serial` of its request, so that one whose wait was broken off is known when
    it comes; 0 is what nobody asked for.
    """

    serial: Serial = 0


# client -> supervisor -------------------------------------------------------------------------


def producer_number(secret: bytes) -> bytes:
    """The number of a producer, which begins the id of each of its messages: anybody reads it.

    Who attaches shows what it is made of, so that nobody else ever sends in its name.
    """
    return hashlib.sha256(secret).digest()[:PRODUCER_BYTES]


class Hello(Frame, frozen=True):
    """Opens a session. `kind` is client or look (no arena: command line)."""

    pid: Pid
    fingerprint: Digest
    kind: Word = "client"
    #: What only this producer knows, of which its number is made; empty where it does not send.
    secret: ProducerSecret = b""
    groups: bool = False  # wants a lane with groups
    scheduler: bool = False  # wants a lane with the scheduler
    transactions: bool = False  # wants a lane with the txn-checker
    up_bytes: RingBytes = 0  # size of the writer lane's up ring, a power of two; 0 = the default


class OpenTopic(Frame, frozen=True):
    """Asks for a topic's number; `create` lets the broker make it by its settings.

    With `of_member` the session is about to join the group whose retry or dead-letter topic it is:
    the topic is made though nobody knows the group yet. With `was_open` the client had it open in
    a session before: a topic that was deleted since is opened as that session would still have it,
    hidden until somebody makes it again.
    """

    name: Name
    create: bool = True
    of_member: bool = False
    was_open: bool = False


class CreateTopic(Frame, frozen=True):
    """Makes a topic (owner of the broker only)."""

    name: Name
    queues: QueueCount
    level: Word = "written"


class DeleteTopic(Frame, frozen=True):
    """Forgets a topic (owner only)."""

    name: Name


class DeleteGroup(Frame, frozen=True):
    """Forgets a group that has no members: its entry, its retry topic (owner only).

    `groups` is asked before, to forget how far it is (groupwire.DeleteGroup).
    """

    name: Name


class ShowSettings(Frame, frozen=True):
    """Asks for the broker's settings and where its files are."""


class ShowMembers(Frame, frozen=True):
    """Asks who is a member of a group, of any for "", from the session behind `after` on."""

    group: Name = ""
    after: SessionNumber = 0


class StopBroker(Frame, frozen=True):
    """Asks for a clean stop (owner only)."""


#: Only the broker's owner may send these: they end it, change what all see, or tell of others.
OWNERS_ONLY: Final = (
    CreateTopic, DeleteTopic, DeleteGroup, ShowSettings, ShowMembers, StopBroker,
)  # fmt: skip


# supervisor -> client -------------------------------------------------------------------------


class Welcome(Frame, frozen=True):
    """A session. Descriptors with it: arena, and bells.

    These are the bells of client, writer, groups, scheduler, txn-checker, in this order.
    """

    session: int
    epoch: int
    board: str
    store: str
    arena_bytes: int
    ring_bytes: tuple[int, int, int, int]  # writer up, down, groups up, down
    # Settings that recall handles are made of (DT-70).
    broker_name: str = ""
    timer_precision_ms: int = 1000
    #: shm/lineage.py; what a client attaches to again must have the same.
    store_id: str = ""


class TopicOpened(Frame, frozen=True):
    """A topic as on the board."""

    slot: int
    name: str
    queue_base: int
    queues: int
    write_queues: int
    level: int


class Done(Frame, frozen=True):
    """The request was carried out."""


class GroupDeleted(Frame, frozen=True):
    """The group has no entry any more; `known`: it had. `topics` of it were deleted as well."""

    known: bool
    topics: list[str]


class Settings(Frame, frozen=True):
    """Settings with their origins, and the pids of the broker."""

    values: dict[str, Any]
    origins: dict[str, str]
    pids: dict[str, int]


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A session in a group, as it has joined. It may own queues, or none."""

    group: str
    session: int
    pid: int
    joined_ms: int  # wall clock
    subscription: str = ""  # what it states of it, or the names of its topics
    orderly: bool = False
    max_attempts: int = 0  # 0: not stated
    assignment: str = ""  # how queues are to be spread; "": not stated
    by_hand: bool = False  # it takes the queues that it names


#: Characters of a member's subscription, and members in a frame: it has room for them.
MEMBER_CHARACTERS: Final = 1000
MEMBERS_PER_FRAME: Final = 12


class Members(Frame, frozen=True):
    """Members by session, at most MEMBERS_PER_FRAME; with `more` there are others behind them."""

    members: list[Member]
    more: bool = False


class Refused(Frame, frozen=True):
    """The request was not carried out: an error of shm.errors by class name."""

    error: str
    text: str

    def as_error(self) -> errors.GantryError:
        """The exception to raise at the client."""
        kind = getattr(errors, self.error, errors.GantryError)
        if not (isinstance(kind, type) and issubclass(kind, errors.GantryError)):
            kind = errors.GantryError
        return kind(self.text)


# supervisor -> agent --------------------------------------------------------------------------


class SessionAdded(Frame, frozen=True):
    """A session to serve. Descriptors with it: arena, client's bell."""

    session: int
    pid: int
    arena_bytes: int
    ring_bytes: tuple[int, int, int, int]
    producer: bytes
    groups: bool
    scheduler: bool = False
    transactions: bool = False
    owner: int = 0  # Role of the broker's agent whose own session it is: that may APPEND


class SessionRemoved(Frame, frozen=True):
    """A session that ended."""

    session: int


class Pass(Frame, frozen=True):
    """Say so, by a Note `PASSED`, when all before this is heard and the cycle after it is over."""

    number: int


class Stop(Frame, frozen=True):
    """Finish what has been accepted, make it durable, exit with 0."""


# agent -> supervisor --------------------------------------------------------------------------


class CutOff(Frame, frozen=True):
    """A session broke the rules; end it."""

    session: int
    why: str


class Failed(Frame, frozen=True):
    """The store failed at this agent; the board says FAILED."""

    errno: int
    what: str


#: Events of the Notes by which `groups` says who has joined a group (fields of Member but for
#: `pid` and `joined_ms`), and which `session` has left its own. The end of a session needs none.
GROUP_JOINED: Final = "group_joined"
GROUP_LEFT: Final = "group_left"
#: Event of the Note by which `groups` says that it has forgotten groups that never consumed
#: anything (`groups`), since there were too many.
GROUPS_DROPPED: Final = "groups_dropped"
#: Event of the Note by which `groups` says whose end is in the ledger (`sessions`): until then the
#: supervisor keeps their memory for a successor of `groups`.
SESSIONS_SETTLED: Final = "sessions_settled"
#: Event of the Note by which a process of agents answers `Pass` (field `number`).
PASSED: Final = "passed"
#: Event of the Note by which retention asks for higher first offsets: `queues` holds pairs of a
#: board queue and the first queue offset whose record stays. It asks again until the board says so.
QUEUES_BEGIN: Final = "queues_begin"


#: Event of the Note by which the scheduler asks for a topic (field `topic`) that a parked record
#: names and the board has not: it is delivered all the same (DT-16).
TOPIC_WANTED: Final = "topic_wanted"
#: Event of the Note by which `groups` asks for the retry or dead-letter topic of a group (field
#: `topic`) that was deleted while the group is at work: it is made again.
GROUP_TOPIC_WANTED: Final = "group_topic_wanted"


#: Event of the Note by which an agent says that it has set a request aside which had ended it
#: again and again: its deaths until then tell nothing of the next ones.
REQUEST_SET_ASIDE: Final = "request_set_aside"


class Note(Frame, frozen=True):
    """A line for the log."""

    level: str
    event: str
    fields: dict[str, Any] = {}


AnyFrame = (
    Hello | OpenTopic | CreateTopic | DeleteTopic | DeleteGroup | ShowSettings | ShowMembers
    | StopBroker | Welcome | TopicOpened | Done | GroupDeleted | Settings | Members | Refused
    | SessionAdded | SessionRemoved | Pass | Stop | CutOff | Failed | Note
)  # fmt: skip

_ENCODER = msgspec.msgpack.Encoder()
_DECODER: msgspec.msgpack.Decoder[AnyFrame] = msgspec.msgpack.Decoder(AnyFrame)


def encode(frame: Frame) -> bytes:
    """A frame's bytes."""
    return _ENCODER.encode(frame)


def decode(data: bytes) -> AnyFrame:
    """A frame. Raises msgspec.DecodeError or ValidationError if it is none."""
    return decode_packed(_DECODER, data)


def send(channel: socket.socket, frame: Frame, descriptors: tuple[int, ...] = ()) -> None:
    """Send one frame. Raises BrokenPipeError, BlockingIOError, ... as sockets do."""
    data = encode(frame)
    if len(data) > FRAME_BYTES_MAX:
        raise ValueError(f"frame {type(frame).__name__} has {len(data)} bytes")
    if descriptors:
        socket.send_fds(channel, [data], list(descriptors))
    else:
        channel.send(data)


def receive(channel: socket.socket) -> tuple[AnyFrame, list[int]] | None:
    """The next frame and its descriptors, which the caller owns; None at the end of the stream.

    Raises msgspec.DecodeError for what is no frame, or too long for one; Unavailable if this
    process had no room for all descriptors: the frame is lost with them.
    """
    # Not socket.recv_fds, which drops its flags: the descriptors would be inherited by programs.
    data, ancillary, flags, _address = channel.recvmsg(
        FRAME_BYTES_MAX, _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC
    )
    descriptors = _descriptors_in(ancillary)
    try:
        if flags & socket.MSG_CTRUNC:
            raise errors.Unavailable("no free descriptors for those that come with a frame")
        # A packet of no bytes looks as the end does, but for what came beside it.
        return (_whole(data, flags), descriptors) if data or ancillary else None
    except BaseException:
        for descriptor in descriptors:
            os.close(descriptor)
        raise


def receive_owned(channel: socket.socket) -> tuple[AnyFrame, list[FileIO]] | None:
    """`receive` of a client, in which a signal handler may raise: the descriptors as files.

    Whoever drops a file has given it back. Raises OSError (EMFILE) if this process had no room for
    all of them.
    """
    packets: list[Any] = []
    files: list[FileIO] = []
    try:
        data, ancillary, flags, _address = hold(
            packets, channel.recvmsg, FRAME_BYTES_MAX, _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC
        )
        files[:] = map(FileIO, _descriptors_in(ancillary), repeat("r+"))  # in one step, as well
        if flags & socket.MSG_CTRUNC:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return (_whole(data, flags), files) if data or ancillary else None
    except BaseException:
        for file in files:
            file.close()
        if packets and not files:
            for descriptor in _descriptors_in(packets[0][1]):
                os.close(descriptor)
        raise


def receive_alone(channel: socket.socket) -> AnyFrame | None:
    """`receive` from somebody who has no descriptors to give: none comes into this process."""
    # Without room for them the kernel drops them.
    data, _ancillary, flags, _address = channel.recvmsg(FRAME_BYTES_MAX)
    return _whole(data, flags) if data else None


def _whole(data: bytes, flags: int) -> AnyFrame:
    if flags & socket.MSG_TRUNC:
        raise msgspec.DecodeError(f"more than {FRAME_BYTES_MAX} bytes")
    return decode(data)


def _descriptors_in(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    found = array.array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            # Of a truncated message only whole numbers count.
            found.frombytes(data[: len(data) - len(data) % found.itemsize])
    return found.tolist()
