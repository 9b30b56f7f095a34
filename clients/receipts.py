"""Receipts that are made when somebody looks: a future costs a few words until then.

Completions of a session come in order of seq. They are kept in pages of numbers; a page lives as
long as a receipt that refers to it.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from gantrymq.clients.arguments import judged
from gantrymq.clients.closing import OfOneProcess
from gantrymq.clients.delays import NOW, Due, parked_in, recall_handle
from gantrymq.clients.message import MessageQueue, SendReceipt
from gantrymq.shm import errors
from gantrymq.shm.codes import Level, ParkMode, Status
from gantrymq.shm.kernels import frames
from gantrymq.shm.messageid import offset_message_id

PAGE_BITS = 12
PAGE_ROWS = 1 << PAGE_BITS
# Names of this module, since each receipt looks at them.
_ROW_MASK = PAGE_ROWS - 1
_ROW_WORDS = frames.COMPLETION_WORDS
_STATUS, _POSITION = frames.OUT_STATUS, frames.OUT_POSITION
_QUEUE, _OFFSET = frames.OUT_QUEUE, frames.OUT_OFFSET
_DUPLICATE = int(Status.DUPLICATE)
assert frames.OUT_SEQ == 0
#: So few pages are not worth looking for those that nobody can ask for.
_PAGES_KEPT = 3
#: The end of what was in the log when the store failed.
NEVER_DURABLE = 1 << 62
_PENDING = "PENDING"
R = TypeVar("R")
log = logging.getLogger("gantrymq")


class Page:
    """Completions of PAGE_ROWS seqs; a row whose first word is 0 has not come yet.

    `words` is the same as `rows`, for a look at single words: much quicker than through numpy.
    """

    __slots__ = ("__weakref__", "owner", "rows", "words")

    def __init__(self, owner: Waits) -> None:
        self.owner = owner
        self.rows = np.zeros((PAGE_ROWS, frames.COMPLETION_WORDS), np.int64)
        self.words = self.rows.data.cast("B").cast("q")

    def row(self, seq: int) -> list[int]:
        """The completion of a seq."""
        at = (seq & (PAGE_ROWS - 1)) * frames.COMPLETION_WORDS
        return self.words[at : at + frames.COMPLETION_WORDS].tolist()


class Pages:
    """Where completions go."""

    def __init__(self, owner: Waits) -> None:
        self._owner = owner
        self._pages: dict[int, Page] = {}
        self._alive: weakref.WeakSet[Page] = weakref.WeakSet()  # also those that receipts have

    def page_of(self, seq: int) -> Page:
        """The page that a seq's completion will be in: one, whichever threads ask for it first."""
        number = seq >> PAGE_BITS
        page = self._pages.get(number)
        if page is None:
            page = self._pages.setdefault(number, Page(self._owner))
            self._alive.add(page)
        return page

    def of_batch(self, last: int, count: int) -> tuple[Page, ...]:
        """The pages of `count` seqs up to `last`, in order."""
        numbers = range((last - count + 1) >> PAGE_BITS, (last >> PAGE_BITS) + 1)
        return tuple(self.page_of(number << PAGE_BITS) for number in numbers)

    def give_up_beyond(self, durable: int) -> None:
        """What ends behind a position will never be durable: the store has failed."""
        for page in list(self._alive):
            ends = page.rows[:, frames.OUT_END]
            ends[ends > durable] = NEVER_DURABLE

    def fill(self, rows: NDArray[np.int64], *, forget: bool = True) -> None:
        """Take completions in order of seq; forget pages that nobody can ask for any more.

        Whoever puts for a receipt has its page in the same step (`WriterLink.claim`, the native
        put); so what lies before the last two is needed by nobody but its receipts.
        """
        count = len(rows)
        if not count:
            return
        seq, last = rows.item(0, frames.OUT_SEQ), rows.item(count - 1, frames.OUT_SEQ)
        if last - seq != count - 1:
            self._scatter(rows)
        else:
            at = seq & _ROW_MASK
            while (left := at + count - PAGE_ROWS) > 0:
                self.page_of(seq).rows[at:] = rows[:-left]
                seq, at, count, rows = seq + PAGE_ROWS - at, 0, left, rows[-left:]
            self.page_of(seq).rows[at : at + count] = rows
        if forget and len(self._pages) > _PAGES_KEPT:
            newest = last >> PAGE_BITS
            for number in [number for number in self._pages if number < newest - 1]:
                del self._pages[number]

    def _scatter(self, rows: NDArray[np.int64]) -> None:
        """Take completions with gaps: sends without a receipt are in between."""
        numbers = rows[:, frames.OUT_SEQ] >> PAGE_BITS
        start = 0
        while start < len(rows):
            number = int(numbers[start])
            end = int(np.searchsorted(numbers, number, side="right"))
            page = self.page_of(number << PAGE_BITS)
            page.rows[rows[start:end, frames.OUT_SEQ] & (PAGE_ROWS - 1)] = rows[start:end]
            start = end


