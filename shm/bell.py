"""Edge to the operating system: wake-up hints between processes (eventfd).

A ring may be lost on nobody: whoever sleeps has armed its flag with a full fence first
(kernels/ring.py `arm`), and whoever publishes looks at that flag behind a full fence. A ring may be
spurious; the woken side always looks again.
"""

from __future__ import annotations

import os
import select
from typing import Protocol


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
    """A bell over an eventfd, which it owns."""

    def __init__(self, descriptor: int | None = None) -> None:
        self.descriptor = (
            os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) if descriptor is None else descriptor
        )

    def fileno(self) -> int:
        """Readable while a ring has not been cleared."""
        return self.descriptor

    def ring(self) -> None:
        """Wake the owner; a counter that is already full means that it has been rung."""
        if self.descriptor < 0:
            return  # closed by a signal handler, or another thread, just now
        try:
            os.eventfd_write(self.descriptor, 1)
        except BlockingIOError:
            return

    def clear(self) -> None:
        """Forget rings so far."""
        if self.descriptor < 0:
            return
        try:
            os.eventfd_read(self.descriptor)
        except BlockingIOError:
            return

    def wait(self, timeout_s: float | None) -> bool:
        """Sleep until rung; False after `timeout_s` (microsecond resolution below 10 ms)."""
        if timeout_s is not None and timeout_s < 0.01 and self.descriptor < 1024:
            ready: object = select.select([self.descriptor], [], [], timeout_s)[0]
        else:
            poll = select.poll()
            poll.register(self.descriptor, select.POLLIN)
            ready = poll.poll(None if timeout_s is None else timeout_s * 1000)
        if not ready:
            return False
        self.clear()
        return True

    def close(self) -> None:
        """Give the descriptor back. Safe to call twice."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def __del__(self) -> None:
        self.close()
