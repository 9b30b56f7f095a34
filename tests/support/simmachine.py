"""One simulated machine: the broker's agents, its disk, who is attached, and what kills them.

Stands in for the supervisor's process work and for nothing else: all other parts are real.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar, Protocol

from gantrymq.brokerd import agents, epoch
from gantrymq.brokerd.agents import AgentEnv
from gantrymq.brokerd.config import load
from gantrymq.brokerd.epoch import Life
from gantrymq.brokerd.metadata import Metadata
from gantrymq.brokerd.recovery import recover
from gantrymq.shm import layout, wire
from gantrymq.shm.arena import ArenaPlan, plan_arena
from gantrymq.shm.bell import EventBell
from gantrymq.shm.board import Board, TopicSlot, format_board
from gantrymq.shm.clock import Clock
from gantrymq.shm.codes import BrokerState, Role
from gantrymq.shm.indexnote import forget_note
from gantrymq.workers.agent import Agent, Bells
from gantrymq.workers.failure import has_failed
from gantrymq.workers.inhand import forget_hand
from gantrymq.workers.session import Session
from tests.support import simbits, simpoison, simwidth
from tests.support.checkindex import check_index, check_kept_index
from tests.support.faults import Fault, FaultPlan, KilledError
from tests.support.memory_sessions import MemorySessions, memory_session, plan_own
from tests.support.model import End, Model
from tests.support.simbell import SimBell
from tests.support.simclock import SimClock
from tests.support.simdisk import Disk
from tests.support.simpace import FULL_SOON, compact_soon, hurry
from tests.support.simretention import expire
from tests.support.simstorage import SimStorage
from tests.support.simulation import AgentActor, LostWakeupError, Simulation
from tests.support.storedlog import check_units, require
from tests.support.txnoracle import TRANSACTION_SETTINGS

SETTINGS = {
    "mapped_file_size_commit_log": 16 * 1024,
    "mapped_file_size_consume_queue": 20 * 64,
    "max_message_size": 4096,
    "file_reserved_time": 1,
    "delete_when": ";".join(map(str, range(24))),
    **FULL_SOON,
    "topics_max": 16,
    "board_queues_max": 64,
    **TRANSACTION_SETTINGS,
}
FILE_BYTES_MAX = 64 * 1024  # room in every simulated file; to make and copy it costs time
ROLES = tuple(agents.CONSTRUCTORS)
RESTART_NS = 1_000_000
#: Of the starts those before which the store was copied by a tool that leaves holes.
SPARSE_SHARE = 0.2
NEVER_NS = 1 << 62
#: What leaves the index behind the log's end at a clean stop: the next life goes on.
_SHORT = ("no_space_for_index", "no_space_for_queues")
_TALLIED = (*_SHORT, "no_space_for_producers", "segments_removed", "segments_held")
#: Who moves `appended`, `durable` or `low`, and who makes a board.
_PUBLISHERS = (Role.WRITER, Role.FLUSHER, Role.GROUPS)
_PROGRESS = {
    Role.WRITER: layout.BOARD_APPENDED,
    Role.FLUSHER: layout.BOARD_DURABLE,
    Role.READER: layout.BOARD_DISPATCHED,
}


class Client(Protocol):
    """A simulated client process."""

    name: str
    bell: SimBell
    producer: bytes
    groups: bool
    scheduler: bool
    transactions: bool

    def session_over(self) -> None:
        """The socket ended: the session is over, the process lives on."""
        ...

    def sleeps_over(self, durable: int) -> bool:
        """Whether it sleeps on though the log is durable up to where it waits for."""
        ...


@dataclass(slots=True)
class Plans:
    """Faults that the processes of the next lives will meet."""

    agents: dict[Role, Sequence[Fault]] = field(default_factory=dict)
    supervisor: Sequence[Fault] = ()


class SimSessions(MemorySessions):
    """An agent's table, and who is told that the agent has said something."""

    def __init__(self, stir: Callable[[], None], over: Callable[[int], None]) -> None:
        super().__init__()
        self._stir = stir
        self._over = over

    def cut_off(self, session: int, why: str) -> None:
        """The supervisor has something to do; the client knows by its arena that it is evicted."""
        super().cut_off(session, why)
        self._over(session)
        self._stir()

    def note(self, level: str, event: str, **fields: object) -> None:
        """The supervisor has something to hear; no disk rots here, so none may say that it does."""
        require(event != "timers_damaged", "P13", f"{fields} is whole")
        super().note(level, event, **fields)
        self._stir()


