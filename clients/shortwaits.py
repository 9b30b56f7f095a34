"""Waits that hear each signal, also one that has come just before.

CPython notes a signal that comes behind its last look for one and before C goes to sleep, and looks
again once C has woken up: no sleep without an end may be left to C in the main thread.
"""

from __future__ import annotations

from _thread import start_new_thread
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread, get_ident, main_thread
from typing import Final, TypeVar

from gantrymq.clients.session import NEVER_NS, deadline_after, seconds_until
from gantrymq.shm.fromhandlers import require_ours

#: The longest sleep until the next look for signals.
LOOK_S: Final = 0.25
#: A thread that has not begun by then has died for want of memory, before its first statement.
START_S: Final = 10.0

T = TypeVar("T")


def take(events: SimpleQueue[T], deadline_ns: int = NEVER_NS) -> T:
    """What is put there next. Raises Empty."""
    while True:
        try:
            return events.get(timeout=LOOK_S)
        except Empty as error:
            require_ours(error)
            if seconds_until(deadline_ns) <= 0:
                raise


def start(thread: Thread) -> None:
    """Start it; what a signal handler raises meanwhile is what comes out.

    `Thread.start` makes other errors of that, and may end the new thread by one (its notes of what
    is started are gone then). No handler comes amid it in another thread: it has begun, whatever
    ended the wait for that. Raises RuntimeError if it does not begin for want of memory, of which
    CPython tells nobody.
    """
    if get_ident() != main_thread().ident:
        thread.start()
        return
    ended: SimpleQueue[BaseException | None] = SimpleQueue()
    start_new_thread(_start, (thread, ended))
    try:
        error = take(ended, deadline_after(START_S))
    except Empty as late:
        require_ours(late)
        raise RuntimeError(f"thread {thread.name} does not begin: memory is short") from None
    except BaseException:
        with suppress(Empty):
            take(ended, deadline_after(START_S))
        raise
    if error is not None:
        raise error


def _start(thread: Thread, ended: SimpleQueue[BaseException | None]) -> None:
    try:
        thread.start()
    except BaseException as error:
        ended.put(error)
    else:
        ended.put(None)


def join(thread: Thread, deadline_ns: int = NEVER_NS) -> None:
    """Wait for a thread's end, until then; nobody says whether it has come."""
    while thread.is_alive() and (left_s := seconds_until(deadline_ns)) > 0:
        thread.join(min(LOOK_S, left_s))
