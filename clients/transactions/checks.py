"""Checks: a producer of the group is asked what became of a transaction, in a thread of its own.

The half is read from the log; what the application's function says is an END, or UNKNOWN. The
thread ends by itself where its producer's end was broken off: it only looks at the producer's
transactions, and does not keep them alive.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from typing import TYPE_CHECKING, Final

from gantrymq.clients.message import GROUP_PROPERTY, ReceivedMessage, as_sent
from gantrymq.clients.ownthread import OwnThread
from gantrymq.clients.session import now_ns
from gantrymq.clients.stored_body import plain_body
from gantrymq.clients.transactions.checkerlink import CheckerLink
from gantrymq.clients.transactions.resolution import TransactionResolution
from gantrymq.shm import transactionwire
from gantrymq.shm.errors import (
    BrokerGone,
    Closed,
    GantryError,
    Incompatible,
    Timeout,
    told_by,
)
from gantrymq.shm.fromhandlers import require_ours
from gantrymq.shm.messageid import format_host
from gantrymq.shm.properties import java_int
from gantrymq.shm.storage import PosixStorage
from gantrymq.shm.storereader import StoreReader
from gantrymq.shm.transactionwire import Check, End, Enlist, Unknown

if TYPE_CHECKING:
    from collections.abc import Callable

    from gantrymq.clients.message import ReceivedMessage
    from gantrymq.clients.transactions.transaction import Owner
    from gantrymq.shm.record import Record

#: A checker that was replaced has forgotten who answers checks.
_ENLIST_NS: Final = 1_000_000_000
#: So long the supervisor has to answer: whether the producer has ended is looked at behind it.
_ATTACH_NS: Final = 10_000_000_000
_REATTACH_S: Final = 0.05
#: After an error that may stay, at first and at most.
_PAUSE_S: Final = 1.0
_PAUSE_MAX_S: Final = 60.0
#: So often a pause looks whether the producer has ended.
_LOOK_S: Final = 1.0
_JOIN_S: Final = 1.0
log = logging.getLogger("gantrymq")


class CheckAnswers:
    """The thread that calls a producer's `transaction_checker`, one check at a time."""

    def __init__(
        self,
        home: str | os.PathLike[str] | None,
        group: str,
        checker: Callable[[ReceivedMessage], TransactionResolution],
        known: Owner,
    ) -> None:
        """`known`: the producer's own; those that run are not asked about. `begin` starts it."""
        self._group = group
        self._checker = checker
        self._known = weakref.ref(known)
        self._link = CheckerLink(home)
        self._stop = threading.Event()
        self._pid = os.getpid()
        self._told = ""
        self._pause_s = _PAUSE_S
        self._reader: tuple[str, StoreReader] | None = None
        self._lock = threading.RLock()
        self._helper = OwnThread(
            "gantrymq-transaction-checker", self._lock, lambda: not self._is_over(), self._go_on
        )

    def begin(self) -> None:
        """Have checks answered, until `close` or the producer's end."""
        with self._lock:
            self._helper.begin()

    def _is_over(self) -> bool:
        known = self._known()
        return self._stop.is_set() or known is None or not known.writer.is_open

    def _go_on(self) -> None:
        """Serve, over restarts of the broker."""
        try:
            self._serve()
        except (BrokerGone, Timeout, Closed):
            self._link.lose()
            self._rest(_REATTACH_S)
        except (GantryError, OSError, ValueError) as error:
            require_ours(error)
            if self._is_over():  # a session that was closed meanwhile
                return
            self._tell(error)
            self._link.lose()
            self._rest(self._pause_s)
            self._pause_s = min(2 * self._pause_s, _PAUSE_MAX_S)
        finally:
            if self._is_over():
                self._link.close()

    def _rest(self, seconds: float) -> None:
        until = now_ns() + int(seconds * 1e9)
        while not self._is_over() and now_ns() < until:
            self._stop.wait(min(seconds, _LOOK_S))

    def _tell(self, error: Exception) -> None:
        """Once, until checks are answered again: it may stay so, as in another store."""
        if self._told == (told := told_by(error)):
            return
        self._told = told
        if isinstance(error, Incompatible):  # as the producer's own calls say it
            log.error("checks of transactions are not answered: %s", error)
        else:
            log.warning("checks of transactions are not answered", exc_info=error)

    def _serve(self) -> None:
        link = self._link
        while not self._is_over():
            link.living(now_ns() + _ATTACH_NS)
            link.put(transactionwire.encode(Enlist(link.next_serial(), self._group)))
            until = now_ns() + _ENLIST_NS
            while link.sleep(until, lambda: bool(link.checks) or self._is_over()):
                if self._is_over():
                    return
                self._answer(link.checks.pop(0))
            self._told, self._pause_s = "", _PAUSE_S

    def _answer(self, check: Check) -> None:
        link = self._link
        resolution = self._resolve(check)
        if resolution is None:
            return
        serial = link.next_serial()
        request: Unknown | End = Unknown(serial, self._group, check.position)
        if resolution is not TransactionResolution.UNKNOWN:
            commit = resolution is TransactionResolution.COMMIT
            half = (check.position, check.queue_offset)
            if (known := self._known()) is not None:
                known.open.pop(check.tx, None)
            request = End(serial, self._group, check.tx, commit, [half], from_check=True)
        link.put(transactionwire.encode(request))  # without room it is asked again

    def _resolve(self, check: Check) -> TransactionResolution | None:
        """What the application says; None if the half can't be read."""
        if self._is_running(check.tx):
            return TransactionResolution.UNKNOWN
        try:
            message = half_message(self._read(check.position))
        except (GantryError, OSError, ValueError) as error:
            require_ours(error)
            log.warning("the half message at %d cannot be read", check.position, exc_info=True)
            return None
        try:
            said: object = self._checker(message)
        except BaseException:  # SystemExit, too, says nothing about the transaction
            log.warning(
                "transaction_checker failed for message %s: asked again later",
                message.message_id, exc_info=True,
            )  # fmt: skip
            return TransactionResolution.UNKNOWN
        if isinstance(said, TransactionResolution):
            return said
        log.warning(
            "transaction_checker returned %r for message %s, which is no TransactionResolution:"
            " asked again later",
            said, message.message_id,
        )  # fmt: skip
        return TransactionResolution.UNKNOWN

    def _is_running(self, transaction: str) -> bool:
        known = self._known()  # not held while the application is asked
        return known is None or transaction in known.running

    def _read(self, position: int) -> Record:
        store = self._link.present()[0].store
        if self._reader is None or self._reader[0] != store:
            self._reader = (store, StoreReader(PosixStorage(store)))
        return self._reader[1].record(position)

    def close(self) -> None:
        """No more checks; one that is being answered goes on for a second at most."""
        self._stop.set()
        self._link.close()
        if self._pid == os.getpid():
            self._helper.join(_JOIN_S)


def half_message(half: Record) -> ReceivedMessage:
    """The message of a half, as it was sent. Raises ValueError for a body that can't be read."""
    stored = half.property_map()
    topic, queue = stored.get("REAL_TOPIC", ""), java_int(stored.get("REAL_QID", ""))
    tag, keys = stored.pop("TAGS", None), stored.pop("KEYS", "")
    unique, group = stored.pop("UNIQ_KEY", ""), stored.pop(GROUP_PROPERTY, None)
    return ReceivedMessage(
        topic,
        plain_body(half.body, half.sys_flag),
        tag=tag,
        keys=tuple(keys.split()),
        properties=as_sent(topic, stored)[1],
        queue_id=queue or 0,
        message_group=group,
        message_id=unique,
        queue_offset=half.queue_offset,
        born_timestamp=half.born_timestamp,
        store_timestamp=half.store_timestamp,
        born_host=format_host(half.born_host),
    )
