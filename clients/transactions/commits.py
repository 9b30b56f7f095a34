"""Commits without waiting: many transactions of a producer on their way at a time.

A commit is asked for once its halves are in the log, whatever their level: a decision that is
durable has durable halves before it. Whoever looks takes all answers that are there, so that each
future is decided by its own answer, whatever another one waits for.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Final, TypeVar

from gantrymq.clients.ownthread import OwnThread
from gantrymq.clients.receipts import Pending, ReceiptFuture
from gantrymq.clients.session import now_ns, pause, seconds_until
from gantrymq.clients.shortwaits import start
from gantrymq.shm import limits, transactionwire
from gantrymq.shm.codes import Level
from gantrymq.shm.errors import Closed, GantryError, StoreFailed, Timeout, Unavailable
from gantrymq.shm.fromhandlers import Suppressed
from gantrymq.shm.lookout import Lookout
from gantrymq.shm.transactionwire import End

if TYPE_CHECKING:
    from collections.abc import Callable

    from gantrymq.clients.session import Session
    from gantrymq.clients.transactions.checkerlink import CheckerLink
    from gantrymq.clients.transactions.endform import EndForm
    from gantrymq.clients.transactions.transaction import Half, Owner, Transaction

_Q = TypeVar("_Q")
log = logging.getLogger("gantrymq")
_REPEAT_NS: Final = 500_000_000
_PAUSE_S: Final = 0.02
#: So many are asked for at a time: each alone would wake the txn-checker.
_TOGETHER: Final = 8


class _Place:
    """Stands where receipts have their page."""

    __slots__ = ("owner",)

    def __init__(self, owner: Commits) -> None:
        self.owner = owner


class CommitFuture(Pending[None]):
    """`concurrent.futures.Future[None]` of a commit."""

    _transaction: Transaction
    _serial = 0  # of its END
    _commit: bool  # what the END asks for, and of which halves
    _places: list[Half]
    _is_waiting = True  # for its halves

    def settle(self) -> bool:
        """Become done if the answer is there."""
        if self._state == "PENDING":
            owner: Any = self._page.owner
            owner.look(self)
        return self._state != "PENDING"

    def result(self, timeout: float | None = None) -> None:
        """None once it is committed. Raises what `Transaction.commit` raises, Timeout."""
        if not self.settle():
            self._page.owner.drive(self, timeout)
        if self._exception is not None:
            super().result(0)

    def end(self, error: BaseException | None) -> None:
        """Committed, or why not."""
        if error is not None:
            self.set_exception(error)
        else:
            self._finish(None)


class Commits:
    """Commits that have no answer yet. What they wait for is looked at by those who want them.

    The lock is never held while somebody waits: callbacks are called, and sessions opened, outside.

    A signal handler may come between any two steps, raise or look itself: nothing is taken out of
    where it is before it is where it belongs next, and each step may be done twice.
    """

    def __init__(self, owner: Owner, link: CheckerLink, form: EndForm) -> None:
        self._owner = owner
        self._link = link
        self._form = form
        # The link's: a signal handler that looks here may be amid a call that holds it, and whoever
        # looks here wants it.
        self._lock = owner.writer.lock
        self._place: Any = _Place(self)
        self._waiting: deque[CommitFuture] = deque()  # for their halves
        self._asked: dict[int, CommitFuture] = {}  # by the serial of an END that has no answer
        self._unput: deque[CommitFuture] = deque()  # for want of room, or of a session
        self._ended: dict[CommitFuture, GantryError | None] = {}  # to be told
        self._session: Session | None = None  # that requests are put into
        self._ending: list[CommitFuture] = []  # in a thread each
        self._watched: list[CommitFuture] = []
        link.expected = self._asked
        self._watcher = OwnThread("gantrymq-commits", self._lock, self._are_watched, self._watch)

    def begin(self, transaction: Transaction) -> CommitFuture:
        """Commit once the halves are there."""
        future = CommitFuture()
        future._page, future._transaction = self._place, transaction
        with self._lock:
            self._waiting.append(future)
            are_many = len(self._waiting) >= _TOGETHER
        if are_many:
            self.look()
        return future

    def pending(self) -> list[CommitFuture]:
        """Those without an answer."""
        with self._lock:
            all_of_them = dict.fromkeys([*self._asked.values(), *self._ending, *self._waiting])
        return [future for future in all_of_them if not future.is_decided]

    def look(self, wanted: CommitFuture | None = None) -> None:
        """Ask for what can be asked for, `wanted` before its turn; take the answers."""
        if not self._owner.writer.is_open:
            return  # closed; or a forked child, where a thread that is not there may have the lock
        with self._lock:
            self._look(wanted)
        self._tell()

    def _tell(self) -> None:
        """Let futures be done, in no lock: callbacks may take long."""
        if not self._ended:
            return
        ended = self._ended
        for future in list(ended):  # not `items()`, amid whose list the collector may run
            future.end(ended.get(future))  # one that another thread told stays as it is
            ended.pop(future, None)
        self._link.wake()

    def _look(self, wanted: CommitFuture | None) -> None:
        waiting, has_looked = self._waiting, False
        # In one step each, without a call: a signal handler may have emptied it since it was seen.
        while (first := waiting[0] if waiting else None) is not None:
            if self._ask(first):
                if waiting and waiting[0] is first:
                    waiting.popleft()
            elif has_looked:
                break
            else:
                self._owner.writer.look()
                has_looked = True
        if wanted and wanted._is_waiting and self._ask(wanted):
            with Suppressed(ValueError):  # a signal handler has asked as well
                waiting.remove(wanted)
        if self._asked:
            self._link.take()
            self._take_answers()
            self._put_some()

    def _ask(self, future: CommitFuture) -> bool:
        """Ask for a commit, or a rollback if a half has failed; False while one is on its way."""
        if not future._is_waiting:
            return True
        transaction = future._transaction
        places = transaction.settled_places()
        if places is None:
            return False
        commit = not transaction.has_failed
        if not places:
            self._ended[future] = transaction.end_now(commit)
        elif len(places) > transactionwire.HALVES_MAX:
            self._ending.append(future)
            thread = threading.Thread(
                target=self._end, args=(future, commit), name="gantrymq-commit", daemon=True
            )
            start(thread)
        else:
            future._commit, future._places = commit, places
            # One serial, however often this is broken off.
            serial = future._serial = future._serial or self._link.next_serial()
            self._asked[serial] = future
            if self._unput or not self._put(future):
                self._unput.append(future)
        future._is_waiting = False
        return True

    def _end(self, future: CommitFuture, commit: bool) -> None:
        """What takes several ENDs, one after the other."""
        try:
            future.end(future._transaction.end_now(commit))
        finally:
            with self._lock:
                self._ending = [one for one in self._ending if one is not future]
            self._link.wake()

    def _put_some(self) -> None:
        """Put requests as long as there is room."""
        while (future := _first(self._unput)) and self._put(future):
            _pass(self._unput, future)

    def _put(self, future: CommitFuture) -> bool:
        """Put a request that is not answered; False without room, or a session: `drive` has one."""
        link, serial, halves = self._link, future._serial, future._places
        if serial not in self._asked:
            return True
        tx, commit = future._transaction.transaction_id, future._commit
        try:
            if len(halves) == 1:
                return link.put_end(self._form, serial, tx, commit, halves[0], alone=False)
            return link.put(
                transactionwire.encode(End(serial, self._owner.group, tx, commit, halves))
            )
        except (Unavailable, Closed):
            link.lose()
            return False

    def _take_answers(self) -> None:
        answered = self._link.answered
        for answer in list(answered):
            future = self._asked.get(answer.serial)
            if future is not None and answer.error != transactionwire.DISK_FULL:
                self._end_asked(answer.serial, future, future._transaction.end_by(answer))
            _pass(answered, answer)  # while the disk is full the next repetition asks again

    def _end_asked(self, serial: int, future: CommitFuture, error: GantryError | None) -> None:
        future._is_waiting = False
        self._ended[future] = error
        self._asked.pop(serial, None)

    # -------------------------------------------------------------- what futures need of an owner

    def drive(self, future: CommitFuture, timeout: float | None) -> None:
        """Move commits on until this one is answered. Raises Timeout, Closed."""
        deadline_ns = self._owner.deadline(timeout)
        while not future.settle():
            self._owner.require_open()
            if now_ns() >= deadline_ns:
                raise Timeout("the transaction has no answer yet; ask the future again")
            if future._is_waiting:
                self._guarded(lambda: self._wait_halves(future, deadline_ns))
            else:
                self._guarded(lambda: self._wait_answer(deadline_ns, future.settle))

    def _guarded(self, wait: Callable[[], None]) -> None:
        """Wait for something, over restarts of the broker."""
        try:
            wait()
        except Timeout:
            return
        except (Unavailable, Closed):
            self._owner.require_open()
            self._link.lose()
            pause(_PAUSE_S)
            self._repeat()
        except StoreFailed as error:
            self._give_up(error)

    def _give_up(self, error: StoreFailed) -> None:
        """Nobody answers what was asked of this life of the broker: it is in doubt."""
        with self._lock:
            for serial, future in list(self._asked.items()):
                self._end_asked(serial, future, future._transaction.in_doubt(str(error)))
        self._tell()

    def _wait_answer(self, deadline_ns: int, is_done: Callable[[], bool]) -> None:
        session, _lane = self._link.living(deadline_ns)
        if session is not self._session:
            self._session = session
            self._repeat()
        if self._look_out() or is_done():
            return
        until = min(deadline_ns, now_ns() + _REPEAT_NS)
        if not self._link.sleep(until, lambda: bool(self._link.answered) or is_done()):
            self._repeat()

    def _look_out(self) -> bool:
        """Whether something has come within the time of a wake-up: an answer, or a half's place."""
        lookout = Lookout()
        self._link.watch(lookout)
        if self._waiting:
            self._owner.writer.watch_completions(lookout)
        return lookout.wait(limits.SPIN_ROUNDS)

    def _wait_halves(self, future: CommitFuture, deadline_ns: int) -> None:
        """Until its halves are in the log."""
        transaction = future._transaction
        for half in transaction.halves:
            half.await_place(seconds_until(deadline_ns))
        if transaction.is_putting:
            pause(_PAUSE_S)

    def _repeat(self) -> None:
        """Put what has no answer once more: who was asked may have forgotten it."""
        with self._lock:
            for serial, future in list(self._asked.items()):
                if future.is_decided:  # noted again behind a handler that has ended it
                    self._asked.pop(serial, None)
            self._unput = deque(self._asked.values())
            self._put_some()

    def watch(self, future: Pending[Any]) -> None:
        """Decide a future that nobody waits for in a thread of our own."""
        assert isinstance(future, CommitFuture), "others have another owner"
        self._owner.require_open()
        with self._lock:
            self._watcher.begin()
            self._watched.append(future)
        for row in _missing(future):
            row.add_done_callback(lambda _row: self.look(future))
        self.look(future)  # before its turn: another one may wait long for its halves

    def _are_watched(self) -> bool:
        """Whether there are futures that nobody waits for."""
        self._watched = [future for future in self._watched if not future.is_decided]
        return bool(self._watched)

    def _watch(self) -> None:
        try:
            self._guarded(self._watch_once)
        except GantryError as error:
            self._fail_watched(error)

    def _watch_once(self) -> None:
        self.look()
        self._wait_answer(self._owner.deadline(None), lambda: False)

    def _fail_watched(self, error: GantryError) -> None:
        for future in self._watched:
            with contextlib.suppress(BaseException):
                future.set_exception(error)


def _first(those: deque[_Q]) -> _Q | None:
    return those[0] if those else None


def _pass(those: deque[_Q], one: _Q) -> None:
    """What has been first is done with, unless a signal handler has passed it, too."""
    if those and those[0] is one:
        those.popleft()


def _missing(future: CommitFuture) -> list[ReceiptFuture]:
    """Receipts of its halves that are not in the log yet, at the level that a commit needs."""
    halves = future._transaction.halves
    rows = [ReceiptFuture.of(h._page, h._seq, h._topic, Level.WRITTEN) for h in halves]
    return [row for row in rows if not row.settle()]
