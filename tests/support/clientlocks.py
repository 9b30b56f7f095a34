"""The locks that a client's objects have, found by walking them, and a thread that holds some."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from tests.support.watchdog import PATIENCE_S, poll_until

_KINDS: Final = (type(threading.Lock()), type(threading.RLock()), threading.Condition)
_MANY: Final = (list, tuple, set, deque)
#: A thread's own locks are the interpreter's.
_OF_THREADS: Final = frozenset(vars(threading.Thread(target=print)))


def locks_of(*things: object) -> dict[str, list[Any]]:
    """By class and attribute: all that can be reached through objects of the clients."""
    found: dict[str, list[Any]] = {}
    seen: set[int] = set()
    left = list(things)
    while left:
        thing = left.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        for name, value in _parts(thing):
            if isinstance(value, _KINDS):
                found.setdefault(f"{type(thing).__name__}.{name}", []).append(value)
            else:
                left.append(value)
    return found


def _parts(thing: object) -> Iterator[tuple[str, object]]:
    if isinstance(thing, dict):
        yield from (("", value) for value in list(thing.values()))
    elif isinstance(thing, _MANY):
        yield from (("", value) for value in list(thing))
    elif hasattr(thing, "__self__"):
        yield "", thing.__self__
    elif type(thing).__module__.startswith("gantrymq.clients"):
        yield from _attributes(thing)


def _attributes(thing: object) -> Iterator[tuple[str, object]]:
    known = dict(getattr(thing, "__dict__", {}))
    for kind in type(thing).__mro__:
        for name in getattr(kind, "__slots__", ()):
            if not name.startswith("__") and hasattr(thing, name):
                known[name] = getattr(thing, name)
    for name, value in known.items():
        if not (isinstance(thing, threading.Thread) and name in _OF_THREADS):
            yield name, value


@contextmanager
def held(locks: Iterable[Any]) -> Iterator[None]:
    """Let another thread hold them meanwhile."""
    wanted = list(locks)
    taken, done = threading.Event(), threading.Event()

    def take_all() -> bool:
        for number, lock in enumerate(wanted):
            if not lock.acquire(blocking=False):  # its user may wait for one that is held here
                for other in wanted[:number]:
                    other.release()
                return False
        return True

    def hold() -> None:
        poll_until(take_all, "nobody has any of the locks")
        taken.set()
        done.wait()
        for lock in wanted:
            lock.release()

    holder = threading.Thread(target=hold, daemon=True)
    holder.start()
    try:
        assert taken.wait(PATIENCE_S), "the locks are taken"
        yield
    finally:
        done.set()
        holder.join()
