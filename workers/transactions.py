"""The txn-checker: the only one that decides what becomes of half messages.

What is open is what the log says: halves that no op message names and no commit copy comes from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from shm import layout
from shm.codes import Role
from workers.agent import IDLE_NS
from workers.failure import has_failed
from workers.outlet import Outlet
from workers.session import Attached

if TYPE_CHECKING:
    from shm.board import Board
    from shm.clock import Clock
    from shm.storage import Storage
    from workers.agent import Bells
    from workers.session import Session, SessionTable


class CheckerSettings(Protocol):
    """What the txn-checker needs of the broker's settings."""

    @property
    def transaction_timeout(self) -> int:
        """Seconds until a half is checked for the first time."""
        ...

    @property
    def transaction_check_interval(self) -> int:
        """Seconds between checks."""
        ...

    @property
    def transaction_check_max(self) -> int:
        """Checks without a decision until a half is given up."""
        ...


class TxnChecker:
    """Agent."""

    name = "txn_checker"

    def __init__(
        self,
        storage: Storage,
        clock: Clock,
        board: Board,
        sessions: SessionTable,
        bells: Bells,
        settings: CheckerSettings,
    ) -> None:
        self._storage = storage
        self._clock = clock
        self._board = board
        self._table = sessions
        self._bells = bells
        self._settings = settings
        self._outlet: Outlet | None = None
        self._cycles = 0
        self._failed = self._finished = False

    def do_work(self, now_ns: int) -> int:
        """One short step; 0 if nothing is to be done now."""
        del now_ns
        self._hear_sessions()
        self._cycles += 1
        at = self._board.process_at(Role.TXN_CHECKER)
        self._board.set_word(at + layout.PROCESS_HEARTBEAT, self._cycles)
        self._failed = self._failed or has_failed(self._board)
        self._finished = self._finished or self._table.stopping()
        return 0

    def _hear_sessions(self) -> None:
        for event in self._table.poll():
            if isinstance(event, Attached) and event.session.owner == Role.TXN_CHECKER:
                self._open(event.session)

    def _open(self, session: Session) -> None:
        self._outlet = Outlet(session, self._bells.writer)

    def arm(self, now_ns: int) -> int:
        """Sleep."""
        del now_ns
        return IDLE_NS

    def disarm(self) -> None:
        """Awake."""

    def close(self) -> None:
        """Give files and maps back."""


def open_txn_checker(
    storage: Storage,
    clock: Clock,
    board: Board,
    sessions: SessionTable,
    bells: Any,  # noqa: ANN401 - workers.agent.Bells
    settings: Any,  # noqa: ANN401 - brokerd.config.Settings
) -> TxnChecker:
    """A txn-checker that goes on where the log and its note say."""
    return TxnChecker(storage, clock, board, sessions, bells, settings)
