"""Descriptors and what to do when they are ready: the supervisor's one epoll."""

from __future__ import annotations

import select
from collections.abc import Callable
from typing import Final

_EVENTS_MAX: Final = 64


class Reactor:
    """Calls back for ready descriptors; never blocks, the loop's waiter sleeps on `fileno()`."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._callbacks: dict[int, Callable[[], None]] = {}

    def fileno(self) -> int:
        """Readable while some callback is due."""
        return self._epoll.fileno()

    def watch(self, descriptor: int, callback: Callable[[], None]) -> None:
        """Call back whenever the descriptor is readable or its other end is gone."""
        self._epoll.register(descriptor, select.EPOLLIN)
        self._callbacks[descriptor] = callback

    def forget(self, descriptor: int) -> None:
        """Stop watching; before the descriptor is closed."""
        if self._callbacks.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)

    def poll(self) -> int:
        """Call back for all that is ready; returns how many there were."""
        events = self._epoll.poll(0, _EVENTS_MAX)
        for descriptor, _mask in events:
            # An earlier callback may have closed this one's connection.
            callback = self._callbacks.get(descriptor)
            if callback is not None:
                callback()
        return len(events)

    def close(self) -> None:
        """Give the descriptor back."""
        self._epoll.close()
