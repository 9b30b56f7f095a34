"""What a producer has of transactions: the way to the txn-checker, and those that are open."""

from __future__ import annotations

import logging
import os
import threading
from itertools import count
from typing import TYPE_CHECKING, Final

from clients.session import now_ns
from clients.transactions.checkerlink import CheckerLink
from clients.transactions.commits import Commits
from clients.transactions.endform import EndForm
from clients.transactions.transaction import Transaction
from shm import transactionwire
from shm.errors import GantryError, GroupIllegal, TransactionDecided
from shm.properties import GANTRY_TX, encode_properties
from shm.transactionwire import Ended

if TYPE_CHECKING:
    from collections.abc import Callable

    from clients.message import Message
    from clients.receipts import Pending
    from clients.transactions.checks import CheckAnswers
    from clients.transactions.transaction import TransactionResolution
    from clients.writerlink import WriterLink

#: While the disk is full the decision is asked for again so often.
_DISK_FULL_S: Final = 0.2
#: Closing waits no longer for the rollback of a transaction that was left open.
_CLOSE_S: Final = 3.0
#: Numbers that a transaction's id has room for.
_COUNTED: Final = (1 << 40) - 1
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
        self._commits = Commits(self, self._link)
        self._form = EndForm(group)
        self._id_start = os.urandom(11).hex()
        self._ids = count(1)

    def begin(self) -> Transaction:
        """A transaction without messages. Raises Closed."""
        if not self.writer.is_open:
            self.require_open()
        return Transaction(self)

    def next_id(self) -> str:
        """Of the next transaction: 32 hex digits, of which the last 10 count."""
        return f"{self._id_start}{next(self._ids) & _COUNTED:010x}"

    def deadline(self, timeout: float | None) -> int:
        """Nanoseconds of CLOCK_BOOTTIME."""
        return now_ns() + int((self._timeout if timeout is None else timeout) * 1e9)

    def end(
        self,
        transaction: str,
        commit: bool,
        halves: list[tuple[int, int]],
        deadline: Callable[[], int],
    ) -> Ended:
        """What the txn-checker answers. Raises what CheckerLink does."""
        while True:
            answer = self._link.end(self._form, transaction, commit, halves, deadline)
            if answer.error != transactionwire.DISK_FULL or now_ns() >= deadline():
                return answer
            threading.Event().wait(_DISK_FULL_S)

    def commit_later(self, transaction: Transaction) -> Pending[None]:
        """Commit once the halves are in the log, without waiting."""
        return self._commits.begin(transaction)

    def answer_checks(self, checker: Callable[[Message], TransactionResolution]) -> None:
        """Let a thread of its own answer the group's checks from now on."""
        from clients.transactions.checks import CheckAnswers

        self._answers = CheckAnswers(self._home, self.group, checker, self)

    def close(self) -> None:
        """Roll back what is open, as well as can be, and end the sessions. Safe to call twice."""
        if self._answers is not None:
            self._answers.close()
        for future in self._commits.pending():
            future.exception(_CLOSE_S)
        for transaction in list(self.open.values()):
            try:
                transaction.rollback(min(self._timeout, _CLOSE_S))
                what = "rolled back"
            except TransactionDecided:
                continue  # by a check
            except GantryError as error:
                what = f"not rolled back, checks will ask for it ({error})"
            log.warning("the producer is closed with %r open: %s", transaction, what)
        self._link.close()


def require_group(group: str | None) -> str:
    """Raise GroupIllegal unless there is one."""
    if group is None:
        raise GroupIllegal(
            "a transaction needs a producer group, whose transaction_checker is asked when the"
            " producer dies: Producer(producer_group=..., transaction_checker=...)"
        )
    return group
