"""The control socket: who may talk to the broker, and the frames of each connection.

A connection that breaks the rules is ended, and nobody else's notices. Nothing here blocks: a
client that does not read its answers loses its connection, and so does one that never says who it
is. What is promised against whom: docs/security.md.
"""

from __future__ import annotations

import heapq
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Final, Protocol

import msgspec

from gantrymq.brokerd.access import Access, Peer, is_reserved, own_access, peer_of
from gantrymq.brokerd.attachpace import AttachPace
from gantrymq.brokerd.log import Log, traced
from gantrymq.brokerd.reactor import Reactor
from gantrymq.brokerd.sessions import ComingFree
from gantrymq.clients.home import SOCKET_NAME, run_of, socket_address
from gantrymq.shm import layout, wire
from gantrymq.shm.errors import (
    DiskFull,
    GantryError,
    Incompatible,
    NotPermitted,
    Rejected,
    StoreFailed,
    Unavailable,
)
from gantrymq.shm.held import Descriptor
from gantrymq.shm.storage import is_disk_full

_BACKLOG: Final = 128
#: Connections without a session, of command lines.
LOOKS_MAX: Final = 64
#: Connections that have said nothing yet; one more ends the oldest of them.
SILENT_MAX: Final = 128
#: How long a connection may say nothing. A client says Hello at once.
SILENT_NS: Final = 10_000_000_000
#: Connections whose session waits for the end of others; one more is refused at once.
WAITING_MAX: Final = 128
#: How long one waits: less than a client does for an answer.
WAIT_NS: Final = 20_000_000_000
#: Connections that wait for their process's turn; one more is refused at once.
PACED_MAX: Final = 1024
#: Frames of one connection before others have their turn: one may make a topic, which is a write.
_FRAMES_AT_ONCE: Final = 4


@dataclass(frozen=True, slots=True)
class Later:
    """An answer that may be asked for once the desk has committed. It may raise GantryError."""

    answer: Callable[[], wire.Frame]


class Desk(Protocol):
    """What the supervisor does for connections. Methods raise GantryError to refuse."""

    def attach(self, hello: wire.Hello, peer: Peer) -> tuple[wire.Welcome, tuple[Descriptor, ...]]:
        """Open a session (none for `look`); the caller closes the descriptors.

        Raises ComingFree where there will be room soon.
        """
        ...

    def detach(self, session: int) -> None:
        """The session's connection is gone."""
        ...

    def carry_out(self, frame: wire.AnyFrame, session: int) -> wire.Frame | Later:
        """Any other request, of a session, or of a command line (0)."""
        ...

    def commit(self) -> None:
        """Carry out what later answers wait for."""
        ...


