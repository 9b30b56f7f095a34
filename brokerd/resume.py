"""What a new writer learns from the log: seqs of producers, and the next offset of each queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gantrymq.brokerd.logscan import queue_offsets, walk
from gantrymq.brokerd.producers import Producers, load_producers
from gantrymq.shm import layout
from gantrymq.shm.kernels import frames, scan
from gantrymq.shm.ranges import EVERYTHING, read_ranges

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gantrymq.shm.board import Board
    from gantrymq.shm.storage import Storage


def learn_from_log(storage: Storage, board: Board, appended: int) -> Producers:
    """Producers as the log has them, and `next_offset` of every queue on the board."""
    producers = load_producers(storage)
    settled = board.word(layout.BOARD_SETTLED)
    dispatched = board.word(layout.BOARD_DISPATCHED)
    low = board.word(layout.BOARD_LOW)
    start = max(low, min(producers.position, settled, dispatched))
    offsets: dict[tuple[str, int], int] = {}
    ranges = read_ranges(storage) or EVERYTHING
    for stretch in ranges.stretches(start, appended):
        for piece in walk(storage, board.segment_bytes, stretch.start, stretch.end, 0):
            if stretch.ours:  # another broker's copies bear our UNIQ_KEYs
                producers.learn(piece.view, piece.rows, piece.base, settled)
            for key, seen in queue_offsets(piece).items():
                last = offsets.get(key, -1)
                offsets[key] = max(seen.highest, -1 if seen.begins(last + 1) else last)
    _set_next_offsets(board, offsets)
    return producers


def keep_unanswered(
    producers: Producers, producer: bytes, staging: NDArray[np.uint8], batch: NDArray[np.int64]
) -> None:
    """Note what a batch that was just appended has of a producer that nobody tells."""
    base = int(batch[frames.POSITION])
    rows = np.empty(max(int(batch[frames.RECORDS]), 1) * scan.ROW_WORDS, np.int64)
    form = np.array([0, base, 0, 0, 0, 0], np.int64)
    view = staging[: batch[frames.FILLED]]
    scan.scan_log(view, form, rows)
    found = rows[: form[5] * scan.ROW_WORDS].reshape(-1, scan.ROW_WORDS)
    producers.learn(view, found, base, base, only=producer)


def _set_next_offsets(board: Board, seen: dict[tuple[str, int], int]) -> None:
    for topic in board.topics():
        for queue_id in range(topic.queue_count):
            at = board.queue_at(topic.queue_base + queue_id)
            written = board.word(at + layout.QUEUE_WRITTEN)
            last = seen.get((topic.name, queue_id), -1)
            board.set_word(at + layout.QUEUE_NEXT_OFFSET, max(written, last + 1))
