"""Waits that hear each signal, also one that has come just before.

CPython notes a signal that comes behind its last look for one and before C goes to sleep, and looks
again once C has woken up: no sleep without an end may be left to C in the main thread.
"""

from __future__ import annotations

from queue import Empty, SimpleQueue
from threading import Thread
from typing import Final, TypeVar

from gantrymq.clients.session import NEVER_NS, seconds_until
from gantrymq.shm.fromhandlers import require_ours

#: The longest sleep until the next look for signals.
LOOK_S: Final = 0.25

#: What a Lock and an RLock say of that.
_LET_GO_TWICE: Final = ("release unlocked lock", "cannot release un-acquired lock")

T = TypeVar("T")


def take(events: SimpleQueue[T]) -> T:
    """What is put there next."""
    while True:
        try:
            return events.get(timeout=LOOK_S)
        except Empty as error:
            require_ours(error)
            continue


def start(thread: Thread) -> None:
    """Start it; what a signal handler raises meanwhile is what comes out.

    Where that comes amid the wait of a Condition, as `Thread.start` has it, it ends as RuntimeError
    of a lock that is let go twice.
    """
    try:
        thread.start()
    except RuntimeError as error:
        require_ours(error)
        if str(error) in _LET_GO_TWICE and error.__context__ is not None:
            raise error.__context__ from None
        raise


def join(thread: Thread, deadline_ns: int = NEVER_NS) -> None:
    """Wait for a thread's end, until then; nobody says whether it has come."""
    while thread.is_alive() and (left_s := seconds_until(deadline_ns)) > 0:
        thread.join(min(LOOK_S, left_s))
