"""Attached sessions: their memory, their descriptors, and how much all may take together."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from gantrymq.brokerd.access import DESCRIPTORS_KEPT, Peer, is_reserved
from gantrymq.brokerd.bells import make_bell
from gantrymq.shm import limits, wire
from gantrymq.shm.arena import ArenaPlan, create_arena, map_arena, mark_evicted, plan_arena
from gantrymq.shm.bell import EventBell
from gantrymq.shm.codes import Role
from gantrymq.shm.errors import Rejected, Unavailable

#: A lane that a session does not use still has rings, of the least useful size.
_UNUSED_RING_BYTES: Final = 4096
_UP_BYTES_MAX: Final = 64 << 20
_SETTLING: Final = (
    "no room yet for another session: that of {} which have ended is free as soon as `groups` has"
    " stored what they consumed, and it does not get there; try again, or raise {}"
)


class ComingFree(Unavailable):
    """There is no room yet: sessions that have ended still have theirs, until `groups` says so."""


@dataclass(slots=True)
class SessionRecord:
    """A session as the supervisor keeps it; it owns the descriptors."""

    session: int
    peer: Peer
    plan: ArenaPlan
    arena_descriptor: int
    bell: EventBell
    producer: bytes
    groups: bool
    scheduler: bool = False
    transactions: bool = False
    owner: int = 0  # Role of the agent whose own it is; 0: a client's
    opened: set[int] = field(default_factory=set)  # slots of topics that it was told of

    @property
    def pid(self) -> int:
        """The process that attached."""
        return self.peer.pid

    @property
    def is_open(self) -> bool:
        """False once its descriptors are given back."""
        return self.arena_descriptor >= 0

    @property
    def descriptors(self) -> tuple[int, int]:
        """Arena and bell, as they go along with `SessionAdded`."""
        return self.arena_descriptor, self.bell.fileno()

    @property
    def ring_bytes(self) -> tuple[int, int, int, int]:
        """Writer up, writer down, groups up, groups down."""
        lanes = (self.plan.writer, self.plan.groups)
        return lanes[0].up_bytes, lanes[0].down_bytes, lanes[1].up_bytes, lanes[1].down_bytes

    def added(self) -> wire.SessionAdded:
        """What agents are told."""
        return wire.SessionAdded(
            self.session, self.pid, self.plan.size, self.ring_bytes, self.producer, self.groups,
            self.scheduler, self.transactions, self.owner,
        )  # fmt: skip


class Sessions:
    """All sessions of this life of the broker.

    `memory_max` and `count_max` hold for each uid: what one takes is not missing to another.
    """

    def __init__(self, epoch: int, memory_max: int, count_max: int) -> None:
        self._epoch = epoch
        self._memory_max = memory_max
        self._count_max = count_max
        self._next = 1
        self._open: dict[int, SessionRecord] = {}
        #: Over, but not yet in the ledger: what their words say would be lost with their memory.
        self._unsettled: dict[int, SessionRecord] = {}
        self._own: list[SessionRecord] = []

    def __len__(self) -> int:
        """Clients' sessions."""
        return len(self._open)

    def __iter__(self) -> Iterator[SessionRecord]:
        """All, the agents' own first."""
        return iter([*self._own, *self._open.values()])

    @property
    def unsettled(self) -> list[SessionRecord]:
        """Sessions that are over, and whose end a living `groups` has still to put down."""
        return list(self._unsettled.values())

    def own(self) -> list[SessionRecord]:
        """The agents' own."""
        return list(self._own)

    def opened(self) -> set[int]:
        """Slots of topics that clients' sessions were told of, ended ones that still count too."""
        held = (*self._open.values(), *self._unsettled.values())
        return set().union(*(record.opened for record in held))

    def get(self, session: int) -> SessionRecord | None:
        """A session that is attached."""
        return self._open.get(session)

    def open(self, hello: wire.Hello, peer: Peer) -> SessionRecord:
        """Make a session's memory. Raises Rejected, or Unavailable where a limit is reached."""
        plan = _plan(hello)
        self._require_room(plan, peer.uid)
        producer = wire.producer_number(hello.secret) if hello.secret else b""
        if producer and self._is_taken(producer, peer):
            raise Rejected("another process has a session under this producer's number")
        session = self._next
        arena, bell = _make(plan, self._epoch, session)
        self._next += 1
        record = SessionRecord(
            session, peer, plan, arena, bell, producer, hello.groups, hello.scheduler,
            hello.transactions,
        )  # fmt: skip
        self._open[session] = record
        return record

    def open_own(self, role: Role, bell: EventBell, segment_bytes: int) -> None:
        """Make an agent's own session, which outlives its process; `bell` is what wakes it.

        It ends with this life of the broker, and counts for nobody. Its way up takes copies of
        what is in the log, also from a time of a larger `max_message_size`.
        """
        most = min(limits.BODY_BYTES_MAX, segment_bytes) + limits.RECORD_OVERHEAD_BYTES_MAX
        up_bytes = 1 << (2 * most - 1).bit_length()  # an entry takes half of a ring at most
        unused = _UNUSED_RING_BYTES
        plan = plan_arena(up_bytes, limits.WRITER_DOWN_BYTES, unused, unused)
        arena = create_arena(plan, self._epoch, self._next)
        waking = EventBell(os.dup(bell.fileno()))
        peer = Peer(os.getpid(), os.getuid(), 0)
        # Random: what the last life's writer noted of it says nothing of this one's numbers.
        producer = os.urandom(wire.PRODUCER_BYTES)
        self._own.append(
            SessionRecord(self._next, peer, plan, arena, waking, producer, False, owner=role)
        )
        self._next += 1

    def _require_room(self, plan: ArenaPlan, uid: int) -> None:
        attached = [r.plan.size for r in self._open.values() if r.peer.uid == uid]
        over = [r.plan.size for r in self._unsettled.values() if r.peer.uid == uid]
        sizes = attached + over
        room = len(attached) < self._count_max and sum(attached) + plan.size <= self._memory_max
        coming = room and bool(over)
        if len(sizes) >= self._count_max:
            if coming:
                raise ComingFree(_SETTLING.format(len(over), "sessions_max"))
            raise Unavailable(
                f"{self._count_max} sessions are attached: end some, or raise sessions_max"
            )
        if sum(sizes) + plan.size > self._memory_max:
            if coming:
                raise ComingFree(_SETTLING.format(len(over), "session_memory_max"))
            raise Unavailable(
                f"the sessions' memory is used up ({sum(sizes)} of {self._memory_max} bytes, "
                f"{plan.size} more were asked for): end some, or raise session_memory_max"
            )

    def _is_taken(self, producer: bytes, peer: Peer) -> bool:
        """One process may replace its session; nobody else may send in its name."""
        return any(
            record.producer == producer and not record.peer.is_same_process(peer)
            for record in self._open.values()
        )

    def close(self, session: int) -> SessionRecord | None:
        """End a session; whoever has mapped its memory may go on writing where nobody reads.

        That of a consumer is kept until it is `settled`.
        """
        record = self._open.pop(session, None)
        if record is not None:
            if record.groups:
                self._unsettled[session] = record
            else:
                _give_back(record)
        return record

    def take_back(self, record: SessionRecord) -> None:
        """End a session that nobody has heard of."""
        self._open.pop(record.session, None)
        _give_back(record)

    def settled(self, session: int) -> None:
        """The ledger has the end of a session: forget it."""
        record = self._unsettled.pop(session, None)
        if record is not None:
            _give_back(record)

    def mark_evicted(self, record: SessionRecord) -> None:
        """Tell the client in its own memory, and wake it."""
        mark_evicted(map_arena(record.arena_descriptor, record.plan.size))
        record.bell.ring()


