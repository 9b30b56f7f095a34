"""The scheduler: delivers what is parked, when its time has come, once.

What is pending is what the log says: parked records without a copy. `gantry/schedule.json` says
how far that was counted, so that a start looks at little of the log. Nothing is counted before the
copy was answered by the writer and is durable.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from gantrymq.shm import layout
from gantrymq.shm.codes import Role
from gantrymq.shm.indexnote import Shape
from gantrymq.shm.kernels.ring import arm as arm_flag
from gantrymq.shm.kernels.words import store_half
from gantrymq.shm.properties import parse_delay_levels
from gantrymq.workers.agent import IDLE_NS, UNRUNG_NS
from gantrymq.workers.damage import Damage
from gantrymq.workers.logwindow import LogWindow
from gantrymq.workers.origins import OriginScan
from gantrymq.workers.outlet import Outlet
from gantrymq.workers.outletagent import OutletAgent
from gantrymq.workers.scheduler.delaylevels import NEVER, DelayLevels
from gantrymq.workers.scheduler.delivery import PUTS_MAX, Delivery
from gantrymq.workers.scheduler.pending import Pending
from gantrymq.workers.scheduler.progress import ProgressNote, timeline_of
from gantrymq.workers.scheduler.recalls import RecallDesk
from gantrymq.workers.scheduler.recalltrace import RecallTrace
from gantrymq.workers.scheduler.settings import DelaySettings
from gantrymq.workers.scheduler.timeline import NS
from gantrymq.workers.scheduler.timermove import TimerMove
from gantrymq.workers.scheduler.timers import Timers
from gantrymq.workers.session import Attached, Session

if TYPE_CHECKING:
    from gantrymq.shm.board import Board
    from gantrymq.shm.clock import Clock
    from gantrymq.shm.storage import Storage
    from gantrymq.workers.agent import Bells
    from gantrymq.workers.scheduler.delaylevels import Level
    from gantrymq.workers.scheduler.duerows import Rows
    from gantrymq.workers.session import SessionTable

#: Who sleeps for so long holds nothing that can be had again.
REST_NS: Final = 500_000_000
#: Behind all levels, in the order in which what is due has its turn.
TIMERS: Final = 1 << 30


class SchedulerSettings(DelaySettings, Protocol):
    """What the scheduler needs of the broker's settings."""

    @property
    def message_index_enable(self) -> bool:
        """Whether there is a key index, by which recalls look back."""
        ...

    @property
    def max_hash_slot_num(self) -> int:
        """Slots of an index file."""
        ...

    @property
    def max_index_num(self) -> int:
        """Entries of an index file."""
        ...


