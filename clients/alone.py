"""Objects that one thread at a time may use: another one is told so."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Final

from gantrymq.shm.errors import Closed, Rejected

#: How often the end of another thread's call is asked for, and looked for.
_AGAIN_S: Final = 0.005


class Alone:
    """Holds each call; `with` it. Raises Rejected while another thread, or this one, is in a call.

    This one is where a signal handler or a finalizer runs amid a call of its thread. In a forked
    child all calls raise Closed. A signal handler that raises may end a call at any place, also
    before or behind the body of its `with`: nobody is held up by such a call.

    Who hands something out lets go by `del holder[0]` instead, between `enter` and `return`: behind
    the end of a `with` CPython looks for signals once more, and what one raises there takes what is
    to be returned with it.
    """

    def __init__(self, what: str, require_open: Callable[[], None]) -> None:
        """`require_open` raises Closed for a call that comes too late."""
        self._what = what
        self._require_open = require_open
        # Under 0 the frame whose `with` holds it. `setdefault` takes and notes it in one step, and
        # no signal handler comes between: a lock whose owner is noted later would stay held.
        self.holder: dict[int, FrameType] = {}
        self._sweeping = threading.Lock()
        self._pid = os.getpid()

    def require_own(self) -> None:
        """Raise Closed in a forked child: the parent may have been in the middle of a call."""
        if self._pid != os.getpid():
            raise Closed(
                f"this {self._what} was opened by the parent of this forked process: open a new one"
            )

    @property
    def is_interrupted(self) -> bool:
        """Whether this is amid a call of this thread's, as a signal handler is."""
        holder = self.holder.get(0)
        return holder is not None and _runs(holder, sys._getframe())

    def __enter__(self) -> None:
        self._hold(sys._getframe(1))

    def __exit__(self, *_error: object) -> None:
        self.leave()

    def enter(self) -> None:
        """Hold the call of whoever calls this."""
        self._hold(sys._getframe(1))

    def leave(self) -> None:
        """Let go."""
        del self.holder[0]

    def _hold(self, frame: FrameType) -> None:
        self.require_own()
        while (holder := self.holder.setdefault(0, frame)) is not frame:
            if not self._sweep(holder):
                self._refuse(holder)
        try:
            self._require_open()
        except BaseException:
            del self.holder[0]
            raise

    def _sweep(self, holder: FrameType) -> bool:
        """Let go for a call that is over; False if it is not."""
        if any(_runs(holder, newest) for newest in sys._current_frames().values()):
            return False
        with self._sweeping:  # another thread may have done so, and hold it by now
            if self.holder.get(0) is holder:
                del self.holder[0]
        return True

    def _refuse(self, holder: FrameType) -> None:
        self._require_open()
        who = (
            "a signal handler may not call it amid another call"
            if _runs(holder, sys._getframe())
            else (
                "one thread at a time may: give each thread one of its own, or hold a lock of yours"
                " around each call"
            )
        )
        raise Rejected(f"this {self._what} is in use: {who} (close() alone may come at any time)")

    def end(self, wake: Callable[[], None]) -> None:
        """Wait until no other thread is in a call, as `require_open` lets none begin.

        A call of this thread's that this one interrupts, and in a forked child those of the
        parent's threads, are nothing to wait for.
        """
        if self._pid != os.getpid():
            return
        while (holder := self.holder.get(0)) is not None:
            if _runs(holder, sys._getframe()) or self._sweep(holder):
                return
            wake()
            time.sleep(_AGAIN_S)


def _runs(frame: FrameType, newest: FrameType | None) -> bool:
    """Whether a thread, whose newest frame is given, is in a frame."""
    while newest is not None and newest is not frame:
        newest = newest.f_back
    return newest is frame
