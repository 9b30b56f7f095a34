"""The writer's batches: entries of all lanes into staging, staging into the log, and the answers.

A batch is a few calls: `look_at_lanes` sees what is there, `drain_lanes` fills staging, one pwrite
appends it, `tell_lanes` publishes.
What is rare comes back here in between: a route seen first, a segment's end, a ring that breaks
the rules, a lane that nobody answers any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gantrymq.brokerd.commitlog import CommitLog
from gantrymq.brokerd.lanes import LaneTable
from gantrymq.brokerd.listeners import Listeners
from gantrymq.brokerd.producers import Producers
from gantrymq.brokerd.readerpace import ReaderPace
from gantrymq.brokerd.resume import keep_unanswered, learn_from_log
from gantrymq.shm import layout, limits
from gantrymq.shm.codes import Owed, Role, Status, Stop
from gantrymq.shm.kernels import frames
from gantrymq.shm.kernels.complete import STEP_APPENDED, STEP_SETTLED, STEP_SILENT, tell_lanes
from gantrymq.shm.kernels.drain import SCRATCH_WORDS, drain_lanes, look_at_lanes
from gantrymq.shm.kernels.entry import ROUTE_ID
from gantrymq.shm.marks import is_asked, mark
from gantrymq.shm.properties import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC, parse_delay_levels
from gantrymq.shm.storage import is_disk_full, is_shortage
from gantrymq.workers.failure import declare_failed

if TYPE_CHECKING:
    from gantrymq.brokerd.config import Settings
    from gantrymq.brokerd.lanes import Lane
    from gantrymq.shm.board import Board
    from gantrymq.shm.clock import Clock
    from gantrymq.shm.storage import Storage
    from gantrymq.workers.agent import Bells
    from gantrymq.workers.inhand import InHand
    from gantrymq.workers.session import SessionTable

DISK_RETRY_NS = 100_000_000
#: Entries of one lane per batch.
TAKEN_MAX = 1 << 20
# Numbers that the path of each batch compares.
DONE = int(Stop.DONE)
RING_READER = int(Owed.RING_READER)
RING_FLUSHER = int(Owed.RING_FLUSHER)
RING_CLIENTS = int(Owed.RING_CLIENTS)
RING_LISTENERS = int(Owed.RING_LISTENERS)
SETTLED = int(Owed.SETTLED)


class Appender:
    """Only writer of the CommitLog, of queue offsets and of `appended` and `settled`."""

    def __init__(
        self,
        storage: Storage,
        clock: Clock,
        board: Board,
        sessions: SessionTable,
        bells: Bells,
        settings: Settings,
    ) -> None:
        self._storage = storage
        self._clock = clock
        self._board = board
        self._words = board.array()
        self._sessions = sessions
        self._bells = bells
        self.lanes = LaneTable()
        self.producers = Producers()
        self.failed = False
        self.waits = False  # for the next segment
        self._staging = np.zeros(limits.STAGING_BYTES, np.uint8)
        self._bytes = self._staging.data
        self._scratch = np.zeros(SCRATCH_WORDS, np.int64)
        self._batch = np.zeros(frames.BATCH_WORDS, np.int64)
        #: The same words, to be read and set one by one.
        self.view = self._batch.data
        self.listeners = Listeners(self.view)
        self._disk_retry_ns = 0
        self._disk_full = 0  # as the board says
        self._lacks_segment = False
        appended = board.word(layout.BOARD_APPENDED)
        self._log = CommitLog(storage, board.segment_bytes, appended)
        given = {
            frames.BODY_MAX: settings.max_message_size,
            frames.QUEUES_AT: board.queues_at,
            frames.SEGMENT_BYTES: board.segment_bytes,
            frames.STAGING_LIMIT: limits.DRAIN_BYTES,
            frames.TAKEN_LIMIT: TAKEN_MAX,
            frames.PROCESS_AT: board.process_at(Role.WRITER),
            frames.POSITION: appended,
            frames.SEGMENT_END: self._log.limit,
            frames.STORE_MS: board.word(layout.BOARD_STORE_MS),
            **_parking(board, settings),
        }
        for word, value in given.items():
            self.view[word] = value
        self.pace = ReaderPace(board, self.view)

    @property
    def appended(self) -> int:
        """Where the log ends; the batch in hand begins here."""
        return int(self.view[frames.POSITION])

    def recover(self) -> None:
        """Make good what a writer that died has left: bytes behind the log's end, seqs, offsets."""
        self._log.clear_behind(self.appended, limits.STAGING_BYTES + limits.FILLER_BYTES_MIN)
        self.producers = learn_from_log(self._storage, self._board, self.appended)
        self._note_settled()
        self._bells.reader.ring()  # it may have died owing it that

    def close(self) -> None:
        """Give the segment back."""
        self._log.close()

    # ------------------------------------------------------------------------------------- drain

    def cycle(self, now_ns: int, *, may_wait: bool = True) -> int:
        """One turn of all hot lanes: drain, append, answer. Returns how many entries were taken.

        `may_wait`: at a segment's end for the next one, that the flusher is just making.
        """
        self._look_at_the_disk()
        self.view[frames.CYCLE_BEGINS] = 1
        self._drain(now_ns, 0, self.lanes.count, may_wait=may_wait)
        return int(self.view[frames.TAKEN])

    def cycle_one_by_one(self, now_ns: int, hand: InHand) -> int:
        """The same, each lane by itself to the end, with its session in hand."""
        self._look_at_the_disk()
        view, taken, more = self.view, 0, 0
        woken = view[frames.WOKEN]
        for number, lane in enumerate(self.lanes.lanes):
            hand.take(lane.session.session)
            view[frames.CYCLE_BEGINS], view[frames.WOKEN] = 1, woken
            self._drain(now_ns, number, number + 1, may_wait=True)
            taken, more = taken + view[frames.TAKEN], more | view[frames.MORE]
        hand.drop()
        view[frames.TAKEN], view[frames.MORE] = taken, more
        return taken

    def _look_at_the_disk(self) -> None:
        """Take up what retention says of the disk."""
        disk_full = self._board.half(layout.BOARD_DISK_FULL)
        if disk_full != self._disk_full:
            self._disk_full = disk_full
            self._choose_refusal()

    def drain_last(self, lane: Lane, now_ns: int) -> None:
        """What a session that ended has published is appended all the same; nobody is answered.

        Its client may attach again and ask. No further than one ring: a client that goes on
        publishing is not listened to.
        """
        words, end, before = lane.view, lane.published(), -1
        words[frames.SILENT] = 1
        self.pace.leave()
        number = self.lanes.lanes.index(lane)
        while not lane.over and before < words[frames.UP_CURSOR] < end:
            before = words[frames.UP_CURSOR]
            lane.heat()
            self._drain(now_ns, number, number + 1, may_wait=False)
        self._note_told(lane)

    def _drain(self, now_ns: int, number: int, end: int, *, may_wait: bool) -> None:
        """Take the entries of lanes from `number` to before `end`, and append them."""
        view = self.view
        while not self.failed:
            if view[frames.POSITION] == view[frames.SEGMENT_END]:
                self.waits = may_wait and self._log.is_next_coming(now_ns)
                if self.waits:
                    self._take_nothing()
                    break
                self._begin_segment(now_ns)
            if not view[frames.FILLED]:
                look_at_lanes(self.lanes.array, self._words, self._batch, number, end)
            stop = drain_lanes(
                self.lanes.array, self._words, self._staging, self._batch, self._scratch,
                self._clock.wall_ms(), number, end,
            )  # fmt: skip
            if stop == DONE:
                break
            number = self._resolve(stop)
        if view[frames.DRAINED_LANES]:
            self._write_batch()

    def _take_nothing(self) -> None:
        """Of a cycle that is just to begin."""
        if self.view[frames.CYCLE_BEGINS]:
            self.view[frames.TAKEN] = self.view[frames.MORE] = 0

    def _resolve(self, stop: int) -> int:
        """Do what a stop asks for; returns the lane to go on with."""
        number = int(self.view[frames.AT_LANE])
        if stop == Stop.FAILED:  # another agent may have met it
            self.failed = True
        elif stop == Stop.ROUTE:
            self.lanes.lanes[number].load_route(int(self._scratch[ROUTE_ID]), self._board)
        elif stop == Stop.HOSTILE:
            self.cut_off(self.lanes.lanes[number], "its ring breaks the rules")
            number += 1
        else:
            self._write_batch(closing=stop == Stop.ROLL)
        return number

    def cut_off(self, lane: Lane, why: str) -> None:
        """End a session that broke the rules."""
        lane.end()
        self.view[frames.FAULTS] += 1
        self._sessions.cut_off(lane.session.session, why)

    # ------------------------------------------------------------------------------------- append

    def _write_batch(self, *, closing: bool = False) -> None:
        """Staging into the log, then tell everybody. `closing`: it ends with a filler."""
        filled = self.view[frames.FILLED]
        if self.failed or (filled and not self._append(filled)):
            return
        if closing:
            self.view[frames.CLOSING] = 1
        self._tell()

    def _append(self, filled: int) -> bool:
        mark("writer.before_append")
        try:
            self._log.append(self._bytes[:filled], self.view[frames.POSITION])
        except OSError as error:
            self._fail(error)
            return False
        mark("writer.after_append")
        return True

    def _tell(self) -> None:
        """`appended`, completions and ring heads, `settled`; then wake those who sleep."""
        self.view[frames.STEPWISE] = is_asked()
        table, words, batch = self.lanes.array, self._words, self._batch
        while (owed := tell_lanes(table, words, batch)) < 0:
            self._do_step(owed)
        if not owed:
            return
        if owed & SETTLED:
            self._note_settled()
        if owed & RING_FLUSHER:
            self._bells.flusher.ring()
        if owed & (RING_CLIENTS | RING_LISTENERS):
            self._ring_sessions(owed)
        if owed & RING_READER:  # after the clients: on few CPUs it runs instead of us
            self._bells.reader.ring()

    def _ring_sessions(self, owed: int) -> None:
        if owed & RING_CLIENTS:
            for lane in self.lanes.ringing(self.view[frames.RINGING]):
                lane.session.bell.ring()
        if owed & RING_LISTENERS:
            for session in self.listeners.sleepers():
                session.bell.ring()

    def _do_step(self, step: int) -> None:
        """What comes between two parts of `tell_lanes`."""
        if step == STEP_APPENDED:
            mark("writer.after_appended")
            return
        lane = self.lanes.lanes[self.view[frames.AT_LANE]]
        if step == STEP_SETTLED:
            mark("writer.after_settle_lane")
            if lane.forget_stored():
                self.producers.unanswered.forget(lane.session.producer)
        elif step == STEP_SILENT:  # what nobody was told is refused may be sent again
            self._note_told(lane)
            keep_unanswered(self.producers, lane.session.producer, self._staging, self._batch)
        self.view[frames.HELD] = bool(self.producers.unanswered)

    def _note_settled(self) -> None:
        unanswered = self.producers.unanswered
        self._board.set_word(layout.BOARD_SETTLED, unanswered.settled(self.appended))
        self.view[frames.HELD] = bool(unanswered)

    def _note_told(self, lane: Lane) -> None:
        """Remember what a session has appended, or was told is refused."""
        words = lane.view
        if words[frames.TOLD_SEQ]:
            seq, told_ms = words[frames.TOLD_SEQ], words[frames.TOLD_MS]
            self.producers.note(lane.session.producer, seq, told_ms)
            words[frames.TOLD_SEQ] = 0

    # ------------------------------------------------------------------------------------ segments

    def _begin_segment(self, now_ns: int) -> None:
        """No further append is sure of room: go on behind that, or refuse sends until it can."""
        self._lacks_segment = not self._roll(now_ns)
        self._choose_refusal()
        self.view[frames.SEGMENT_END] = self._log.limit

    def _choose_refusal(self) -> None:
        """Sends fail while there is no segment for them, or retention says that the disk is full.

        The latter comes first as a rule: room is left for queues, the ledger and the index.
        """
        refuses = self._lacks_segment or self._disk_full
        self.view[frames.REFUSE] = int(Status.DISK_FULL) if refuses else 0

    def _roll(self, now_ns: int) -> bool:
        if now_ns < self._disk_retry_ns:
            return False
        mark("writer.before_roll")
        try:
            self._log.go_on()
        except OSError as error:
            if not is_disk_full(error):
                self._fail(error)
                return False
            self._disk_retry_ns = now_ns + DISK_RETRY_NS
            self._sessions.note("error", "disk_full", position=self.appended)
            return False
        mark("writer.after_roll")
        self.save_producers(self.view[frames.STORE_MS])
        return not self.failed

    def save_producers(self, now_ms: int) -> None:
        """A snapshot that only spares the next start a longer scan: it may wait for space."""
        for lane in self.lanes:
            self._note_told(lane)
        try:
            self.producers.save(self._storage, self.appended, now_ms)
        except OSError as error:
            if is_disk_full(error):
                self._sessions.note("warning", "no_space_for_producers", position=self.appended)
            else:
                self._fail(error)

    def _fail(self, error: OSError) -> None:
        """A write error is final: nothing more is appended or acknowledged.

        Raises what is no fault of the store: a successor goes on.
        """
        if is_shortage(error):
            raise error
        self.failed = True
        waiting = [lane.session for lane in self.lanes]
        what = f"append at {self.appended}: {error}"
        declare_failed(self._board, self._sessions, waiting, error.errno or 0, what)


def _parking(board: Board, settings: Settings) -> dict[int, int]:
    """Words of a batch that say where messages wait for their time, or for a decision."""
    slots = {topic.name: topic.slot for topic in board.topics()}
    return {
        frames.SCHEDULE_TOPIC: slots.get(SCHEDULE_TOPIC, -1),
        frames.TIMER_TOPIC: slots.get(TIMER_TOPIC, -1),
        frames.HALF_TOPIC: slots.get(HALF_TOPIC, -1),
        frames.DELAY_LEVELS: len(parse_delay_levels(settings.message_delay_level)),
        frames.TIMER_PRECISION_MS: settings.timer_precision_ms,
    }
