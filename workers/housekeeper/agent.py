"""The housekeeper: what has to be done with the log and the queues, and nobody waits for.

It seals segments and keeps the key index, in short steps with rests between them (pace.py).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from gantrymq.shm import layout
from gantrymq.shm.codes import Role
from gantrymq.workers.failure import has_failed
from gantrymq.workers.housekeeper.indexer import Indexer
from gantrymq.workers.housekeeper.pace import Pace
from gantrymq.workers.housekeeper.sealing import Sealer

if TYPE_CHECKING:
    from gantrymq.shm.board import Board
    from gantrymq.shm.clock import Clock
    from gantrymq.shm.storage import Storage
    from gantrymq.workers.session import SessionTable

#: It is never rung: so often it looks at the board. A variable: the simulator's is small.
LOOK_NS = 500_000_000


class Housekeeper:
    """Agent; only writer of what its two halves write."""

    name = "housekeeper"

    def __init__(
        self,
        storage: Storage,
        clock: Clock,
        board: Board,
        sessions: SessionTable,
        bells: Any,  # noqa: ANN401 - workers.agent.Bells
        settings: Any,  # noqa: ANN401 - brokerd.config.Settings
    ) -> None:
        del bells  # nobody is woken by it
        self._clock = clock
        self._board = board
        self._table = sessions
        self._process = board.process_at(Role.HOUSEKEEPER)
        self._pace = Pace(board)
        self._sealer = Sealer(storage, board, sessions, settings)
        self._indexer: Indexer | None = None
        if settings.message_index_enable:
            self._indexer = Indexer(storage, clock, board, sessions, settings)
        self._halves = deque(half for half in (self._sealer, self._indexer) if half is not None)
        self._rests_until = 0
        self._cycles = self._steps = 0

    def do_work(self, now_ns: int) -> int:
        """A step of one half, then of the other; 0 if neither has work, or it rests."""
        self._cycles += 1
        self._board.set_word(self._process + layout.PROCESS_HEARTBEAT, self._cycles)
        self._table.poll()  # who comes and goes is none of its business
        if has_failed(self._board):
            return 0
        stopping = self._table.stopping()
        if now_ns < self._rests_until and not stopping:
            return 0
        started_ns = self._clock.monotonic_ns()
        work = self._step(now_ns)
        if not work:
            return 0
        self._steps += 1
        self._board.set_word(self._process + layout.PROCESS_WORK, self._steps)
        ended_ns = self._clock.monotonic_ns()
        rest_ns = self._pace.rest_ns(ended_ns, ended_ns - started_ns, self._position)
        if not rest_ns or stopping:
            return work
        self._rests_until = ended_ns + rest_ns
        return 0

    def arm(self, now_ns: int) -> int:
        """How long it rests, or has nothing to do."""
        if now_ns < self._rests_until:
            return self._rests_until - now_ns
        if has_failed(self._board):
            return LOOK_NS
        return min(LOOK_NS, *(half.arm(now_ns) for half in self._halves))

    def disarm(self) -> None:
        """Nothing was announced."""

    def close(self) -> None:
        """Give files back."""
        for half in self._halves:
            half.close()

    def _step(self, now_ns: int) -> int:
        """Of the half whose turn it is; of the other if that one has nothing to do."""
        for _ in range(len(self._halves)):
            half = self._halves[0]
            self._halves.rotate()
            work = half.do_work(now_ns)
            if work:
                return work
        return 0

    @property
    def _position(self) -> int:
        sealed = self._sealer.position
        return sealed if self._indexer is None else min(sealed, self._indexer.position)