class Waits(Protocol):
    """What a receipt needs of its producer's link."""

    def drive(self, receipt: Pending[Any], timeout: float | None) -> None:
        """Take completions until the receipt is decided; raises as `result` does."""
        ...

    def look(self) -> None:
        """Take what is there without waiting."""
        ...

    def watch(self, receipt: Pending[Any]) -> None:
        """Decide the receipt from a thread of the producer's as soon as it can be."""
        ...

    def durable(self) -> int:
        """The board's durable position."""
        ...

    #: First 20 digits of message ids, and the stored host.
    identity: tuple[str, bytes]

    @property
    def broker(self) -> tuple[str, int]:
        """The broker's name, and its timer_precision_ms."""
        ...


class _WhenAsked:
    """An attribute that is made when it is looked at for the first time.

    The object's `_asked` is set before.
    """

    def __init__(self, make: Callable[[Pending[Any]], object]) -> None:
        self._make = make
        self._name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, receipt: Pending[Any] | None, owner: type) -> object:
        if receipt is None:
            return self
        receipt._asked = True
        return receipt.__dict__.setdefault(self._name, self._make(receipt))


class _Failure:
    """Stands for the result of a future that has none."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


class Pending(Future[R], OfOneProcess):
    """A `concurrent.futures.Future`, decided when looked at, or for its callbacks.

    Subclasses say what it becomes once the completion of `_seq` is there.
    """

    # Defaults instead of Future.__init__, which makes a Condition for each object. The native put
    # makes objects and sets the three attributes by itself.
    _page: Page
    _seq: int
    _topic: str
    _level: int = Level.WRITTEN
    _state = _PENDING
    _result: R | None = None
    _exception: BaseException | None = None
    #: Whether somebody has asked for what Future.__init__ would have made.
    _asked = False

    if TYPE_CHECKING:

        def __init__(self) -> None: ...
    else:
        __init__ = object.__init__  # no function of Python's is called for it

    def _outcome(self) -> R:
        raise NotImplementedError

    def _refusal(self, status: Status) -> BaseException:
        return refusal(status, self._topic)

    # What Future.__init__ makes, here when it is asked for. No `__getattr__`: it would slow every
    # look at an attribute down.
    # A plain lock, nobody waits by it: a Condition's `with` is Python's code, and a signal handler
    # that raises where that begins or ends would leave it held.
    _condition = _WhenAsked(lambda _: threading.RLock())  # type: ignore[assignment]
    _done_callbacks = _WhenAsked(lambda _: [])
    _waiters = _WhenAsked(lambda receipt: receipt._watched())  # type: ignore[assignment]

    def _watched(self) -> list[Any]:
        """Somebody outside waits for it (`concurrent.futures.wait`)."""
        if self._state == _PENDING:
            self._page.owner.watch(self)
        return []

    def settle(self) -> bool:
        """Become done if the completion is there and its level is reached."""
        if self._state != _PENDING:
            return True
        page, seq = self._page, self._seq
        words, at = page.words, (seq & _ROW_MASK) * _ROW_WORDS
        if words[at] != seq:
            return False
        status = words[at + _STATUS]
        if status > _DUPLICATE and status != Status.UNKNOWN_POSITION:
            self.set_exception(self._refusal(Status(status)))
            return True
        if self._level and page.owner.durable() < (end := words[at + frames.OUT_END]):
            if end != NEVER_DURABLE:
                return False
            self.set_exception(self._refusal(Status.STORE_FAILED))
            return True
        self._finish(self._outcome())
        return True

    def _finish(self, outcome: R | _Failure) -> None:
        """`set_result` or `set_exception`; of several threads that decide it the first one does.

        One look-up in a dictionary is that decision: no lock is made, and a signal handler may come
        between. Nor is the Condition made that nobody has asked for: whoever adds a callback or
        waiter makes it before it looks at the state; so either it sees the state set here, or its
        Condition is seen here.
        """
        decided = self.__dict__.setdefault("_decided", outcome)
        if type(decided) is _Failure:
            self._exception = decided.error
        else:
            self._result = decided
        self._state = "FINISHED"
        if self._asked and "_condition" in self.__dict__:
            self._tell()

    def _tell(self) -> None:
        """Tell who waits outside and who left a callback, once. Raises what no Exception is."""
        known, mine = self.__dict__, object()
        with self._condition:  # type: ignore[attr-defined]
            if known.setdefault("_teller", mine) is not mine:
                return
            for waiter in known.get("_waiters", ()):
                (waiter.add_result if self._exception is None else waiter.add_exception)(self)
        worst: BaseException | None = None
        for callback in known.get("_done_callbacks", ()):
            try:
                callback(self)
            except Exception:
                log.exception("a callback of a receipt's future failed: %r", callback)
            except BaseException as error:  # SystemExit and the like: after the other callbacks
                worst = error
        if worst is not None:
            raise worst

    def set_exception(self, exception: BaseException | None) -> None:
        """Let it fail, if it is not decided."""
        self._finish(_Failure(exception))

    @property
    def is_decided(self) -> bool:
        """Whether somebody has decided it; nothing that has come is taken for that."""
        return self._state != _PENDING

    @property
    def is_answered(self) -> bool:
        """Whether its completion is there, or it is decided."""
        return self.is_decided or self._page.row(self._seq)[frames.OUT_SEQ] == self._seq

    @property
    def is_durable(self) -> bool:
        """Whether `settle` decides it, once it is answered: nothing is left to wait for."""
        status = self._page.row(self._seq)[frames.OUT_STATUS]
        is_refused = status > _DUPLICATE and status != Status.UNKNOWN_POSITION
        if self.is_decided or is_refused or not self._level:
            return True
        wanted = self.wanted_end
        return wanted == NEVER_DURABLE or self._page.owner.durable() >= wanted

    @property
    def wanted_end(self) -> int:
        """Position that must become durable, 0 while the completion has not come."""
        row = self._page.row(self._seq)
        return row[frames.OUT_END] if row[frames.OUT_SEQ] == self._seq else 0

    def done(self) -> bool:
        """True once the receipt (or the refusal) is there; takes what has come."""
        if self._state == _PENDING:
            self._page.owner.look()
            self.settle()
        return self._state != _PENDING

    def running(self) -> bool:
        """Never: a message is on its way or done."""
        return False

    def cancel(self) -> bool:
        """A message that was handed over can't be called back."""
        return False

    def result(self, timeout: float | None = None) -> R:
        """The receipt. Raises what the broker refused with, Timeout, BrokerGone, StoreFailed."""
        if timeout is not None:
            (timeout,) = judged("ReceiptFuture.result", timeout)
        if not self.settle():
            self._page.owner.drive(self, timeout)
        # No lock of Future's: in a forked child a thread that is not there may hold it.
        if self._exception is not None:
            raise self._exception
        result: R = self._result  # type: ignore[assignment]  # no `cast`, which is a call
        return result

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Why there is no receipt, or None."""
        if timeout is not None:
            (timeout,) = judged("ReceiptFuture.result", timeout)
        if self._state == _PENDING:
            self._page.owner.drive(self, timeout)
        return self._exception

    def add_done_callback(self, fn: Callable[[Future[R]], object]) -> None:
        """Call `fn(future)` once decided: now, or in the thread that first finds it so.

        That is one that asks the future, or one of the producer's.
        """
        judged("ReceiptFuture.add_done_callback", fn)
        super().add_done_callback(fn)
        if self._state == _PENDING:
            self._page.owner.watch(self)


class ReceiptFuture(Pending[SendReceipt]):
    """`concurrent.futures.Future[SendReceipt]` of one message.

    `_mode` and `_value` say when it is due (`delays.Due`); the native put sets them, too.
    """

    _mode: int = ParkMode.NONE
    _value: int = 0

    @classmethod
    def of(cls, page: Page, seq: int, topic: str, level: int, due: Due = NOW) -> Self:
        """The receipt of a seq that waits for a level."""
        receipt = cls()
        receipt._page, receipt._seq, receipt._topic = page, seq, topic
        if level:
            receipt._level = level
        if due.mode:
            receipt._mode, receipt._value = due
        return receipt

    def _outcome(self) -> SendReceipt:
        page, seq = self._page, self._seq
        words, at = page.words, (seq & _ROW_MASK) * _ROW_WORDS
        prefix, host = page.owner.identity
        position, queue = words[at + _POSITION], words[at + _QUEUE]
        unique = f"{prefix}{seq:012X}"
        topic, handle = self._topic, None
        if self._mode:
            topic, handle = self._whereabouts(unique, words[at + frames.OUT_MS])
        return SendReceipt(
            unique,
            offset_message_id(host, position) if position >= 0 else "",
            MessageQueue(topic, queue if queue < 1 << 31 else -1),
            words[at + _OFFSET],
            "durable" if self._level else "written",
            handle,
        )

    def _whereabouts(self, unique: str, store_ms: int) -> tuple[str, str | None]:
        """The topic that a delayed message is in, and its recall handle."""
        due = Due(ParkMode(self._mode), self._value)
        broker, precision_ms = self._page.owner.broker
        names = (self._topic, broker, unique)
        handle = recall_handle(due, store_ms, names, precision_ms)
        return parked_in(due, store_ms) or self._topic, handle


def refusal(status: Status, topic: str, queue_id: int = -1) -> errors.GantryError:
    """The error of an entry that the writer refused, whose queue id was given or is -1."""
    if status == Status.DISK_FULL:
        return errors.DiskFull(
            f"the disk of the store is full: {topic} takes no messages until there is room",
            topic=topic,
        )
    if status == Status.STORE_FAILED:
        return errors.StoreFailed(
            f"the store failed before the message to {topic} was acknowledged: it may be stored or"
            " not. The broker's log says why",
            topic=topic,
        )
    if status == Status.NOT_STORED:
        return errors.Rejected(
            f"the broker refused the message to {topic} before it was restarted, and no longer"
            " knows why: it is not stored, send it again",
            topic=topic,
        )
    reasons = {
        Status.ILLEGAL_SIZE: "it is larger than max_message_size or than a segment of the log",
        Status.ILLEGAL_PROPERTIES: "its properties are malformed or too long",
        Status.UNKNOWN_ROUTE: f"topic {topic} does not exist any more, or is the broker's own",
        Status.UNKNOWN_QUEUE: f"topic {topic} has no such queue"
        + (f", {queue_id}" if queue_id >= 0 else ""),
        Status.ILLEGAL_DELAY: "its delay is no level from 1 on and no time up to the year 9999",
        Status.BATCH_REFUSED: "another message of its batch was refused",
    }
    why = reasons.get(status, status.name)
    return errors.MessageIllegal(f"the broker refused the message: {why}", topic=topic)
