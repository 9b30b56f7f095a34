"""Waiting for brokers that are no children of a test's."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from gantrymq.clients.home import read_board_file
from gantrymq.shm.board import attach_board
from gantrymq.shm.codes import BrokerState
from gantrymq.shm.errors import BrokerGone
from gantrymq.shm.layout import BOARD_STATE

_PATIENCE_S = 120.0


def wait_until_ready(home: Path, lives: Callable[[], bool]) -> None:
    """Until the broker of a home is ready. Raises RuntimeError if it ends, or is never."""
    until = time.monotonic() + _PATIENCE_S
    while time.monotonic() < until:
        if not lives():
            raise RuntimeError(f"the broker at {home} has ended")
        name = read_board_file(home).get("board")
        try:
            if name and attach_board(name).half(BOARD_STATE) == BrokerState.READY:
                return
        except BrokerGone:
            pass
        time.sleep(0.01)
    raise RuntimeError(f"the broker at {home} is not ready")
