"""The board of a broker that runs, for those who only look."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gantrymq.clients.home import owner_of, read_board_file, store_of
from gantrymq.shm.board import Board, attach_board
from gantrymq.shm.storelock import is_held

if TYPE_CHECKING:
    from pathlib import Path


def board_name(home: Path) -> str:
    """Of the broker that runs; empty without one.

    A killed broker's board is left over, but nobody holds the lock.
    """
    name = read_board_file(home).get("board", "")
    return name if name and is_held(store_of(home)) else ""


def find_board(home: Path) -> Board | None:
    """None where no broker runs."""
    name = board_name(home)
    return attach_board(name, owner=owner_of(home)) if name else None
