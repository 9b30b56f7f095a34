"""The writer: drains producers' rings into the commit log and says how far it goes.

Order, which everything else relies on (design: the way of a message): pwrite, `appended`,
completions and ring heads, `settled`. Whatever kills it in between, a new writer finds every entry
either in its ring or in the log, and tells which by (producer, seq).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gantrymq.brokerd.appender import Appender
from gantrymq.brokerd.lanes import LOOPBACK, open_lane, take_cursors
from gantrymq.shm import limits
from gantrymq.shm.codes import EntryFlag, Role
from gantrymq.shm.kernels import frames
from gantrymq.shm.kernels.lanes import arm_lanes, nap_lanes
from gantrymq.workers.agent import IDLE_NS, is_busy
from gantrymq.workers.inhand import InHand
from gantrymq.workers.session import Attached

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gantrymq.brokerd.config import Settings
    from gantrymq.brokerd.lanes import Lane
    from gantrymq.shm.board import Board
    from gantrymq.shm.clock import Clock
    from gantrymq.shm.storage import Storage
    from gantrymq.workers.agent import Bells
    from gantrymq.workers.session import Detached, Session, SessionTable

#: Naps without work before the writer goes to sleep in earnest.
NAPS_MAX = 2
URGENT = int(EntryFlag.URGENT)
#: Batches that a clean stop writes at most while clients keep sending.
STOP_ROUNDS = 64


class Writer:
    """Agent: meets sessions, lets `Appender` do a cycle, sleeps."""

    name = "writer"

    def __init__(
        self,
        appender: Appender,
        clock: Clock,
        sessions: SessionTable,
        settings: Settings,
        hand: InHand,
    ) -> None:
        self._appender = appender
        self._lanes = appender.lanes
        self._batch = appender.view
        self._clock = clock
        self._sessions = sessions
        self._spin_rounds = settings.spin_rounds
        self._hand = hand
        self._store_host = LOOPBACK + int(settings.broker_port).to_bytes(4, "big")
        self._naps = 0
        self._lone: Lane | None = None  # the last client that was alone
        self._worked = False
        self._work_ns = 0
        self.stopped = False

    @property
    def waits(self) -> bool:
        """Whether it takes nothing until the flusher has made the next segment."""
        return self._appender.waits

    def close(self) -> None:
        """Give the segment back."""
        self._appender.close()

    def _finish_stop(self, now_ns: int) -> None:
        """What was published up to now is appended; later entries stay in their rings."""
        for lane in self._lanes:
            lane.heat()
        self._appender.pace.leave()
        for _ in range(STOP_ROUNDS):
            if not self._appender.cycle(now_ns, may_wait=False):
                break
        self._appender.save_producers(self._clock.wall_ms())
        self.stopped = True

    # ------------------------------------------------------------------------------- duty cycle

    def do_work(self, now_ns: int) -> int:
        """Meet sessions, drain rings, append, answer. 0 also when a nap pays (see `arm`)."""
        events = self._sessions.poll()
        if self._appender.failed or self.stopped:
            return 0
        if events:
            self._meet(events, now_ns)
        self._appender.pace.look(now_ns)
        hand = self._hand
        if hand.is_successor and hand.is_careful(now_ns):
            taken = self._appender.cycle_one_by_one(now_ns, hand)
        else:
            taken = self._appender.cycle(now_ns)
        self._worked = taken > 0
        if taken:
            self._naps = NAPS_MAX if is_busy(taken, now_ns - self._work_ns) else 0
            self._work_ns = now_ns
        if self._sessions.stopping():
            self._finish_stop(now_ns)
        if not self._batch[frames.MORE] or self._appender.pace.is_kept:
            return 0
        self._batch[frames.WOKEN] = 1  # no sleep comes in between: lanes that were idle count, too
        return taken

    def arm(self, now_ns: int) -> int:
        """Nap after a busy batch, sleep in earnest after some idle naps."""
        if self._appender.failed or self.stopped:
            return IDLE_NS
        if self.waits or (self._batch[frames.MORE] and self._appender.pace.is_kept):
            return limits.FLOOD_NAP_NS
        if self._worked and self._spins():
            return 0
        lanes = self._lanes
        if self._naps > 0:
            self._naps -= 1
            return limits.NAP_NS if nap_lanes(lanes.array, lanes.count) else 0
        return IDLE_NS if arm_lanes(lanes.array, lanes.count) else 0

    def _spins(self) -> bool:
        """Look out for the next entry of a lone client that waits for each of its receipts.

        A wake-up takes longer than the rest of its round trip. With several clients there is
        nothing to gain: others have work for us and for the processors.
        """
        if not self._batch[frames.FLAGS_SEEN] & URGENT:
            return False
        lone = self._lanes.lone_client(self._lone)
        if lone is None:
            return False
        self._lone = lone
        self._batch[frames.FLAGS_SEEN] = 0
        return self._lanes.look_out(lone, self._spin_rounds)

    def disarm(self) -> None:
        """The next cycle wakes busy lanes; idle ones stay armed until they have something."""
        self._batch[frames.WOKEN] = 1

    # ---------------------------------------------------------------------------------- sessions

    def _meet(self, events: Sequence[Attached | Detached], now_ns: int) -> None:
        for event in events:
            if isinstance(event, Attached):
                if event.session.producer:
                    self._hand.take(event.session.session)
                    self._adopt(event.session, now_ns)
                if event.session.transactions:
                    self._appender.listeners.add(event.session)
            else:
                self._appender.listeners.remove(event.session)
                lane = self._lanes.of(event.session)
                if lane is not None:
                    self._hand.take(event.session)
                    self._appender.drain_last(lane, now_ns)
                    self._lanes.remove(lane)
        self._hand.drop()

    def _adopt(self, session: Session, now_ns: int) -> None:
        """Take a lane over where it stands, and tell its client what is in the log already."""
        if self._hand.is_condemned(session.session):
            why = self._hand.set_aside(self._sessions, session.session, 0, "what was sent")
            self._sessions.cut_off(session.session, why)
            return
        words = take_cursors(session)
        if words is None:
            self._sessions.cut_off(session.session, "its ring cursors are impossible")
            return
        for other in self._lanes:
            if other.session.producer == session.producer:
                # Its client goes on in the new session, and may repeat there what is in this ring.
                self._appender.drain_last(other, now_ns)
                other.end()
        lane = open_lane(session, words, self._appender.producers, self._store_host)
        self._lanes.add(lane)
        lane.announce()


def open_writer(
    storage: Storage,
    clock: Clock,
    board: Board,
    sessions: SessionTable,
    bells: Bells,
    settings: Settings,
) -> Writer:
    """A writer that goes on where the log ends. Raises OSError, Corrupt."""
    appender = Appender(storage, clock, board, sessions, bells, settings)
    appender.recover()
    hand = InHand(board, Role.WRITER)
    hand.watch_all()
    return Writer(appender, clock, sessions, settings, hand)
