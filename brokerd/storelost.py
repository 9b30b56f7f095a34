"""Whether a running broker's store is still where it was: all its files are opened by path.

Who moves a store away under a broker and puts another one in its place would have two brokers write
there: the lock that keeps a second one out went with the store that was moved.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

from gantrymq.clients.home import connect, store_of
from gantrymq.shm.errors import BrokerGone, NotPermitted, StoreBusy, Timeout
from gantrymq.shm.storelock import LOCK_NAME

_LOOK_NS: Final = 250_000_000
_RETRY_S: Final = 0.1


class StoreWatch:
    """Looks now and then whether the lock that is held is the one that the path leads to."""

    def __init__(self, home: Path, lock_descriptor: int) -> None:
        self._store = store_of(home)
        self._lock = lock_descriptor
        self._next_ns = 0

    def lost(self, now_ns: int) -> str:
        """`why_lost`, now and then."""
        if now_ns < self._next_ns:
            return ""
        self._next_ns = now_ns + _LOOK_NS
        return self.why_lost()

    def why_lost(self) -> str:
        """Why the store is not the one that was locked; empty as long as it is."""
        try:
            if is_locked_by(self._store, self._lock):
                return ""
        except FileNotFoundError:
            return f"{self._store} was moved or removed under its broker: stop a broker first"
        except OSError:  # what it means is found by whoever reads or writes
            return ""
        return (
            f"{self._store} is not the store that this broker has locked: another one was put in"
            " its place. Stop a broker before its store is replaced; nothing more is written there"
        )


def is_locked_by(store: Path, descriptor: int) -> bool:
    """Whether the store at that path is the one whose lock this is. Raises OSError."""
    return os.path.samestat(os.stat(store / LOCK_NAME), os.fstat(descriptor))


def require_alone(home: Path, timeout_s: float) -> None:
    """Wait until no broker of this home is heard; the lock of its store is held.

    One that is has the lock of a store that was moved away, and ends as soon as it notices. Raises
    StoreBusy if it does not.
    """
    deadline = time.monotonic() + timeout_s
    while _is_heard(home):
        if time.monotonic() >= deadline:
            store = store_of(home)
            raise StoreBusy(
                f"another broker runs at {home}, on a store that was moved away from {store} under"
                " it: stop it first",
                store=str(store),
            )
        time.sleep(_RETRY_S)


def _is_heard(home: Path) -> bool:
    try:
        connect(home, 0.0).close()
    except BrokerGone:
        return False
    except (Timeout, NotPermitted):
        return True
    return True
