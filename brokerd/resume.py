"""What a new writer learns from the log: seqs of producers, and the next offset of each queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from brokerd.logscan import walk
from brokerd.producers import Producers, load_producers
from shm import layout
from shm.kernels import scan

if TYPE_CHECKING:
    from shm.board import Board
    from shm.storage import Storage


def learn_from_log(storage: Storage, board: Board, appended: int) -> Producers:
    """Producers as the log has them, and `next_offset` of every queue on the board."""
    producers = load_producers(storage)
    settled = board.word(layout.BOARD_SETTLED)
    dispatched = board.word(layout.BOARD_DISPATCHED)
    low = board.word(layout.BOARD_LOW)
    start = max(low, min(producers.position, settled, dispatched))
    offsets: dict[tuple[bytes, int], int] = {}
    for piece in walk(storage, board.segment_bytes, start, appended, 0):
        producers.learn(piece.view, piece.rows, piece.base, settled)
        _last_offsets(piece.view, piece.rows, offsets)
    _set_next_offsets(board, offsets)
    return producers


def _set_next_offsets(board: Board, seen: dict[tuple[bytes, int], int]) -> None:
    for topic in board.topics():
        for queue_id in range(topic.queue_count):
            at = board.queue_at(topic.queue_base + queue_id)
            written = board.word(at + layout.QUEUE_WRITTEN)
            last = seen.get((topic.name.encode(), queue_id), -1)
            board.set_word(at + layout.QUEUE_NEXT_OFFSET, max(written, last + 1))


def _last_offsets(
    view: NDArray[np.uint8], rows: NDArray[np.int64], seen: dict[tuple[bytes, int], int]
) -> None:
    """Highest queue offset per (topic name, queue id) among scanned records (SF-42)."""
    kinds = rows[:, scan.SYS_FLAG] & layout.SYS_TRANSACTION
    for row in rows[(kinds == 0) | (kinds == layout.SYS_COMMIT)]:
        at = int(row[scan.TOPIC_AT])
        name = view[at : at + int(row[scan.TOPIC_SIZE])].tobytes()
        key = (name, int(row[scan.QUEUE_ID]))
        seen[key] = max(seen.get(key, -1), int(row[scan.QUEUE_OFFSET]))
