"""Signals as something to poll."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from gantrymq.brokerd.reactor import Reactor


class Signals:
    """SIGTERM and SIGINT as something to poll: handlers only write to a pipe."""

    def __init__(self, reactor: Reactor, stop: Callable[[str], None]) -> None:
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._stop = stop
        reactor.watch(self._read, self._hear)
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _noted)

    def _hear(self) -> None:
        for number in os.read(self._read, 64):
            self._stop(signal.Signals(number).name)


def _noted(_number: int, _frame: object) -> None:
    """The wake-up descriptor has said it already."""
