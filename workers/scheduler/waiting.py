"""Which parked messages wait now, for those who look at a running broker.

The scheduler's truth, without its buckets: what a scheduler that started now would deliver. Its
note says what is done; what the note does not count has its copy, or its recall, behind `scanned`.
Nothing is changed, no agent is asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from gantrymq.shm import jit, layout
from gantrymq.shm.clock import SystemClock
from gantrymq.shm.kernels import timer
from gantrymq.shm.properties import SCHEDULE_TOPIC, TIMER_TOPIC
from gantrymq.workers.logviews import LogViews
from gantrymq.workers.origins import OriginScan
from gantrymq.workers.scheduler.othersettled import OtherSettled
from gantrymq.workers.scheduler.progress import scheduler_note, timeline_of
from gantrymq.workers.scheduler.strikes import sift
from gantrymq.workers.scheduler.timerbuckets import entries_at
from gantrymq.workers.scheduler.timerpool import ENTRY, KILLERS, SIZE_MASK, each_once, is_delay
from gantrymq.workers.scheduler.timerunits import UNITS_MAX, TimerUnits

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gantrymq.shm.board import Board
    from gantrymq.shm.clock import Clock
    from gantrymq.shm.storage import Storage
    from gantrymq.workers.scheduler.note import Note
    from gantrymq.workers.scheduler.timerpool import Entries

#: One message that waits; `level` is 0 where it has a time of its own. Times are Unix ms.
WAITING: Final = np.dtype(
    [("due_ms", "<i8"), ("position", "<i8"), ("size", "<i4"), ("level", "<i4")]
)


#: The note and its buckets are read anew if one of these has gone in between.
LOOKS_MAX: Final = 5


class WaitingMessages:
    """A look at a store whose broker runs. Raises Corrupt, OSError."""

    def __init__(
        self, storage: Storage, board: Board, precision_ms: int, clock: Clock | None = None
    ) -> None:
        """`precision_ms`: setting timer_precision_ms."""
        jit.warm()
        self._storage, self._board = storage, board
        self.views = LogViews(storage, board)
        self._others = OtherSettled(storage)
        self._note, self._filed = self._what_is_noted()
        time = timeline_of(self._note, board, clock or SystemClock())
        self._units = TimerUnits(self.views, self.views, time, precision_ms)

    def read(self) -> NDArray[np.void]:
        """Rows of WAITING in order of time."""
        # What is delivered while this reads has its origin in the part that is read last.
        found = np.concatenate([self._absent(), self._levels(), self._timers()])
        found = found[~np.isin(found["position"], self._done())]
        positions = found["position"]
        found = found[np.unique(positions, return_index=True)[1]]
        return np.asarray(found[np.argsort(found["due_ms"], kind="stable")])

    def _done(self) -> NDArray[np.int64]:
        board = self._board
        end = board.word(layout.BOARD_APPENDED)
        scan = OriginScan(self._storage, board, self.views, self._note.scanned, end)
        while not scan.finished:
            scan.step()
        return scan.origins()

    def _absent(self) -> NDArray[np.void]:
        """Those that are due, but whose topic is gone."""
        rows = np.zeros(len(self._note.absent), WAITING)
        for row, (position, size) in zip(rows, self._note.absent, strict=True):
            row["position"], row["size"] = position, size
        return rows[rows["position"] >= self._board.word(layout.BOARD_LOW)]

    def _levels(self) -> NDArray[np.void]:
        found = [np.zeros(0, WAITING)]
        for queue_id, queue in enumerate(_queues(self._board, SCHEDULE_TOPIC)):
            known = self._note.levels.get(queue_id + 1, 0)
            for first, units in self._pieces(SCHEDULE_TOPIC, queue_id, queue, known):
                settled = self._others.among(SCHEDULE_TOPIC, queue_id, first, len(units))
                need = units[(units["size"] != layout.CQ_FILLER_SIZE) & ~settled]
                rows = np.zeros(len(need), WAITING)
                rows["due_ms"], rows["position"] = need["code"], need["position"]
                rows["size"], rows["level"] = need["size"], queue_id + 1
                found.append(rows)
        return np.concatenate(found)

    def _timers(self) -> NDArray[np.void]:
        found: list[Entries] = []
        for queue in _queues(self._board, TIMER_TOPIC):
            for first, units in self._pieces(TIMER_TOPIC, 0, queue, 0):
                positions = units["position"].astype(np.int64)
                rows = self._units.rows(positions, units["size"].astype(np.int64))
                wanted = rows[:, timer.KIND] & timer.NOTHING == 0
                wanted &= ~self._others.among(TIMER_TOPIC, 0, first, len(units))
                entries = self._as_filed(self._units.entries(rows[wanted]))
                found.append(entries[~_is_counted(entries, self._note)])
        if not found:
            return np.zeros(0, WAITING)
        entries, _gone = sift(np.concatenate(found), (), self.views)
        waiting = np.zeros(len(entries), WAITING)
        waiting["due_ms"], waiting["position"] = entries["ms"], entries["position"]
        waiting["size"] = entries["size"] & SIZE_MASK
        return waiting

    def _as_filed(self, entries: Entries) -> Entries:
        """Delays that the note counts with the times of their buckets; done without one there.

        Their records may tell another time now, if the wall clock was set: to this look, or to
        another boot of the machine.
        """
        if self._filed is None:
            return entries
        rows = np.flatnonzero(
            is_delay(entries)
            & (entries["size"] & KILLERS == 0)
            & (entries["position"] <= self._note.timers_position)
        )
        positions, times = self._filed
        places = np.searchsorted(positions, entries["position"][rows])
        places = np.minimum(places, max(0, len(positions) - 1))
        entries["ms"][rows] = 0
        if len(positions):
            known = positions[places] == entries["position"][rows]
            entries["ms"][rows[known]] = times[places[known]]
        return entries

    def _what_is_noted(self) -> tuple[Note, tuple[NDArray[np.int64], NDArray[np.int64]] | None]:
        """The note, and positions and times of delays in its buckets; None without them.

        The scheduler removes a bucket once a later note does without it.
        """
        for _ in range(LOOKS_MAX):
            note = scheduler_note(self._storage, self._others, self._board.word(layout.BOARD_LOW))
            try:
                return note, self._filed_in(note)
            except FileNotFoundError:
                continue
        return note, None

    def _filed_in(self, note: Note) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        found = [np.zeros(0, ENTRY)]
        for name in note.buckets:
            found += [entries for entries, _end in entries_at(self._storage, name, 0)]
        filed = each_once(np.concatenate(found))
        filed = filed[is_delay(filed)]
        return filed["position"].astype(np.int64), filed["ms"].astype(np.int64)

    def _pieces(
        self, topic: str, queue_id: int, queue: int, known: int
    ) -> list[tuple[int, NDArray[np.void]]]:
        """First offset and units of each part of a queue, from offset `known` on."""
        at = self._board.queue_at(queue)
        first = max(known, self._board.word(at + layout.QUEUE_MIN_OFFSET))
        end = self._board.word(at + layout.QUEUE_MAX_OFFSET)
        pieces = []
        while first < end:
            units = self.views.units(topic, queue_id, first, min(end, first + UNITS_MAX))
            pieces.append((first, units.copy()))
            first += len(units)
        return pieces


def _is_counted(entries: Entries, note: Note) -> NDArray[np.bool_]:
    """What the note says is done; recalls and the like count for what they name."""
    until = np.where(is_delay(entries), note.delays_ms, note.timers_ms)
    done: NDArray[np.bool_] = (entries["ms"] <= until) & (entries["size"] & KILLERS == 0)
    done &= entries["position"] <= note.timers_position
    return done | (entries["position"] < note.timers_floor)


def _queues(board: Board, name: str) -> range:
    topic = board.topic_named(name)
    return range(topic.queue_base, topic.queue_base + topic.queue_count) if topic else range(0)
