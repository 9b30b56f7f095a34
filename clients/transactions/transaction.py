"""Transactions: messages that are delivered once the sender's own work is done, or never.

Each message is stored at once as a half, which nobody sees. `commit` or `rollback` is one round
trip to the txn-checker, the only one that decides; the first decision stands. If none comes, as
when the producer has died, a `transaction_checker` of its group is asked.
"""

from __future__ import annotations

from _thread import RLock
from collections.abc import Callable
from types import TracebackType
from typing import Final, Protocol, Self, TypeAlias

from gantrymq.clients.arguments import judged
from gantrymq.clients.closing import OfOneProcess
from gantrymq.clients.receipts import PAGE_ROWS, Pending, ReceiptFuture
from gantrymq.clients.session import NOW, Turn, seconds_until
from gantrymq.clients.transactions.checkerlink import TOLD
from gantrymq.clients.writerlink import WriterLink
from gantrymq.shm import transactionwire
from gantrymq.shm.errors import (
    Closed,
    DiskFull,
    Evicted,
    GantryError,
    Incompatible,
    MessageIllegal,
    StoreFailed,
    TransactionDecided,
    TransactionFailed,
    TransactionInDoubt,
    told_by,
)
from gantrymq.shm.kernels import frames
from gantrymq.shm.transactionwire import COMMITTED, GIVEN_UP, ROLLED_BACK, Ended

#: Log position and queue offset of a half.
Half: TypeAlias = tuple[int, int]
_ROW_MASK: Final = PAGE_ROWS - 1
#: Why a call on a transaction has waited for its `lock` in vain.
OTHERS: Final = "another thread's call on this transaction has not ended in time"
#: Errors of an END that leave the halves as they were.
_STILL_OPEN: Final = frozenset(
    {transactionwire.DISK_FULL, transactionwire.UNSTORABLE, transactionwire.REFUSED}
)
#: Errors of a half that leave open whether it is stored; all others say that it is not.
_MAY_BE_STORED: Final = (StoreFailed, Closed, Evicted, Incompatible)


class Owner(Protocol):
    """What a transaction, its commit and its checks need of the producer that they belong to."""

    group: str
    prefix: bytes  # of the properties of every half, up to the transaction's id
    writer: WriterLink
    require_open: Callable[[], None]
    #: Of the next transaction: 32 hex digits, of which the last 10 count.
    next_id: Callable[[], str]
    #: With halves, not ended; and those in a `with`, whose end is sure to come.
    open: dict[str, Transaction]
    running: dict[str, Transaction]

    def deadline(self, timeout: float | None) -> int:
        """Nanoseconds of CLOCK_BOOTTIME."""
        ...

    def end_soon(self, transaction: str, commit: bool, half: Half) -> int:
        """As `CheckerLink.end_soon`: TOLD, or what `end` goes on with."""
        ...

    def end(
        self, transaction: str, commit: bool, halves: list[Half], asked: int,
        deadline: int,
    ) -> Ended:  # fmt: skip
        """What the txn-checker answers. Raises what CheckerLink does."""
        ...

    def forget(self, asked: int) -> None:
        """Nobody waits for what `end_soon` has put any more."""
        ...

    def commit_later(self, transaction: Transaction) -> Pending[None]:
        """Commit once the halves are in the log, without waiting."""
        ...


class HalfReceipt(ReceiptFuture):
    """Receipt of a message of a transaction; its queue offset is that of the half (TX-4)."""

    def place(self) -> Half | None:
        """Log position and queue offset of the half, as far as they are known."""
        words, at = self._page.words, (self._seq & _ROW_MASK) * frames.COMPLETION_WORDS
        if words[at] != self._seq or words[at + frames.OUT_POSITION] < 0:
            return None
        return words[at + frames.OUT_POSITION], words[at + frames.OUT_OFFSET]

    @property
    def is_unsure(self) -> bool:
        """Whether it may be in the log, or come there, at a place that is not known."""
        if self.place() is not None:
            return False
        if not self.settle() or self._exception is None:
            return True
        error = self._exception
        return isinstance(error, _MAY_BE_STORED) and not isinstance(error, DiskFull)

    def await_place(self, timeout: float) -> None:
        """Until its place is known, or that it has none. Raises Timeout, or what a session does."""
        placing = _Placing.of_half(self)
        if not placing.settle():
            self._page.owner.drive(placing, timeout)
            if placing.is_decided:  # by a failure of the store
                self.set_exception(placing._exception)

    def why_nowhere(self) -> BaseException:
        """Why it has no place, once it is settled."""
        return self._exception or TransactionFailed(
            "a message is in the log, but the broker was restarted and no longer knows where"
        )