class Scheduler(OutletAgent):
    """Agent; only writer of `gantry/schedule.json`, `gantry/timers/` and `delayOffset.json`."""

    name = "scheduler"
    role = Role.SCHEDULER
    writes = "schedule"

    def __init__(
        self,
        storage: Storage,
        clock: Clock,
        board: Board,
        sessions: SessionTable,
        bells: Bells,
        settings: SchedulerSettings,
    ) -> None:
        super().__init__(storage, clock, board, sessions, bells)
        self._delays = parse_delay_levels(settings.message_delay_level)
        self._precision_ms = settings.timer_precision_ms
        shape = Shape(settings.max_hash_slot_num, settings.max_index_num)
        self._shape = shape if settings.message_index_enable else None
        self._scan: OriginScan | None = None
        self._topics = (-1, -1)
        self._held_up = False
        self._turn = 0  # of this level, or of TIMERS, and of those behind it

    # -------------------------------------------------------------------------------- duty cycle

    def _note_no_space(self) -> None:
        self._table.note("warning", "no_space_for_schedule")

    def _step(self, now_ns: int) -> int:
        if self._outlet is None or (self._outlet.is_lost() and not self._reconcile()):
            return self._stop_early()
        if now_ns >= self._space_ns:
            self._note.keep_clock()
        if self._scan is not None:
            self._read_origins()
            return 1
        self._time.look()
        done = self._delivery.take_answers(now_ns)
        if self._outlet.is_lost():
            return 1
        for outcome in self._delivery.take_others():
            self._recalls.answered(outcome)
        done += self._follow_topics(now_ns)
        if self._table.stopping():
            return self._finish(now_ns)
        has_room = now_ns >= self._space_ns
        done += self._recalls.serve(self._time.wall_ms(), now_ns, has_room=has_room)
        done += self._deliver()
        self._pending.show(now_ns)
        if has_room:
            done += self._timers.read() + self._move.work()
            self._tell_damage()  # before a note counts what was left out for it
            done += self._note.keep(now_ns)
        return done

    def _stop_early(self) -> int:
        """Without a writer nothing is in its hands that the log does not tell."""
        self._finished = self._table.stopping()
        return 0

    # ----------------------------------------------------------------------------------- sessions

    def _hear_sessions(self) -> None:
        for event in self._table.poll():
            if isinstance(event, Attached):
                if event.session.owner == Role.SCHEDULER:
                    self._open(event.session)
                elif event.session.scheduler:
                    self._recalls.attach(event.session)
            elif self._outlet is not None:
                self._recalls.detach(event.session)

    def _open(self, session: Session) -> None:
        """This agent's own session is known: it may put, once the writer has answered all."""
        self._outlet = Outlet(session, self._bells)
        self._arena = session.arena
        damage = Damage(self._table)
        window = self._window = LogWindow(self._storage, self._board, self._views, damage)
        self._delivery = Delivery(self._board, self._table, self._outlet, window)
        self._note = ProgressNote(self._storage, self._clock, self._board, self._delivery)
        stamp = partial(self._board.word, layout.BOARD_STORE_MS)
        self._time = timeline_of(self._note.found, self._board, self._clock, stamp)
        self._delivery.follow(self._time)
        self._levels = DelayLevels(self._board, self._views, self._time, self._delays)
        self._timers = Timers(
            self._storage, self._board, self._views, window, self._time, self._precision_ms
        )
        self._pending = Pending(self._board, self._levels, self._timers)
        self._move = TimerMove(self._board, self._timers, self._delivery)
        trace = RecallTrace(self._storage, self._board, window, self._shape)
        self._recalls = RecallDesk(
            self._table, trace, self._outlet, self._delivery, self._timers, self._hand
        )
        self._note.follow(self._levels, self._timers, self._time)
        self._begun = False
        self._first_scanned = -1  # where the first scan begins: known once timers are taken over

    # ----------------------------------------------------------------------------- what is there

    def _reconcile(self) -> bool:
        """Once the log has all that was put before: look there for what is not counted.

        What a full disk may break off comes before the outlet is trusted: else the next step would
        deliver without having looked.
        """
        assert self._outlet is not None, "it is lost"
        if self._first_scanned < 0:
            found = self._note.found
            self._first_scanned = found.scanned if self._timers.take_over(found) else 0
            self._tell_damage()
        if not self._outlet.reconcile():
            return False
        appended = self._board.word(layout.BOARD_APPENDED)
        unsure = (self._delivery.unsure_from, self._recalls.unsure_from)
        start = min((at for at in unsure if at >= 0), default=appended)
        if not self._begun:
            start = self._first_scanned
        self._scan = OriginScan(self._storage, self._board, self._views, start, appended)
        return True

    def _tell_damage(self) -> None:
        for path in self._timers.take_damage():
            self._table.note("warning", "timers_damaged", path=path)

    def _read_origins(self) -> None:
        scan = self._scan
        assert scan is not None, "it is going on"
        if not scan.finished:
            scan.step()
            return
        self._window.name_damaged(scan.damaged())
        self._scan = None
        if self._begun:
            self._delivery.lost(scan.origins())
            self._recalls.lost(set(scan.origins().tolist()))
            return
        self._begun = True
        found, done = self._note.found, scan.origins()
        self._levels.begin(found.levels, done, self._note.others)
        left = np.array(found.absent, np.int64).reshape(-1, 2)
        self._timers.begin(done, self._note.others, found.scanned)
        self._delivery.begin(left[~np.isin(left[:, 0], done)])

    def _follow_topics(self, now_ns: int) -> int:
        board = self._board
        now = (board.half(layout.BOARD_TOPIC_COUNT), board.half(layout.BOARD_QUEUE_COUNT))
        if now != self._topics:
            self._topics = now
            self._levels.find_queues()
            self._timers.find_queue()
            self._show_interest()
        return self._delivery.look_for_topics(now_ns)

    # ----------------------------------------------------------------------------------- delivery

    def _deliver(self) -> int:
        """Hand in what is due, each level and the timers in turn.

        Whose records find no room any more is behind all others next time: however many are due
        of one delay, others wait for a ringful of each at most.
        """
        done = 0
        due = [(n.number, partial(self._deliver_level, n, rows)) for n, rows in self._levels.due()]
        due.append((TIMERS, partial(self._timers.deliver, self._delivery)))
        due.sort(key=lambda one: one[0] < self._turn)  # stable
        for number, deliver in due:
            taken, had_room = deliver()
            done += taken
            self._held_up = not had_room
            if self._held_up:
                self._turn = number + (taken > 0)  # who found no room at all has had no turn
                break
        return done

    def _deliver_level(self, level: Level, rows: Rows) -> tuple[int, bool]:
        taken = self._delivery.put(rows)
        self._levels.taken(level, taken)
        return taken, taken >= min(len(rows), PUTS_MAX)

    # ------------------------------------------------------------------------------ sleep and stop

    def _show_interest(self) -> None:
        wanted = [*self._levels.queues, *([self._timers.queue] if self._timers.queue >= 0 else [])]
        queues = np.array(wanted, np.uint32)
        end = layout.INTEREST_AT + 4 * len(queues)
        self._arena[layout.INTEREST_AT : end].view(np.uint32)[:] = queues
        store_half(self._arena, layout.ARENA_INTEREST_COUNT, len(queues))

    def arm(self, now_ns: int) -> int:
        """Sleep until a parked record comes, an answer, or the next one's time."""
        if self._failed or self._finished:
            return IDLE_NS
        if self._outlet is None:
            return IDLE_NS
        if not self._outlet.trusted:
            return UNRUNG_NS
        if self._scan is not None or not self._outlet.arm() or not self._recalls.arm():
            return 0
        flag, word = layout.ARENA_WAIT_ARMED, layout.ARENA_DURABLE_WANTED
        arm_flag(self._arena, flag, 1, word, 0)
        if self._levels.has_more() or (now_ns >= self._space_ns and self._timers.has_more()):
            return 0
        sleep_ns = self._sleep_ns(now_ns)
        if sleep_ns >= REST_NS:
            # Maps count as our memory, and are made again in no time.
            self._delivery.let_go()
            self._views.drop()
        return sleep_ns

    def _sleep_ns(self, now_ns: int) -> int:
        note_ns = max(self._note.wait_ns(now_ns), self._space_ns - now_ns)
        sleep_ns = min(IDLE_NS, note_ns, self._delivery.wait_ns(now_ns))
        if self._held_up or self._recalls.waits:  # an answer or a moment brings room
            return max(0, min(sleep_ns, UNRUNG_NS))
        due_ms = self._levels.next_due_ms()
        if due_ms < NEVER:
            sleep_ns = min(sleep_ns, due_ms * NS - self._time.delay_ns())
        # A bucket that is to be opened waits for room on the disk.
        least_ns = UNRUNG_NS if now_ns < self._space_ns else 0
        return max(least_ns, min(sleep_ns, self._timers.sleep_ns()))

    def disarm(self) -> None:
        """Awake."""
        if self._outlet is not None:
            self._outlet.disarm()
            self._recalls.disarm()
            store_half(self._arena, layout.ARENA_WAIT_ARMED, 0)

    def _finish(self, now_ns: int) -> int:
        """A clean stop: what went up is answered and counted; what is due later stays parked."""
        if self._delivery.flying or self._recalls.flying:
            return 1
        self._recalls.serve(self._time.wall_ms(), now_ns)
        if not self._note.write_last():
            return 1
        self._finished = True
        return 0

    def close(self) -> None:
        """Give files and maps back."""
        if self._outlet is not None:
            self._timers.close()
        self._views.drop()
