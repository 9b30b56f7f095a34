"""Copies of parked records on their way into the log: put, answered, refused, or lost sight of.

Copies go up in the order in which they are handed in, and are answered in that order. What a
writer that died may have taken is looked for in the log by its origin; the rest is put again.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from gantrymq.shm import layout, wire
from gantrymq.shm.codes import Status, Stop
from gantrymq.shm.errors import StoreFailed
from gantrymq.shm.kernels import frames, parked, stretch
from gantrymq.shm.kernels.parked import DAMAGED, DROPPED, NO_TOPIC, PUT, TOO_LARGE, put_copies
from gantrymq.shm.marks import mark
from gantrymq.shm.properties import TIMER_TOPIC, parse_properties
from gantrymq.workers.scheduler.duerows import NOTHING, Rows, due_rows
from gantrymq.workers.scheduler.lateness import Lateness
from gantrymq.workers.topicindex import TopicIndex

if TYPE_CHECKING:
    from gantrymq.shm.board import Board
    from gantrymq.shm.record import Record
    from gantrymq.workers.logwindow import LogWindow
    from gantrymq.workers.outlet import Outcome, Outlet
    from gantrymq.workers.scheduler.timeline import Timeline
    from gantrymq.workers.session import SessionTable

#: Rows of one call: a step stays short.
PUTS_MAX: Final = 4096
RETRY_NS: Final = 100_000_000
#: How often a missing topic is asked for.
ASK_NS: Final = 1_000_000_000
_NO_SEQ: Final = 1 << 62


@dataclass(slots=True)
class _Put:
    """Copies that went up by one call, and where the log ended before it."""

    rows: Rows
    first_seq: int
    appended: int
    #: The number under which the first of them went up first: they may have been refused since.
    since: int

    @property
    def last_seq(self) -> int:
        """Number of the last of them."""
        return self.first_seq + len(self.rows) - 1


class Delivery:
    """Only user of the scheduler's outlet for copies of parked records."""

    def __init__(
        self,
        board: Board,
        sessions: SessionTable,
        outlet: Outlet,
        window: LogWindow,
    ) -> None:
        self._board = board
        self._words = board.array()
        self._table = sessions
        self._outlet = outlet
        self._window = window
        self._form = np.zeros(parked.FORM_WORDS, np.int64)
        # What falls due in a topic that was deleted goes with it (DT-16).
        self._index = TopicIndex(board, (layout.LEAVING,))
        self._time: Timeline | None = None
        self._flying: deque[_Put] = deque()
        self._again: Rows = NOTHING
        self._again_since = 0  # of these, as `_Put.since`
        self._retry_ns = self._ask_ns = 0
        self.absent: Rows = NOTHING  # their topics are not on the board
        self.end = 0  # behind the last copy that was answered
        self._lateness = Lateness(board)
        self.repeats = 0  # times that something had to be put again: under other numbers
        self._others: list[Outcome] = []

    def follow(self, timeline: Timeline) -> None:
        """Reckon what is left of delays by this time."""
        self._time = timeline

    # --------------------------------------------------------------------------------- handing in

    @property
    def flying(self) -> int:
        """Copies without an answer."""
        return sum(len(put.rows) for put in self._flying)

    @property
    def settled(self) -> bool:
        """Whether all that was handed in is in the log, but for what `absent` has."""
        return not self._flying and not len(self._again)

    @property
    def waits_again(self) -> bool:
        """Whether something waits to be put again."""
        return len(self._again) > 0

    @property
    def put_seq(self) -> int:
        """Number of the last copy that went up."""
        return int(self._outlet.words[frames.SEQ])

    @property
    def answered_seq(self) -> int:
        """All that went up under numbers up to this one is answered for good.

        What was refused, or lost with a writer, goes up again under another number and still counts
        as what it was at first.
        """
        return min(self._oldest(), self.put_seq + 1) - 1

    def _oldest(self) -> int:
        """The first number of all that is not answered for good."""
        again = self._again_since if len(self._again) else _NO_SEQ
        return min([again, *(put.since for put in self._flying)])

    def begin(self, left: NDArray[np.int64]) -> None:
        """What the agent before had passed over: positions and sizes."""
        self.absent = due_rows(left[:, 0], left[:, 1])
        self._ask_ns = 0

    def wait_ns(self, now_ns: int) -> int:
        """How long nothing is to be tried again."""
        waits = [self._retry_ns - now_ns] if len(self._again) else []
        if len(self.absent):
            waits.append(self._ask_ns - now_ns)
        return max(0, min(waits, default=1 << 62))

    def let_go(self) -> None:
        """Hold no map of the log."""
        self._window.drop()

    def put(self, rows: Rows) -> int:
        """Hand in due records; returns how many of them are taken care of, from the first on."""
        if len(self._again):
            return 0  # order: these were due before
        return self._put(rows)

    def _put(self, rows: Rows, since: int = _NO_SEQ) -> int:
        self._follow_topics()
        rows = rows[:PUTS_MAX]
        form, window = self._form, self._window
        form[stretch.NEXT], form[stretch.COUNT] = 0, len(rows)
        while (first := int(form[stretch.NEXT])) < len(rows):
            if not window.enter(int(rows[first, parked.DUE_POSITION])):
                rows[first, parked.DUE_STATE] = DAMAGED
                self._pass_over(rows[first : first + 1])
                form[stretch.NEXT] = first + 1
                continue
            window.show_in(form)
            appended = self._board.word(layout.BOARD_APPENDED)
            seq = self.put_seq + 1
            form[parked.FILED_MS] = self._time.filed_ms() if self._time else 0
            mark("scheduler.before_put")
            stop = put_copies(
                window.view, form, rows.reshape(-1), self._words, self._index.words,
                self._outlet.session.arena, self._outlet.words,
            )  # fmt: skip
            done = rows[first : int(form[stretch.NEXT])]
            if form[parked.PUTS]:
                kept = done[done[:, parked.DUE_STATE] == PUT]
                self._flying.append(_Put(kept, seq, appended, min(seq, since)))
                self._outlet.ring_if_asked()
                mark("scheduler.after_put")
            if form[parked.PASSED]:
                self._pass_over(done[done[:, parked.DUE_STATE] != PUT])
            if stop == Stop.BACKPRESSURE:
                break
        return int(form[stretch.NEXT])

    def _follow_topics(self) -> None:
        if self._index.follow():
            timers = self._board.topic_named(TIMER_TOPIC)
            self._form[parked.TIMER_SLOT] = timers.slot if timers else -1

    def _pass_over(self, rows: Rows) -> None:
        """What cannot be put: a topic is asked for, the rest is named in the broker's log."""
        missing = rows[rows[:, parked.DUE_STATE] == NO_TOPIC]
        if len(missing):
            self.absent = np.concatenate((self.absent, missing))
            self._ask_for(missing)
        whys = {DAMAGED: "damaged", DROPPED: "no topic that takes it", TOO_LARGE: "too large"}
        low = self._board.word(layout.BOARD_LOW)
        for position, _size, state, *_rest in rows.tolist():
            # What retention has removed it tells itself; that is never at a negative position.
            if state in whys and not 0 <= position < low:
                self._table.note(
                    "error", "parked_record_passed_over", position=position, why=whys[state]
                )

    def record(self, position: int) -> Record | None:
        """A parked record, for what is rare; None if it cannot be read."""
        return self._window.record(position)

    def _ask_for(self, rows: Rows) -> None:
        names = set()
        for position in rows[:, parked.DUE_POSITION].tolist():
            found = self.record(position)
            if found is not None:
                names.add(parse_properties(found.properties).get("REAL_TOPIC", ""))
        for name in sorted(names - {""}):
            self._table.note("warning", wire.TOPIC_WANTED, topic=name)

    # ----------------------------------------------------------------------------------- answers

    def take_answers(self, now_ns: int) -> int:
        """Hear what became of copies; put again what a full disk refused. Raises StoreFailed."""
        answers = self._outlet.poll_rows()
        if self._outlet.is_lost():
            return 0  # the writer of now may have answered later ones than it passed over
        if len(answers):
            self._hear(answers, now_ns)
        done = len(answers)
        if len(self._again) and now_ns >= self._retry_ns:
            done += self._put_again()
        return done

    def _put_again(self) -> int:
        again, self._again = self._again, NOTHING
        taken = self._put(again, self._again_since)
        self._again = again[taken:]
        return taken

    def _hear(self, answers: Rows, now_ns: int) -> None:
        refused = answers[answers[:, frames.OUT_STATUS] > Status.DUPLICATE]
        for answer in refused.tolist():
            if answer[frames.OUT_SEQ] not in self._outlet.tagged:
                self._refused(answer[frames.OUT_SEQ], Status(answer[frames.OUT_STATUS]), now_ns)
        if self._outlet.waiting:
            self._others += self._outlet.outcomes_of(answers)
        self.end = max(self.end, int(answers[:, frames.OUT_END].max()))
        last = int(answers[-1, frames.OUT_SEQ])
        while self._flying and self._flying[0].last_seq <= last:
            self._lateness.note(self._flying.popleft().rows, now_ns)

    def take_others(self) -> list[Outcome]:
        """What became of copies that others have put by the same outlet."""
        others, self._others = self._others, []
        return others

    def _refused(self, seq: int, status: Status, now_ns: int) -> None:
        """A full disk is waited for (DT-16); what can never be stored is named and passed over."""
        if status is Status.STORE_FAILED:
            raise StoreFailed("the writer's store has failed", errno=0)
        for put in self._flying:
            if put.first_seq <= seq <= put.last_seq:
                row = put.rows[seq - put.first_seq : seq - put.first_seq + 1]
                break
        else:
            return  # not a delivery
        if status is Status.DISK_FULL:
            self._again_since = self._oldest()
            self._again = np.concatenate((self._again, row))
            row[:, parked.DUE_STATE] = parked.WAITS  # by this put it is not delivered
            self.repeats += 1
            self._retry_ns = now_ns + RETRY_NS
            return
        row[:, parked.DUE_STATE] = DROPPED
        position = int(row[0, parked.DUE_POSITION])
        self._table.note("error", "delivery_refused", position=position, why=status.name)

    # -------------------------------------------------------------------------------- after a loss

    @property
    def unsure_from(self) -> int:
        """Log position from which on copies without an answer may be; -1 if none is unsure."""
        return self._flying[0].appended if self._flying else -1

    def lost(self, found: NDArray[np.int64]) -> None:
        """The writer was replaced: of what had no answer, `found` are the origins in the log."""
        rows = [put.rows for put in self._flying]
        self._again_since = self._oldest()
        self._flying.clear()
        self.repeats += 1
        if rows:
            unsure = np.concatenate(rows)
            gone = ~np.isin(unsure[:, parked.DUE_POSITION], found)
            self._again = np.concatenate((unsure[gone], self._again))
        self.end = max(self.end, self._board.word(layout.BOARD_APPENDED))

    # ------------------------------------------------------------------------------ missing topics

    def look_for_topics(self, now_ns: int) -> int:
        """Try again what had no topic, once the board has changed; ask again now and then."""
        if not len(self.absent) or (self._index.is_current and now_ns < self._ask_ns):
            return 0
        self._ask_ns = now_ns + ASK_NS
        rows, self.absent = self.absent, NOTHING
        taken = self._put(rows)
        self.absent = np.concatenate((self.absent, rows[taken:]))
        return taken
