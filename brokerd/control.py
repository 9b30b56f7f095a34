"""The control socket: who may talk to the broker, and the frames of each connection.

A connection that breaks the rules is ended, and nobody else's notices. Nothing here blocks: a
client that does not read its answers loses its connection.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from pathlib import Path
from typing import Final, Protocol

import msgspec

from brokerd.log import Log
from brokerd.reactor import Reactor
from clients.home import SOCKET_NAME, run_of, socket_address
from shm import layout, wire
from shm.errors import GantryError, Incompatible, NotPermitted, Rejected

_UCRED: Final = struct.Struct("3i")
_BACKLOG: Final = 128
#: Connections beyond the sessions that are allowed: command lines, and those that say nothing yet.
_SPARE_CONNECTIONS: Final = 64
_FRAMES_AT_ONCE: Final = 32


class Desk(Protocol):
    """What the supervisor does for connections. Methods raise GantryError to refuse."""

    connections_max: int

    def attach(self, hello: wire.Hello, pid: int) -> tuple[wire.Welcome, tuple[int, ...]]:
        """Open a session (none for `look`); the descriptors stay the desk's."""
        ...

    def detach(self, session: int) -> None:
        """The session's connection is gone."""
        ...

    def carry_out(self, frame: wire.AnyFrame) -> wire.Frame:
        """Any other request."""
        ...


class ControlServer:
    """Listens at HOME/run/control.sock."""

    def __init__(self, home: Path, reactor: Reactor, desk: Desk, log: Log) -> None:
        self.reactor = reactor
        self.desk = desk
        self.log = log
        self._home = home
        self._connections: dict[int, Connection] = {}  # by descriptor
        self._listener: socket.socket | None = None

    def listen(self) -> None:
        """Start to accept. The store's lock is held: a socket file found is a dead broker's."""
        path = run_of(self._home) / SOCKET_NAME
        path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        old_mask = os.umask(0o177)
        try:
            with socket_address(self._home) as address:
                listener.bind(address)
        finally:
            os.umask(old_mask)
        listener.listen(_BACKLOG)
        self._listener = listener
        self.reactor.watch(listener.fileno(), self._accept)

    def stop_listening(self) -> None:
        """Accept no more; connections stay."""
        if self._listener is not None:
            self.reactor.forget(self._listener.fileno())
            self._listener.close()
            self._listener = None
            (run_of(self._home) / SOCKET_NAME).unlink(missing_ok=True)

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

    def forget(self, connection: Connection) -> None:
        """Called by a connection that ends."""
        self._connections.pop(connection.descriptor, None)

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            channel, _address = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as error:
            # No descriptors are left: those who are attached go on.
            self.log.warning("accept_failed", error=str(error))
            return
        channel.setblocking(False)
        connection = Connection(self, channel)
        self._connections[connection.descriptor] = connection
        if len(self._connections) > self.desk.connections_max + _SPARE_CONNECTIONS:
            connection.refuse(GantryError("too many connections: end some"))
        elif connection.uid != os.geteuid():
            connection.refuse(NotPermitted("this broker serves the user who started it only"))


class Connection:
    """One client, or command line, and its session."""

    def __init__(self, server: ControlServer, channel: socket.socket) -> None:
        self._server = server
        self._channel = channel
        self.descriptor = channel.fileno()
        credentials = channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
        self.pid, self.uid, _gid = _UCRED.unpack(credentials)
        self.session = 0
        self._greeted = False
        server.reactor.watch(self.descriptor, self._hear)

    def reply(self, frame: wire.Frame, descriptors: tuple[int, ...] = ()) -> None:
        """Send an answer; a client that cannot take it loses its connection."""
        try:
            wire.send(self._channel, frame, descriptors)
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
            if self.descriptor < 0 or not self._hear_one():
                return

    def _hear_one(self) -> bool:
        try:
            received = wire.receive(self._channel)
        except BlockingIOError:
            return False
        except msgspec.MsgspecError as error:
            self._server.log.warning("bad_frame", pid=self.pid, session=self.session)
            self.refuse(Rejected(f"that frame is none of ours: {error}"))
            return False
        except OSError:
            received = None
        if received is None:
            self.end()
            return False
        frame, descriptors = received
        for descriptor in descriptors:  # nobody is asked for any
            with contextlib.suppress(OSError):
                os.close(descriptor)
        self._answer(frame)
        return True

    def _answer(self, frame: wire.AnyFrame) -> None:
        try:
            if isinstance(frame, wire.Hello):
                self._greet(frame)
            elif not self._greeted:
                self.refuse(Rejected("the first frame must be Hello"))
            else:
                self.reply(self._server.desk.carry_out(frame))
        except GantryError as error:
            if self._greeted:
                self.reply(_refusal(error))
            else:
                self.refuse(error)

    def _greet(self, hello: wire.Hello) -> None:
        if self._greeted:
            self.refuse(Rejected("a connection has one session"))
            return
        if hello.fingerprint != layout.FINGERPRINT:
            raise Incompatible(
                "the broker runs another version of gantrymq: restart it and the application with"
                " the same one"
            )
        welcome, descriptors = self._server.desk.attach(hello, self.pid)
        self._greeted = True
        self.session = welcome.session
        self.reply(welcome, descriptors)


def _refusal(error: GantryError) -> wire.Refused:
    return wire.Refused(type(error).__name__, str(error))
