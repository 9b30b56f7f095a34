"""Transactions of which something is given up and not settled, while others of it are decided.

One decision is for all: it binds whoever settles the rest, however much later. The note lists these
outcomes, and records of settlements that lie behind it tell of more.
"""

from __future__ import annotations

from typing import Final

from gantrymq.shm.transactionwire import COMMITTED, ROLLED_BACK
from gantrymq.workers.transactions.identity import hash_of

#: What binds the others; to be given up does not.
BINDING: Final = (COMMITTED, ROLLED_BACK)


class Begun:
    """Outcomes by transaction; none is kept of one of which nothing is listed."""

    def __init__(self) -> None:
        self._listed: dict[int, int] = {}  # position of a half -> hash of its transaction's id
        self._counts: dict[int, int] = {}  # how many of a hash are listed
        self._outcomes: dict[int, tuple[str, str]] = {}  # hash -> id, outcome

    def add(self, half: int, tx: str) -> None:
        """A half of a transaction is given up."""
        if tx and half not in self._listed:
            key = self._listed[half] = hash_of(tx)
            self._counts[key] = self._counts.get(key, 0) + 1

    def drop(self, half: int) -> None:
        """It is settled, or gone."""
        key = self._listed.pop(half, 0)
        if not key:
            return
        self._counts[key] -= 1
        if not self._counts[key]:
            del self._counts[key]
            self._outcomes.pop(key, None)

    def learn(self, tx: str, outcome: str | None) -> None:
        """How something of a transaction was decided: the first one stands."""
        if outcome in BINDING and self._counts:
            key = hash_of(tx)
            if key in self._counts:
                self._outcomes.setdefault(key, (tx, outcome))

    def outcome(self, tx: str) -> str | None:
        """What binds those who settle the rest of a transaction."""
        known = self._outcomes.get(hash_of(tx)) if self._outcomes else None
        return known[1] if known is not None and known[0] == tx else None

    @property
    def listed(self) -> list[int]:
        """Hashes of all transactions of which something is listed."""
        return [*self._counts]

    @property
    def hashes(self) -> list[int]:
        """Hashes of all that are begun."""
        return [*self._outcomes]

    def rows(self) -> list[list[str]]:
        """Ids and outcomes, for the note."""
        return [[tx, outcome] for tx, outcome in self._outcomes.values()]
