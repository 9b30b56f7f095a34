"""Edge to the operating system: wake-up hints between processes and threads.

A ring may be lost on nobody: whoever sleeps has armed its flag with a full fence first
(kernels/ring.py `arm`), and whoever publishes looks at that flag behind a full fence. A ring may be
spurious; the woken side always looks again.
"""

from __future__ import annotations

import os
import select
import sys
from io import FileIO
from typing import Final, Protocol

from gantrymq.shm.fromhandlers import require_ours
from gantrymq.shm.held import Descriptor

#: A ring: an eventfd counts it, a pipe keeps it.
_RING: Final = (1).to_bytes(8, sys.byteorder)
#: What is read of a pipe at a time.
_RINGS_BYTES: Final = 4096


class Bell(Protocol):
    """Something that can be rung, and that its owner can wait for."""

    def ring(self) -> None:
        """Wake the owner. Never blocks."""
        ...

    def clear(self) -> None:
        """Forget rings so far. Only the owner calls it."""
        ...


def give_way() -> None:
    """Let those run first whom we have woken on our own processor, if we only have to tidy up."""
    os.sched_yield()


class EventBell:
    """A bell over an eventfd, or over a pipe (brokerd/bells.py), which it owns; a file it copies.

    Any thread, and a signal handler, may close it amid any call of another: each call holds what it
    uses, so that the number is nobody else's before its end. Once closed, rings reach nobody.
    """

    def __init__(self, descriptor: int | FileIO | None = None) -> None:
        self._owned: Descriptor | None
        if descriptor is None:
            self._owned = Descriptor(os.eventfd, 0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        elif isinstance(descriptor, int):
            self._owned = Descriptor(int, descriptor)
        else:
            self._owned = Descriptor(os.dup, descriptor.fileno())

    @property
    def descriptor(self) -> int:
        """Its number, -1 once it is closed."""
        owned = self._owned
        return -1 if owned is None else owned.number

    @property
    def owned(self) -> Descriptor | None:
        """What keeps its number from being another's, also once it is closed; None: it is."""
        return self._owned

    def fileno(self) -> int:
        """Readable while a ring has not been cleared."""
        return self.descriptor

    def ring(self) -> None:
        """Wake the owner; what is full already means that it has been rung."""
        owned = self._owned
        if owned is None:
            return
        try:
            os.write(owned.number, _RING)
        except BlockingIOError as error:
            require_ours(error)
            return

    def clear(self) -> None:
        """Forget rings so far."""
        owned = self._owned
        if owned is None:
            return
        try:
            os.read(owned.number, _RINGS_BYTES)
        except BlockingIOError as error:
            require_ours(error)
            return

    def wait(self, timeout_s: float | None) -> bool:
        """Sleep until rung; False after `timeout_s` (microsecond resolution below 10 ms)."""
        owned = self._owned
        if owned is None:
            return False
        if timeout_s is not None and timeout_s < 0.01 and owned.number < 1024:
            ready: object = select.select([owned.number], [], [], timeout_s)[0]
        else:
            poll = select.poll()
            poll.register(owned.number, select.POLLIN)
            ready = poll.poll(None if timeout_s is None else timeout_s * 1000)
        if not ready:
            return False
        self.clear()
        return True

    def close(self) -> None:
        """Give the descriptor back, behind calls that are in progress. Safe to call twice."""
        self._owned = None
