"""Half messages hold their segments: open ones, and those given up that nobody has settled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from brokerd.holders import Held, Loss
from brokerd.queuefiles import QueueKey, unit_of
from shm import layout
from shm.properties import GIVEN_UP_TOPIC, HALF_TOPIC
from workers.transactions.note import Note, read_note

if TYPE_CHECKING:
    from shm.board import Board
    from shm.storage import Storage

WHO = "the txn-checker"


class HalvesHolder:
    """What the txn-checker's note says is open: never less than what is."""

    def __init__(self, storage: Storage, board: Board) -> None:
        self._storage = storage
        self._board = board

    def lowest_position(self, used: int) -> Held | None:
        """The lowest half that may have to be committed yet. Raises OSError."""
        del used  # the disk rule is asked for by retention
        note = read_note(self._storage) or Note()
        places = [*self._open(note), *self._given_up(note)]
        return Held(min(places), WHO) if places else None

    def move_below(self, position: int) -> bool:
        """Ask the txn-checker to append halves below a log position again (ADR 0019).

        Open ones, and those that were given up. False if none lies there. Raises OSError.
        """
        note = read_note(self._storage) or Note()
        if min([*self._open(note), *self._given_up(note)], default=position) >= position:
            return False
        if self._board.word(layout.BOARD_TIMERS_WANTED) < position:
            self._board.set_word(layout.BOARD_TIMERS_WANTED, position)
        return True

    def _open(self, note: Note) -> list[int]:
        return [row[1] for row in note.open] + self._place(HALF_TOPIC, note.halves_next)

    def _given_up(self, note: Note) -> list[int]:
        return [row[1] for row in note.given_up] + self._place(GIVEN_UP_TOPIC, note.given_next)

    def _place(self, topic: str, known: int) -> list[int]:
        """Where the first record is that the note does not count."""
        unread = self._unread(topic, known)
        if unread is None:
            return []
        row = unit_of(self._storage, self._board.cq_bytes, (topic, 0), unread)
        return [row["physical_offset"] if row else 0]

    def losses(self, low: int, firsts: Mapping[QueueKey, int]) -> Iterator[Loss]:
        """How many transactions are lost, at most."""
        note = read_note(self._storage) or Note()
        count = sum(row[1] < low for row in (*note.open, *note.given_up))
        unread = self._unread(HALF_TOPIC, note.halves_next)
        if unread is not None:
            count += max(0, firsts.get((HALF_TOPIC, 0), 0) - unread)
        if count:
            yield Loss(WHO, f"messages of {HALF_TOPIC}", count)

    def _unread(self, topic: str, known: int) -> int | None:
        """First unit of a queue that the note does not count; None if it counts all."""
        for slot in self._board.topics():
            if slot.name == topic:
                at = self._board.queue_at(slot.queue_base)
                offset = max(known, self._board.word(at + layout.QUEUE_MIN_OFFSET))
                return offset if offset < self._board.word(at + layout.QUEUE_WRITTEN) else None
        return None
