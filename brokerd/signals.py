"""SIGTERM, SIGINT and SIGHUP of a broker: they end its start, later they are something to poll.

A terminal that is closed sends SIGHUP: to end by it would be as a kill. `nohup` has it ignored.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NoReturn

from gantrymq.brokerd.reactor import Reactor

if TYPE_CHECKING:
    from gantrymq.brokerd.broker import Progress

_STOPS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Interrupted(Exception):
    """A signal came before there was a broker that could stop by it."""


class Signals:
    """Raises Interrupted where the start is, until `hold`; what comes later waits for `watch`.

    Python drops what is raised in some callbacks, as of a weak reference: a signal that comes there
    is raised by the next `telling`, or by `hold`.
    """

    def __init__(self) -> None:
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._came = ""
        for number in _heard():
            signal.signal(number, self._interrupt)

    def telling(self, progress: Progress) -> Progress:
        """The same progress of a start, which a signal ends there at the latest."""

        def tell(done: int, total: int, what: str) -> None:
            self._raise_again()
            progress(done, total, what)

        return tell

    def hold(self) -> None:
        """From here on no signal breaks anything off, whose half nobody would take back.

        Raises Interrupted for one that has come.
        """
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in _heard():
            signal.signal(number, _noted)
        self._raise_again()

    def watch(self, reactor: Reactor, stop: Callable[[str], None]) -> None:
        """Stop the broker by a signal, also by one that has come since `hold`."""

        def hear() -> None:
            for number in os.read(self._read, 64):
                stop(signal.Signals(number).name)

        reactor.watch(self._read, hear)

    def _interrupt(self, number: int, _frame: object) -> NoReturn:
        for each in _STOPS:  # another one would break off what the first has undone
            signal.signal(each, signal.SIG_IGN)
        self._came = signal.Signals(number).name
        raise Interrupted(self._came)

    def _raise_again(self) -> None:
        if self._came:
            raise Interrupted(self._came)


def _heard() -> list[signal.Signals]:
    is_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [number for number in _STOPS if number is not signal.SIGHUP or not is_ignored]


def _noted(_number: int, _frame: object) -> None:
    """The wake-up descriptor has said it already."""
