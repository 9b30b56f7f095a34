"""The txn-checker: the only one that decides what becomes of half messages.

What is open is what the log says: halves that no op message names and no commit copy comes from.
A step takes requests, puts the copies and the op record of what they decide, and answers once both
are in the log. After a start, and after a writer's death, all that it knows is derived anew.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Final

from gantrymq.shm import layout
from gantrymq.shm import transactionwire as wire
from gantrymq.shm.codes import Role
from gantrymq.shm.lookout import Lookout
from gantrymq.shm.properties import parse_delay_levels
from gantrymq.workers.agent import IDLE_NS, UNRUNG_NS
from gantrymq.workers.damage import Damage
from gantrymq.workers.logwindow import LogWindow
from gantrymq.workers.outlet import Outlet
from gantrymq.workers.outletagent import OutletAgent
from gantrymq.workers.session import Attached
from gantrymq.workers.transactions.checks import Checks, Times
from gantrymq.workers.transactions.commonends import CommonEnds
from gantrymq.workers.transactions.decision import MOVED
from gantrymq.workers.transactions.decisions import Decisions
from gantrymq.workers.transactions.delayedcommit import Delays
from gantrymq.workers.transactions.desk import Desk, cost_of
from gantrymq.workers.transactions.endings import Endings
from gantrymq.workers.transactions.ends import Ends
from gantrymq.workers.transactions.givenup import GivenUp
from gantrymq.workers.transactions.halfmove import HalfMove
from gantrymq.workers.transactions.halves import Halves
from gantrymq.workers.transactions.kin import Kin
from gantrymq.workers.transactions.latecomers import Latecomers
from gantrymq.workers.transactions.pastdecisions import MISSING, Follow, PastDecisions
from gantrymq.workers.transactions.progress import TransactionProgress
from gantrymq.workers.transactions.restart import Restart
from gantrymq.workers.transactions.settling import Settling

if TYPE_CHECKING:
    from gantrymq.shm.board import Board
    from gantrymq.shm.clock import Clock
    from gantrymq.shm.storage import Storage
    from gantrymq.workers.agent import Bells
    from gantrymq.workers.session import Session, SessionTable
    from gantrymq.workers.transactions.decision import Decision
    from gantrymq.workers.transactions.settings import CheckerSettings

#: How often new units of half and give-up queue are looked for; a half may be older than that.
READ_NS: Final = 1_000_000_000
#: Who has done nothing for so long holds nothing that can be had again.
REST_NS: Final = 1_000_000_000
#: So many decisions of one step are waited for awake.
FEW: Final = 2
#: Requests and answers that are met in one step, each looked out for behind the last.
TURNS_MAX: Final = 64
#: What requests of all sessions may cost at a time (`desk.cost_of`), of which each has a share in
#: turn: 1 ms, or so; and what is met awake before what is due by itself is looked at.
REQUESTS_MAX: Final = 32
ENDS_AWAKE: Final = 256
#: The next END of a lone session is looked out for so many times as long as an answer.
LONE_PATIENCE: Final = 4
HOUR_MS: Final = 3_600_000


class TxnChecker(OutletAgent):
    """Agent; only writer of `gantry/transactions.json`."""

    name = "txn_checker"
    role = Role.TXN_CHECKER
    writes = "transactions"

    def __init__(
        self,
        storage: Storage,
        clock: Clock,
        board: Board,
        sessions: SessionTable,
        bells: Bells,
        settings: CheckerSettings,
    ) -> None:
        super().__init__(storage, clock, board, sessions, bells)
        self._timeout_s = settings.transaction_timeout_s
        self._times = Times(
            settings.transaction_check_interval_s,
            settings.transaction_check_max,
            settings.file_reserved_time * HOUR_MS,
        )
        levels = len(parse_delay_levels(settings.message_delay_level))
        self._delays = Delays(levels, settings.timer_precision_ms)
        # With the writer in this very thread there is nothing to look out for.
        own = settings.profile == "standard"
        self._rounds = settings.spin_rounds if own else 0
        self._desk = Desk(sessions, self._hand)
        self._lookout = Lookout()
        self._restart: Restart | None = None
        self._asked_before: list[tuple[int, object]] = []
        self._read_ns = self._worked_ns = 0
        self._low = 0  # nothing is known of what lies below

    # -------------------------------------------------------------------------------- duty cycle

    def _note_no_space(self) -> None:
        self._table.note("warning", "no_space_for_transactions")

    def _step(self, now_ns: int) -> int:
        outlet = self._outlet
        if outlet is None or (outlet.is_lost() and not self._reconcile()):
            self._finished = self._table.stopping()
            return 0
        if self._restart is not None:
            return self._learn(now_ns)
        done = self._take(now_ns)
        if outlet.is_lost():
            return 1
        now_ms = self._clock.wall_ms()
        done += self._serve(now_ms)
        if self._table.stopping():
            return self._finish(done, now_ms)
        done += self._decisions.flush(now_ms)
        if done and self._rounds:
            self._attend(now_ns)
        return done if outlet.is_lost() else done + self._look_around(now_ns, now_ms)

    def _look_around(self, now_ns: int, now_ms: int) -> int:
        """What is due by itself: new units, checks, halves to append again, the note."""
        done = 0
        if now_ns >= self._read_ns:
            done += self._read(now_ns, now_ms)
        if now_ns >= self._checks.next_ns:
            done += self._checks.step(now_ns, now_ms, self._times)
        done += self._move.step(now_ns, now_ms)
        done += self._latecomers.step(now_ns, now_ms)
        done += self._decisions.flush(now_ms)
        if now_ns >= self._space_ns:
            done += self._note.keep(now_ns, self._parts)
        return done

    def _count(self, done: int, now_ns: int) -> None:
        super()._count(done, now_ns)
        if done:
            self._worked_ns = now_ns
            refused = self._endings.refused if self._restart is None and self._outlet else 0
            self._board.set_word(self._process_at + layout.PROCESS_REFUSED, refused)

    # ----------------------------------------------------------------------------------- sessions

    def _hear_sessions(self) -> None:
        for event in self._table.poll():
            if not isinstance(event, Attached):
                self._desk.detach(event.session)
            elif event.session.owner == Role.TXN_CHECKER:
                self._open(event.session)
            elif event.session.transactions:
                self._desk.attach(event.session)

    def _open(self, session: Session) -> None:
        """This agent's own session is known: it may put, once the writer has answered all."""
        self._outlet = Outlet(session, self._bells)
        self._note = TransactionProgress(self._storage, self._board)
        window = LogWindow(self._storage, self._board, self._views, Damage(self._table))
        self._decisions = Decisions(self._board, window, self._outlet, self._delays)
        self._begin()

    def _begin(self) -> None:
        """Know nothing of any half."""
        decisions, desk = self._decisions, self._desk
        halves = Halves(self._board, self._views, decisions.window, self._timeout_s)
        given_up = GivenUp(halves, decisions)
        past = PastDecisions(self._board, self._views, decisions, (halves, given_up), desk)
        self._halves, self._given_up, self._past = halves, given_up, past
        self._kin = kin = Kin(halves, decisions.window, given_up.begun, self._read_now)
        self._endings = Endings(halves, decisions, past, desk, kin)
        self._common = CommonEnds(halves, decisions, self._endings, desk)
        self._settling = Settling(halves, decisions, given_up, self._endings, past, desk)
        self._move = HalfMove(self._board, halves, decisions, self._endings, given_up)
        self._checks = Checks(self._board, halves, decisions, self._endings, given_up, desk)
        self._latecomers = Latecomers(halves, self._endings, past, self._checks.give_up)
        self._parts = (halves, decisions, given_up)

    # ----------------------------------------------------------------------------- what is there

    def _reconcile(self) -> bool:
        """Once the log has all that was put before: learn from it what is open."""
        assert self._outlet is not None, "it is lost"
        if not self._outlet.reconcile():
            return False
        for decision in self._decisions.lost():
            self._asked_before += [(session, asked) for session, _serial, asked in decision.asked]
        self._asked_before += self._endings.lost() + self._past.lost()
        self._begin()
        self._restart = Restart(
            self._storage, self._board, self._views, self._note.found,
            self._board.word(layout.BOARD_APPENDED),
        )  # fmt: skip
        return True

    def _learn(self, now_ns: int) -> int:
        restart, now_ms = self._restart, self._clock.wall_ms()
        assert restart is not None, "it is going on"
        if restart.waits:
            self._finished = self._table.stopping()
            return 0
        self._decisions.follow_topics()
        if not restart.step(self._halves, self._given_up, self._decisions, (now_ns, now_ms)):
            return 1
        self._restart = None
        for decision in restart.unfinished(*self._parts):
            if self._endings.decide(decision, now_ms):
                self._decisions.owe(decision, restart.scanned_from)
        self._kin.enter(self._endings.deciding())
        asked, self._asked_before = self._asked_before, []
        for session, request in asked:
            self._hear(session, request, now_ms)
        self._checks.came(now_ns)
        self._read_ns = now_ns + READ_NS
        self._note.show(self._halves, self._given_up)
        self._decisions.flush(now_ms)
        return 1

    def _read(self, now_ns: int, now_ms: int) -> int:
        """New units of the half queue, of which most are decided by now."""
        low = self._board.word(layout.BOARD_LOW)
        if low > self._low:
            self._low = low
            self._halves.forget_below(low)
            self._given_up.forget_below(low)
        self._halves.forget_aliases(self._given_up.unsettled)
        read = self._halves.read(now_ns, now_ms)
        if read:
            self._kin.enter(self._endings.deciding())
            self._checks.came(now_ns)
        read += self._given_up.read(self._kin.outcome)
        if not read:
            self._read_ns = now_ns + READ_NS
        self._note.show(self._halves, self._given_up)
        if not self._decisions.waits:
            self._drop_maps()
        return read

    def _read_now(self) -> None:
        """Know all halves that the half queue has."""
        while self._read(self._clock.monotonic_ns(), self._clock.wall_ms()):
            pass

    @property
    def _is_searching(self) -> bool:
        return len(self._past) > 0 or self._latecomers.is_searching

    def _drop_maps(self) -> None:
        """Maps count as our memory; what is needed of them is mapped again."""
        self._decisions.window.drop()
        self._views.drop()

    # ----------------------------------------------------------------------------------- requests

    def _serve(self, now_ms: int) -> int:
        self._decisions.follow_topics()
        done = self._desk.tell_on()
        if len(self._past):
            done += self._look_back(now_ms)
        failed = self._endings.go_on(now_ms)
        self._heed(failed, self._clock.monotonic_ns())
        done += len(failed)
        if self._endings.held:
            return done
        done += self._common.attend(now_ms, 0)
        return self._hear_all(now_ms, done) if self._common.has_left_some else done

    def _hear_all(self, now_ms: int, done: int) -> int:
        """Take what is not of the common form, one by one; `done` and what that has cost."""
        with closing(self._desk.requests()) as requests:
            for session, request in requests:
                along = self._endings.along
                self._hear(session, request, now_ms)
                done += cost_of(request) + self._endings.along - along
                if self._endings.held or self._decisions.batch.is_full or done >= REQUESTS_MAX:
                    break
        return done

    def _hear(self, session: int, request: object, now_ms: int) -> None:
        self._hand.take(session, getattr(request, "serial", 0))
        self._carry_out(session, request, now_ms)
        self._hand.drop()

    def _carry_out(self, session: int, request: object, now_ms: int) -> None:
        match request:
            case wire.End():
                self._endings.end(session, request, now_ms)
            case wire.Enlist():
                self._desk.enlist(session, request.group)
                self._desk.tell(session, wire.Enlisted(request.serial))
            case wire.Settle():
                self._read(self._clock.monotonic_ns(), now_ms)  # what came just now, too
                self._settling.settle(session, request, now_ms)
            case _:
                pass  # Unknown: the check has been counted

    def _look_back(self, now_ms: int) -> int:
        found = self._past.step()
        if found is not None:
            session, request, outcome = found
            if isinstance(request, Follow):
                self._latecomers.found(request, outcome)
            elif outcome is not MISSING:
                self._hear(session, request, now_ms)
            elif isinstance(request, wire.End):
                self._endings.refuse_unknown(session, request)
            else:
                self._settling.refuse_unknown(session, request)
        return 1

    # ------------------------------------------------------------------------------------ outcomes

    def _attend(self, now_ns: int) -> None:
        """Wait awake for what follows soon: a sleep takes longer than the others' work for it.

        That is the writer's answer, or a sync of the log, or the next request of a lone session.
        """
        outlet, decisions = self._outlet, self._decisions
        assert outlet is not None, "it is trusted"
        served = 0
        for _ in range(TURNS_MAX):
            if outlet.is_lost() or self._table.stopping() or served >= ENDS_AWAKE:
                return
            if self._desk.lone is not None and decisions.are_told and decisions.is_clean:
                served += self._attend_lone(now_ns)
                continue
            if not self._look_out():
                return
            if decisions.waits and self._take(now_ns):
                continue  # what else there may be is seen at once
            now_ms = self._clock.wall_ms()
            taken = self._common.attend(now_ms, 0)
            if not taken or not decisions.is_clean:
                taken += self._serve(now_ms)
                decisions.flush(now_ms)
            served += taken

    def _attend_lone(self, now_ns: int) -> int:
        """Decide what a lone session asks, END after END; note later what came of them."""
        now_ms = self._clock.wall_ms()
        served = self._common.attend(now_ms, LONE_PATIENCE * self._rounds)
        if not served:
            if self._desk.is_asked:
                served = self._serve(now_ms)
                self._decisions.flush(now_ms)
            else:
                self._desk.forget_lone()
        if self._decisions.waits:
            self._take(now_ns)
        return served

    def _look_out(self) -> bool:
        decisions, desk, lookout = self._decisions, self._desk, self._lookout
        flying = decisions.flying
        if flying > FEW or not (flying or desk.lone):
            return False
        lookout.begin()
        desk.watch(lookout)
        decisions.watch(lookout)
        if lookout.wait(self._rounds):
            return True
        desk.forget_lone()
        return False

    def _take(self, now_ns: int) -> int:
        settled = self._decisions.take(now_ns)
        self._heed(settled, now_ns)
        if self._decisions.ops:
            self._halves.note_ops(self._decisions.ops)
        return len(settled)

    def _heed(self, settled: list[Decision], now_ns: int) -> None:
        for decision in settled:
            if isinstance(decision, Ends):
                self._common.settled(decision)
            elif not self._goes_on(decision, now_ns):
                self._settled(decision)

    def _goes_on(self, decision: Decision, now_ns: int) -> bool:
        """Whether its op record follows what is in the log now."""
        if decision.outcome == MOVED:
            return self._move.goes_on(decision, now_ns, self._clock.wall_ms())
        if decision.outcome == wire.GIVEN_UP and not self._move.parked(decision, now_ns):
            return self._checks.goes_on(decision, self._clock.wall_ms())
        return False

    def _settled(self, decision: Decision) -> None:
        self._endings.settled(decision)
        if decision.error:
            self._latecomers.heed(decision, self._clock.monotonic_ns())
        if decision.copies is not None and self._settling.settled(decision):
            self._checks.came(self._clock.monotonic_ns())

    # ------------------------------------------------------------------------------ sleep and stop

    def arm(self, now_ns: int) -> int:
        """Sleep until a session asks, an answer comes, or a half is due."""
        if self._failed or self._finished or self._outlet is None:
            return IDLE_NS
        if not self._outlet.trusted or self._restart is not None:
            waits = self._restart is None or self._restart.waits
            return UNRUNG_NS if waits else 0
        answers_ns = self._decisions.arm(now_ns)
        if not answers_ns or not self._desk.arm() or self._is_searching:
            return 0
        sleep_ns = min(
            IDLE_NS, answers_ns, self._read_ns - now_ns, self._checks.next_ns - now_ns,
            max(self._note.wait_ns(now_ns), self._space_ns - now_ns),
        )  # fmt: skip
        if self._desk.waits or self._endings.waits or self._decisions.hand:
            sleep_ns = min(sleep_ns, UNRUNG_NS)
        if now_ns - self._worked_ns >= REST_NS and not self._decisions.waits:
            self._drop_maps()
        return max(1, sleep_ns)

    def disarm(self) -> None:
        """Awake."""
        if self._outlet is not None:
            self._decisions.disarm()
            self._desk.disarm()

    def _finish(self, done: int, now_ms: int) -> int:
        """A clean stop: what was asked is decided and answered; the rest stays open."""
        if self._decisions.flush(now_ms) or done or self._endings.waits or self._decisions.waits:
            return 1
        if not self._note.write_last(self._parts):
            return 1
        self._finished = True
        return 0

    def close(self) -> None:
        """Give files and maps back."""
        if self._outlet is not None:
            self._decisions.window.drop()
        self._views.drop()
