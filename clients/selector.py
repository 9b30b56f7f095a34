"""One descriptor for event loops, which stays the same while sessions come and go."""

from __future__ import annotations

import os
import select
import weakref
from typing import TYPE_CHECKING

from gantrymq.clients.closing import Closing, OfOneProcess
from gantrymq.shm.bell import EventBell
from gantrymq.shm.fromhandlers import Suppressed

if TYPE_CHECKING:
    from gantrymq.clients.session import Session

_selectors: weakref.WeakSet[Selector] = weakref.WeakSet()


class Selector(Closing, OfOneProcess):
    """Readable when a session's bell was rung, when its broker ends, and once it was left."""

    def __init__(self) -> None:
        """It follows no session yet."""
        self._epoll = select.epoll()
        self._left = EventBell()  # between two sessions nobody else could ring
        self._epoll.register(self._left.fileno(), select.EPOLLIN)
        _selectors.add(self)

    def fileno(self) -> int:
        """The descriptor."""
        return self._epoll.fileno()

    def follow(self, session: Session) -> None:
        """Be readable from now on when this session has something to tell."""
        for descriptor in session.descriptors:
            self._epoll.register(descriptor, select.EPOLLIN)

    def leave(self, session: Session) -> None:
        """Before a session is closed: the broker has its bell too, which so would stay in here."""
        for descriptor in session.descriptors:
            with Suppressed(FileNotFoundError):
                self._epoll.unregister(descriptor)
        self._left.ring()

    def clear(self) -> None:
        """Who owns this is about to look."""
        self._left.clear()

    def close(self) -> None:
        """Give the descriptors back. Safe to call twice."""
        self._epoll.close()
        self._left.close()


def _close_in_child() -> None:
    """What it follows stays so: that is shared with the parent."""
    for selector in list(_selectors):
        selector.close()


os.register_at_fork(after_in_child=_close_in_child)
