"""The writer: drains producers' rings into the commit log and says how far it goes.

Order, which everything else relies on (design: the way of a message): pwrite, `appended`,
completions and ring heads, `settled`. Whatever kills it in between, a new writer finds every entry
either in its ring or in the log, and tells which by (producer, seq).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from brokerd.commitlog import CommitLog
from brokerd.counters import Counters
from brokerd.lanes import LOOPBACK, Lane, open_lane, take_cursors
from brokerd.producers import Producers
from brokerd.resume import keep_unanswered, learn_from_log
from shm import layout, limits
from shm.codes import AgentState, EntryFlag, Role, Status, Stop
from shm.kernels import frames
from shm.kernels.complete import settle_lane
from shm.kernels.drain import SCRATCH_WORDS, drain_lane
from shm.kernels.entry import ROUTE_ID
from shm.kernels.ring import look_up_lane, nap_lane, publish_and_check
from shm.kernels.words import store_half
from shm.marks import mark
from shm.storage import is_disk_full
from workers.agent import IDLE_NS, is_busy
from workers.failure import declare_failed, has_failed
from workers.session import Attached

if TYPE_CHECKING:
    from shm.board import Board
    from shm.clock import Clock
    from shm.storage import Storage
    from workers.session import Session, SessionTable

#: Naps without work before the writer goes to sleep in earnest.
NAPS_MAX = 2
DISK_RETRY_NS = 100_000_000
URGENT = int(EntryFlag.URGENT)
#: Batches that a clean stop writes at most while clients keep sending.
STOP_ROUNDS = 64


class Writer:
    """Agent; only writer of the CommitLog, of queue offsets and of `appended` and `settled`."""

    name = "writer"

    def __init__(
        self,
        storage: Storage,
        clock: Clock,
        board: Board,
        sessions: SessionTable,
        bells: Any,  # noqa: ANN401 - brokerd.agents.Bells
        settings: Any,  # noqa: ANN401 - brokerd.config.Settings
    ) -> None:
        self._storage = storage
        self._clock = clock
        self._board = board
        self._words = board.array()
        self._sessions = sessions
        self._bells = bells
        self._lanes: dict[int, Lane] = {}
        self._staging = np.zeros(limits.STAGING_BYTES, np.uint8)
        self._scratch = np.zeros(SCRATCH_WORDS, np.int64)
        self._batch = np.zeros(frames.BATCH_WORDS, np.int64)
        self._batch[frames.BODY_MAX] = settings.max_message_size
        self._batch[frames.QUEUES_AT] = board.queues_at
        self._batch[frames.SEGMENT_BYTES] = board.segment_bytes
        self._batch[frames.STAGING_LIMIT] = limits.DRAIN_BYTES
        self._batch[frames.TAKEN_LIMIT] = 1 << 20
        self._spin_rounds = settings.spin_rounds
        self._store_host = LOOPBACK + int(settings.broker_port).to_bytes(4, "big")
        self._drained: list[Lane] = []
        self._appended = board.word(layout.BOARD_APPENDED)
        self._store_ms = board.word(layout.BOARD_STORE_MS)
        self._producers = Producers()
        self._log = CommitLog(storage, board.segment_bytes, self._appended)
        self._naps = 0
        self._worked = False
        self._work_ns = 0
        self._more = False
        self._reader_sleeps = False
        self._failed = False
        self._disk_retry_ns = 0
        self._counters = Counters()
        self.stopped = False

    # ------------------------------------------------------------------------------ start and end

    def recover(self) -> None:
        """Make good what a writer that died has left: bytes behind the log's end, seqs, offsets."""
        self._log.clear_behind(self._appended, limits.STAGING_BYTES + limits.FILLER_BYTES_MIN)
        self._producers = learn_from_log(self._storage, self._board, self._appended)
        self._note_settled()

    def close(self) -> None:
        """Give the segment back."""
        self._log.close()

    def _finish_stop(self, now_ns: int) -> None:
        """What was published up to now is appended; later entries stay in their rings."""
        for lane in self._lanes.values():
            lane.hot = not lane.over
        for _ in range(STOP_ROUNDS):
            if not self._drain_all(now_ns):
                break
        self._save_producers(self._clock.wall_ms())
        self.stopped = True

    # ------------------------------------------------------------------------------- duty cycle

    def do_work(self, now_ns: int) -> int:
        """Meet sessions, drain rings, append, answer. 0 also when a nap pays (see `arm`)."""
        self._counters.cycles += 1
        self._failed = self._failed or has_failed(self._board)  # the flusher may have met it
        if self._failed or self.stopped:
            self._sessions.poll()
            return 0
        self._meet_sessions(now_ns)
        taken = self._drain_all(now_ns)
        self._worked = taken > 0
        if taken:
            self._naps = NAPS_MAX if is_busy(taken, now_ns - self._work_ns) else 0
            self._work_ns = now_ns
            self._counters.busy += 1
        if self._sessions.stopping():
            self._finish_stop(now_ns)
        if taken or now_ns >= self._counters.due_ns:
            self._counters.publish(self._board, Role.WRITER, now_ns)
        return taken if self._more else 0

    def arm(self, now_ns: int) -> int:
        """Nap after a busy batch, sleep in earnest after some idle naps."""
        if self._failed or self.stopped:
            return IDLE_NS
        busy = [lane for lane in self._lanes.values() if lane.hot]
        if self._worked and self._spins(busy):
            return 0
        if self._naps > 0:
            self._naps -= 1
            calm = [nap_lane(lane.session.arena, lane.words) for lane in busy]
            return limits.NAP_NS if all(calm) else 0
        quiet = True
        for lane in self._lanes.values():
            if look_up_lane(lane.session.arena, lane.words, int(AgentState.ARMED)):
                lane.hot = True
                quiet = False
            else:
                lane.hot = False
        return IDLE_NS if quiet else 0

    def _spins(self, busy: list[Lane]) -> bool:
        """Look out for the next entry of a lone client that waits for each of its receipts.

        A wake-up takes longer than the rest of its round trip. With several clients there is
        nothing to gain: others have work for us and for the processors.
        """
        if len(busy) != 1 or not self._batch[frames.FLAGS_SEEN] & URGENT:
            return False
        self._batch[frames.FLAGS_SEEN] = 0
        return busy[0].look_out(self._spin_rounds)

    def disarm(self) -> None:
        """Poll busy lanes again; idle ones stay armed until they have something."""
        for lane in self._lanes.values():
            if lane.hot or look_up_lane(lane.session.arena, lane.words, -1):
                lane.hot = not lane.over
                at = lane.session.plan.writer.control + layout.LANE_AGENT_STATE
                store_half(lane.session.arena, at, int(AgentState.HOT))

    # ---------------------------------------------------------------------------------- sessions

    def _meet_sessions(self, now_ns: int) -> None:
        for event in self._sessions.poll():
            if isinstance(event, Attached):
                if event.session.producer:
                    self._adopt(event.session, now_ns)
            else:
                lane = self._lanes.get(event.session)
                if lane is not None:
                    self._drain_last(lane, now_ns)
                    del self._lanes[event.session]

    def _adopt(self, session: Session, now_ns: int) -> None:
        """Take a lane over where it stands, and tell its client what is in the log already."""
        words = take_cursors(session)
        if words is None:
            self._sessions.cut_off(session.session, "its ring cursors are impossible")
            return
        for other in self._lanes.values():
            if other.session.producer == session.producer:
                # Its client goes on in the new session, and may repeat there what is in this ring.
                self._drain_last(other, now_ns)
                other.end()
        lane = open_lane(session, words, self._producers, self._store_host)
        self._lanes[session.session] = lane
        lane.announce()

    def _drain_last(self, lane: Lane, now_ns: int) -> None:
        """What a session that ended has published is appended all the same; nobody is answered.

        Its client may attach again and ask. No further than one ring: a client that goes on
        publishing is not listened to.
        """
        words, end, before = lane.words, lane.published(), -1
        words[frames.SILENT] = 1
        while not lane.over and before < words[frames.UP_CURSOR] < end:
            before = int(words[frames.UP_CURSOR])
            self._begin_batch(now_ns)
            self._drain_lane(lane, now_ns)
            self._write_batch()

    def _cut_off(self, lane: Lane, why: str) -> None:
        lane.end()
        self._counters.faults += 1
        self._sessions.cut_off(lane.session.session, why)

    # ------------------------------------------------------------------------------------- drain

    def _drain_all(self, now_ns: int) -> int:
        self._more = False
        self._begin_batch(now_ns)
        total = 0
        for lane in list(self._lanes.values()):
            if not lane.hot or lane.over:
                continue
            before = int(lane.words[frames.DONE])
            stop = self._drain_lane(lane, now_ns)
            self._more = self._more or stop == Stop.LIMIT
            total += int(lane.words[frames.DONE]) - before
        self._write_batch()
        return total

    def _begin_batch(self, now_ns: int) -> None:
        """Open a batch at the log's end; at a segment's end roll first, or refuse until it can."""
        batch = self._batch
        full = self._appended == self._log.end and not self._roll(now_ns)
        batch[frames.REFUSE] = int(Status.DISK_FULL) if full else 0
        self._store_ms = max(self._store_ms, self._clock.wall_ms())  # LW-12
        batch[frames.STORE_MS] = self._store_ms
        batch[frames.FILLED] = 0
        batch[frames.RECORDS] = 0
        batch[frames.REFUSED] = 0
        batch[frames.WANTED] = 0
        batch[frames.POSITION] = self._appended
        batch[frames.SEGMENT_END] = self._log.end

    def _drain_lane(self, lane: Lane, now_ns: int) -> Stop:
        """Take a lane's entries until its ring is empty or the batch has to be written."""
        batch = self._batch
        batch[frames.INTERNAL] = 1 if lane.session.internal else 0
        while not self._failed:
            filled = int(batch[frames.FILLED])
            stop = Stop(
                drain_lane(
                    lane.session.arena, lane.words, self._words, lane.routes, lane.blocks,
                    lane.identity, lane.stored, self._staging, batch, self._scratch,
                )
            )  # fmt: skip
            if lane not in self._drained:
                self._drained.append(lane)
            if stop == Stop.ROUTE:
                lane.load_route(int(self._scratch[ROUTE_ID]), self._board)
            elif stop == Stop.ROLL:
                self._write_batch(closing=True)
                self._begin_batch(now_ns)
            elif stop == Stop.LIMIT and filled:
                self._write_batch()
                self._begin_batch(now_ns)
                return stop
            else:
                if stop == Stop.HOSTILE:
                    self._cut_off(lane, "its ring breaks the rules")
                return stop
        return Stop.DONE

    # ------------------------------------------------------------------------------------- append

    def _write_batch(self, *, closing: bool = False) -> None:
        """Staging into the log, then tell everybody, in this order. `closing`: ends in a filler."""
        filled = int(self._batch[frames.FILLED])
        if self._failed or (filled and not self._append(filled, closing)):
            return
        self._want_durable(int(self._batch[frames.WANTED]))
        self._settle()
        self._ring_reader()
        self._counters.records += int(self._batch[frames.RECORDS])
        self._counters.refused += int(self._batch[frames.REFUSED])
        self._counters.bytes += filled
        self._batch[frames.FILLED] = 0

    def _append(self, filled: int, closing: bool) -> bool:
        mark("writer.before_append")
        try:
            self._log.append(self._staging[:filled], self._appended)
        except OSError as error:
            self._fail(error)
            return False
        mark("writer.after_append")
        self._appended = self._log.end if closing else self._appended + filled
        self._board.set_word(layout.BOARD_STORE_MS, self._store_ms)
        self._reader_sleeps = bool(
            publish_and_check(
                self._words, layout.BOARD_APPENDED, self._appended,
                self._words, layout.BOARD_READER_ARMED,
            )
        )  # fmt: skip
        mark("writer.after_appended")
        return True

    def _ring_reader(self) -> None:
        """Wake the reader, after the clients: on few CPUs it runs instead of us."""
        if self._reader_sleeps:
            self._bells.reader.ring()
            self._reader_sleeps = False

    def _want_durable(self, wanted: int) -> None:
        if wanted > self._board.word(layout.BOARD_DURABLE_WANTED):
            armed = publish_and_check(
                self._words, layout.BOARD_DURABLE_WANTED, wanted,
                self._words, layout.BOARD_FLUSHER_ARMED,
            )  # fmt: skip
            if armed:
                self._bells.flusher.ring()

    def _settle(self) -> None:
        for lane in self._drained:
            armed, producer = 0, lane.session.producer
            if lane.words[frames.SILENT]:  # what nobody was told is refused may be sent again
                keep_unanswered(self._producers, producer, self._staging, self._batch)
            else:
                armed = settle_lane(lane.session.arena, lane.words)
                mark("writer.after_settle_lane")
                if lane.stored.size and lane.has_gone_on:
                    self._producers.unanswered.forget(producer)
                    lane.stored = lane.stored[:0]
                self._producers.note(producer, int(lane.words[frames.SEQ]), self._store_ms)
            if armed:
                lane.session.bell.ring()
        self._drained.clear()
        self._note_settled()

    def _note_settled(self) -> None:
        settled = self._producers.unanswered.settled(self._appended)
        self._board.set_word(layout.BOARD_SETTLED, settled)

    def _roll(self, now_ns: int) -> bool:
        """Go on in the next segment; a full disk refuses sends until there is room again."""
        if now_ns < self._disk_retry_ns:
            return False
        mark("writer.before_roll")
        try:
            self._log.roll()
        except OSError as error:
            if not is_disk_full(error):
                self._fail(error)
                return False
            self._disk_retry_ns = now_ns + DISK_RETRY_NS
            self._sessions.note("error", "disk_full", position=self._appended)
            return False
        mark("writer.after_roll")
        self._save_producers(self._store_ms)
        return not self._failed

    def _save_producers(self, now_ms: int) -> None:
        """A snapshot that only spares the next start a longer scan: it may wait for space."""
        try:
            self._producers.save(self._storage, self._appended, now_ms)
        except OSError as error:
            if is_disk_full(error):
                self._sessions.note("warning", "no_space_for_producers", position=self._appended)
            else:
                self._fail(error)

    def _fail(self, error: OSError) -> None:
        """A write error is final: nothing more is appended or acknowledged."""
        self._failed = True
        self._drained.clear()
        waiting = [lane.session for lane in self._lanes.values()]
        what = f"append at {self._appended}: {error}"
        declare_failed(self._board, self._sessions, waiting, error.errno or 0, what)


def open_writer(
    storage: Storage,
    clock: Clock,
    board: Board,
    sessions: SessionTable,
    bells: Any,  # noqa: ANN401 - brokerd.agents.Bells
    settings: Any,  # noqa: ANN401 - brokerd.config.Settings
) -> Writer:
    """A writer that goes on where the log ends. Raises OSError, Corrupt."""
    writer = Writer(storage, clock, board, sessions, bells, settings)
    writer.recover()
    return writer
