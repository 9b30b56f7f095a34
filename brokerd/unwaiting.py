"""Standard error of an agent's process: what finds no room is dropped.

Python, and libraries, write warnings and errors there that nobody catches. If it is a pipe that is
full, because nobody reads it, whoever writes to it waits for ever.
"""

from __future__ import annotations

import io
import os
import select


class Unwaiting(io.TextIOBase):
    """A text stream to a descriptor, without a buffer. Writes do not wait, nor raise."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._room = select.poll()
        self._room.register(descriptor, select.POLLOUT)

    def fileno(self) -> int:
        """The descriptor."""
        return self._descriptor

    def writable(self) -> bool:
        """True."""
        return True

    def write(self, text: str) -> int:
        """Write as much as there is room for; all of it counts as written."""
        left = text.encode(errors="backslashreplace")
        try:
            while left and self._room.poll(0):
                left = left[os.write(self._descriptor, left[: select.PIPE_BUF]) :]
        except OSError:
            pass  # who read it has gone, its disk is full, or another has taken the room
        return len(text)
