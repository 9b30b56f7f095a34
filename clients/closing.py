"""What a `with` statement closes at its end, however it ends."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NoReturn, Self


class Closing(ABC):
    """Has a `close` that is all there is to do."""

    @abstractmethod
    def close(self) -> None:
        """Give back what it holds. Safe to call twice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


class OfOneProcess:
    """Cannot be pickled or copied: it owns descriptors, memory or threads of its process."""

    __slots__ = ()

    def __reduce_ex__(self, _protocol: object) -> NoReturn:
        kind = type(self).__name__
        raise TypeError(
            f"cannot pickle or copy a {kind}: it belongs to the process that made it. Hand over the"
            f" home directory and what else it was made with, and make a {kind} there"
        )
