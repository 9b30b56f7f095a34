"""Which slots of the board's topic and queue tables may be used again."""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Place:
    """A slot of the topic table, and where in the queue table its queues are; -1: a new one."""

    slot: int
    base: int


NEW: Final = Place(-1, -1)


class Places:
    """Slots that were given back, and ranges of queues."""

    def __init__(self) -> None:
        self._slots: list[int] = []
        self._ranges: list[tuple[int, int]] = []  # (first, count), by first; none touch

    def take(self, queues: int) -> Place:
        """A slot, and so many queues that follow each other, as far as there are."""
        slot = self._slots.pop() if self._slots else -1
        return Place(slot, self._take_queues(queues))

    def _take_queues(self, count: int) -> int:
        for number, (first, room) in enumerate(self._ranges):
            if room >= count:
                self._ranges[number : number + 1] = (
                    [(first + count, room - count)] if room > count else []
                )
                return first
        return -1

    def give(self, place: Place, queues: int) -> None:
        """What `take` gave, or the place of a topic that has left."""
        if place.slot >= 0:
            self._slots.append(place.slot)
        if place.base >= 0 and queues:
            insort(self._ranges, (place.base, queues))
            self._join()

    def _join(self) -> None:
        joined: list[tuple[int, int]] = []
        for first, count in self._ranges:
            if joined and sum(joined[-1]) == first:
                joined[-1] = joined[-1][0], joined[-1][1] + count
            else:
                joined.append((first, count))
        self._ranges = joined