class SimBoard(Board):
    """A board at each of whose words others may come in between."""

    def __init__(self, memory: memoryview, pause: Callable[[], None]) -> None:
        super().__init__(memory)
        self._pause = pause

    def word(self, offset: int) -> int:
        """A 64-bit word, after what others have done."""
        self._pause()
        return super().word(offset)

    def set_word(self, offset: int, value: int) -> None:
        """Store a 64-bit word, after what others have done."""
        self._pause()
        super().set_word(offset, value)

    def half(self, offset: int) -> int:
        """A 32-bit word, after what others have done."""
        self._pause()
        return super().half(offset)

    def set_half(self, offset: int, value: int) -> None:
        """Store a 32-bit word, after what others have done."""
        self._pause()
        super().set_half(offset, value)

    def queue(self, queue: int) -> dict[str, int]:
        """The words of a queue's slot, after what others have done."""
        self._pause()
        return super().queue(queue)

    def topic(self, slot: int) -> TopicSlot | None:
        """A topic, after what others have done."""
        self._pause()
        return super().topic(slot)


class SimAgentClock:
    """The clock as an agent sees it: behind a look at the wall others may come in between."""

    def __init__(self, clock: SimClock, pause: Callable[[], None]) -> None:
        self.monotonic_ns = clock.monotonic_ns
        self._clock = clock
        self._pause = pause

    def wall_ms(self) -> int:
        """Unix milliseconds, before what others do."""
        told = self._clock.wall_ms()
        self._pause()
        return told


