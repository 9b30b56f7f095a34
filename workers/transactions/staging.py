"""Decisions are judged and their copies put into the ring; nothing goes up here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from gantrymq.shm import layout
from gantrymq.shm.codes import Level, Stop
from gantrymq.shm.kernels import frames, halfform, stretch
from gantrymq.shm.kernels.decide import has_room, put_commits, stage_entry
from gantrymq.shm.kernels.halfform import DELAYED
from gantrymq.shm.kernels.ring import FULL, TOO_LARGE
from gantrymq.shm.properties import HALF_TOPIC, java_int
from gantrymq.shm.transactionwire import FOREIGN_GROUP, HALVES_MAX, NOT_A_HALF, UNKNOWN, UNSTORABLE
from gantrymq.workers.outlet import entry_of, is_storable
from gantrymq.workers.topicindex import TopicIndex
from gantrymq.workers.transactions.batch import Batch
from gantrymq.workers.transactions.delayedcommit import Delays, commit_copy, copy_of, delayed_copy
from gantrymq.workers.transactions.firstplace import with_first

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gantrymq.shm.board import Board, TopicSlot
    from gantrymq.shm.record import Record
    from gantrymq.workers.logwindow import LogWindow
    from gantrymq.workers.outlet import Copy, Outlet
    from gantrymq.workers.transactions.decision import Decision, Half

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

    def __init__(self, board: Board, window: LogWindow, outlet: Outlet, delays: Delays) -> None:
        self.window = window
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
        # Nobody would ever see what is committed into a topic that was deleted.
        self._index = TopicIndex(board, (layout.LEAVING, layout.DELETED))
        self._expected = ("", "none yet")
        self._names = np.zeros(512, np.uint8)  # group and transaction of these
        self._name_bytes = self._names.data
        self.slots: dict[str, int] = {}
        self._topics: dict[int, TopicSlot] = {}
        self.durables: set[int] = set()

    # ----------------------------------------------------------------------------------- staging

    def follow_topics(self) -> None:
        """Know the topics of the board."""
        if self._index.follow():
            topics = [topic for topic in self._board.topics() if not topic.deleted]
            self.slots = {topic.name: topic.slot for topic in topics}
            self._topics = {topic.slot: topic for topic in topics}
            self.durables = {topic.slot for topic in topics if topic.level == Level.DURABLE}

    def stage(self, decision: Decision, group: str, tx: str, now_ms: int) -> str:
        """Judge a decision's halves and put its copies; nothing goes up before `flush`.

        `group` empty: any; `tx` empty: any transaction. Returns "", LATER, or the name of the error
        for which nothing was put. What is put has room for its op record behind it.
        """
        if self._in_parts is not None and self._in_parts is not decision:
            return LATER
        if self.differs(decision):
            return LATER
        cursor, seq, staged = self._view[frames.UP_CURSOR], self._view[frames.SEQ], decision.staged
        shares = not self.may_go_in_parts
        op_room = self.batch.op_room(decision)
        # A part has no op record; where there is one, `has_room` says so in the end.
        self._op_room = self._form_view[halfform.OP_ROOM] = op_room if shares else 0
        error = self._stage(decision, group, tx, now_ms)
        if not error and not has_room(self._arena, self._lane, op_room):
            error = LATER
        if not error:
            self.batch.add(decision)
            self._in_parts = None
        elif error is LATER and not shares:
            if self._view[frames.SEQ] != seq:
                self._in_parts = decision
        else:
            self._view[frames.UP_CURSOR], self._view[frames.SEQ] = cursor, seq
            decision.staged = staged
        return error

    @property
    def may_go_in_parts(self) -> bool:
        """Whether what is being staged has the ring for itself."""
        return not self.batch.decisions

    def _stage(self, decision: Decision, group: str, tx: str, now_ms: int) -> str:
        if decision.copies is not None:
            return self._stage_copies(decision)
        if not decision.staged:
            decision.decided_ms = now_ms
        halves = decision.halves
        rows = self._rows_for(len(halves))
        at = 0
        for position, offset in halves:
            rows[at], rows[at + 1] = position, offset
            at += halfform.HALF_WORDS
        self._expect(group, tx)
        count = len(halves)
        if not decision.staged and (count > 1 or not decision.is_commit):
            self._run(0, count, halfform.LOOK_TO_PUT if decision.is_commit else halfform.LOOK)
            error = self._error_of(0, count)
            if error:
                return error
            self._note_durable(decision)
            if not decision.is_commit:
                return ""
            if not self.may_go_in_parts and not self._have_room(count):
                return LATER
        return self._put(decision)

    def _rows_for(self, count: int) -> memoryview[int]:
        """Rows of halves, with room for so many."""
        if halfform.HALF_WORDS * count > len(self._rows):
            self._rows = np.zeros(2 * halfform.HALF_WORDS * count, np.int64)
            self._rows_view = self._rows.data
        return self._rows_view

    def _have_room(self, count: int) -> bool:
        """Whether the copies of halves that were looked at fit into the ring, and their op record.

        To put some and take them back in each step is work for nothing.
        """
        sizes = self._rows_view[halfform.SIZE : count * halfform.HALF_WORDS : halfform.HALF_WORDS]
        most = sum(sizes) + count * (layout.ENTRY_BYTES + layout.APPEND_BYTES)
        return has_room(self._arena, self._lane, most + self._op_room) > 0

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

    def _put(self, decision: Decision) -> str:
        row, count = decision.staged, len(decision.halves)
        while row < count:
            stop = self._run(row, count, halfform.PUTS)
            for number in range(row, self._form_view[stretch.NEXT]):
                error = self._error_of(number, number + 1)
                if self._rows_view[number * halfform.HALF_WORDS + halfform.STATE] == DELAYED:
                    error = self._put_delayed(decision, number)
                if not error:
                    decision.staged += 1
                elif error is LATER or self._in_parts is None:
                    return error
                else:
                    decision.leave_out(decision.staged)  # others of it are in the log
            row = self._form_view[stretch.NEXT]
            if stop == Stop.BACKPRESSURE:
                return LATER
        self._note_durable(decision)
        return ""

    def _put_delayed(self, decision: Decision, number: int) -> str:
        half = self.window.record(self._rows_view[number * halfform.HALF_WORDS])
        if half is None:  # damaged since it was judged
            return NOT_A_HALF
        copy = self.commit_of(half, decision.decided_ms)
        return UNSTORABLE if copy is None else self._stage_copy(copy)

    def _stage_copies(self, decision: Decision) -> str:
        assert decision.copies is not None, "asked by `_stage`"
        while decision.staged < len(decision.copies):
            error = self._stage_copy(decision.copies[decision.staged])
            if not error:
                decision.staged += 1
            elif error is LATER or self._in_parts is None:
                return error
            else:
                decision.copies.pop(decision.staged)  # others of it are in the log
        return ""

    def _stage_copy(self, copy: Copy) -> str:
        topic = self._topic_of(copy)
        if topic is None or not is_storable(copy, topic.name, self._board.segment_bytes):
            return UNSTORABLE
        entry = np.frombuffer(entry_of(copy, 0), np.uint8)
        seq = stage_entry(self._arena, self._lane, entry, self._op_room)
        if seq == TOO_LARGE:
            return UNSTORABLE
        return LATER if seq == FULL else ""

    def _topic_of(self, copy: Copy) -> TopicSlot | None:
        """Its topic; None if that was deleted since, and another may have the slot."""
        topic = self._topics.get(copy.topic)
        return topic if topic is None or copy.topic_name in ("", topic.name) else None

    def leave_out_gone(self, one: Decision) -> None:
        """Nobody would see what is owed to topics that were deleted since: it is not put."""
        if one.copies is not None:
            owed = one.copies[one.staged :]
            one.copies[one.staged :] = [copy for copy in owed if self._topic_of(copy) is not None]

    def _note_durable(self, decision: Decision) -> None:
        rows, durables = self._rows_view, self.durables
        if durables:
            for number in range(len(decision.halves)):
                if rows[number * halfform.HALF_WORDS + halfform.TOPIC] in durables:
                    decision.durable = True

    def may_store(self, copy: Copy | None) -> bool:
        """Whether a copy has a topic, and is not too large for it or for the ring."""
        if copy is None:
            return False
        room, topic = self._view[frames.UP_MASK] + 1, self._topic_of(copy)
        return (
            topic is not None
            and is_storable(copy, topic.name, self._board.segment_bytes)
            and 2 * len(entry_of(copy, 0)) <= room
        )

    def copy_into(self, topic: str, position: int, origin: int) -> Copy | None:
        """A copy of a record for a system topic; None if that or the record is not to be had."""
        record, slot = self.window.record(position), self.slots.get(topic)
        if record is None or slot is None:
            return None
        return copy_of(record, slot, 0, record.property_map(), origin)

    def half_again(self, position: int) -> Copy | None:
        """A half for its queue again, with where and when it was first if there is room for that.

        None if its record cannot be read.
        """
        record, slot = self.window.record(position), self.slots.get(HALF_TOPIC)
        if record is None or slot is None:
            return None
        named = record.property_map()
        copies = (
            copy_of(record, slot, 0, properties, position)
            for properties in (with_first(named, position, record.store_timestamp), named)
        )
        size = self._board.segment_bytes
        first, plain = copies
        return first if is_storable(first, HALF_TOPIC, size) else plain

    def copy_again(self, half: Half, decided_ms: int | None = None) -> Copy | None:
        """The copy of a half that was committed then; None if its record or topic is gone.

        Without a time it has no delay.
        """
        record = self.window.record(half[0])
        return None if record is None else self.commit_of(record, decided_ms)

    def leave_only(self, one: Decision, missing: list[int]) -> None:
        """What is to be put again of a decision: copies of these numbers, and its op record."""
        if one.copies is not None:
            one.copies = [one.copies[number] for number in missing]
            one.tells = missing.index(one.tells) if one.tells in missing else -1
        else:
            halves = [one.halves[number] for number in missing]
            copies = [self.copy_again(half, one.decided_ms) for half in halves]
            one.copies = [copy for copy in copies if copy is not None]
        one.named = one.named and not one.op_named
        one.staged = 0

    def commit_of(self, half: Record, decided_ms: int | None) -> Copy | None:
        """As `copy_again`, of a record."""
        named = half.property_map()
        aim = self.aim(named)
        if aim is None:
            return None
        copy = None
        if decided_ms is not None:
            # The writer's storeTimestamp is no less, though the wall may be by now.
            since_ms = max(decided_ms, self._board.word(layout.BOARD_STORE_MS))
            copy = delayed_copy(half, self.slots, aim[1], self._delays, since_ms)
        return copy or commit_copy(half, *aim)._replace(topic_name=named["REAL_TOPIC"])

    def aim(self, named: Mapping[str, str]) -> tuple[int, int] | None:
        """Topic slot and queue that a half is for, as the kernel chooses; None if it is gone."""
        slot = self.slots.get(named.get("REAL_TOPIC", ""), -1)
        count = self._topics[slot].queue_count if slot >= 0 else 0
        if not count:
            return None
        wanted = max(java_int(named.get("REAL_QID", "")) or 0, 0)
        return slot, wanted if wanted < count else wanted % count