class ControlServer:
    """Listens at HOME/run/control.sock."""

    def __init__(
        self, home: Path, reactor: Reactor, desk: Desk, log: Log, access: Access | None = None
    ) -> None:
        self.reactor = reactor
        self.desk = desk
        self.log = log
        self.access = access or own_access()
        self._home = home
        self._connections: dict[int, Connection] = {}  # by descriptor
        self._silent: dict[int, Connection] = {}  # of them those without a Hello, oldest first
        self._owed: list[tuple[Connection, wire.AnyFrame, Later]] = []
        self._waiting: list[Connection] = []  # for room for their session
        self._pace = AttachPace()
        self._paced: list[tuple[int, int, Connection]] = []  # by when their turn is
        self._arrivals = count()  # of those that have the same turn
        self._now_ns = 0  # of the last look
        self._listener: socket.socket | None = None
        self._inode = 0  # of its file

    def listen(self) -> None:
        """Start to accept. The store's lock is held: a socket file found is a dead broker's."""
        path = run_of(self._home) / SOCKET_NAME
        path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        old_mask = os.umask(0o177)
        try:
            with socket_address(self._home) as address:
                listener.bind(address)
        except OSError as error:
            error.filename = error.filename or str(path)  # a socket's error names none
            raise
        finally:
            os.umask(old_mask)
        listener.listen(_BACKLOG)
        self._listener, self._inode = listener, path.stat().st_ino
        self.reactor.watch(listener.fileno(), self._accept)

    def stop_listening(self) -> None:
        """Accept no more; connections stay."""
        if self._listener is not None:
            path = run_of(self._home) / SOCKET_NAME
            with suppress(FileNotFoundError):
                # Not that of another broker, which comes only where this one is heard no more.
                if path.stat().st_ino == self._inode:
                    path.unlink()
            self.reactor.forget(self._listener.fileno())
            self._listener.close()
            self._listener = None

    def close(self) -> None:
        """End every connection."""
        self.stop_listening()
        for connection in list(self._connections.values()):
            connection.end()

    def evict(self, session: int, why: str) -> None:
        """Tell a session's client why it is over, and end its connection."""
        for connection in list(self._connections.values()):
            if connection.session == session:
                connection.reply(wire.Refused("Evicted", why))
                connection.end()

    def answer(self) -> None:
        """Commit, and give the answers that wait for it. Called after each look for requests."""
        owed, self._owed = self._owed, []
        if owed:
            self.desk.commit()
        for connection, frame, later in owed:
            connection.give(frame, later)

    def owe(self, connection: Connection, frame: wire.AnyFrame, later: Later) -> None:
        """Called by a connection whose answer comes with `answer`."""
        self._owed.append((connection, frame, later))

    def wait_for_room(self, connection: Connection) -> bool:
        """Called by a connection whose session finds no room yet; False if too many wait."""
        if len(self._waiting) >= WAITING_MAX:
            return False
        self._waiting.append(connection)
        self._silent.pop(connection.descriptor, None)
        return True

    def must_wait(self, connection: Connection) -> bool:
        """Called by a connection that says Hello: whether its turn is later. Raises Unavailable."""
        turn_ns = self._pace.turn_ns(connection.peer, self._now_ns)
        if turn_ns > self._now_ns and len(self._paced) >= PACED_MAX:
            raise Unavailable(
                f"{PACED_MAX} connections wait to be attached: keep sessions, and share them"
            )
        self._pace.take(connection.peer, self._now_ns)
        if turn_ns <= self._now_ns:
            return False
        heapq.heappush(self._paced, (turn_ns, next(self._arrivals), connection))
        self._silent.pop(connection.descriptor, None)
        return True

    def wait_ns(self, now_ns: int) -> int | None:
        """How long until the next turn of a connection that waits; None if none does."""
        return max(0, self._paced[0][0] - now_ns) if self._paced else None

    def look(self, now_ns: int) -> None:
        """End connections that have said nothing for too long, let in who has waited for room.

        Called now and then, and whenever a session has ended for good.
        """
        self._now_ns = now_ns
        while self._paced and self._paced[0][0] <= now_ns:
            heapq.heappop(self._paced)[2].try_again(now_ns)
        waiting, self._waiting = self._waiting, []
        for connection in waiting:
            connection.try_again(now_ns)
        for connection in list(self._silent.values()):
            connection.silent_until_ns = connection.silent_until_ns or now_ns + SILENT_NS
            if now_ns >= connection.silent_until_ns:
                connection.end()

    def heard_of(self, connection: Connection) -> None:
        """Called by a connection that has said Hello."""
        self._silent.pop(connection.descriptor, None)

    def require_room_for_look(self) -> None:
        """Raise Unavailable where so many connections have no session already."""
        looks = sum(1 for c in self._connections.values() if c.greeted and not c.session)
        if looks >= LOOKS_MAX:
            raise Unavailable(f"{LOOKS_MAX} command lines are connected: end some")

    def forget(self, connection: Connection) -> None:
        """Called by a connection that ends."""
        self._connections.pop(connection.descriptor, None)
        self._silent.pop(connection.descriptor, None)

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            channel, _address = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as error:
            # The system has none left; those who are attached go on.
            self.log.warning("accept_failed", error=str(error))
            return
        try:
            self._admit(Connection(self, channel))
        except OSError as error:
            self.log.warning("accept_failed", error=str(error))
            channel.close()

    def _admit(self, connection: Connection) -> None:
        if not self.access.may_connect(connection.peer.uid):
            connection.refuse(NotPermitted("this broker serves the user who started it only"))
            return
        if is_reserved(connection.descriptor):
            self.log.warning("accept_failed", error="no descriptors are left")
            connection.refuse(
                Unavailable(
                    "the broker has no descriptors left: end some clients, or raise its limit"
                    " (LimitNOFILE=, ulimit -n)"
                )
            )
            return
        self._connections[connection.descriptor] = connection
        self._silent[connection.descriptor] = connection
        if len(self._silent) > SILENT_MAX:
            next(iter(self._silent.values())).end()


