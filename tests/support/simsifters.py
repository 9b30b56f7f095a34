"""Consumers with filters in the simulator: by tags, or by SQL92."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.support.simapps import Listener, Reader
from tests.support.simstamps import Sieve

if TYPE_CHECKING:
    from gantrymq.clients.subscription import FilterExpression
    from tests.support.simbooks import Books
    from tests.support.simdoor import DoorMachine

SIFTED: Final = "sifted"


class SiftingReader(Reader):
    """One PullConsumer of a group that does not want all."""

    def __init__(
        self, name: str, machine: DoorMachine, books: Books, sieves: dict[str, Sieve]
    ) -> None:
        self._sieves = sieves
        super().__init__(name, machine, books, SIFTED)

    def subscription(self) -> dict[str, FilterExpression]:
        """A filter for each topic."""
        return {topic: sieve.expression for topic, sieve in self._sieves.items()}


class SiftingListener(Listener):
    """One PushConsumer of such a group."""

    def __init__(
        self, name: str, machine: DoorMachine, books: Books, sieves: dict[str, Sieve]
    ) -> None:
        self._sieves = sieves
        super().__init__(name, machine, books, SIFTED)

    def subscription(self) -> dict[str, FilterExpression]:
        """A filter for each topic."""
        return {topic: sieve.expression for topic, sieve in self._sieves.items()}
