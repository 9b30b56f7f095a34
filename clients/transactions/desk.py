"""What a producer has of transactions: the way to the txn-checker, and those that are open."""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from itertools import chain, repeat
from typing import TYPE_CHECKING, Final

from gantrymq.clients.session import deadline_after, now_ns, seconds_until
from gantrymq.clients.transactions.checkerlink import CheckerLink
from gantrymq.clients.transactions.commits import Commits
from gantrymq.clients.transactions.endform import EndForm
from gantrymq.clients.transactions.transaction import Transaction
from gantrymq.shm import transactionwire
from gantrymq.shm.errors import GantryError, GroupIllegal, TransactionDecided
from gantrymq.shm.properties import GANTRY_TX, encode_properties
from gantrymq.shm.transactionwire import End, Ended

if TYPE_CHECKING:
    from collections.abc import Callable

    from gantrymq.clients.message import ReceivedMessage
    from gantrymq.clients.receipts import Pending
    from gantrymq.clients.transactions.checks import CheckAnswers
    from gantrymq.clients.transactions.resolution import TransactionResolution
    from gantrymq.clients.writerlink import WriterLink

#: While the disk is full the decision is asked for again so often.
_DISK_FULL_S: Final = 0.2
#: Closing waits no longer for the rollbacks of transactions that were left open.
_CLOSE_S: Final = 3.0
#: Numbers that a transaction's id has room for.
_COUNTED: Final = 1 << 40
log = logging.getLogger("gantrymq")


class Transactions:
    """What a producer has of transactions: the way to the txn-checker, and those that are open."""

    def __init__(
        self,
        home: str | os.PathLike[str] | None,
        group: str,
        timeout: float,
        writer: WriterLink,
    ) -> None:
        """`writer` is the producer's way into the log, by which halves go."""
        self.group = group
        self.prefix = encode_properties({"TRAN_MSG": "true", "PGROUP": group}) + (
            f"{GANTRY_TX}\x01".encode()
        )
        self.require_open = writer.require_open
        self.writer = writer
        #: With halves, not ended; and those in a `with`, whose end is sure to come.
        self.open: dict[str, Transaction] = {}
        self.running: dict[str, Transaction] = {}
        self._timeout = timeout
        self._home = home
        self._link = CheckerLink(home)
        self._answers: CheckAnswers | None = None
        self._form = EndForm(group)
        self._commits = Commits(self, self._link, self._form)
        #: Commits a transaction once its halves are in the log, without waiting.
        self.commit_later: Callable[[Transaction], Pending[None]] = self._commits.begin
        #: Of the next transaction: 32 hex digits, of which the last 10 count.
        self.next_id: Callable[[], str] = map(
            f"{os.urandom(11).hex()}%010x".__mod__, chain.from_iterable(repeat(range(_COUNTED)))
        ).__next__

    def deadline(self, timeout: float | None) -> int:
        """Nanoseconds of CLOCK_BOOTTIME."""
        return deadline_after(self._timeout if timeout is None else timeout)

    def end_soon(self, transaction: str, commit: bool, half: tuple[int, int]) -> int:
        """As `CheckerLink.end_soon`."""
        return self._link.end_soon(self._form, transaction, commit, half)

    def forget(self, asked: int) -> None:
        """Nobody waits for what `end_soon` has put any more."""
        self._link.forget(asked)

    def end(
        self, transaction: str, commit: bool, halves: list[tuple[int, int]], asked: int,
        deadline: int,
    ) -> Ended:  # fmt: skip
        """What the txn-checker answers; `asked` is what `end_soon` returned. Raises as the link."""
        while True:
            answer = self._link.end(End(asked, self.group, transaction, commit, halves), deadline)
            if answer.error != transactionwire.DISK_FULL or now_ns() >= deadline:
                return answer
            asked = 0
            threading.Event().wait(_DISK_FULL_S)

    def answer_checks(self, checker: Callable[[ReceivedMessage], TransactionResolution]) -> None:
        """Let a thread of its own answer the group's checks from now on."""
        from gantrymq.clients.transactions.checks import CheckAnswers

        self._answers = CheckAnswers(self._home, self.group, checker, self)
        self._answers.begin()  # noted by now: whatever is broken off, `close` ends it

    def close(self) -> None:
        """Roll back what is open, as well as can be, and end the sessions. Safe to call twice."""
        try:
            if self._answers is not None:
                self._answers.close()
            self._await_commits()
        finally:  # whatever a callback or a signal handler raises
            try:
                self._roll_back_open()
            finally:
                self._link.close()

    def _await_commits(self) -> None:
        """Those on their way: behind the first that has no answer in time none is waited for.

        What a callback raises comes out behind all of them: it says nothing about their answers,
        and what is on its way is not to be rolled back.
        """
        worst: BaseException | None = None
        waiting = deque(self._commits.pending())
        patience_s, deadline_ns = _CLOSE_S, deadline_after(_CLOSE_S)
        while waiting:
            try:
                waiting[0].exception(seconds_until(deadline_ns))
            except GantryError as error:
                patience_s = 0.0
                self._leave_on_its_way(waiting[0]._transaction, error)
            except BaseException as error:  # this future's callback's, another's, or a handler's
                worst = error
                continue
            waiting.popleft()
            deadline_ns = deadline_after(patience_s)
        if worst is not None:
            raise worst

    def _leave_on_its_way(self, transaction: Transaction, error: GantryError) -> None:
        self.open.pop(transaction.transaction_id, None)  # it is not to be rolled back
        log.warning(
            "the producer is closed with the commit of %r on its way: it may be committed,"
            " else checks will ask for it (%s)",
            transaction, error,
        )  # fmt: skip

    def _roll_back_open(self) -> None:
        deadline_ns = deadline_after(min(self._timeout, _CLOSE_S))
        for future in self._commits.pending():  # if waiting for them was broken off
            self.open.pop(future._transaction.transaction_id, None)
        for transaction in list(self.open.values()):
            try:
                if not transaction._abandon(seconds_until(deadline_ns)):
                    continue
                what = "rolled back"
            except TransactionDecided:
                continue  # by a check
            except GantryError as error:
                what = f"not rolled back, checks will ask for it ({error})"
            log.warning("the producer is closed with %r open: %s", transaction, what)


def require_group(group: str | None) -> str:
    """Raise GroupIllegal unless there is one."""
    if group is None:
        raise GroupIllegal(
            "a transaction needs a producer group, whose transaction_checker is asked when the"
            " producer dies: Producer(producer_group=..., transaction_checker=...)"
        )
    return group
