"""What is pending in a store that nobody has recovered, for those who only look."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gantrymq.brokerd.checkpoint import read_checkpoint
from gantrymq.brokerd.commitlog import segment_bases
from gantrymq.brokerd.foreign import settle_ranges
from gantrymq.brokerd.handover.pending import Pending, Progress, read_pending
from gantrymq.shm import layout

if TYPE_CHECKING:
    from gantrymq.shm.board import Board
    from gantrymq.shm.storage import Storage


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
