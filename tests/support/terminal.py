"""A pseudo-terminal: what a program shows to somebody who sits in front of it."""

from __future__ import annotations

import contextlib
import os
import pty
import termios
from types import TracebackType
from typing import Self


class Terminal:
    """Hand `slave` to a program as its stderr; `read` is the screen so far, escapes and all."""

    def __init__(self) -> None:
        self._master, self.slave = pty.openpty()
        termios.tcsetwinsize(self.slave, (24, 120))
        os.set_blocking(self._master, False)
        self._seen = b""

    def read(self) -> str:
        """All that was written until now."""
        with contextlib.suppress(BlockingIOError):  # nothing new
            while data := os.read(self._master, 1 << 16):
                self._seen += data
        return self._seen.decode(errors="replace")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._master)
        os.close(self.slave)
