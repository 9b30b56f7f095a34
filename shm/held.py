"""What a call returns, kept where a signal handler that raises behind the call cannot lose it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def hold(held: list[T], call: Callable[..., T], *given: object) -> T:
    """Call what is no Python function; what it returns is put into `held` in the same step.

    CPython lets a handler run behind a plain call, before the result is assigned: a descriptor
    would be nobody's. Whoever calls this gives back what `held` has, however it ends.
    """
    held[:] = map(call, *((one,) for one in given))
    return held[0]
