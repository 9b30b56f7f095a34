"""Decisions are judged and their copies put into the ring; nothing goes up here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from shm import layout
from shm.codes import Level, Stop
from shm.kernels import frames, halfform, stretch
from shm.kernels.decide import has_room, put_commits, stage_entry
from shm.transactionwire import FOREIGN_GROUP, HALVES_MAX, NOT_A_HALF, UNKNOWN, UNSTORABLE
from workers.logwindow import LogWindow
from workers.outlet import entry_of
from workers.topicindex import TopicIndex
from workers.transactions.batch import Batch
from workers.transactions.delayedcommit import Delays, commit_copy, copy_of, delayed_copy

if TYPE_CHECKING:
    from shm.board import Board
    from shm.storage import Storage
    from workers.logviews import LogViews
    from workers.outlet import Copy, Outlet
    from workers.transactions.decision import Decision, Half

#: `stage` could not put all: call it again when the ring has room.
LATER: Final = "later"
_ERRORS: Final = {
    halfform.NO_HALF: NOT_A_HALF,
    halfform.FOREIGN: FOREIGN_GROUP,
    halfform.NO_TOPIC: UNSTORABLE,
    halfform.TOO_LARGE: UNSTORABLE,
}


class Staging:
    """Judges halves, and puts commit copies of those that are to be committed."""

    def __init__(
        self, storage: Storage, board: Board, views: LogViews, outlet: Outlet, delays: Delays
    ) -> None:
        self.window = LogWindow(storage, board, views)
        self.batch = Batch()
        self._board = board
        self._words = board.array()
        self._delays = delays
        self._arena = outlet.session.arena
        self._lane: NDArray[np.int64] = outlet.words
        self._view = outlet.words.data
        self._form = np.zeros(halfform.FORM_WORDS, np.int64)
        self._form_view = self._form.data
        self._op_room = 0
        self._in_parts: Decision | None = None  # more of it is to be put before anything else
        self._rows = np.zeros(halfform.HALF_WORDS * HALVES_MAX, np.int64)
        self._rows_view = self._rows.data
        self._index = TopicIndex(board)
        self._expected = ("", "none yet")
        self._names = np.zeros(512, np.uint8)  # group and transaction of these
        self._name_bytes = self._names.data
        self.slots: dict[str, int] = {}
        self.durables: set[int] = set()

    # ----------------------------------------------------------------------------------- staging

    def follow_topics(self) -> None:
        """Know the topics of the board."""
        if self._index.follow():
            topics = self._board.topics()
            self.slots = {topic.name: topic.slot for topic in topics}
            self.durables = {topic.slot for topic in topics if topic.level == Level.DURABLE}

    def stage(self, decision: Decision, group: str, tx: str, now_ms: int) -> str:
        """Judge a decision's halves and put its copies; nothing goes up before `flush`.

        `group` empty: any; `tx` empty: any transaction. Returns "", LATER, or the name of the error
        for which nothing was put. With each copy there is room for the op record behind it.
        """
        if self.differs(decision) or self._in_parts not in (None, decision):
            return LATER
        cursor, seq, staged = self._view[frames.UP_CURSOR], self._view[frames.SEQ], decision.staged
        error = self._stage(decision, group, tx, now_ms)
        if not error:
            self.batch.add(decision)
            self._in_parts = None
        elif error is LATER and self.is_alone:
            self._in_parts = decision
        else:
            self._view[frames.UP_CURSOR], self._view[frames.SEQ] = cursor, seq
            decision.staged = staged
            self._in_parts = None if error is not LATER else self._in_parts
        return error

    @property
    def is_alone(self) -> bool:
        """Whether what is being staged need not share the ring: it may go up in parts then."""
        return not self.batch.decisions

    def _stage(self, decision: Decision, group: str, tx: str, now_ms: int) -> str:
        self._op_room = self.batch.op_room(decision)
        self._form_view[halfform.OP_ROOM] = self._op_room
        if not decision.puts and not has_room(self._arena, self._lane, self._op_room):
            return LATER
        if decision.copies is not None:
            return self._stage_copies(decision)
        rows, halves = self._rows_view, decision.halves
        at = 0
        for position, offset in halves:
            rows[at], rows[at + 1] = position, offset
            at += halfform.HALF_WORDS
        self._expect(group, tx)
        count = len(halves)
        if decision.is_commit and count == 1:
            return self._put(decision, now_ms)
        if not decision.staged:
            self._run(0, count, 0)
            error = self._error_of(0, count)
            if error or not decision.is_commit:
                return error or self._judged(decision)
        return self._put(decision, now_ms)

    def differs(self, decision: Decision) -> bool:
        """Whether it needs an op record of another kind than the batch in hand has."""
        return self.batch.differs(decision)

    def _expect(self, group: str, tx: str) -> None:
        if (group, tx) == self._expected:
            return
        self._expected = (group, tx)
        name, number = group.encode(), tx.encode()
        size = len(name) + len(number)
        if size > len(self._name_bytes):
            self._names = np.zeros(size, np.uint8)
            self._name_bytes = self._names.data
        self._name_bytes[:size] = name + number
        self._form_view[halfform.GROUP_BYTES] = len(name) if name else -1
        self._form_view[halfform.TX_BYTES] = len(number)

    def _run(self, start: int, count: int, commit: int) -> int:
        form, window, rows = self._form_view, self.window, self._rows_view
        form[stretch.NEXT], form[stretch.COUNT], form[halfform.COMMIT] = start, count, commit
        while True:
            at = form[stretch.NEXT] * halfform.HALF_WORDS
            if not window.enter(rows[at]):
                rows[at + halfform.STATE] = halfform.NO_HALF
                form[stretch.NEXT] += 1
                if form[stretch.NEXT] == count:
                    return Stop.DONE
                continue
            window.show_in(form)
            stop = put_commits(
                window.view, self._form, self._rows, self._words, self._index.words, self._arena,
                self._lane, self._names,
            )  # fmt: skip
            if stop != Stop.ROLL:
                return stop

    def _error_of(self, start: int, count: int) -> str:
        rows = self._rows_view
        for number in range(start, count):
            at = number * halfform.HALF_WORDS
            state = rows[at + halfform.STATE]
            if state in _ERRORS:
                low = self._board.word(layout.BOARD_LOW)
                return UNKNOWN if rows[at] < low else _ERRORS[state]
        return ""

    def _put(self, decision: Decision, now_ms: int) -> str:
        count = len(decision.halves)
        while decision.staged < count:
            start = decision.staged
            stop = self._run(start, count, 1)
            decision.staged = start
            for number in range(start, self._form_view[stretch.NEXT]):
                state = self._rows_view[number * halfform.HALF_WORDS + halfform.STATE]
                if state == halfform.DELAYED and not self._put_delayed(number, now_ms):
                    return LATER
                if state in _ERRORS:
                    return self._error_of(number, number + 1)
                decision.staged += 1
            if stop == Stop.BACKPRESSURE:
                return LATER
        return self._judged(decision)

    def _put_delayed(self, number: int, now_ms: int) -> bool:
        rows = self._rows_view
        half = self.window.record(rows[number * halfform.HALF_WORDS])
        assert half is not None, "it was judged just now"
        topic = rows[number * halfform.HALF_WORDS + halfform.TOPIC]
        queue_id = int(half.property_map().get("REAL_QID", "0"))
        copy = delayed_copy(half, self.slots, queue_id, self._delays, now_ms)
        return self._stage_copy(copy or commit_copy(half, topic, queue_id))

    def _stage_copies(self, decision: Decision) -> str:
        assert decision.copies is not None, "asked by `_stage`"
        while decision.staged < len(decision.copies):
            if not self._stage_copy(decision.copies[decision.staged]):
                return LATER
            decision.staged += 1
        return ""

    def _stage_copy(self, copy: Copy) -> bool:
        entry = np.frombuffer(entry_of(copy, 0), np.uint8)
        return stage_entry(self._arena, self._lane, entry, self._op_room) > 0

    def _judged(self, decision: Decision) -> str:
        rows, durables = self._rows_view, self.durables
        if durables:
            for number in range(len(decision.halves)):
                if rows[number * halfform.HALF_WORDS + halfform.TOPIC] in durables:
                    decision.durable = True
        return ""

    def copy_into(self, topic: str, position: int, origin: int) -> Copy | None:
        """A copy of a record for a system topic; None if that or the record is not to be had."""
        record, slot = self.window.record(position), self.slots.get(topic)
        if record is None or slot is None:
            return None
        return copy_of(record, slot, 0, record.property_map(), origin)

    def plain(self, half: Half) -> Copy | None:
        """The commit copy of a half, as if it had no delay; None if that is impossible."""
        record = self.window.record(half[0])
        if record is None:
            return None
        named = record.property_map()
        slot = self.slots.get(named.get("REAL_TOPIC", ""))
        return (
            commit_copy(record, slot, int(named.get("REAL_QID", "0"))) if slot is not None else None
        )