class Connection:
    """One client, or command line, and its session."""

    def __init__(self, server: ControlServer, channel: socket.socket) -> None:
        channel.setblocking(False)
        self._server = server
        self._channel = channel
        self.descriptor = channel.fileno()
        self.peer = peer_of(channel)
        self.session = 0
        self.greeted = False
        self.silent_until_ns = 0  # 0: not looked at yet
        self._serial = 0  # of the request that is being answered
        self._owed = False  # an answer: nothing is taken before
        self._hello: wire.Hello | None = None  # waits for its turn, or for room
        self._had_turn = False
        self._wait_until_ns = 0
        server.reactor.watch(self.descriptor, self._hear)

    def reply(self, frame: wire.Frame, descriptors: tuple[int, ...] = ()) -> None:
        """Send an answer; a client that cannot take it loses its connection."""
        try:
            answer = msgspec.structs.replace(frame, serial=self._serial)
            wire.send(self._channel, answer, descriptors)
        except OSError:
            self.end()

    def refuse(self, error: GantryError) -> None:
        """Say why, and end the connection."""
        self.reply(_refusal(error))
        self.end()

    def end(self) -> None:
        """Close the connection and with it the session. Safe to call twice."""
        if self.descriptor < 0:
            return
        self._server.reactor.forget(self.descriptor)
        self._server.forget(self)
        self.descriptor = -1
        self._channel.close()
        if self.session:
            self._server.desk.detach(self.session)

    def _hear(self) -> None:
        for _ in range(_FRAMES_AT_ONCE):
            if self.descriptor < 0 or self._owed or not self._hear_one():
                return

    def _hear_one(self) -> bool:
        try:
            frame = wire.receive_alone(self._channel)
        except BlockingIOError:
            return False
        except msgspec.MsgspecError as error:
            self._server.log.warning("bad_frame", pid=self.peer.pid, session=self.session)
            self.refuse(Rejected(f"that frame is none of ours: {error}"))
            return False
        except OSError:
            frame = None
        if frame is None:
            self.end()
            return False
        self._answer(frame, partial(self._carry_out, frame))
        return True

    def give(self, frame: wire.AnyFrame, later: Later) -> None:
        """Send the answer of a request that waited for the desk's commit."""
        self._owed = False
        if self.descriptor >= 0:
            self._answer(frame, lambda: self.reply(later.answer()))

    def try_again(self, now_ns: int) -> None:
        """Open the session that waits, if it is still wanted and there is room."""
        hello = self._hello
        if self.descriptor < 0 or hello is None:
            return
        self._wait_until_ns = self._wait_until_ns or now_ns + WAIT_NS
        self._hello = None
        self._server.reactor.watch(self.descriptor, self._hear)
        if _has_ended(self._channel):
            self.end()
            return
        may_wait = now_ns < self._wait_until_ns
        self._answer(hello, partial(self._greet, hello, may_wait=may_wait))

    def _carry_out(self, frame: wire.AnyFrame) -> None:
        if isinstance(frame, wire.Hello):
            self._greet(frame, may_wait=True)
        elif not self.greeted:
            self.refuse(Rejected("the first frame must be Hello"))
        elif isinstance(frame, wire.OWNERS_ONLY) and not self._is_owner:
            what = type(frame).__name__
            raise NotPermitted(f"{what} is for the user who started this broker, and root")
        else:
            answer = self._server.desk.carry_out(frame, self.session)
            if isinstance(answer, Later):
                self._owed = True
                self._server.owe(self, frame, answer)
            else:
                self.reply(answer)

    def _answer(self, frame: wire.AnyFrame, act: Callable[[], None]) -> None:
        """Do what answers a request; an error is told."""
        self._serial = frame.serial
        try:
            act()
        except GantryError as error:
            self._decline(error)
        except OSError as error:  # the asker's trouble, and not that of all others
            what = type(frame).__name__
            self._server.log.error("request_failed", request=what, why=str(error))
            kind = DiskFull if is_disk_full(error) else StoreFailed
            self._decline(kind(f"{what} could not be carried out: {error}"))
        except Exception as error:  # a defect of ours, met by one asker: all others go on
            what, trace = type(frame).__name__, traced(error)
            self._server.log.error("request_failed", request=what, why=repr(error), trace=trace)
            self._decline(GantryError(f"{what} could not be carried out: {error!r}: report it"))
        finally:
            self._serial = 0

    def _decline(self, error: GantryError) -> None:
        if self.greeted:
            self.reply(_refusal(error))
        else:
            self.refuse(error)

    @property
    def _is_owner(self) -> bool:
        return self._server.access.is_owner(self.peer.uid)

    def _greet(self, hello: wire.Hello, *, may_wait: bool) -> None:
        if self.greeted:
            self.refuse(Rejected("a connection has one session"))
            return
        if hello.fingerprint != layout.FINGERPRINT:
            raise Incompatible(
                "the broker runs another version of gantrymq: restart it and the application with"
                " the same one"
            )
        if hello.kind == "look":
            self._server.require_room_for_look()
        if not self._had_turn:
            self._had_turn = True  # whoever has waited does not wait again
            if self._server.must_wait(self):
                self._wait(hello)
                return
        try:
            welcome, handed = self._server.desk.attach(hello, self.peer)
        except ComingFree as error:
            if not (may_wait and self._server.wait_for_room(self)):
                raise Unavailable(str(error)) from error
            self._wait(hello)
            return
        self.greeted = True
        self.session = welcome.session
        self._server.heard_of(self)
        self._hand_over(welcome, handed)

    def _hand_over(self, welcome: wire.Welcome, handed: Sequence[Descriptor]) -> None:
        self.reply(welcome, tuple(one.number for one in handed))
        for one in handed:  # the client has its own by now
            one.close()

    def _wait(self, hello: wire.Hello) -> None:
        self._hello = hello
        self._server.reactor.forget(self.descriptor)  # its end is seen when it is tried again


def _has_ended(channel: socket.socket) -> bool:
    """Whether the other end of a connection is closed."""
    try:
        return not channel.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True


def _refusal(error: GantryError) -> wire.Refused:
    return wire.Refused(type(error).__name__, str(error))
