"""The board of a broker that runs, for those who only look."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gantrymq.clients.home import no_broker, owner_of, read_board_file, store_of
from gantrymq.shm.board import Board, attach_board
from gantrymq.shm.codes import BrokerState
from gantrymq.shm.errors import BrokerGone
from gantrymq.shm.layout import BOARD_STATE
from gantrymq.shm.storelock import BOARD_BYTE, is_held

if TYPE_CHECKING:
    from pathlib import Path


def board_name(home: Path) -> str:
    """Of the broker that runs; empty without one.

    A killed broker's board is left over, and named until the next life has one.
    """
    name = read_board_file(home).get("board", "")
    return name if name and is_held(store_of(home), BOARD_BYTE) else ""


def find_board(home: Path) -> Board | None:
    """None where no broker runs. Raises BrokerGone if the board of one was removed."""
    name = board_name(home)
    return board_of(home, name) if name else None


def board_of(home: Path, name: str) -> Board:
    """The board that a broker at `home` says it has. Raises BrokerGone, NotPermitted, ..."""
    try:
        return attach_board(name, owner=owner_of(home))
    except BrokerGone as error:
        raise no_broker(home, str(error)) from error


def require_board(home: Path, board: Board) -> None:
    """Raise BrokerGone unless the life of the broker that made a board goes on.

    A board that is mapped stays as it was; a later life has another one.
    """
    if board_name(home) != board.name:
        raise BrokerGone(f"the broker at {home} has ended", home=str(home))


def ready_board(home: Path, *, but: str = "") -> Board | None:
    """The board of a broker that is ready; None as long as there is none.

    `but` is the name of an earlier life's board, which the next one takes away only when it starts.
    """
    name = board_name(home)
    if not name or name == but:
        return None
    try:
        board = attach_board(name, owner=owner_of(home))
    except BrokerGone:  # its life has just ended
        return None
    return board if board.half(BOARD_STATE) == BrokerState.READY else None
