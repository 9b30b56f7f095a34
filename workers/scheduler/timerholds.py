"""Timers that are being recalled, or were: none of them is delivered meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from workers.scheduler.timerpool import AFTER_BIT, ENTRY

if TYPE_CHECKING:
    from workers.scheduler.timerpool import Entries


class TimerHolds:
    """By position: what waits for its recall's outcome, and what has it in the log."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[Entries, Entries]] = {}
        self._gone: set[int] = set()  # as far as a bucket may still have them

    def __bool__(self) -> bool:
        """Whether a recall is on its way."""
        return bool(self._held)

    def __len__(self) -> int:
        """Timers in memory whose recall is on its way."""
        return sum(len(at) + len(after) for at, after in self._held.values())

    def __contains__(self, position: int) -> bool:
        """Whether a timer was recalled."""
        return position in self._gone

    def hold(self, position: int, at: Entries, after: Entries) -> None:
        """Keep a timer's entries, as far as they are in memory: a point in time, or a delay."""
        self._held[position] = (at, after)

    def let_go(self, position: int) -> tuple[Entries, Entries]:
        """It was not recalled: its entries."""
        return self._held.pop(position)

    def give_up(self, position: int) -> None:
        """It was recalled."""
        del self._held[position]
        self._gone.add(position)

    def sift(self, entries: Entries) -> Entries:
        """Of entries that come into memory those that are not held, or gone; the held are kept."""
        for position, (at, after) in self._held.items():
            hit = entries[entries["position"] == position]
            is_after = hit["size"] & AFTER_BIT != 0
            self._held[position] = (
                np.concatenate((at, hit[~is_after])), np.concatenate((after, hit[is_after]))
            )  # fmt: skip
        out = [*self._held, *self._gone]
        return entries[~np.isin(entries["position"], out)] if out else entries

    def parts(self) -> tuple[Entries, Entries]:
        """Points in time, and delays, that are held."""
        pairs = [(np.zeros(0, ENTRY), np.zeros(0, ENTRY)), *self._held.values()]
        return np.concatenate([at for at, _ in pairs]), np.concatenate([a for _, a in pairs])
