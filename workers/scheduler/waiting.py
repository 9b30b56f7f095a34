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
from gantrymq.workers.scheduler.progress import scheduler_note, steps_of
from gantrymq.workers.scheduler.strikes import sift
from gantrymq.workers.scheduler.timeline import Timeline
from gantrymq.workers.scheduler.timerpool import AFTER_BIT, KILLERS, SIZE_MASK
from gantrymq.workers.scheduler.timerunits import UNITS_MAX, TimerUnits

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gantrymq.shm.board import Board
    from gantrymq.shm.storage import Storage
    from gantrymq.workers.scheduler.note import Note
    from gantrymq.workers.scheduler.timerpool import Entries

#: One message that waits; `level` is 0 where it has a time of its own. Times are Unix ms.
WAITING: Final = np.dtype(
    [("due_ms", "<i8"), ("position", "<i8"), ("size", "<i4"), ("level", "<i4")]
)


class WaitingMessages:
    """A look at a store whose broker runs. Raises Corrupt, OSError."""

    def __init__(self, storage: Storage, board: Board, precision_ms: int) -> None:
        """`precision_ms`: setting timer_precision_ms."""
        jit.warm()
        self._storage, self._board = storage, board
        self.views = LogViews(storage, board)
        self._others = OtherSettled(storage)
        self._note = scheduler_note(storage, self._others, board.word(layout.BOARD_LOW))
        same_boot = self._note.boot_id == board.boot_id.hex()
        base_ns = self._note.base_ns if same_boot else board.wall_ahead_ns
        shift_ms = self._note.shift_ms if same_boot else 0
        steps = steps_of(self._note, same_boot=same_boot)
        time = Timeline(SystemClock(), base_ns, self._note.wall_ms, steps=steps, shift_ms=shift_ms)
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
                entries = self._units.entries(rows[wanted])
                found.append(entries[~_is_counted(entries, self._note)])
        if not found:
            return np.zeros(0, WAITING)
        entries, _gone = sift(np.concatenate(found), (), self.views)
        waiting = np.zeros(len(entries), WAITING)
        waiting["due_ms"], waiting["position"] = entries["ms"], entries["position"]
        waiting["size"] = entries["size"] & SIZE_MASK
        return waiting

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
    after = entries["size"] & AFTER_BIT != 0
    until = np.where(after, note.delays_ms, note.timers_ms)
    done: NDArray[np.bool_] = (entries["ms"] <= until) & (entries["size"] & KILLERS == 0)
    done &= entries["position"] <= note.timers_position
    return done | (entries["position"] < note.timers_floor)


def _queues(board: Board, name: str) -> range:
    topic = board.topic_named(name)
    return range(topic.queue_base, topic.queue_base + topic.queue_count) if topic else range(0)
