"""Lets go of pages of the log that are on the disk and far behind its end.

What is read soon after it was written comes from memory; the rest of memory stays the
applications'. And the writer gets the same few pages again and again: on a virtual machine a page
that was never used, or went back to the host, costs ten times as much as the copy (ADR 0023).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gantrymq.shm import layout
from gantrymq.shm.lognames import segment_name
from gantrymq.shm.sidecar import DIRECTORY as SIDECARS

if TYPE_CHECKING:
    from gantrymq.shm.board import Board
    from gantrymq.shm.storage import Storage

#: Bytes that are let go of at one time, and in one call: some 0.25 us for each page.
STEP_BYTES = 4 << 20
CALL_BYTES: Final = 128 << 20
#: In one call while somebody waits for the next sync, half a millisecond; or what was written.
HURRIED_BYTES = 8 << 20


class PageCache:
    """Follows the log's end at a distance."""

    def __init__(self, storage: Storage, board: Board, keep_bytes: int, *, indexed: bool) -> None:
        """`keep_bytes` stay in memory, 0: all; `indexed`: keys are still to be read for the index.

        Segments from before this life are left to the kernel.
        """
        self._storage = storage
        self._board = board
        self._keep_bytes = keep_bytes
        self._indexed = indexed
        size = board.segment_bytes
        self._next = max(0, board.word(layout.BOARD_APPENDED) - keep_bytes) // size * size
        self._seen = board.word(layout.BOARD_DURABLE)
        self._sealed = -1  # base of a segment that has its sidecar

    def follow(self, durable: int, *, hurried: bool = False) -> int:
        """Let go of what is far enough behind; how many bytes. Raises OSError.

        Segments that retention has taken are passed over.
        """
        if not self._keep_bytes:
            return 0
        most = max(HURRIED_BYTES, durable - self._seen) if hurried else CALL_BYTES
        self._seen = durable
        begun = self._next = max(self._next, self._board.word(layout.BOARD_LOW))
        end = min(self._settled(durable) - self._keep_bytes, begun + most)
        while self._next + STEP_BYTES <= end and self._is_sealed(self._next):
            self._next += self._let_go(self._next)
        return self._next - begun

    def keep_all(self) -> None:
        """Leave it to the kernel from now on."""
        self._keep_bytes = 0

    def _settled(self, durable: int) -> int:
        """Log position below which no agent has anything left to read."""
        board = self._board
        settled = min(durable, board.word(layout.BOARD_DISPATCHED))
        return min(settled, board.word(layout.BOARD_INDEXED)) if self._indexed else settled

    def _is_sealed(self, position: int) -> bool:
        """Whether the reader has read the segment around a position once more, for its sidecar."""
        base = self._base(position)
        if base != self._sealed and self._storage.exists(f"{SIDECARS}/{base:020d}"):
            self._sealed = base
        return base == self._sealed

    def _let_go(self, position: int) -> int:
        base = self._base(position)
        count = min(STEP_BYTES, base + self._board.segment_bytes - position)
        try:
            file = self._storage.open(segment_name(base))
        except FileNotFoundError:  # retention was quicker
            return count
        try:
            file.let_go(position - base, count)
        finally:
            file.close()
        return count

    def _base(self, position: int) -> int:
        return position // self._board.segment_bytes * self._board.segment_bytes
