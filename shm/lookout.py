"""Waiting awake, shortly: for whoever's peers take less time to answer than a wake-up takes."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from gantrymq.shm.kernels.words import watch

_ROOM_FIRST: Final = 8


def address_of(memory: NDArray[np.uint8], at: int) -> int:
    """Where a word of shared memory is in this process, as long as the map is held."""
    return int(memory.ctypes.data) + at


class Lookout:
    """Words that are looked at together; `begin`, `add` each, `wait`."""

    def __init__(self) -> None:
        self._count = 0
        self._table = np.zeros(2 * _ROOM_FIRST, np.int64)
        self._view = self._table.data

    def begin(self) -> None:
        """Look at nothing yet."""
        self._count = 0

    def add(self, address: int, seen: int) -> None:
        """Look at a word, too; its memory is held until `wait` returns."""
        at = 2 * self._count
        if at == len(self._view):
            self._table = np.concatenate([self._table, np.zeros_like(self._table)])
            self._view = self._table.data
        self._view[at], self._view[at + 1] = address, seen
        self._count += 1

    @property
    def count(self) -> int:
        """How many words."""
        return self._count

    @property
    def table(self) -> NDArray[np.int64]:
        """Address of each, and what was seen of it; longer than `count`."""
        return self._table

    def wait(self, rounds: int) -> bool:
        """Whether a word is no longer as it was seen, after so many rounds of some 25 ns at most.

        Whoever is to change it goes first if it was woken on this very processor. It waits no more
        once another had the processor for long.
        """
        return bool(watch(self._table, self._count, rounds))
