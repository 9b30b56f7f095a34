"""The simulated machine with the broker's real door: control socket, desk, sessions, arenas, bells.

Clients are processes of tests.support.simthreads that run the real client code (realclients.py).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from gantrymq.brokerd.agents import AgentEnv
from gantrymq.brokerd.bells import open_pipe
from gantrymq.brokerd.broker import Broker
from gantrymq.brokerd.control import ControlServer
from gantrymq.brokerd.desk import SessionDesk
from gantrymq.brokerd.epoch import Life, announce
from gantrymq.brokerd.log import Log
from gantrymq.brokerd.reactor import Reactor
from gantrymq.brokerd.sessions import SessionRecord, Sessions
from gantrymq.clients.home import run_of
from gantrymq.shm import wire
from gantrymq.shm.arena import map_arena
from gantrymq.shm.bell import EventBell
from gantrymq.shm.codes import Role
from gantrymq.shm.held import Descriptor
from gantrymq.shm.lineage import lineage_of
from gantrymq.workers.session import Session
from tests.support.faults import KilledError
from tests.support.model import End, Model
from tests.support.realclients import BOARDS
from tests.support.simbell import SimBell
from tests.support.simmachine import SimMachine
from tests.support.simthreads import NEVER_NS, VERDICTS, Deaths, readable
from tests.support.simulation import Simulation

if TYPE_CHECKING:
    from tests.support.memory_sessions import MemorySessions


class SimEventBell(EventBell):
    """A bell of the operating system that the scheduler can ask who may wake."""

    def __init__(self, descriptor: int | FileIO | None = None) -> None:
        super().__init__(open_pipe() if descriptor is None else descriptor)
        self.rings = 0

    @property
    def rung(self) -> bool:
        """Whether it was rung."""
        return self.descriptor >= 0 and readable(self.descriptor)


class _Remote:
    """What the machine calls a client: a session whose process is real client code."""

    bell = SimBell()
    producer = b""
    groups = scheduler = transactions = False

    def __init__(self, number: int) -> None:
        self.name = f"session {number}"

    def session_over(self) -> None:
        """Its socket says so."""

    def sleeps_over(self, durable: int) -> bool:
        """Its threads say so themselves (tests.support.simthreads)."""
        del durable
        return False


class Door:
    """The control socket of one life, and what stands behind it. An actor: part of a supervisor."""

    name = "door"

    def __init__(self, machine: DoorMachine) -> None:
        board, metadata = machine.board, machine.metadata
        assert board is not None, "a life has begun"
        assert metadata is not None, "a life has begun"
        self._machine = machine
        configuration = machine.configuration
        settings = configuration.settings
        log = Log("error")
        self.sessions = Sessions(board.epoch, settings.session_memory_max, settings.sessions_max)
        self.sessions._next = 1000 * machine.lives + 1  # agents' own are counted apart
        board.name = f"/simulated-{machine.lives}"
        BOARDS[board.name] = board
        storage = machine.storage_for("oracle")
        life = Life(board.epoch, "", store_id=lineage_of(storage).store)
        env = AgentEnv(storage, machine.simulation.clock, board, machine.bells, settings)
        announce(machine.home, life, board)
        nothing = Descriptor(os.open, os.devnull, os.O_RDONLY)
        self._broker = Broker(
            machine.home,
            configuration,
            log,
            nothing,
            life,
            board,
            metadata,
            self.sessions,
            env,
        )
        self._reactor = Reactor()
        desk = SessionDesk(self._broker, machine.tell_agents, lambda why: None, dict)
        self._control = ControlServer(machine.home, self._reactor, desk, log)
        self.is_open = False

    def open(self) -> None:
        """All agents are up."""
        self.is_open = True
        self._control.listen()

    def ready_at(self, now_ns: int) -> int:
        """When somebody says something."""
        return now_ns if readable(self._reactor.fileno()) else NEVER_NS

    def step(self, now_ns: int) -> None:
        """As the supervisor does its work."""
        try:
            self._reactor.poll()
            self._control.answer()
            self._control.look(now_ns)
        except KilledError as death:
            self._machine.simulation.note(f"the supervisor dies: {death}")
            self._machine.kill_broker(End.KILL)

    def killed(self) -> None:
        """Its steps are whole."""

    def drop(self, session: int) -> None:
        """A connection ends, nobody knows why."""
        for connection in list(self._control._connections.values()):
            if connection.session == session:
                connection.end()

    def die(self) -> None:
        """As a killed process's descriptors end; nobody is told of detached sessions any more."""
        for connection in list(self._control._connections.values()):
            connection.session = 0
        self._control.close()
        self._reactor.close()


class DoorMachine(SimMachine):
    """See the module."""

    BELL: ClassVar[type[SimBell | EventBell]] = SimEventBell

    def opens_late(self) -> bool:
        """In every other run: late agents hide what a crowd meets at once."""
        return self.simulation.seed % 2 == 0

    def __init__(
        self,
        simulation: Simulation,
        model: Model,
        topics: dict[str, tuple[int, str]],
        home: Path,
    ) -> None:
        """`home`: an empty folder for the control socket."""
        super().__init__(simulation, model, topics)
        self.home = home
        run_of(home).mkdir(parents=True, exist_ok=True)
        self.door: Door | None = None

    @property
    def bells(self) -> Any:  # noqa: ANN401
        """The agents'."""
        return self._bells

    def observe(self, who: str) -> None:
        """After each step: also whether an application has been told what is not so."""
        super().observe(who)
        if VERDICTS:
            raise VERDICTS[0]

    def _open_agents(self) -> None:
        self.door = Door(self)
        self.simulation.add(self.door)
        super()._open_agents()

    def start_agent(self, role: Role) -> None:
        """Start or replace one agent; the door opens with the last one."""
        Deaths.count += 1
        super().start_agent(role)
        if self.running and self.door is not None and not self.door.is_open:
            self.door.open()

    def kill_broker(self, end: End) -> None:
        """All agents, and the supervisor with the door."""
        door, self.door = self.door, None
        super().kill_broker(end)
        if door is not None:
            self.simulation.remove(door.name)
            door.die()

    def tell_agents(self, frame: wire.Frame, session: SessionRecord | None = None) -> None:
        """What the supervisor tells all agents of sessions."""
        if isinstance(frame, wire.SessionAdded) and session is not None:
            seen = Session(
                session.session,
                map_arena(session.arena_descriptor, session.plan.size),
                session.plan,
                SimEventBell(os.dup(session.bell.fileno())),
                session.pid,
                session.producer,
                session.groups,
                session.scheduler,
                session.transactions,
            )
            self.sessions[seen.session] = (seen, _Remote(seen.session))
            for role, table in self.tables.items():
                table.attach(seen)
                self.bell(role).ring()
        elif isinstance(frame, wire.SessionRemoved):
            self.end_session(frame.session)

    def _heed(self, table: MemorySessions) -> None:
        """Also what makes room for sessions."""
        for _level, event, fields in table.notes:
            if event == wire.SESSIONS_SETTLED and self.door is not None:
                settled = fields["sessions"]
                assert isinstance(settled, Sequence)
                for number in settled:
                    self.door.sessions.settled(number)
            if event == wire.TOPIC_WANTED and self.metadata is not None:
                self.metadata.have(str(fields["topic"]))
            if event == wire.GROUP_TOPIC_WANTED and self.metadata is not None:
                self.metadata.have_again(str(fields["topic"]))
        super()._heed(table)