class SimMachine:
    """See the module. An actor itself: the supervisor."""

    name = "supervisor"
    SESSIONS: ClassVar[type[SimSessions]] = SimSessions
    #: What the bells of agents are.
    BELL: ClassVar[type[SimBell | EventBell]] = SimBell

    def __init__(
        self, simulation: Simulation, model: Model, topics: dict[str, tuple[int, str]]
    ) -> None:
        """`topics`: name -> (queues, durability)."""
        hurry()
        compact_soon(simwidth.dice_of(simulation.seed, "ledger"))
        self.simulation = simulation
        self.model = model
        self.topics = topics
        self.disk = Disk(file_bytes_max=FILE_BYTES_MAX)
        if simulation.pause_share:
            self.disk.pause = simulation.pause
        self.configuration = load(None, self.settings(), {})
        self.plans = Plans()
        self.board: Board | None = None
        self.metadata: Metadata | None = None
        self.tables: dict[Role, MemorySessions] = {}
        self.stores: dict[str, SimStorage] = {}
        self.sessions: dict[int, tuple[Session, Client]] = {}
        self._own: list[Session] = []  # of agents, for one life
        self._short = 0  # times that there was no room for the index, or for queues
        self._unsettled: dict[int, Session] = {}  # ended; their end is not in the ledger yet
        self.lost_ends: set[int] = set()  # sessions of which the broker died before it was
        self.lives = 0
        self.ended_by = End.STOP
        self.index_holds = True  # nobody has damaged it on purpose
        self.log_is_cut = False  # retention has raised its begin once
        self.told_losses: list[dict[str, object]] = []  # by this life of retention, heeded already
        self.expect_cut_off: set[str] = set()  # clients that break the rules on purpose
        self.then: Callable[[], None] | None = None  # what the next agent's death brings along
        #: Told of each start: where the log ends, and what had gone before.
        self.recovered: Callable[[int, End], None] = lambda end, after: None
        self._old_board: Board | None = None
        self._bells = Bells.each(self.BELL)
        self._next_session = 1
        self._due: list[tuple[int, Callable[[], None]]] = []
        self._next_ns = NEVER_NS  # when the first of these is due
        self._stirred = False  # an agent has said something that is not heard yet
        self._not_up: set[Role] = set()  # never open yet in this life
        self._publishers = {self.name, *(self.process_of(role) for role in _PUBLISHERS)}
        self.open_last: Role | None = None  # at the next start
        self._slowness = simwidth.dice_of(simulation.seed, "starts")
        self._copies = simwidth.dice_of(simulation.seed, "copies")
        self.poisons = simpoison.Poisons()
        simulation.note(f"set to {simwidth.settings_of(simulation.seed)}")
        self._seen_low = 0
        self._told_durable = 0  # whoever waits for that was rung
        self._writer_began_ns = 0
        self._boot_id = self._random_bytes(16)
        simulation.on_death = self._on_death
        simulation.after_step = self.observe
        simulation.add(self)
        self._later(0, self.start)

    def settings(self) -> dict[str, object]:
        """What the broker is set to."""
        seed = self.simulation.seed
        return SETTINGS | simwidth.settings_of(seed) | simbits.settings_of(seed)

    # ------------------------------------------------------------------------------------ as actor

    def ready_at(self, now_ns: int) -> int:
        """When something is due, or an agent wants something."""
        return now_ns if self._stirred or self._has_failed else self._next_ns

    def step(self, now_ns: int) -> None:
        """Do what is due, hear the agents."""
        if self._next_ns <= now_ns:
            self._do_next()
            return
        if self._has_failed:
            self.simulation.note("store failed")
            self.kill_broker(End.KILL)
            if self.simulation.seed % 2:  # the supervisor lives on, and takes its board away
                self._old_board = None
                forget_note(self._storage("oracle"))
            return
        self._stirred = False
        for table in list(self.tables.values()):
            for number, why in table.cut:
                self._cut_off(number, why)
            table.cut.clear()
            self._heed(table)

    def _do_next(self) -> None:
        at = min(range(len(self._due)), key=lambda at: self._due[at][0])
        _when, what = self._due.pop(at)
        self._find_next()
        what()

    def _find_next(self) -> None:
        self._next_ns = min((when for when, _ in self._due), default=NEVER_NS)

    @property
    def _has_failed(self) -> bool:
        return self.board is not None and has_failed(self.board)  # whoever has said so may be dead

    def _heed(self, table: MemorySessions) -> None:
        """As the supervisor: requests of retention; the rest would go to the log."""
        for _level, event, fields in table.notes:
            pairs = fields.get("queues")
            if event == wire.QUEUES_BEGIN and self.metadata is not None:
                assert isinstance(pairs, list)
                self.metadata.begin_queues(pairs)
            elif event == wire.SESSIONS_SETTLED:
                settled = fields["sessions"]
                assert isinstance(settled, list)
                self._unsettled = {n: s for n, s in self._unsettled.items() if n not in settled}
            elif event == "removed_while_needed":
                self.told_losses.append(fields)
            elif event in _TALLIED or event == simbits.NOTE:
                self.model.tally[event] += 1
        table.notes.clear()

    def killed(self) -> None:
        """The supervisor's steps are whole."""

    def observe(self, who: str) -> None:
        """After each step that may publish: what was published as durable once must stay."""
        if self.board is not None and who in self._publishers:
            durable = self.board.word(layout.BOARD_DURABLE)
            self.model.durable = max(self.model.durable, durable)
            self._require_woken(durable)
            appended = self.board.word(layout.BOARD_APPENDED)
            writer = self.simulation.actors.get(self.process_of(Role.WRITER))
            if isinstance(writer, AgentActor):
                self._writer_began_ns = writer.began_ns
            clock, began_ns = self.simulation.clock, self._writer_began_ns
            self.model.moments.grown(appended, clock, self.disk.cuts, began_ns)
            low = self.board.word(layout.BOARD_LOW)
            if low > self._seen_low:
                self.log_is_cut = True
                expire(self, low)
                self._seen_low = low

    def _require_woken(self, durable: int) -> None:
        """Behind a step of a flusher that has moved `durable`, nobody sleeps who waits for that."""
        flusher = self.simulation.actors.get(self.process_of(Role.FLUSHER))
        if durable == self._told_durable or (isinstance(flusher, AgentActor) and flusher.is_amid):
            return
        self._told_durable = durable
        # One that has died may owe a ring; who has just come rings nobody's bell until it is heard.
        if flusher is None or self.tables[Role.FLUSHER].unheard:
            return
        for _session, client in self.sessions.values():
            if client.sleeps_over(durable):
                raise LostWakeupError(f"{client.name} sleeps, and the disk has what it waits for")

    # ---------------------------------------------------------------------------------- life, death

    @property
    def running(self) -> bool:
        """True while sessions can attach: once every agent has been open."""
        return self.board is not None and not self._not_up

    def start(self) -> None:
        """Begin a life: recover, board, agents. A planned death in here is met by another try."""
        if self._copies.random() < SPARSE_SHARE:
            self.copy_sparsely()
        storage = self._storage("supervisor", self.plans.supervisor)
        self.plans.supervisor = ()
        try:
            self._bring_up(storage)
            storage.faults.faults = ()  # what was planned further on than a start goes
        except (KilledError, OSError) as death:
            full = isinstance(death, OSError) and death.errno == errno.ENOSPC
            if isinstance(death, OSError) and not (storage.faults.met or full):
                raise
            self.simulation.note(f"dies while starting: {death}")
            self.board = None
            self._later(RESTART_NS, self.start)

    def copy_sparsely(self) -> None:
        """The log comes back without blocks for what holds nothing, as from a back-up."""
        self.simulation.note("the log has no blocks where it holds nothing")
        for name, inode in self.disk.names.entries.items():
            if inode is not None and name.startswith("commitlog/"):
                inode.lose_blocks()

    def _bring_up(self, storage: SimStorage) -> None:
        _life, configuration = epoch.begin(storage, self.configuration)
        settings = configuration.settings
        if self._old_board is not None and not epoch.is_of_last_life(storage, self._old_board):
            self._old_board = None
        found = recover(storage, settings, self._old_board, lambda *_: None)
        metadata = Metadata(storage, settings, self.simulation.clock)
        metadata.load()
        metadata.add_parking_topics()
        number = self.simulation.dice.getrandbits(47) << 16 | self.lives + 1
        board = self._format(number)
        metadata.publish(board, found)
        epoch.mark_running(storage, Life(number, self._boot_id.hex()), found.appended)
        for name, (queues, level) in self.topics.items():
            metadata.create(name, queues, level)
        self.lives += 1
        self.simulation.note(f"life {self.lives}: recovered to {found.appended}")
        self.model.check_store(self._storage("oracle"), found.appended, self.ended_by, found.low)
        self.recovered(found.appended, self.ended_by)
        self.board, self.metadata, self._seen_low = board, metadata, found.low
        self._check_queues()
        short, self._short = self._short, sum(self.model.tally[event] for event in _SHORT)
        is_whole = self.ended_by is End.STOP and self.lives > 1 and short == self._short
        settled = found.appended if is_whole else -1
        if self.index_holds:
            check = check_kept_index if self.log_is_cut else check_index
            check(self._storage("oracle"), found.appended, settled, self.model.tally)
        self._old_board = board
        self._bells = Bells.each(self.BELL)
        self._own = [self._own_session(role) for role in agents.SENDERS]
        self._open_agents()

    def opens_late(self) -> bool:
        """Whether agents may open in any order, and late."""
        return True

    def _open_agents(self) -> None:
        """In any order, at once or much later than others, which work meanwhile."""
        self._not_up = set(ROLES)
        delays = dict.fromkeys(ROLES, 0)
        if self.opens_late():
            delays = dict(simwidth.delays_of(self._slowness, ROLES))
        if self.open_last is not None:
            delays = dict.fromkeys(delays, 0)
            delays[self.open_last] = self._slowness.randrange(simwidth.SLOW_NS)
            self.open_last = None
        for role, delay_ns in delays.items():
            if delay_ns:
                self.simulation.note(f"{role.name} is open {delay_ns / 1e6:.0f} ms later")
                self._later(delay_ns, partial(self.start_process, self.process_of(role)))
            else:
                self.start_process(self.process_of(role))

    def _check_queues(self) -> None:
        board = self.board
        assert board is not None, "checked while running"
        storage, low = self._storage("oracle"), board.word(layout.BOARD_LOW)
        for topic, queue_id in ((t, q) for t in board.topics() for q in range(t.queue_count)):
            words = board.queue(topic.queue_base + queue_id)
            shown = range(words["min_offset"], words["max_offset"])
            check_units(storage, self.model.log, (topic.name, queue_id), shown.stop, low)
            simbits.check_bits(storage, self.model, (topic.name, queue_id), shown, low)

    def _format(self, number: int) -> Board:
        settings = self.configuration.settings
        size = layout.board_bytes(settings.topics_max, settings.board_queues_max)
        memory = memoryview(bytearray(size))
        format_board(
            memory,
            epoch=number,
            boot_id=self._boot_id,
            topics_max=settings.topics_max,
            queues_max=settings.board_queues_max,
            segment_bytes=settings.mapped_file_size_commit_log,
            cq_bytes=settings.mapped_file_size_consume_queue,
            started_ms=self.simulation.clock.wall_ms(),
            wall_ahead_ns=epoch.wall_ahead_ns(self.simulation.clock, self._old_board),
        )
        pauses = self.simulation.pause_share > 0
        return SimBoard(memory, self.simulation.pause) if pauses else Board(memory)

    # ----------------------------------------------------------------------------------- processes

    def process_of(self, role: Role) -> str:
        """The actor that an agent is, or is in."""
        return role.name.lower()

    def roles_in(self, name: str) -> tuple[Role, ...]:
        """The agents of a process; none if it is another actor."""
        return tuple(role for role in ROLES if role.name.lower() == name)

    def processes(self) -> list[str]:
        """In the order of a clean stop."""
        return [role.name.lower() for role in ROLES]

    def agent_of(self, role: Role) -> Agent | None:
        """An agent that runs."""
        actor = self.simulation.actors.get(self.process_of(role))
        return actor.agent if isinstance(actor, AgentActor) else None

    def tell_to_stop(self, name: str) -> None:
        """A process finishes what was accepted."""
        for role in self.roles_in(name):
            self.tables[role].stop = True
            self.bell(role).ring()

    def start_process(self, name: str) -> None:
        """Start or replace one."""
        (role,) = self.roles_in(name)
        self.start_agent(role)

    def start_agent(self, role: Role) -> None:
        """Start or replace one that has a process of its own."""
        if self.board is None:
            return
        agent = self.build(role)
        if agent is None:
            self._later(RESTART_NS, partial(self.start_agent, role))
            return
        self.simulation.add(AgentActor(agent, self.bell(role), self.progress_of(role)))
        self.is_up(role)

    def build(self, role: Role) -> Agent | None:
        """Open an agent that is told of all sessions; None if it dies of that."""
        assert self.board is not None, "it runs"
        table = self.tables[role] = self.SESSIONS(self._stir, self.model.session_over)
        if role is Role.GROUPS:
            self.told_losses.clear()
        for number, session in self._unsettled.items() if role is Role.GROUPS else ():
            table.attach(session)
            table.detach(number)
        for session in (*self._own, *(session for session, _client in self.sessions.values())):
            table.attach(session)
        name = role.name.lower()
        storage = self._storage(name, self.plans.agents.pop(role, ()))
        env = AgentEnv(storage, self._clock(), self.board, self._bells, self.configuration.settings)
        try:
            return agents.build(role, replace(env, sessions=table))
        except (KilledError, OSError) as death:
            full = isinstance(death, OSError) and death.errno == errno.ENOSPC
            if isinstance(death, OSError) and not (storage.faults.met or full):
                raise
            self.simulation.note(f"{name} dies while starting: {death}")
            return None

    def progress_of(self, role: Role) -> Callable[[], int]:
        """Counts what an agent has done."""
        board, word = self.board, _PROGRESS.get(role, 0)
        assert board is not None, "it runs"
        return lambda: board.word(word) if word else 0

    def is_up(self, role: Role) -> None:
        """Once every agent has been, sessions may attach."""
        board = self.board
        assert board is not None, "it runs"
        self._not_up.discard(role)
        if not self._not_up and not has_failed(board):
            board.set_half(layout.BOARD_STATE, BrokerState.READY)

    def _clock(self) -> Clock:
        clock, pauses = self.simulation.clock, self.simulation.pause_share > 0
        return SimAgentClock(clock, self.simulation.pause) if pauses else clock

    def kill_agent(self, role: Role) -> None:
        """SIGKILL an agent's process between two of its steps; the supervisor replaces it."""
        name = self.process_of(role)
        if name not in self.simulation.actors:
            return
        self.simulation.note(f"kill {name}")
        self.simulation.remove(name)
        self._on_death(name)

    def kill_broker(self, end: End) -> None:
        """All agents and the supervisor at once; a power cut takes the clients' machine too."""
        self.simulation.note(end.value)
        self.model.broker_over()
        for name in self.processes():
            self.simulation.remove(name)
        for storage in self.stores.values():
            storage.dead = True
        self.simulation.bury()
        self.tables.clear()
        self._due.clear()
        self._find_next()
        still_down = self.board is None
        self.board, self.metadata = None, None
        if not (still_down and self.ended_by is End.POWER):
            self.ended_by = end
        for number in list(self.sessions):
            self.end_session(number)
        self.lost_ends.update(self._unsettled)
        self._unsettled.clear()
        if end is End.POWER:
            self._old_board = None
            self._boot_id = self._random_bytes(16)
            self.disk.power_cut(self.simulation.dice)
            self.simulation.clock.boot()
            self.model.power_cut()
        self._later(RESTART_NS, self.start)

    def _on_death(self, name: str) -> None:
        roles = self.roles_in(name)
        if Role.WRITER in roles:
            self.model.moments.writer_died(self._writer_began_ns)
        struck = bool(roles) and self.board is not None and self.poisons.has_struck()
        for role in roles:
            self.stores[role.name.lower()].dead = True
            self.tables.pop(role, None)
            if self.board is not None and not struck:
                forget_hand(self.board, role)  # as the supervisor does after a SIGKILL
        if roles:
            self.simulation.bury()
            self._later(RESTART_NS, partial(self.start_process, name))
        for role in ROLES:
            self.bell(role).ring()  # as Broker.ring_all
        then, self.then = self.then or (lambda: None), None
        then()

    # ------------------------------------------------------------------------------------- sessions

    def _own_session(self, role: Role) -> Session:
        """As `Sessions.open_own`."""
        assert self.board is not None, "made while the broker starts"
        number, self._next_session = self._next_session, self._next_session + 1
        plan, producer = plan_own(role, number), self._random_bytes(10)
        made = memory_session(number, plan, epoch=self.board.epoch, producer=producer)
        return replace(made, bell=self.bell(role), groups=False, owner=int(role))

    def attach(self, client: Client) -> Session | None:
        """A session for a client, or None while the broker is down, or not all of it is up."""
        if self.board is None or not self.running:
            return None
        number, self._next_session = self._next_session, self._next_session + 1
        plan = self.plan_for(client)
        made = memory_session(number, plan, epoch=self.board.epoch, producer=client.producer)
        lanes = {lane: getattr(client, lane) for lane in ("groups", "scheduler", "transactions")}
        session = replace(made, bell=client.bell, **lanes)
        self.sessions[number] = (session, client)
        for role, table in self.tables.items():
            table.attach(session)
            self.bell(role).ring()
        return session

    def plan_for(self, client: Client) -> ArenaPlan:
        """The rings of a client's session: short ones are full, and wrap, sooner."""
        del client
        return plan_arena(*simwidth.rings_of(self.simulation.seed), 4096, 4096)

    def end_session(self, number: int) -> None:
        """The session's socket has ended, from either side."""
        entry = self.sessions.pop(number, None)
        if entry is None:
            return
        if entry[0].groups:
            self._unsettled[number] = entry[0]
        for role, table in self.tables.items():
            table.detach(number)
            self.bell(role).ring()
        self.model.session_over(number)
        entry[1].session_over()

    def bell(self, role: Role) -> SimBell:
        """The bell that clients ring for an agent."""
        return getattr(self._bells, role.name.lower())  # type: ignore[no-any-return] # by name

    def storage_for(self, name: str) -> SimStorage:
        """A client's way to read the store."""
        return SimStorage(self.disk, name)

    def _cut_off(self, number: int, why: str) -> None:
        entry = self.sessions.get(number)
        if entry is None:
            assert number not in {own.session for own in self._own}, f"an agent's own: {why}"
            return
        self.simulation.note(f"session {number} of {entry[1].name} is cut off: {why}")
        self.model.tally["cut off"] += 1
        if entry[1].name not in self.expect_cut_off:
            if not self.poisons.set_aside(number, why):
                raise AssertionError(f"{entry[1].name} kept the rules and was cut off: {why}")
            self.model.tally["set aside"] += 1
        self.end_session(number)

    def _stir(self) -> None:
        self._stirred = True

    def _later(self, delay_ns: int, what: Callable[[], None]) -> None:
        self._due.append((self.simulation.clock.monotonic_ns() + delay_ns, what))
        self._find_next()

    def _storage(self, process: str, faults: Sequence[Fault] = ()) -> SimStorage:
        plan = FaultPlan(tuple(faults), random.Random(self.simulation.dice.getrandbits(32)))
        storage = SimStorage(self.disk, process, plan)
        self.stores[process] = storage
        return storage

    def _random_bytes(self, count: int) -> bytes:
        return self.simulation.dice.getrandbits(8 * count).to_bytes(count, "big")
