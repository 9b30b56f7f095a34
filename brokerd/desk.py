"""What clients ask the supervisor for: sessions, topics, and a look at the broker."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from gantrymq.brokerd import agents
from gantrymq.brokerd.bells import hand_out
from gantrymq.brokerd.config import describe
from gantrymq.brokerd.control import Later
from gantrymq.brokerd.roster import Roster
from gantrymq.brokerd.sessions import no_room
from gantrymq.shm import layout, wire
from gantrymq.shm.codes import Role
from gantrymq.shm.errors import BrokerGone, GroupIllegal, Rejected
from gantrymq.shm.held import Descriptor

if TYPE_CHECKING:
    from gantrymq.brokerd.access import Peer
    from gantrymq.brokerd.broker import Broker
    from gantrymq.brokerd.sessions import SessionRecord
    from gantrymq.shm.board import TopicSlot

#: Agents that clients ring, in the order in which their bells are handed out.
_RUNG: Final = (Role.WRITER, Role.GROUPS, Role.SCHEDULER, Role.TXN_CHECKER)


class TellAll(Protocol):
    """Says something to every process of agents."""

    def __call__(self, frame: wire.Frame, session: SessionRecord | None = None) -> None: ...


class SessionDesk:
    """Answers the frames of the control socket (`brokerd.control.Desk`)."""

    def __init__(
        self,
        broker: Broker,
        tell_all: TellAll,
        stop: Callable[[str], None],
        pids: Callable[[], dict[str, int]],
    ) -> None:
        #: True once nobody may attach any more.
        self.closed = False
        self.roster = Roster(broker.sessions, broker.env.clock)
        self._broker = broker
        self._log = broker.log
        self._tell_all = tell_all
        self._stop = stop
        self._pids = pids

    def attach(self, hello: wire.Hello, peer: Peer) -> tuple[wire.Welcome, tuple[Descriptor, ...]]:
        """Open a session and tell the agents; what the client is handed: memory, bells."""
        if self.closed:
            raise BrokerGone("the broker is stopping: try again when it has been started")
        broker = self._broker
        store = str(broker.env.storage.root)
        if hello.kind == "look":
            look = wire.Welcome(0, broker.life.epoch, broker.board.name, store, 0, (0, 0, 0, 0))
            return look, ()
        bells = broker.env.bells
        record = broker.sessions.open(hello, peer)
        try:
            handed = (
                Descriptor(os.dup, record.arena_descriptor),
                hand_out(record.bell),
                *(hand_out(agents.bell_of(bells, role)) for role in _RUNG),
            )
        except OSError as error:
            broker.sessions.take_back(record)
            raise no_room(error.strerror or str(error)) from error
        self._tell_all(record.added(), record)
        self._count_sessions()
        self._log.debug("attached", session=record.session, pid=peer.pid)
        settings = broker.configuration.settings
        welcome = wire.Welcome(
            record.session,
            broker.life.epoch,
            broker.board.name,
            store,
            record.plan.size,
            record.ring_bytes,
            settings.broker_name,
            settings.timer_precision_ms,
            broker.life.store_id,
        )
        return welcome, handed

    def detach(self, session: int) -> None:
        """The client is gone: its lanes are nobody's any more."""
        if self._broker.sessions.close(session) is None:
            return
        self.roster.left(session)
        self._tell_all(wire.SessionRemoved(session))
        self._count_sessions()
        self._log.debug("detached", session=session)

    def evict(self, session: int, why: str) -> bool:
        """Tell a client in its memory that its session is over; False if there is none."""
        record = self._broker.sessions.get(session)
        if record is None:
            return False
        self._broker.sessions.mark_evicted(record)  # first: who reads of it may rely on it
        self._log.warning("evicted", session=session, pid=record.pid, why=why)
        return True

    def commit(self) -> None:
        """Put into the files what requests have changed since: one write for all."""
        self._broker.metadata.commit()

    def carry_out(self, frame: wire.AnyFrame, session: int) -> wire.Frame | Later:
        """Answer a request. Raises GantryError to refuse."""
        metadata = self._broker.metadata
        match frame:
            case wire.OpenTopic():
                return self._later(session, self._open(frame))
            case wire.CreateTopic(name, queues, level):
                return self._later(session, metadata.plan_create(name, queues, level))
            case wire.DeleteTopic(name):
                answer = metadata.plan_delete(name)
                return Later(lambda: (answer(), wire.Done())[1])
            case wire.DeleteGroup(name):
                return self._delete_group(name)
            case wire.ShowSettings():
                return self._settings()
            case wire.ShowMembers(group, after):
                return self.roster.page(group, after)
            case wire.StopBroker():
                self._stop("a client asked for it")
                return wire.Done()
            case _:
                raise Rejected(f"a client does not send {type(frame).__name__}")

    def _open(self, asked: wire.OpenTopic) -> Callable[[], TopicSlot]:
        metadata = self._broker.metadata
        if asked.was_open:
            return metadata.plan_open_again(asked.name)
        return metadata.plan_open(asked.name, create=asked.create, of_member=asked.of_member)

    def _delete_group(self, name: str) -> Later:
        """Forget a group; how far it was, `groups` has forgotten before."""
        if self.roster.page(name, 0).members:
            raise GroupIllegal(
                f"group {name!r} has members: end them first, `gantrymq group describe {name}`"
                " shows them"
            )
        metadata = self._broker.metadata
        known = name in metadata.groups
        topics = metadata.plan_delete_group(name)

        def deleted() -> wire.Frame:
            for answer in topics.values():
                answer()
            return wire.GroupDeleted(known, list(topics))

        return Later(deleted)

    def _later(self, session: int, answer: Callable[[], TopicSlot]) -> Later:
        """The answer to who asked for a topic, which keeps its place as long as that one lives."""
        record = self._broker.sessions.get(session)

        def opened() -> wire.Frame:
            topic = answer()
            if record is not None:
                record.opened.add(topic.slot)
            return _opened(topic)

        return Later(opened)

    def _settings(self) -> wire.Settings:
        rows = describe(self._broker.configuration)
        return wire.Settings(
            {str(row["name"]): row["value"] for row in rows},
            {str(row["name"]): str(row["origin"]) for row in rows},
            {"supervisor": os.getpid(), **self._pids()},
        )

    def _count_sessions(self) -> None:
        count = len(self._broker.sessions)
        self._broker.board.set_half(layout.BOARD_SESSION_COUNT, count)


def _opened(topic: TopicSlot) -> wire.TopicOpened:
    return wire.TopicOpened(
        topic.slot, topic.name, topic.queue_base, topic.queue_count, topic.write_queues, topic.level
    )
