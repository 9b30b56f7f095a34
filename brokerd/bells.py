"""Bells that clients have as well: pipes, of which each process has an open description of its own.

What `fcntl` sets of a descriptor that was passed on, as whether calls by it block, holds for all
who have it, and an eventfd can't be opened a second time. A pipe can, by /proc: so whatever a
client does to what it was handed, rings of others and of the broker never block.
"""

from __future__ import annotations

import os

from gantrymq.shm.bell import EventBell
from gantrymq.shm.held import Descriptor


def make_bell() -> EventBell:
    """A bell that may be handed out. Raises OSError."""
    return EventBell(open_pipe())


def open_pipe() -> int:
    """A pipe, of which one descriptor is both ends. Raises OSError."""
    ends = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        return _reopen(ends[0])
    finally:
        for end in ends:
            os.close(end)


def hand_out(bell: EventBell) -> Descriptor:
    """A descriptor of a bell that `make_bell` made, for another process. Raises OSError."""
    return Descriptor(_reopen, bell.fileno())


def _reopen(number: int) -> int:
    # Both ends by one: who rings when nobody is there any more gets no SIGPIPE.
    return os.open(f"/proc/self/fd/{number}", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
