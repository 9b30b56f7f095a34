"""SIGTERM, SIGINT and SIGHUP of a broker: they end its start, later they are something to poll.

A terminal that is closed sends SIGHUP: to end by it would be as a kill. `nohup` has it ignored.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Final, NoReturn

from gantrymq.brokerd.reactor import Reactor

_STOPS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Interrupted(Exception):
    """A signal came before there was a broker that could stop by it."""


class Signals:
    """Raises Interrupted where the start is, until `hold`; what comes later waits for `watch`."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        for number in _heard():
            signal.signal(number, _interrupt)

    def hold(self) -> None:
        """From here on no signal breaks anything off, whose half nobody would take back."""
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in _heard():
            signal.signal(number, _noted)

    def watch(self, reactor: Reactor, stop: Callable[[str], None]) -> None:
        """Stop the broker by a signal, also by one that has come since `hold`."""

        def hear() -> None:
            for number in os.read(self._read, 64):
                stop(signal.Signals(number).name)

        reactor.watch(self._read, hear)


def _heard() -> list[signal.Signals]:
    is_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [number for number in _STOPS if number is not signal.SIGHUP or not is_ignored]


def _interrupt(number: int, _frame: object) -> NoReturn:
    for each in _STOPS:  # another one would break off what the first has undone
        signal.signal(each, signal.SIG_IGN)
    raise Interrupted(signal.Signals(number).name)


def _noted(_number: int, _frame: object) -> None:
    """The wake-up descriptor has said it already."""
