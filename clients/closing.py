"""What a `with` statement closes at its end, however it ends."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self


class Closing(ABC):
    """Has a `close` that is all there is to do."""

    @abstractmethod
    def close(self) -> None:
        """Give back what it holds. Safe to call twice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()
