"""Sessions without processes: arenas in plain memory, a table per agent, a board to match."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gantrymq.shm import layout
from gantrymq.shm.arena import ArenaPlan, plan_arena, write_header
from gantrymq.shm.board import Board, format_board
from gantrymq.shm.codes import Role
from gantrymq.workers.session import Attached, Detached, Session
from tests.support.simbell import SimBell


class MemorySessions:
    """`workers.session.SessionTable` of one agent, in the hands of a test or scheduler."""

    def __init__(self) -> None:
        self.stop = False
        self.cut: list[tuple[int, str]] = []
        self.failures: list[tuple[int, str]] = []
        self.notes: list[tuple[str, str, dict[str, object]]] = []
        self._events: list[Attached | Detached] = []

    def poll(self) -> Sequence[Attached | Detached]:
        """What has changed since the last call."""
        events, self._events = self._events, []
        return events

    @property
    def unheard(self) -> bool:
        """Whether somebody has come or gone since the agent last asked."""
        return bool(self._events)

    def stopping(self) -> bool:
        """True once `stop` was set."""
        return self.stop

    def cut_off(self, session: int, why: str) -> None:
        """Note who broke the rules; a test decides what follows."""
        self.cut.append((session, why))

    def failed(self, errno: int, what: str) -> None:
        """Note that the store failed."""
        self.failures.append((errno, what))

    def note(self, level: str, event: str, **fields: object) -> None:
        """Note a line for the log."""
        self.notes.append((level, event, fields))

    def attach(self, session: Session) -> None:
        """Tell the agent of a session."""
        self._events.append(Attached(session))

    def detach(self, session: int) -> None:
        """Tell the agent that a session is over."""
        self._events.append(Detached(session))


def plan_own(role: Role, number: int) -> ArenaPlan:
    """For an agent's own session in the simulator, its number `number`.

    Every other one of the txn-checker is so short that large decisions go up in parts.
    """
    is_short = role == Role.TXN_CHECKER and number % 2
    return plan_arena(8192 if is_short else 32768, 4096, 4096, 4096)


def memory_session(
    number: int, plan: ArenaPlan | None = None, *, epoch: int = 1, producer: bytes = b""
) -> Session:
    """Make a session with a fresh arena in plain memory."""
    plan = plan or plan_arena()
    arena = np.zeros(plan.size, np.uint8)
    write_header(arena, epoch, number)
    return Session(number, arena, plan, SimBell(), 0, producer, groups=True)


def memory_board(
    topics: Mapping[str, int], *, epoch: int = 1, segment_bytes: int = 1 << 20
) -> Board:
    """Make a board in plain memory with topics of so many queues."""
    topics_max = max(16, len(topics))
    queues_max = max(QUEUES_PER_TOPIC * topics_max, sum(topics.values()))
    memory = memoryview(bytearray(layout.board_bytes(topics_max, queues_max)))
    format_board(
        memory,
        epoch=epoch,
        boot_id=bytes(16),
        topics_max=topics_max,
        queues_max=queues_max,
        segment_bytes=segment_bytes,
        cq_bytes=20 * 1000,
        started_ms=0,
        wall_ahead_ns=0,
    )
    board = Board(memory)
    for name, queues in topics.items():
        add_topic(board, name, queues)
    return board


#: Queue slots that each topic of a memory board may grow into.
QUEUES_PER_TOPIC = 16


def add_topic(board: Board, name: str, queues: int) -> int:
    """Put a topic on a memory board; returns its slot."""
    slot = board.half(layout.BOARD_TOPIC_COUNT)
    data = layout.TOPIC.pack(
        ready=1,
        queue_base=slot * QUEUES_PER_TOPIC,
        write_queues=queues,
        perm=6,
        name_bytes=len(name.encode()),
        name=name.encode(),
    )
    board.memory[board.topic_at(slot) : board.topic_at(slot) + len(data)] = data
    board.set_half(layout.BOARD_TOPIC_COUNT, slot + 1)
    grow_topic(board, slot, queues)
    return slot


def grow_topic(board: Board, slot: int, queues: int) -> None:
    """Give a topic of a memory board so many queues in all."""
    at = board.topic_at(slot)
    before = board.half(at + layout.TOPIC_QUEUE_COUNT)
    for queue_id in range(before, queues):
        queue_at = board.queue_at(slot * QUEUES_PER_TOPIC + queue_id)
        board.set_half(queue_at + layout.QUEUE_TOPIC, slot)
        board.set_half(queue_at + layout.QUEUE_ID, queue_id)
    board.set_half(at + layout.TOPIC_QUEUE_COUNT, queues)
    total = board.half(layout.BOARD_QUEUE_COUNT)
    board.set_half(layout.BOARD_QUEUE_COUNT, total + queues - before)
