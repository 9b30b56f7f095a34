"""An agent that appends by an outlet: its duty cycle, what it counts, and how it fails."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Final

from gantrymq.shm import layout
from gantrymq.shm.errors import Corrupt, StoreFailed
from gantrymq.shm.storage import is_disk_full, is_failed_change
from gantrymq.workers.failure import declare_failed, has_failed
from gantrymq.workers.inhand import InHand
from gantrymq.workers.logviews import LogViews

if TYPE_CHECKING:
    from gantrymq.shm.board import Board
    from gantrymq.shm.clock import Clock
    from gantrymq.shm.codes import Role
    from gantrymq.shm.storage import Storage
    from gantrymq.workers.agent import Bells
    from gantrymq.workers.outlet import Outlet
    from gantrymq.workers.session import SessionTable

SPACE_RETRY_NS: Final = 1_000_000_000


class OutletAgent(ABC):
    """What scheduler and txn-checker have in common."""

    role: ClassVar[Role]
    #: What it writes, for errors.
    writes: ClassVar[str]

    def __init__(
        self, storage: Storage, clock: Clock, board: Board, sessions: SessionTable, bells: Bells
    ) -> None:
        self._storage = storage
        self._clock = clock
        self._board = board
        self._table = sessions
        self._bells = bells
        self._views = LogViews(storage, board)
        self._outlet: Outlet | None = None
        self._cycles = self._busy = self._work = 0
        self._space_ns = 0  # the disk is full: nothing of its own is written before
        self._failed = self._finished = False
        self._process_at = board.process_at(self.role)
        self._hand = InHand(board, self.role)

    def do_work(self, now_ns: int) -> int:
        """One short step; 0 if nothing is to be done now."""
        self._hear_sessions()
        if self._failed or self._finished:
            return 0
        if has_failed(self._board):
            self._failed = True  # somebody else has said so
            return 0
        try:
            done = self._step(now_ns)
        except OSError as error:
            if not is_disk_full(error):
                if not is_failed_change(error):
                    raise  # this process ends, and its successor goes on from the log
                self._fail(error.errno or 0, f"{self.writes}: {error}")
                return 0
            self._note_no_space()
            self._space_ns = now_ns + SPACE_RETRY_NS
            done = 0
        except (StoreFailed, Corrupt) as error:
            self._fail(error.fields.get("errno") or 0, str(error))
            return 0
        self._count(done, now_ns)
        return done

    @abstractmethod
    def _hear_sessions(self) -> None:
        """Sessions that came or went."""

    @abstractmethod
    def _step(self, now_ns: int) -> int:
        """How much was done. Raises Corrupt, StoreFailed, OSError: ENOSPC is tried again."""

    @abstractmethod
    def _note_no_space(self) -> None:
        """A line for the log."""

    def _count(self, done: int, now_ns: int) -> None:
        board, at = self._board, self._process_at
        self._cycles += 1
        board.set_word(at + layout.PROCESS_HEARTBEAT, self._cycles)
        if done or self._cycles == 1:  # the words are a former process's
            self._busy += int(done > 0)
            self._work += done
            board.set_word(at + layout.PROCESS_BUSY, self._busy)
            board.set_word(at + layout.PROCESS_WORK, self._work)

    def _fail(self, errno: int, what: str) -> None:
        self._failed = True
        declare_failed(self._board, self._table, (), errno, what)
