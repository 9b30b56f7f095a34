"""Descriptors that a signal handler which raises behind a call cannot lose.

CPython lets a handler run behind a plain call, before the result is assigned: a descriptor would be
nobody's.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def hold(held: list[T], call: Callable[..., T], *given: object) -> T:
    """Call what is no Python function; what it returns is put into `held` in the same step.

    Whoever calls this gives back what `held` has, however it ends.
    """
    held[:] = map(call, *((one,) for one in given))
    return held[0]


class Descriptor:
    """What a call has opened; given back once nobody has this object any more."""

    __slots__ = ("_held", "number")

    def __init__(self, call: Callable[..., int], *given: object) -> None:
        """`call` is as for `hold`; `int` for what is open already."""
        self._held: list[int] = []
        self.number = hold(self._held, call, *given)

    def __del__(self) -> None:
        # A handler may have raised as this was made.
        for number in getattr(self, "_held", ()):
            os.close(number)
