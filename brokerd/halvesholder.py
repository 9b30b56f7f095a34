"""Half messages hold their segments: open ones, and those given up that nobody has settled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from gantrymq.brokerd.holders import Held, Loss, ask_to_move
from gantrymq.brokerd.queuefiles import QueueKey, position_of
from gantrymq.shm import layout
from gantrymq.shm.properties import GIVEN_UP_TOPIC, HALF_TOPIC
from gantrymq.workers.transactions.note import Note, read_note

if TYPE_CHECKING:
    from gantrymq.shm.board import Board
    from gantrymq.shm.storage import Storage

WHO = "the txn-checker"


class HalvesHolder:
    """What the txn-checker's note says is open: never less than what is."""

    def __init__(self, storage: Storage, board: Board) -> None:
        self._storage = storage
        self._board = board

    def lowest_position(self, used: int) -> Held | None:
        """The lowest half that may have to be committed yet. Raises OSError."""
        del used  # the disk rule is asked for by retention
        places = self._places()
        return Held(min(places), WHO) if places else None

    def move_below(self, position: int) -> bool:
        """Ask the txn-checker to append halves below a log position again (ADR 0019).

        Open ones, and those that were given up. False if none lies there. Raises OSError.
        """
        if min(self._places(), default=position) >= position:
            return False
        ask_to_move(self._board, position)
        return True

    def _places(self) -> list[int]:
        """Where halves lie that are open, or given up."""
        note = read_note(self._storage) or Note()
        listed = [row[1] for row in (*note.open, *note.given_up)]
        open_from = self._place(HALF_TOPIC, note.halves_next)
        return listed + open_from + self._place(GIVEN_UP_TOPIC, note.given_next)

    def _place(self, topic: str, known: int) -> list[int]:
        """Where the first record is that the note does not count."""
        unread = self._unread(topic, known)
        if unread is None:
            return []
        return [position_of(self._storage, self._board, (topic, 0), unread)]

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
        slot = self._board.topic_named(topic)
        if slot is None:
            return None
        at = self._board.queue_at(slot.queue_base)
        offset = max(known, self._board.word(at + layout.QUEUE_MIN_OFFSET))
        return offset if offset < self._board.word(at + layout.QUEUE_WRITTEN) else None
