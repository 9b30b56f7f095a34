"""Waiting in tests: for a condition, never for a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

#: Long enough for a loaded machine; it ends a hang, it measures nothing.
PATIENCE_S = 60.0
_PAUSE_S = 0.002
#: Pauses are at least that many times as long as a look: what is waited for needs the processor.
_PAUSE_PER_LOOK = 3
#: And at least that part of the time that was waited so far: what takes long is looked for less.
_PAUSE_PART = 1 / 16
_PAUSE_MAX_S = 0.1


def poll_until(condition: Callable[[], T], what: str, patience_s: float = PATIENCE_S) -> T:
    """Call `condition` until its result is true and return it; in the end fail, naming `what`."""
    start = time.monotonic()
    deadline = start + patience_s
    while True:
        began = time.monotonic()
        result = condition()
        if result:
            return result
        now = time.monotonic()
        if now > deadline:
            raise AssertionError(
                f"waited {patience_s:.0f} s in vain until {what}; the last answer was {result!r}"
            )
        wanted = max(_PAUSE_PER_LOOK * (now - began), _PAUSE_PART * (now - start))
        time.sleep(max(_PAUSE_S, min(wanted, _PAUSE_MAX_S)))
