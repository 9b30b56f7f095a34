"""SIGTERM and SIGINT as a wish to stop, for what runs until then."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def heard(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` at each of both; handlers there were are put back at the end.

    Outside of the main thread signals stay as they are, and so does one whose handler was not set
    from Python: nobody could put that back.
    """
    if threading.get_ident() != threading.main_thread().ident:
        yield
        return

    def hear(_number: int, _frame: FrameType | None) -> None:
        stop()

    before = {
        number: handler
        for number in (signal.SIGTERM, signal.SIGINT)
        if (handler := signal.getsignal(number)) is not None
    }
    try:
        for number in before:
            signal.signal(number, hear)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