def _give_back(record: SessionRecord) -> None:
    descriptor, record.arena_descriptor = record.arena_descriptor, -1
    os.close(descriptor)
    record.bell.close()


def _make(plan: ArenaPlan, epoch: int, session: int) -> tuple[int, EventBell]:
    """Memory and bell of a session. Raises Unavailable where the system gives none."""
    why = f"only {DESCRIPTORS_KEPT} descriptors are left"
    bell = None
    try:
        bell = make_bell()
        arena = create_arena(plan, epoch, session)
        if not is_reserved(arena):
            return arena, bell
        os.close(arena)
    except OSError as error:
        why = error.strerror or str(error)
    if bell is not None:
        bell.close()
    raise no_room(why)


def no_room(why: str) -> Unavailable:
    """The system has nothing left for a session."""
    return Unavailable(
        f"no room for another session ({why}): end some, or raise the broker's limits (LimitNOFILE,"
        " memory)"
    )


def _plan(hello: wire.Hello) -> ArenaPlan:
    if hello.secret and len(hello.secret) < wire.PRODUCER_BYTES:
        least, found = wire.PRODUCER_BYTES, len(hello.secret)
        raise Rejected(f"a producer's secret has at least {least} bytes, not {found}")
    up = hello.up_bytes or limits.WRITER_UP_BYTES
    if up & (up - 1) or not _UNUSED_RING_BYTES <= up <= _UP_BYTES_MAX:
        raise Rejected(f"a ring of {up} bytes: choose a power of two up to {_UP_BYTES_MAX}")
    unused = _UNUSED_RING_BYTES
    writer = (up, limits.WRITER_DOWN_BYTES) if hello.secret else (unused, unused)
    groups = (limits.GROUPS_UP_BYTES, limits.GROUPS_DOWN_BYTES) if hello.groups else (unused,) * 2
    return plan_arena(*writer, *groups)