class _Placing(Pending[None]):
    """Done once a half's place is known, or that it has none, whatever its level."""

    _half: HalfReceipt

    @classmethod
    def of_half(cls, half: HalfReceipt) -> Self:
        """To be waited for."""
        placing = cls()
        placing._half, placing._seq = half, half._seq
        return placing

    def settle(self) -> bool:
        return self.is_decided or self._half.place() is not None or self._half.settle()

    @property
    def wanted_end(self) -> int:
        return 0


class Transaction(OfOneProcess):
    """Messages of one producer that are delivered together or not at all.

    `with producer.transaction() as tx:` commits at the end, and rolls back on an exception. It may
    be used by several threads. `transaction_id` is 32 hex digits; `state` is "open", "committed",
    "rolled_back", "given_up" (parked for an operator), "in_doubt" or "failed".
    """

    state = "open"
    _failure: BaseException | None = None
    _future: Pending[None] | None = None
    _is_ending = False  # from then on it takes no message
    _numbered = 0  # halves that were begun
    _not_put = 0  # of these, not handed over
    adding = 0  # sends into it that are going on, of whoever has the lock
    _why_ended = ""  # if not by who has it
    _is_given_up = False  # who has it wants nothing of it delivered

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self.transaction_id = owner.next_id()
        self.lock = RLock()
        self._halves: list[HalfReceipt] = []

    def __repr__(self) -> str:
        return f"<Transaction {self.transaction_id}, {self.state}, {len(self._halves)} messages>"

    # -------------------------------------------------------------- what the producer's sends call

    def block(self, writer: WriterLink) -> bytes:
        """Properties of the next half, which goes by `writer`; the lock is held.

        Raises Closed or MessageIllegal.
        """
        if self._owner.writer is not writer:
            raise MessageIllegal("the transaction is another producer's: send with that one")
        # Counted before the look: an end that begins meanwhile waits for it, or is seen here.
        self._numbered = number = self._numbered + 1
        if self._is_ending or self._failure is not None:
            self.take_back()
            self.require_taking()
        return b"%s%s,%d\x02" % (self._owner.prefix, self.transaction_id.encode(), number)

    def require_taking(self) -> None:
        """Raise Closed once it takes no message any more."""
        if not self._is_ending and self._failure is None:
            return
        if self._failure is not None:
            why = "has failed"
        else:
            why = "is being ended" if self.state == "open" else f"is {self.state}"
        raise Closed(f"transaction {self.transaction_id} {why}: begin another one")

    def take_back(self) -> None:
        """The half that was begun last is not handed over."""
        self._not_put += 1

    @property
    def is_putting(self) -> bool:
        """Whether a half was begun of which there is no receipt, nor that it was not put.

        While a thread sends it, and for good if that was broken off.
        """
        return self._numbered - self._not_put != len(self._halves)

    def add(self, half: HalfReceipt) -> None:
        """A half is on its way."""
        if not self._halves:
            self._owner.open[self.transaction_id] = self
        self._halves.append(half)

    def fail(self, error: BaseException) -> None:
        """A message was not stored, or is not known to be: nothing of it will be committed."""
        if self._failure is None:
            self._failure = error

    @property
    def halves(self) -> list[HalfReceipt]:
        """Receipts of what was sent."""
        return self._halves

    # ------------------------------------------------------------ commits that nobody waits for yet

    def settled_places(self) -> list[Half] | None:
        """As `places`, once all halves are in the log or never will be; None before."""
        halves = self._halves
        if (
            self._numbered - self._not_put != len(halves)  # as `is_putting`
            and self._failure is None
            and not self._fail_what_was_broken_off()
        ):
            return None
        places = []
        for half in halves:
            place = half.place()
            if place is not None:
                places.append(place)
            elif half.settle():
                self.fail(half.why_nowhere())
            else:
                return None
        return places

    def _fail_what_was_broken_off(self) -> bool:
        """Whether no thread is amid a send: then nobody says any more what became of a half."""
        lock, taken = self.lock, False
        try:
            (taken,) = map(lock.acquire, NOW)
            is_over = taken and not self.adding  # this thread may be amid one, in a handler
            if is_over and self.is_putting:
                self.fail(TransactionFailed("the send of a message was broken off"))
            return is_over
        finally:
            if taken:
                lock.release()

    @property
    def has_failed(self) -> bool:
        """Whether it can only be rolled back."""
        return self._failure is not None

    def end_now(self, commit: bool) -> GantryError | None:
        """Decide what takes no single END; the error, if there is one."""
        deadline_ns = self._owner.deadline(None)
        if not commit:
            return self._roll_back_failed(deadline_ns)
        try:
            self._decide(True, self.places(), deadline_ns)
        except GantryError as error:
            return error
        return None

    def end_by(self, answer: Ended) -> GantryError | None:
        """The END of a commit is answered; the error, if there is one."""
        wanted = COMMITTED if self._failure is None else ROLLED_BACK
        if answer.error or answer.outcome != wanted:
            return self._refused(answer, wanted)
        if self._failure is None:
            self._is(COMMITTED)
            return None
        doubt = self._has_ended(wanted)
        return self._failed_text(
            f"what was stored is not known to be rolled back ({doubt})"
            if doubt
            else "what was stored is rolled back"
        )

    # ------------------------------------------------------------------------------------- the end

    def commit(self, timeout: float | None = None) -> None:
        """Deliver the messages: they are in the log, at their topics' level, when this returns.

        Raises TransactionFailed (a message could not be stored: rolled back), TransactionDecided
        (otherwise, before: `outcome`), TransactionInDoubt (call it again, or leave it to checks),
        Timeout (another thread was in a call on it all the time).
        """
        if timeout is not None:
            (timeout,) = judged("Transaction.commit", timeout)
        self._end(True, timeout)

    def commit_async(self) -> Pending[None]:
        """`commit` without waiting, also for what `send_async` has on its way: many at a time.

        The future's result is None; it raises what `commit` raises. Commits are asked for some at
        a time: at the latest when a future is waited for, has a callback, or at `close`.
        """
        if not self._owner.writer.is_open:
            self._owner.require_open()
        # No lock: another thread may be in a call that waits. Two futures would do no harm.
        future = self._future
        if future is None:
            if self.state != "open":
                self._is_ended(True)
            self._is_ending = True
            future = self._future = self._owner.commit_later(self)
        return future

    def rollback(self, timeout: float | None = None) -> None:
        """Deliver nothing, nor what `send_async` has on its way, which is waited for.

        Raises TransactionDecided, TransactionInDoubt (call it again, or leave it to checks),
        Timeout (another thread was in a call on it all the time).
        """
        if timeout is not None:
            (timeout,) = judged("Transaction.rollback", timeout)
        self._is_given_up = True
        self._end(False, timeout)

    def _abandon(self, timeout: float) -> bool:
        """`rollback` at its producer's close: a `with` that still runs says so at its end.

        False if it was rolled back before.
        """
        with Turn(self.lock, self._owner.deadline(timeout), OTHERS):
            if self.state == ROLLED_BACK:
                return False
            self._why_ended = "its producer was closed"
            self._end(False, timeout)
        return True

    def _end(self, commit: bool, timeout: float | None) -> None:
        if not self._owner.writer.is_open:
            self._owner.require_open()
        lock, taken, asked = self.lock, False, 0
        try:  # as `Turn` has it, without its calls
            (taken,) = map(lock.acquire, NOW)
            if taken:
                self._is_ending = True
                asked = self._end_soon(commit)
                if asked == TOLD:
                    self._is(COMMITTED if commit else ROLLED_BACK)
                else:
                    self._end_slowly(commit, self._owner.deadline(timeout), asked)
                return
        finally:
            if taken:
                lock.release()
            if asked > 0:
                self._owner.forget(asked)
        deadline_ns = self._owner.deadline(timeout)
        with Turn(lock, deadline_ns, OTHERS):
            self._is_ending = True
            self._end_slowly(commit, deadline_ns)

    def _end_soon(self, commit: bool) -> int:
        """Ask for the end of what is usual: one half, stored at its level, nothing else going on.

        What the owner says to it, 0 of what is not usual.
        """
        halves, owner = self._halves, self._owner
        if (
            len(halves) != 1
            or self.is_putting
            or self.state != "open"
            or self._failure is not None
            or self._future is not None
            or not owner.writer.is_open
            or halves[0]._result is None
        ):
            return 0
        place = halves[0].place()
        return 0 if place is None else owner.end_soon(self.transaction_id, commit, place)

    def _end_slowly(self, commit: bool, deadline_ns: int, asked: int = 0) -> None:
        """Wait for what is on its way before; the lock is held."""
        self._owner.require_open()
        if self._future is not None and (commit or not self._future.done()):
            self._future.result(seconds_until(deadline_ns))
        if self._is_ended(commit):
            return
        self._await_halves(deadline_ns, at_level=commit)
        if commit and self._failure is not None:
            raise self._roll_back_failed(deadline_ns) from self._failure
        self._decide(commit, self.places(), deadline_ns, asked)

    def _is_ended(self, commit: bool) -> bool:
        """Whether it is what is asked for already. Raises TransactionDecided, TransactionFailed."""
        if self.state in ("open", "in_doubt"):
            return False
        if self.state == (COMMITTED if commit else ROLLED_BACK):
            return True
        if self.state == "failed" or (commit and self._failure is not None):
            raise TransactionFailed(f"transaction {self.transaction_id} has failed")
        raise self._decided(self._why_ended)

    def _await_halves(self, deadline_ns: int, *, at_level: bool) -> None:
        """Until each half has its place; one that has none is a failure.

        All of them, also behind that: a rollback ends what is stored by then, and nothing else.
        """
        if self.is_putting:
            self.fail(TransactionFailed("the send of a message was broken off, by this call maybe"))
        for half in self._halves:
            if half.settle() and half._exception is None and half.place() is not None:
                continue
            try:
                left_s = seconds_until(deadline_ns)
                half.result(left_s) if at_level else half.await_place(left_s)
                if half.place() is None:
                    raise half.why_nowhere()
            except GantryError as error:
                self.fail(error)

    def _roll_back_failed(self, deadline_ns: int) -> TransactionFailed:
        stored = sum(half.place() is not None for half in self._halves)
        try:
            self._decide(False, self.places(), deadline_ns)
            what = f"{stored} that were stored are rolled back" if stored else "nothing was stored"
        except GantryError as error:
            what = f"{stored} that were stored are not known to be rolled back ({error})"
        return self._failed_text(what)

    def _failed_text(self, what: str) -> TransactionFailed:
        assert self._failure is not None, "else it is not rolled back"
        return TransactionFailed(
            f"transaction {self.transaction_id} is not committed: a message could not be sent"
            f" ({told_by(self._failure)}); {what}. Do it again as a whole",
            transaction_id=self.transaction_id,
        )

    def places(self) -> list[Half]:
        """Log position and queue offset of each half that is known to be stored."""
        return [place for half in self._halves if (place := half.place()) is not None]

    def _decide(self, commit: bool, places: list[Half], deadline_ns: int, asked: int = 0) -> None:
        """Let the txn-checker decide; the lock is held. `asked`: what `end_soon` has put."""
        most = transactionwire.HALVES_MAX
        wanted = COMMITTED if commit else ROLLED_BACK
        for first in range(0, len(places), most):
            try:
                part = places[first : first + most]
                answer = self._owner.end(self.transaction_id, commit, part, asked, deadline_ns)
            except GantryError as error:
                raise self.in_doubt(str(error), wanted) from error
            if answer.error or answer.outcome != wanted:
                raise self._refused(answer, wanted)
            asked = 0
        doubt = self._has_ended(wanted)
        if doubt is not None:
            raise doubt

    def _has_ended(self, wanted: str) -> TransactionInDoubt | None:
        """All halves with a place are what was wanted; why the transaction is not, if it is not."""
        unsure = [] if wanted == COMMITTED else [one for one in self._halves if one.is_unsure]
        if wanted == ROLLED_BACK and (unsure or self.is_putting):
            return self.in_doubt(
                f"{len(unsure) + self.is_putting} of its messages may be stored, or come into the"
                " log, at places that are not known; its other messages are rolled back",
                wanted,
                again=any(not half.is_decided for half in unsure),
            )
        self._is(wanted)
        return None

    def _is(self, state: str) -> None:
        if self.state in ("open", "in_doubt"):  # else another thread has learned how it ended
            self.state = state
        self._owner.open.pop(self.transaction_id, None)

    def _refused(self, answer: Ended, wanted: str) -> GantryError:
        """The error of an answer that is not what was asked for."""
        if answer.error and answer.outcome == wanted:
            others = "committed" if wanted == COMMITTED else "rolled back"
            return self.in_doubt(f"{answer.text}; its other messages are {others}", wanted)
        if answer.outcome in (COMMITTED, ROLLED_BACK, GIVEN_UP):
            self._is(answer.outcome)
            return self._decided(answer.text)
        if answer.error in _STILL_OPEN:
            return self.in_doubt(f"{answer.text or answer.error}; it is still open", wanted)
        self._is("failed")
        return TransactionFailed(
            f"transaction {self.transaction_id} could not be ended, nothing was stored for it:"
            f" {answer.text or answer.error}",
            transaction_id=self.transaction_id,
        )

    def _decided(self, text: str) -> TransactionDecided:
        how = {
            COMMITTED: "was committed",
            ROLLED_BACK: "was rolled back",
            GIVEN_UP: "was given up after its last check: an operator settles it (gantrymq tx)",
        }[self.state]
        return TransactionDecided(
            f"transaction {self.transaction_id} {how} before{': ' + text if text else ''}",
            transaction_id=self.transaction_id,
            outcome=self.state,
        )

    def in_doubt(
        self, why: str, wanted: str = COMMITTED, *, again: bool = True
    ) -> TransactionInDoubt:
        """It is not known to be what was wanted; if not `again`, that method cannot learn it."""
        self._is("in_doubt")
        self._future = None  # the next commit asks again
        what = "committed" if wanted == COMMITTED else "rolled back"
        advice = "Ask again by calling the same method, or leave it" if again else "Leave it"
        return TransactionInDoubt(
            f"transaction {self.transaction_id} is not known to be {what}: {why}. {advice} to the"
            " group's transaction_checker",
            transaction_id=self.transaction_id,
        )

    def __enter__(self) -> Self:
        self._owner.running[self.transaction_id] = self
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if self.state != "open":
                if error is None and not self._is_given_up:
                    self._require_committed()
            elif error is None:
                self._end(True, None)
            else:
                self._undo(error)
        finally:
            self._owner.running.pop(self.transaction_id, None)

    def _require_committed(self) -> None:
        """Whoever has ended it: another thread and a signal handler, too."""
        if self.state == "in_doubt":
            raise self.in_doubt(self._why_ended or "the call that was to end it does not know")
        self._is_ended(True)

    def _undo(self, error: BaseException) -> None:
        """Roll back because of an exception, which keeps its way; what became of it is a note."""
        try:
            self.rollback()
        except GantryError as failure:
            error.add_note(str(failure))
        else:
            sent = len(self._halves)
            error.add_note(f"transaction {self.transaction_id}: {sent} messages rolled back")
