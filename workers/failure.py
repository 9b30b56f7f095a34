"""How an agent says that the store failed: to the board, its clients and the supervisor."""

from __future__ import annotations

from collections.abc import Iterable

from shm import layout
from shm.board import Board
from shm.codes import BrokerState
from workers.session import Session, SessionTable


def has_failed(board: Board) -> bool:
    """Whether an agent has declared the store failed: nothing is acknowledged from then on."""
    return board.half(layout.BOARD_STATE) == BrokerState.FAILED


def declare_failed(
    board: Board, table: SessionTable, sessions: Iterable[Session], errno: int, what: str
) -> None:
    """Set the board's state, wake everybody who waits, and have the broker stopped."""
    board.set_half(layout.BOARD_FAILED_ERRNO, errno)
    board.set_half(layout.BOARD_STATE, int(BrokerState.FAILED))
    for session in sessions:
        session.bell.ring()
    table.failed(errno, what)
