"""Decisions on their way into the log: commit copies, and behind them the op record that ends them.

All decisions of one step share an op record, whose `flag` is 1 + the number of committed halves:
its body names these first. So the log tells what was decided by the op record alone; a copy that
the writer refused while it took the op record (the disk got room in between) is put again.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from shm import layout
from shm.codes import EntryFlag, Level, Status, Stop
from shm.errors import StoreFailed
from shm.kernels import decide, frames
from shm.kernels.decide import publish_decisions, put_commits, stage_entry
from shm.kernels.dispatch import index_topics
from shm.kernels.words import spin, store_word
from shm.marks import mark
from shm.properties import OP_TOPIC
from shm.record import STRUCTURE, Record, parse_record
from shm.transactionwire import (
    COMMITTED,
    DISK_FULL,
    FOREIGN_GROUP,
    HALVES_MAX,
    NOT_A_HALF,
    UNKNOWN,
    UNSTORABLE,
)
from workers.delayedcommit import Delays, commit_copy, delayed_copy
from workers.logwindow import LogWindow
from workers.outlet import Copy, entry_of

if TYPE_CHECKING:
    from shm.board import Board
    from shm.storage import Storage
    from workers.logviews import LogViews
    from workers.outlet import Outlet

Half = tuple[int, int]  # position, half queue offset
#: Who waits for an answer: session, serial, and what is to be told.
Asked = tuple[int, int, object]
#: `stage` could not put all: call it again when the ring has room.
LATER: Final = "later"
DECISIONS_MAX: Final = 1024  # of one op record
RETRY_NS: Final = 100_000_000
_RECEIPT: Final = int(EntryFlag.RECEIPT | EntryFlag.URGENT)
_DURABLE: Final = int(EntryFlag.DURABLE)
_ERRORS: Final = {
    decide.NO_HALF: NOT_A_HALF,
    decide.FOREIGN: FOREIGN_GROUP,
    decide.NO_TOPIC: UNSTORABLE,
    decide.TOO_LARGE: UNSTORABLE,
}


@dataclass(slots=True)
class Decision:
    """What becomes of some halves, and who is told of it."""

    outcome: str
    halves: list[Half]
    asked: list[Asked]
    copies: list[Copy] | None = None  # to be put instead of commit copies
    named: bool = True  # whether an op record is to name the halves
    durable: bool = False
    staged: int = 0  # halves or copies that were put
    op_named: bool = False  # the op record is in the log
    end: int = -1
    error: str = ""
    missing: list[int] = field(default_factory=list)  # numbers of copies that were refused

    @property
    def is_commit(self) -> bool:
        """Whether commit copies are put."""
        return self.outcome == COMMITTED

    @property
    def puts(self) -> int:
        """How many copies it puts."""
        if self.copies is not None:
            return len(self.copies)
        return len(self.halves) if self.is_commit else 0


@dataclass(slots=True)
class _Flight:
    """What went up by one store of the tail."""

    first_seq: int
    last_seq: int
    op_seq: int  # 0 without an op record
    appended: int  # where the log ended before
    decisions: list[Decision]


class Decisions:
    """Only user of the txn-checker's outlet."""

    def __init__(
        self, storage: Storage, board: Board, views: LogViews, outlet: Outlet, delays: Delays
    ) -> None:
        self.window = LogWindow(storage, board, views)
        #: Of op records that were answered: their queue offset, and the highest offset named.
        self.ops: list[tuple[int, int]] = []
        self.end = 0  # behind the last record that was answered
        self._board = board
        self._words = board.array()
        self._outlet = outlet
        self._delays = delays
        self._arena = outlet.session.arena
        self._lane: NDArray[np.int64] = outlet.words
        self._view = outlet.words.data
        self._tail_at = outlet.session.plan.writer.control + layout.LANE_DOWN_TAIL
        self._form = np.zeros(decide.FORM_WORDS, np.int64)
        self._form_view = self._form.data
        self._rows = np.zeros(decide.HALF_WORDS * HALVES_MAX, np.int64)
        self._rows_view = self._rows.data
        self._op = np.zeros(decide.OP_WORDS, np.int64)
        self._op_view = self._op.data
        self._index = np.zeros(16, np.int64)
        self._topics = (-1, -1)
        self._expected = ("", "none yet", np.zeros(0, np.uint8))
        self._flights: deque[_Flight] = deque()
        self._batch: list[Decision] = []
        self._first_seq = int(self._lane[frames.SEQ]) + 1
        self._refused: dict[int, int] = {}
        self._undurable: list[Decision] = []
        self._again: list[Decision] = []
        self._retry_ns = 0

    # ------------------------------------------------------------------------------------- state

    @property
    def flying(self) -> int:
        """Batches without an answer."""
        return len(self._flights)

    @property
    def waits(self) -> bool:
        """Whether something is not settled that has no bell of its own."""
        return bool(self._flights or self._undurable or self._again)

    @property
    def sure_to(self) -> int:
        """Log position below which each commit copy has its op record."""
        appended = self._board.word(layout.BOARD_APPENDED)
        if self._again:
            return min(self._again_from, appended)
        return self._flights[0].appended if self._flights else appended

    def lost(self) -> list[Decision]:
        """The writer was replaced: decisions without an answer, as if nobody had asked yet."""
        waiting = [one for flight in self._flights for one in flight.decisions]
        waiting += [*self._batch, *self._undurable, *self._again]
        for queue in (self._flights, self._batch, self._undurable, self._again):
            queue.clear()
        self._refused.clear()
        self._lane = self._outlet.words
        self._first_seq = int(self._lane[frames.SEQ]) + 1
        return waiting

    # ----------------------------------------------------------------------------------- staging

    def follow_topics(self) -> None:
        """Know the topics of the board."""
        board = self._board
        now = (board.half(layout.BOARD_TOPIC_COUNT), board.half(layout.BOARD_TOPIC_CHANGES))
        if now == self._topics:
            return
        room = 16
        while room < 4 * now[0]:
            room *= 2
        self._index = np.zeros(room, np.int64)
        index_topics(self._words, now[0], self._index)
        topics = board.topics()
        self.slots = {topic.name: topic.slot for topic in topics}
        self.durables = {topic.slot for topic in topics if topic.level == Level.DURABLE}
        self._op_view[decide.OP_TOPIC] = self.slots.get(OP_TOPIC, -1)
        self._topics = now

    def stage(self, decision: Decision, group: str, tx: str, now_ms: int) -> str:
        """Judge a decision's halves and put its copies; nothing goes up before `flush`.

        `group` empty: any; `tx` empty: any transaction. Returns "", LATER, or the name of the error
        for which nothing was put.
        """
        if decision.copies is not None:
            return self._stage_copies(decision)
        rows, halves = self._rows_view, decision.halves
        at = 0
        for position, offset in halves:
            rows[at], rows[at + 1] = position, offset
            at += decide.HALF_WORDS
        self._expect(group, tx)
        count = len(halves)
        if decision.is_commit and count == 1:
            return self._put(decision, now_ms)
        if not decision.staged:
            self._run(0, count, 0)
            error = self._error_of(0, count)
            if error or not decision.is_commit:
                return error or self._staged(decision)
        return self._put(decision, now_ms)

    def _expect(self, group: str, tx: str) -> None:
        if (group, tx) == self._expected[:2]:
            return
        name, number = group.encode(), tx.encode()
        self._expected = (group, tx, np.frombuffer(name + number, np.uint8))
        self._form_view[decide.GROUP_BYTES] = len(name) if name else -1
        self._form_view[decide.TX_BYTES] = len(number)

    def _run(self, start: int, count: int, commit: int) -> int:
        form, window, rows = self._form_view, self.window, self._rows_view
        form[decide.NEXT], form[decide.COUNT], form[decide.COMMIT] = start, count, commit
        while True:
            at = form[decide.NEXT] * decide.HALF_WORDS
            if not window.enter(rows[at]):
                rows[at + decide.STATE] = decide.NO_HALF
                form[decide.NEXT] += 1
                if form[decide.NEXT] == count:
                    return Stop.DONE
                continue
            form[decide.BASE] = window.base
            form[decide.STRETCH_FROM], form[decide.STRETCH_END] = window.start, window.end
            form[decide.OURS] = window.ours
            stop = put_commits(
                window.view, self._form, self._rows, self._words, self._index, self._arena,
                self._lane, self._expected[2],
            )  # fmt: skip
            if stop != Stop.ROLL:
                return stop

    def _error_of(self, start: int, count: int) -> str:
        rows = self._rows_view
        for number in range(start, count):
            at = number * decide.HALF_WORDS
            state = rows[at + decide.STATE]
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
            for number in range(start, self._form_view[decide.NEXT]):
                state = self._rows_view[number * decide.HALF_WORDS + decide.STATE]
                if state == decide.DELAYED and not self._put_delayed(number, now_ms):
                    return LATER
                if state in _ERRORS:
                    return self._error_of(number, number + 1)
                decision.staged += 1
            if stop == Stop.BACKPRESSURE:
                return LATER
        return self._staged(decision)

    def _put_delayed(self, number: int, now_ms: int) -> bool:
        rows = self._rows_view
        half = self.record(rows[number * decide.HALF_WORDS])
        assert half is not None, "it was judged just now"
        topic = rows[number * decide.HALF_WORDS + decide.TOPIC]
        queue_id = int(half.property_map().get("REAL_QID", "0"))
        copy = delayed_copy(half, self.slots, queue_id, self._delays, now_ms)
        return self._stage_copy(copy or commit_copy(half, topic, queue_id))

    def _stage_copies(self, decision: Decision) -> str:
        assert decision.copies is not None, "asked by `stage`"
        while decision.staged < len(decision.copies):
            if not self._stage_copy(decision.copies[decision.staged]):
                return LATER
            decision.staged += 1
        self._batch.append(decision)
        return ""

    def _stage_copy(self, copy: Copy) -> bool:
        entry = np.frombuffer(entry_of(copy, 0), np.uint8)
        return stage_entry(self._arena, self._lane, entry) > 0

    def _staged(self, decision: Decision) -> str:
        rows, durables = self._rows_view, self.durables
        if durables:
            for number in range(len(decision.halves)):
                if rows[number * decide.HALF_WORDS + decide.TOPIC] in durables:
                    decision.durable = True
        self._batch.append(decision)
        return ""

    def record(self, position: int) -> Record | None:
        """A record of the log, for what is rare; None if it cannot be read."""
        window = self.window
        if not window.enter(position):
            return None
        at = position - window.base
        found = parse_record(window.view.data, at, len(window.view), STRUCTURE, position)
        return found if isinstance(found, Record) else None

    # --------------------------------------------------------------------------------- going up

    @property
    def is_full(self) -> bool:
        """Whether the op record in hand names enough."""
        return len(self._batch) >= DECISIONS_MAX

    def flush(self, now_ms: int) -> bool:
        """Publish all that was staged, with its op record; whether anything went up."""
        batch = self._batch
        lane = self._view
        if not batch and lane[frames.SEQ] < self._first_seq:
            return False
        commits = [
            str(half[1]) for one in batch if one.named and one.is_commit for half in one.halves
        ]
        others = [
            str(half[1]) for one in batch if one.named and not one.is_commit for half in one.halves
        ]
        names = commits + others
        body = f"{','.join(names)},".encode() if names else b""
        op = self._op_view
        op[decide.OP_BORN_MS] = now_ms
        op[decide.OP_FLAG] = 1 + len(commits)
        op[decide.OP_FLAGS] = _RECEIPT | (_DURABLE if any(one.durable for one in batch) else 0)
        appended = self._board.word(layout.BOARD_APPENDED)
        mark("txn_checker.before_put")
        seq = publish_decisions(self._arena, self._lane, self._op, np.frombuffer(body, np.uint8))
        if seq < 0:
            return False
        self._outlet.ring_if_asked()
        mark("txn_checker.after_put")
        last = lane[frames.SEQ]
        self._flights.append(_Flight(self._first_seq, last, seq, appended, batch))
        self._first_seq = last + 1
        self._batch = []
        return True

    def look_out(self, rounds: int) -> None:
        """Look out for the writer's answer: a sleep takes longer than its work for one decision."""
        spin(self._arena, self._tail_at, self._view[frames.DOWN_CURSOR], rounds)

    # ------------------------------------------------------------------------------------ answers

    def take(self, now_ns: int) -> list[Decision]:
        """Decisions that are settled: in the log, durable where asked for, or refused."""
        settled: list[Decision] = []
        if self._flights:
            answers = self._outlet.poll_rows()
            if len(answers):
                self._hear(answers, settled)
        if self._undurable:
            durable = self._board.word(layout.BOARD_DURABLE)
            settled += [one for one in self._undurable if one.end <= durable]
            self._undurable = [one for one in self._undurable if one.end > durable]
        if self._again and now_ns >= self._retry_ns:
            self._put_again(now_ns)
        return settled

    def _hear(self, answers: NDArray[np.int64], settled: list[Decision]) -> None:
        if self._view[frames.BAD]:
            self._note_refusals(answers)
        last = int(answers[-1, frames.OUT_SEQ])
        flights = self._flights
        while flights and flights[0].last_seq <= last:
            flight = flights.popleft()
            row = answers[-1] if flight.last_seq == last else self._row(answers, flight.last_seq)
            end = int(row[frames.OUT_END])
            if self._refused:
                self._mend(flight, answers, settled)
            else:
                if flight.op_seq:
                    self._note_op(flight.decisions, int(row[frames.OUT_OFFSET]))
                for one in flight.decisions:
                    self._finish(one, end, settled)
            self.end = max(self.end, end)

    def _row(self, answers: NDArray[np.int64], seq: int) -> NDArray[np.int64]:
        at = int(np.searchsorted(answers[:, frames.OUT_SEQ], seq))
        found: NDArray[np.int64] = answers[at]
        return found

    def _note_op(self, decisions: list[Decision], offset: int) -> None:
        highest = -1
        for one in decisions:
            if one.named:
                one.op_named = True
                for half in one.halves:
                    highest = max(highest, half[1])
        self.ops.append((offset, highest))

    def _finish(self, one: Decision, end: int, settled: list[Decision]) -> None:
        one.end = max(one.end, end)
        if one.durable and self._board.word(layout.BOARD_DURABLE) < one.end:
            self._undurable.append(one)
            store_word(self._arena, layout.ARENA_DURABLE_WANTED, self._undurable[-1].end)
        else:
            settled.append(one)

    def _note_refusals(self, answers: NDArray[np.int64]) -> None:
        bad = answers[answers[:, frames.OUT_STATUS] > Status.DUPLICATE]
        for row in bad.tolist():
            if row[frames.OUT_STATUS] == Status.STORE_FAILED:
                raise StoreFailed("the writer's store has failed", errno=0)
            self._refused[row[frames.OUT_SEQ]] = row[frames.OUT_STATUS]

    def _mend(self, flight: _Flight, answers: NDArray[np.int64], settled: list[Decision]) -> None:
        """Some entries were refused: what is in the log decides what is left to be done."""
        refused, self._refused = self._refused, {}
        self._refused = {seq: why for seq, why in refused.items() if seq > flight.last_seq}
        op_stored = bool(flight.op_seq) and flight.op_seq not in refused
        if op_stored:
            row = self._row(answers, flight.op_seq)
            self._note_op(flight.decisions, int(row[frames.OUT_OFFSET]))
        ends = answers[answers[:, frames.OUT_STATUS] <= Status.DUPLICATE, frames.OUT_END]
        end = int(ends.max(initial=0))
        seq = flight.op_seq - sum(one.puts for one in flight.decisions)
        if not flight.op_seq:
            seq = flight.last_seq + 1 - sum(one.puts for one in flight.decisions)
        for one in flight.decisions:
            seqs = range(seq, seq + one.puts)
            seq += one.puts
            missing = [number for number, it in enumerate(seqs) if it in refused]
            whys = {refused[it] for it in seqs if it in refused}
            self._mend_one(one, missing, whys, end, settled, flight)

    def _mend_one(
        self, one: Decision, missing: list[int], whys: set[int], end: int,
        settled: list[Decision], flight: _Flight,
    ) -> None:  # fmt: skip
        done = one.op_named or not one.named
        if done and not missing:
            self._finish(one, end, settled)
            return
        if not one.op_named and len(missing) == one.puts:  # nothing of it is in the log
            one.error = UNSTORABLE if whys - {int(Status.DISK_FULL)} else DISK_FULL
            one.staged = 0
            settled.append(one)
            return
        one.missing = missing
        self._again_from = flight.appended if not self._again else self._again_from
        self._again.append(one)

    _again_from = 0

    def _put_again(self, now_ns: int) -> None:
        """Copies or op records that are owed; a full disk is waited for."""
        again, self._again = self._again, []
        self._retry_ns = now_ns + RETRY_NS
        for one in again:
            if one.copies is not None:
                one.copies = [one.copies[number] for number in one.missing]
            elif one.missing:
                one.copies = [
                    copy for number in one.missing
                    if (copy := self.plain(one.halves[number])) is not None
                ]  # fmt: skip
            else:
                one.copies = []
            one.named = one.named and not one.op_named
            one.staged = 0
            if self._stage_copies(one) == LATER:
                self._again.append(one)
                break

    def plain(self, half: Half) -> Copy | None:
        """The commit copy of a half, as if it had no delay; None if that is impossible."""
        record = self.record(half[0])
        if record is None:
            return None
        named = record.property_map()
        slot = self.slots.get(named.get("REAL_TOPIC", ""))
        return (
            commit_copy(record, slot, int(named.get("REAL_QID", "0"))) if slot is not None else None
        )

    # ----------------------------------------------------------------------------------- sleeping

    def arm(self, now_ns: int) -> int:
        """Nanoseconds to sleep at most; 0 if an answer is there."""
        if self._flights and not self._outlet.arm():
            return 0
        if self._undurable:
            wanted = self._undurable[0].end
            store_word(self._arena, layout.ARENA_DURABLE_WANTED, wanted)
            if self._board.word(layout.BOARD_DURABLE) >= wanted:
                return 0
        return max(1, self._retry_ns - now_ns) if self._again else 1 << 62

    def disarm(self) -> None:
        """Awake."""
        self._outlet.disarm()
