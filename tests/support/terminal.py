"""A pseudo-terminal: what a program shows to somebody who sits in front of it."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import termios
import threading
from types import TracebackType
from typing import Self


class Terminal:
    """Hand `slave` to a program as its stderr; `read` is the screen so far, escapes and all.

    It is read as it comes: a terminal that nobody reads soon holds up who writes to it.
    """

    def __init__(self) -> None:
        self._master, self.slave = pty.openpty()
        termios.tcsetwinsize(self.slave, (24, 120))
        os.set_blocking(self._master, False)
        self._seen = b""
        self._lock = threading.Lock()
        self._end, self._ended = os.pipe()
        self._thread = threading.Thread(target=self._follow)
        self._thread.start()

    def read(self) -> str:
        """All that was written until now."""
        with self._lock:
            with contextlib.suppress(BlockingIOError):  # nothing new
                while data := os.read(self._master, 1 << 16):
                    self._seen += data
            return self._seen.decode(errors="replace")

    def _follow(self) -> None:
        while self._end not in select.select([self._master, self._end], [], [])[0]:
            self.read()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._ended)
        self._thread.join()
        for descriptor in (self._end, self._master, self.slave):
            os.close(descriptor)
