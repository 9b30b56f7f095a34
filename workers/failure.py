"""How an agent says that a record is unfit, and that the store failed."""

from __future__ import annotations

from collections.abc import Iterable

from gantrymq.shm import layout
from gantrymq.shm.board import Board
from gantrymq.shm.codes import BrokerState, Stop
from gantrymq.shm.errors import Corrupt
from gantrymq.shm.lognames import segment_name
from gantrymq.workers.session import Session, SessionTable


def unfit_record(what: str, position: int, base: int, stop: Stop) -> Corrupt:
    """The error of a record that was appended and cannot be read: `what` it can't be."""
    return Corrupt(
        f"record at {position} of the commit log can't be {what} ({stop.name}); stop the broker"
        " and run `gantrymq store verify`",
        path=segment_name(base),
        position=position,
    )


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
