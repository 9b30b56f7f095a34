"""The writer waits for the reader: whoever sends more than it can show makes nobody else late.

All that others wait for lies behind a flood in the log: what is to be shown, what is due, what is
recalled. While the reader is late, each lane has a small share of a cycle, and those who send
little notice nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gantrymq.shm import layout, limits
from gantrymq.shm.kernels import frames

if TYPE_CHECKING:
    from gantrymq.shm.board import Board


class ReaderPace:
    """Looks at a mark in the log: when it was appended, and whether the reader has passed it."""

    def __init__(self, board: Board, batch: memoryview[int]) -> None:
        self._board = board
        self._batch = batch
        self._mark = batch[frames.POSITION]
        self._mark_ns = 0

    @property
    def is_kept(self) -> bool:
        """Whether the reader is late: a lane has its share of a cycle, and no more."""
        return self._batch[frames.SHARE] > 0

    def look(self, now_ns: int) -> None:
        """To be called before each cycle."""
        batch = self._batch
        if batch[frames.POSITION] - self._mark <= limits.DRAIN_BYTES and not batch[frames.SHARE]:
            return
        if self._board.word(layout.BOARD_DISPATCHED) >= self._mark:
            self._mark, self._mark_ns = batch[frames.POSITION], now_ns
            batch[frames.SHARE] = 0
        elif now_ns - self._mark_ns > limits.READER_LATE_NS:
            batch[frames.SHARE] = limits.SHARE_BYTES

    def leave(self) -> None:
        """All that was published is to be taken, whatever the reader does."""
        self._batch[frames.SHARE] = 0
