"""A session with the txn-checker: what one side of a producer asks it, and what it hears.

Opened when it is first needed, again when the broker was started again. Requests are repeated until
they are answered: a checker that was replaced has forgotten them, and the first decision stands.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Final

import msgspec

from gantrymq.clients.session import Session, Turn, now_ns, pause
from gantrymq.shm import controllane, layout, limits, transactionwire
from gantrymq.shm.codes import ClientState
from gantrymq.shm.controllane import ControlLane
from gantrymq.shm.errors import BrokerGone, Closed, Incompatible, Timeout, Unavailable
from gantrymq.shm.kernels.words import await_told, load_word
from gantrymq.shm.transactionwire import COMMITTED, ROLLED_BACK, Check, End, Ended

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Container

    import numpy as np
    from numpy.typing import NDArray

    from gantrymq.clients.transactions.endform import EndForm
    from gantrymq.shm.lookout import Lookout

_REPEAT_NS: Final = 500_000_000
#: After so long a full ring is tried again.
_FULL_NS: Final = 2_000_000
_PAUSE_S: Final = 0.02
#: What `end_soon` returns of an END that is done; serials count from 1.
TOLD: Final = -1


class CheckerLink:
    """One session and its lane; safe for threads. `checks` gathers what the checker asks."""

    def __init__(self, home: str | os.PathLike[str] | None) -> None:
        self._home = home
        self._lock = threading.RLock()  # a signal handler may end a transaction amid another
        self._opening = threading.RLock()
        self._session: Session | None = None
        self._store_id = ""
        self._lane: ControlLane | None = None
        #: Of the next request.
        self.next_serial: Callable[[], int] = count(1).__next__
        self._ended: dict[int, Ended] = {}
        self._awaited: set[int] = set()
        #: Serials whose answers go to `answered`, maybe more than one each; whoever looks has them.
        self.expected: Container[int] = ()
        self.answered: deque[Ended] = deque()
        self._sleepers = 0
        self._is_closed = False
        self.checks: list[Check] = []
        self.enlisted = 0  # highest serial of an Enlist that was answered

    # ------------------------------------------------------------------------------------- asking

    def put_end(
        self, form: EndForm, serial: int, transaction: str, commit: bool, half: tuple[int, int],
        *, alone: bool,
    ) -> bool:  # fmt: skip
        """Put an END of one half; False if there is no room now. Raises what `present` raises."""
        session, lane = self._session, self._lane
        if session is None or lane is None or self._is_closed:
            session, lane = self.present()
        with self._lock:
            done = form.put(lane, serial, transaction, commit, half, alone)
            wants = lane.wants_bell
        if wants:
            session.checker_bell.ring()
        return done

    def end_soon(self, form: EndForm, transaction: str, commit: bool, half: tuple[int, int]) -> int:
        """Ask for the usual END, of one half: TOLD if it is done within the time of a wake-up.

        Otherwise what `end` is to go on with. Raises nothing of the broker's: `end` does.
        """
        session, lane, awaited = self._session, self._lane, self._awaited
        if lane is None or session is None or not session.is_open:
            return 0
        serial = self.next_serial()
        awaited.add(serial)
        try:
            alone, seen = len(awaited) == 1, lane.seen
            if not self.put_end(form, serial, transaction, commit, half, alone=alone):
                return self.forget(serial)
            told = alone and await_told(
                session.arena, _told_at(serial), serial, lane.tail_at, seen, limits.SPIN_ROUNDS
            )
        except (Unavailable, Closed):
            return self.forget(serial)
        except BaseException:
            self.forget(serial)
            raise
        if told <= 0:
            return serial
        awaited.discard(serial)
        return TOLD

    def forget(self, serial: int) -> int:
        """Nobody waits for its answer any more."""
        self._awaited.discard(serial)
        self._ended.pop(serial, None)
        return 0

    def end(self, request: End, deadline: int) -> Ended:
        """Ask for an END until it is answered; by its serial it may be that `end_soon` has asked.

        `deadline` in nanoseconds of CLOCK_BOOTTIME. Raises Timeout, Closed, or why no broker is
        there.
        """
        is_put = request.serial > 0
        serial = request.serial or self.next_serial()
        self._awaited.add(serial)
        try:
            alone = len(self._awaited) == 1
            body = transactionwire.encode(
                msgspec.structs.replace(request, serial=serial, alone=alone)
            )
            if self._ask_until(serial, body, is_put, deadline):
                return Ended(serial, COMMITTED if request.commit else ROLLED_BACK)
            return self._ended[serial]
        finally:
            self.forget(serial)

    def _ask_until(self, serial: int, body: bytes, is_put: bool, deadline_ns: int) -> bool:
        """`_ask`, over restarts of the broker."""
        while True:
            try:
                return self._ask(serial, body, is_put, deadline_ns)
            except Timeout:
                raise
            except (Unavailable, Closed):
                self.lose()
                if self._is_closed or now_ns() >= deadline_ns:
                    raise
                is_put = False
                pause(_PAUSE_S)

    def _ask(self, serial: int, body: bytes, is_put: bool, deadline_ns: int) -> bool:
        """Until the writer has told that what was asked for is done, or the answer is there: False.

        The txn-checker answers what the writer does not tell, or tells to somebody who waits for
        several. What `is_put` is not put again before it must have been lost.
        """
        session, lane = self.living(deadline_ns)
        arena, told_at = session.arena, _told_at(serial)

        def is_answered() -> bool:
            return load_word(arena, told_at) == serial or serial in self._ended

        while True:
            patience_ns = _REPEAT_NS if is_put or self.put(body) else _FULL_NS
            if self._spin(arena, serial, lane):
                return True
            until = min(deadline_ns, now_ns() + patience_ns)
            if serial in self._ended or self.sleep(until, is_answered):
                return serial not in self._ended
            if now_ns() >= deadline_ns:
                raise Timeout("the txn-checker did not answer in time")
            is_put = False

    def _spin(self, arena: NDArray[np.uint8], serial: int, lane: ControlLane) -> bool:
        """A short look-out before sleeping: a wake-up costs more than the answer.

        Raises BrokerGone once the lane is not this link's any more: nobody takes from it.
        """
        told_at, tail_at = _told_at(serial), lane.tail_at
        while serial not in self._ended:  # another thread may have taken it
            seen = lane.seen
            found = await_told(arena, told_at, serial, tail_at, seen, limits.SPIN_ROUNDS)
            if found >= 0:
                return found > 0
            if self._lane is not lane:
                raise BrokerGone("another thread has let go of the session with the txn-checker")
            self.take()
        return False

    def watch(self, lookout: Lookout) -> None:
        """Look out for a notice, among other things. Raises what `present` raises."""
        _session, lane = self.present()
        lookout.add(lane.tail_address, lane.seen)

    def put(self, body: bytes) -> bool:
        """Put a request; False if there is no room now. Raises what `present` raises."""
        session, lane = self.present()
        with self._lock:
            done = lane.put(body)
            wants = lane.wants_bell
        if done and wants:
            session.checker_bell.ring()
        return done

    def sleep(self, deadline_ns: int, ready: Callable[[], bool]) -> bool:
        """Until `ready`, after what has come was taken; False at the deadline."""
        session, lane = self.present()

        def is_ready() -> bool:
            self.take()
            if ready():
                return True
            with self._lock:
                lane.arm(ClientState.ARMED)
            self.take()
            return ready()

        with self._lock:
            self._sleepers += 1
        try:
            return session.wait(deadline_ns, is_ready)
        finally:
            with self._lock:
                self._sleepers -= 1
                if not self._sleepers:
                    lane.disarm()

    def take(self) -> None:
        """Sort what has come: answers, checks."""
        with self._lock:
            lane, session = self._lane, self._session
            if lane is None or session is None:
                return
            wants = False
            while (body := lane.take()) is not None:
                wants = wants or lane.wants_bell
                self._sort(body)
        if wants:
            session.checker_bell.ring()

    def _sort(self, body: bytes) -> None:
        try:
            notice = transactionwire.decode_notice(body)
        except msgspec.DecodeError as error:
            raise Incompatible(f"the txn-checker says what is not understood: {error}") from error
        if type(notice) is Ended:  # before the others: there are many
            serial = notice.serial
            if serial in self._awaited:
                self._ended[serial] = notice
            elif serial in self.expected:
                self.answered.append(notice)
            return
        match notice:
            case Check():
                self.checks.append(notice)
            case transactionwire.Enlisted(serial=serial):
                self.enlisted = max(self.enlisted, serial)

    # ------------------------------------------------------------------------------------ sessions

    def present(self) -> tuple[Session, ControlLane]:
        """The session and its lane. Raises Closed, BrokerGone if there is none: nobody waits."""
        if self._is_closed:
            raise Closed("this producer is closed")
        session, lane = self._session, self._lane
        if session is None or lane is None:
            raise BrokerGone("there is no session with the txn-checker")
        return session, lane

    def living(self, answer_by: int) -> tuple[Session, ControlLane]:
        """The session and its lane, opened if there is none, until then.

        Raises BrokerGone, Closed, Timeout.
        """
        with suppress(BrokerGone):
            return self.present()
        why = "the broker has not answered another thread, which opens a session, in time"
        with Turn(self._opening, answer_by, why):
            if self._is_closed:
                raise Closed("this producer is closed")
            session, lane = self._session, self._lane
            if session is None or lane is None:
                session = Session(self._home, transactions=True, answer_by=answer_by)
                session.require_store(self._store_id)
                self._store_id = session.store_id
                lane = ControlLane(session.arena, session.plan.transactions, controllane.End.CLIENT)
                with self._lock:
                    self._session, self._lane = session, lane
            if self._is_closed:  # by another thread, which may not have seen this session
                session.close()
                raise Closed("this producer is closed")
            return session, lane

    def wake(self) -> None:
        """Let whoever sleeps look."""
        session = self._session
        if self._sleepers and session is not None and session.is_open:
            session.bell.ring()

    def lose(self) -> None:
        """Let go of the session if it is over; another thread may have done so."""
        with self._lock:
            session = self._session
            if session is None or session.is_live:
                return
            self._session = self._lane = None
        session.close()

    def close(self) -> None:
        """End the session. Safe to call twice, and from any thread."""
        self._is_closed = True
        session = self._session
        if session is not None:
            session.close()


def _told_at(serial: int) -> int:
    """Where in the arena the writer tells of an END."""
    return layout.ARENA_TOLD + 8 * (serial & layout.TOLD_MASK)
