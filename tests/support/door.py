"""A broker without agents behind its control socket, driven by hand."""

from __future__ import annotations

import gc
import io
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gantrymq.brokerd import config, epoch, lock
from gantrymq.brokerd.access import Access
from gantrymq.brokerd.agents import AgentEnv
from gantrymq.brokerd.bells import make_bell
from gantrymq.brokerd.broker import Broker, make_directories, open_broker
from gantrymq.brokerd.control import ControlServer
from gantrymq.brokerd.log import Log
from gantrymq.brokerd.metadata import Metadata
from gantrymq.brokerd.notify import ServiceManager
from gantrymq.brokerd.sessions import Sessions
from gantrymq.brokerd.supervisor import Supervisor
from gantrymq.clients.home import connect, store_of
from gantrymq.shm import layout, wire
from gantrymq.shm.board import unlink_board
from gantrymq.shm.clock import SystemClock
from gantrymq.shm.storage import PosixStorage
from gantrymq.workers.agent import Bells
from tests.unit.test_metadata import Found


def open_at(home: Path) -> Broker:
    """A broker of that home, up to where agents would come. Raises what a start raises."""
    settings = config.load(home, {}, {})
    return open_broker(home, settings, Log("error", io.StringIO()), lambda *_: None, lambda: None)


class Door:
    """A broker without agents behind its control socket, driven by hand."""

    def __init__(self, home: Path, access: Access | None = None, **given: object) -> None:
        make_directories(home)
        configuration = config.load(None, {"profile": "temporary", **given}, {})
        storage, clock = PosixStorage(str(store_of(home))), SystemClock()
        life, configuration = epoch.begin(storage, configuration)
        settings = configuration.settings
        self.home = home
        self.board = epoch.create_board(home, life, settings, clock)
        metadata = Metadata(storage, settings, clock)
        metadata.publish(self.board, Found())
        bells = Bells.each(make_bell)
        env = AgentEnv(storage, clock, self.board, bells, settings)
        sessions = Sessions(life.epoch, settings.session_memory_max, settings.sessions_max)
        self.log = io.StringIO()
        log = Log("warning", self.log)
        held = lock.acquire(store_of(home), 0)
        self.broker = Broker(
            home, configuration, log, held, life, self.board, metadata, sessions, env
        )
        self.supervisor = Supervisor(self.broker, ServiceManager(""))
        reactor, desk = self.supervisor.reactor, self.supervisor.desk
        self.server = ControlServer(home, reactor, desk, log, access)
        self.server.listen()

    def turn(self) -> None:
        """Let the broker do all that is ready."""
        while self.supervisor.reactor.poll():
            self.server.answer()

    def connect(self) -> socket.socket:
        """A client's end, which has said nothing yet."""
        return connect(self.home, 5.0)

    def ask(
        self, channel: socket.socket, frame: wire.Frame
    ) -> tuple[wire.AnyFrame, list[int]] | None:
        """Send a frame and return the answer; None if the connection was ended instead."""
        wire.send(channel, frame)
        self.turn()
        return wire.receive(channel)

    def attach(self, channel: socket.socket, **fields: object) -> wire.Welcome:
        """Say Hello; the descriptors that come with the answer are closed."""
        hello = wire.Hello(os.getpid(), layout.FINGERPRINT, **fields)  # type: ignore[arg-type]
        wire.send(channel, hello)
        self.turn()
        while self.server.wait_ns(0) is not None:  # tests attach more than a process may at once
            self.server.look(time.monotonic_ns())
            self.turn()
        answer = wire.receive(channel)
        assert answer is not None
        for descriptor in answer[1]:
            os.close(descriptor)
        assert isinstance(answer[0], wire.Welcome), answer
        return answer[0]

    def sessions(self) -> int:
        """How many are attached, once all that is ready is done."""
        self.turn()
        return self.board.half(layout.BOARD_SESSION_COUNT)

    def close(self) -> None:
        """End everything."""
        self.server.close()
        self.supervisor.close()
        for bell in self.broker.bells:
            bell.close()
        unlink_board(self.board.name)


@contextmanager
def opened(home: Path, access: Access | None = None, **given: object) -> Iterator[Door]:
    """One that leaves nothing behind."""
    door = Door(home, access, **given)
    try:
        yield door
    finally:
        door.close()


def error_of(answer: tuple[wire.AnyFrame, list[int]] | None) -> str:
    """Name of the error of a refusal."""
    assert answer is not None
    assert isinstance(answer[0], wire.Refused), answer
    return answer[0].error


def descriptors() -> int:
    """How many are open, without those that only a cycle of an earlier test still holds."""
    gc.collect()
    return len(os.listdir("/proc/self/fd"))
