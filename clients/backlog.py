"""Sends without waiting while the broker is away: a thread hands them over once it is back."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gantrymq.clients.ownthread import OwnThread
from gantrymq.clients.session import now_ns, pause
from gantrymq.shm.errors import BrokerGone, Closed, GantryError, QueueFull, Timeout

if TYPE_CHECKING:
    from gantrymq.clients.receipts import Pending
    from gantrymq.clients.writerlink import WriterLink

#: More may not wait: then `QueueFull` says so at once.
SENDS_MAX: Final = 16_384
BYTES_MAX: Final = 64 << 20
#: The thread tries for so long at a time, and then looks whose time is up.
_TURN_S: Final = 0.1
_PAUSE_S: Final = 0.02
#: So long who does not wait lets it go first at most, and so often it looks whether it has.
_GIVE_WAY_NS: Final = 100_000_000
_LOOK_S: Final = 0.001
log = logging.getLogger("gantrymq")

#: Hands over within so many seconds, and returns the future or nothing. Raises as a send does.
Put = Callable[[float], "Pending[Any] | None"]


@dataclass(slots=True, eq=False)
class _Send:
    put: Put
    future: Pending[Any] | None
    topic: str
    size: int
    deadline: int


class Backlog:
    """Sends of one producer that wait for the broker, in their order; what comes later waits, too.

    A future whose message could not be handed over in time fails: it is not stored.
    """

    def __init__(self, link: WriterLink) -> None:
        self._link = link
        self._lock = threading.RLock()
        self._sends: deque[_Send] = deque()
        self._bytes = 0
        self._helper = OwnThread("gantrymq-backlog", self._lock, self._has_work, self._hand_over)

    def __bool__(self) -> bool:
        return bool(self._sends)

    def add(self, put: Put, future: Pending[Any] | None, topic: str, size: int, until: int) -> None:
        """Hand over later. Raises QueueFull."""
        with self._lock:
            if len(self._sends) >= SENDS_MAX or self._bytes + size > BYTES_MAX:
                raise QueueFull(self._why())
            self._helper.begin()
            if self._link.fast is not None:
                self._link.fast.hold_back(True)
            self._sends.append(_Send(put, future, topic, size, until))
            self._bytes += size

    def wait(self, deadline: int) -> None:
        """Until nothing waits here: for a send that waits itself. Raises BrokerGone."""
        while self._sends and not self._helper.is_me:
            if now_ns() >= deadline:
                raise QueueFull(self._why()) if self._is_live else BrokerGone(self._why())
            pause(_PAUSE_S)

    def give_way(self) -> None:
        """Let the thread hand over first, for a moment, once the broker is there.

        Sends in a tight loop would come as fast as it hands over, and never leave it behind.
        """
        until = now_ns() + _GIVE_WAY_NS
        while self._sends and self._is_live and not self._helper.is_me and now_ns() < until:
            pause(_LOOK_S)

    @property
    def _is_live(self) -> bool:
        return self._link.session.is_live

    def _why(self) -> str:
        count = len(self._sends)
        if self._is_live:
            return f"{count} earlier sends are still being handed over: send less, or wait longer"
        return f"the broker is away, and {count} sends wait for it: send less, or start it again"

    def end(self) -> None:
        """Let all that wait fail, and say how many: the producer is closed."""
        error = Closed("this producer was closed before it handed this over: it is not stored")
        lost: list[_Send] = []
        with self._lock:  # what the thread has given up is noted by now
            sends = self._sends.copy()
        with ExitStack() as stack:  # all of them, whatever a callback raises
            stack.callback(_warn, lost)
            for send in reversed(sends):
                stack.callback(self._lose, send, error, lost)

    def _lose(self, send: _Send, error: BaseException, lost: list[_Send]) -> None:
        if self._drop(send):
            lost.append(send)
            if send.future is not None:
                send.future.set_exception(error)

    def _has_work(self) -> bool:
        if self._sends:
            return True
        if self._link.fast is not None:
            self._link.fast.hold_back(False)
        return False

    def _hand_over(self) -> None:
        """The first one, if that can be; else those fail whose time is up."""
        with self._lock:
            if not self._sends:  # `end` has taken them meanwhile
                return
            first = self._sends[0]
        why = self._try(first)
        if why is None:
            return
        for send in self._sends.copy():
            if now_ns() >= send.deadline:
                self._fail(send, why)
        pause(_PAUSE_S)

    def _try(self, send: _Send) -> GantryError | None:
        """Hand one over; why it has to wait on, or None."""
        left_s = max(0.0, (send.deadline - now_ns()) / 1e9)
        try:
            found = send.put(min(_TURN_S, left_s))
        except (BrokerGone, QueueFull, Timeout) as error:
            return error
        except BaseException as error:
            if isinstance(error, Closed) and not self._link.is_open:
                return error  # `end` lets it fail, with the others
            self._fail(send, error)
            return None
        if self._drop(send) and send.future is not None and found is not None:
            send.future.__dict__.update(found.__dict__)  # at once, for whoever looks
            self._link.session.bell.ring()
        return None

    def _fail(self, send: _Send, error: BaseException) -> None:
        with self._lock:  # in one step for whoever closes the producer, and tells
            if not self._drop(send):
                return
            if send.future is None:
                self._link.note_unsent(send.topic, error)
                return
        try:
            send.future.set_exception(error)
        finally:
            self._link.session.bell.ring()

    def _drop(self, send: _Send) -> bool:
        """Take it out; False if somebody has."""
        with self._lock:
            if send not in self._sends:
                return False
            self._sends.remove(send)
            self._bytes -= send.size
            return True


def _warn(lost: list[_Send]) -> None:
    if lost:
        log.warning(
            "the producer is closed with %d sends that waited for the broker: they are not stored",
            len(lost),
        )
