"""What is pending in a store that nobody has recovered, for those who only look."""

from __future__ import annotations

from typing import TYPE_CHECKING

from brokerd.checkpoint import read_checkpoint
from brokerd.commitlog import segment_bases
from brokerd.foreign import settle_ranges
from brokerd.handover.pending import Pending, Progress, read_pending
from shm import layout

if TYPE_CHECKING:
    from shm.board import Board
    from shm.storage import Storage


def read_unrecovered(
    storage: Storage, segment_bytes: int, board: Board | None, progress: Progress | None = None
) -> Pending:
    """The log up to the first thing that is no record. Changes nothing. Raises Corrupt, OSError."""
    bases = segment_bases(storage, segment_bytes)
    if not bases:
        return Pending()
    checkpoint = read_checkpoint(storage)
    durable = checkpoint.durable if checkpoint else 0
    if board is not None:
        durable = max(durable, board.word(layout.BOARD_DURABLE))
    ranges = settle_ranges(storage, segment_bytes, bases[0], durable, board)
    return read_pending(storage, segment_bytes, ranges, None, progress)
