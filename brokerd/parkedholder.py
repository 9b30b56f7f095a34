"""Parked records hold their segments: what waits for its time is not removed before (LW-73)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from gantrymq.brokerd.holders import Held, Loss, ask_to_move
from gantrymq.brokerd.queuefiles import QueueKey, position_of
from gantrymq.brokerd.timerplaces import TimerPlaces
from gantrymq.shm import layout
from gantrymq.shm.properties import SCHEDULE_TOPIC, TIMER_TOPIC
from gantrymq.workers.scheduler.note import Note, read_note

if TYPE_CHECKING:
    from gantrymq.shm.board import Board
    from gantrymq.shm.storage import Storage

WHO = "the scheduler"


class ParkedHolder:
    """What the scheduler's note and its buckets say is pending: never less than what is."""

    def __init__(self, storage: Storage, board: Board) -> None:
        self._storage = storage
        self._board = board
        self._places = TimerPlaces(storage, board.segment_bytes)

    def lowest_position(self, used: int) -> Held | None:
        """The lowest record that may have to be delivered yet. Raises OSError."""
        del used  # the disk rule is asked for by retention
        note = read_note(self._storage) or Note()
        places = [*self._fixed(note), *self._timers(note)]
        return Held(min(places), WHO) if places else None

    def move_below(self, position: int) -> bool:
        """Ask the scheduler to append timers below a log position again (ADR 0018).

        False if that would not free all below: a delay level, or what has no topic, lies there too,
        or no timer does. Raises OSError.
        """
        note = read_note(self._storage) or Note()
        if min(self._fixed(note), default=position) < position:
            return False
        if min(self._timers(note), default=position) >= position:
            return False
        ask_to_move(self._board, position)
        return True

    def _fixed(self, note: Note) -> list[int]:
        """Where those begin that stay where they are: levels, and what has no topic."""
        return [*self._units(note, timers=False), *(position for position, _size in note.absent)]

    def _timers(self, note: Note) -> list[int]:
        places = [lowest for lowest, _count in self._places.waiting(note).values()]
        return places + self._units(note, timers=True)

    def _units(self, note: Note, *, timers: bool) -> list[int]:
        """Where the first records are that the note does not count, of timers or of levels."""
        return [
            position_of(self._storage, self._board, key, offset)
            for key, offset in self._unread(note)
            if (key[0] == TIMER_TOPIC) is timers
        ]

    def losses(self, low: int, firsts: Mapping[QueueKey, int]) -> Iterator[Loss]:
        """How many parked messages are lost, at most."""
        note = read_note(self._storage) or Note()
        waiting = self._places.waiting(note).values()
        lost = {TIMER_TOPIC: sum(count for lowest, count in waiting if lowest < low)}
        if absent := sum(position < low for position, _size in note.absent):
            yield Loss(WHO, "messages whose topic is missing", absent)
        for key, offset in self._unread(note):
            lost[key[0]] = lost.get(key[0], 0) + max(0, firsts.get(key, 0) - offset)
        for topic, count in lost.items():
            if count:
                yield Loss(WHO, f"messages of {topic}", count)

    def _unread(self, note: Note) -> Iterator[tuple[QueueKey, int]]:
        """Parked queues with units that the note does not count, and the first of them.

        Of timers none counts where buckets are damaged, or being made of the log again.
        """
        timers_next = note.timers_next if self._places.are_believed(note) else 0
        for topic in self._board.topics():
            if topic.name not in (SCHEDULE_TOPIC, TIMER_TOPIC):
                continue
            for queue_id in range(topic.queue_count):
                at = self._board.queue_at(topic.queue_base + queue_id)
                low = self._board.word(at + layout.QUEUE_MIN_OFFSET)
                is_timer = topic.name == TIMER_TOPIC
                known = timers_next if is_timer else note.levels.get(queue_id + 1, 0)
                offset = max(known, low)
                if offset < self._board.word(at + layout.QUEUE_WRITTEN):
                    yield (topic.name, queue_id), offset
