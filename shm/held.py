"""Descriptors that a signal handler which raises behind a call cannot lose.

CPython lets a handler run behind a plain call, before the result is assigned: a descriptor would be
nobody's.
"""

from __future__ import annotations

import select
from collections.abc import Callable
from typing import Self, TypeVar

T = TypeVar("T")


def hold(held: list[T], call: Callable[..., T], *given: object) -> T:
    """Call what is no Python function; what it returns is put into `held` in the same step.

    Whoever calls this gives back what `held` has, however it ends.
    """
    held[:] = map(call, *((one,) for one in given))
    return held[0]


class Descriptor:
    """What a call has opened; given back once nobody has this object any more.

    The collector tells the objects of a cycle of their end one by one, and one that is told may
    still use what another has: its number must not be somebody else's by then. So no finalizer
    gives it back, as those of files and sockets do: an epoll object of Python's does, which closes
    whatever number it was made of as its memory goes.
    """

    __slots__ = ("_owner", "number")

    def __init__(self, call: Callable[..., int], *given: object) -> None:
        """`call` is as for `hold`; `int` for what is open already."""
        owners: list[select.epoll] = []
        owners[:] = map(select.epoll.fromfd, map(call, *((one,) for one in given)))
        self._owner = owners[0]
        self.number = self._owner.fileno()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Give it back now. Safe to call twice; nobody may use `number` any more."""
        self._owner.close()
