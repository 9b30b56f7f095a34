"""Sends without waiting while the broker is away: a thread hands them over once it is back."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

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
        self._thread: threading.Thread | None = None

    def __bool__(self) -> bool:
        return bool(self._sends)

    def add(self, put: Put, future: Pending[Any] | None, topic: str, size: int, until: int) -> None:
        """Hand over later. Raises QueueFull."""
        with self._lock:
            if len(self._sends) >= SENDS_MAX or self._bytes + size > BYTES_MAX:
                raise QueueFull(
                    f"{len(self._sends)} sends wait for the broker, which is away: send less, or"
                    " start it again"
                )
            if self._link.fast is not None:
                self._link.fast.hold_back(True)
            self._sends.append(_Send(put, future, topic, size, until))
            self._bytes += size
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="gantrymq-backlog", daemon=True
                )
                self._thread.start()

    def wait(self, deadline: int) -> None:
        """Until nothing waits here: for a send that waits itself. Raises BrokerGone."""
        while self._sends and threading.current_thread() is not self._thread:
            if now_ns() >= deadline:
                raise BrokerGone("the broker is away, and earlier sends wait for it")
            pause(_PAUSE_S)

    def end(self) -> None:
        """Let all that wait fail: the producer is closed."""
        while self._sends:
            self._fail(self._sends[0], Closed("this producer was closed, the broker away"))

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._sends:
                    self._thread = None
                    if self._link.fast is not None:
                        self._link.fast.hold_back(False)
                    return
                first = self._sends[0]
            why = self._try(first)
            if why is None:
                continue
            for send in list(self._sends):
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
            self._fail(send, error)
            return None
        if self._drop(send) and send.future is not None and found is not None:
            send.future.__dict__.update(found.__dict__)  # at once, for whoever looks
            self._link.session.bell.ring()
        return None

    def _fail(self, send: _Send, error: BaseException) -> None:
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
