"""Delayed messages and dead letters as the board and the store show them; loads no numpy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from gantrymq.shm import layout
from gantrymq.shm.errors import Corrupt
from gantrymq.shm.limits import LATENESS_MS
from gantrymq.shm.properties import DLQ_PREFIX
from gantrymq.workers.groups.deadletternote import DeadLetterNote, counted, read_note

if TYPE_CHECKING:
    from gantrymq.shm.board import Board
    from gantrymq.shm.storage import Storage


@dataclass(frozen=True, slots=True)
class Delays:
    """What waits, what was delivered since the broker started, and how late.

    `counts`: how many were late by up to LATENESS_MS[i], and not by up to one before; the last:
    by more. What was due already when it was sent is not among them.
    """

    levels: int
    timers: int
    delivered: int
    late_sum_ms: int
    late_max_ms: int
    counts: tuple[int, ...]

    @classmethod
    def of(cls, board: Board) -> Self:
        """As the scheduler says it now."""
        at = layout.BOARD_LATE_COUNTS
        return cls(
            board.word(layout.BOARD_PENDING_LEVELS),
            board.word(layout.BOARD_PENDING_TIMERS),
            board.word(layout.BOARD_DELIVERED),
            board.word(layout.BOARD_LATE_SUM_MS),
            board.word(layout.BOARD_LATE_MAX_MS),
            tuple(board.word(at + 8 * number) for number in range(len(LATENESS_MS) + 1)),
        )

    def late_within_ms(self, part: float) -> int | None:
        """The least bound that holds for this part of them, or the most; None without any."""
        left = part * sum(self.counts)
        if not left:
            return None
        for bound, count in zip(LATENESS_MS, self.counts, strict=False):
            left -= count
            if left <= 0:
                return min(bound, self.late_max_ms)
        return self.late_max_ms


@dataclass(frozen=True, slots=True)
class DeadLetterCount:
    """Letters of a group that were not purged; `resent`: how many of them were sent again."""

    group: str
    messages: int
    resent: int


def dead_letters(board: Board, storage: Storage) -> Iterator[DeadLetterCount]:
    """Groups with a dead-letter queue, by name."""
    try:
        note = read_note(storage)
    except Corrupt:  # `dlq list` and `store verify` say so: here all letters count
        note = DeadLetterNote()
    for topic in sorted(board.topics(), key=lambda topic: topic.name):
        if not topic.perm or not topic.name.startswith(DLQ_PREFIX):
            continue
        group = topic.name.removeprefix(DLQ_PREFIX)
        messages = resent = 0
        for queue_id in range(topic.queue_count):
            slot = board.queue(topic.queue_base + queue_id)
            some, again = counted(note.of(group, queue_id), slot["min_offset"], slot["max_offset"])
            messages, resent = messages + some, resent + again
        yield DeadLetterCount(group, messages, resent)
