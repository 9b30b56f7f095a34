"""Objects that one thread at a time may use: another one is told so."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Final

from gantrymq.shm.errors import Closed, Rejected

#: How long the end of another thread's call is waited for before it is asked again to end.
_AGAIN_S: Final = 0.05


class Alone:
    """Holds each call; `with` it. Raises Rejected while another thread, or this one, is in a call.

    This one is where a signal handler or a finalizer runs amid a call of its thread. In a forked
    child all calls raise Closed.
    """

    def __init__(self, what: str, require_open: Callable[[], None]) -> None:
        """`require_open` raises Closed for a call that comes too late."""
        self._what = what
        self._require_open = require_open
        self._lock = threading.Lock()
        self._thread = 0
        self._pid = os.getpid()

    def require_own(self) -> None:
        """Raise Closed in a forked child."""
        if self._pid != os.getpid():
            raise Closed(
                f"this {self._what} was opened by the parent of this forked process: open a new one"
            )

    def __enter__(self) -> None:
        self.require_own()
        if not self._lock.acquire(blocking=False):
            self._refuse()
        self._thread = threading.get_ident()
        try:
            self._require_open()
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_error: object) -> None:
        self._thread = 0
        self._lock.release()

    def _refuse(self) -> None:
        self._require_open()
        here = self._thread == threading.get_ident()
        who = (
            "a signal handler may not call it amid another call"
            if here
            else (
                "one thread at a time may: give each thread one of its own, or hold a lock of yours"
                " around each call"
            )
        )
        raise Rejected(f"this {self._what} is in use: {who} (close() alone may come at any time)")

    def end(self, wake: Callable[[], None]) -> None:
        """Wait until no other thread is in a call, for the last one; `wake` cuts its wait short.

        A call of this thread's that this one interrupts, and in a forked child those of the
        parent's threads, are nothing to wait for.
        """
        if self._thread == threading.get_ident() or self._pid != os.getpid():
            return
        while not self._lock.acquire(blocking=False):
            wake()
            if self._lock.acquire(timeout=_AGAIN_S):
                break
        self._lock.release()
