"""Timers that are being recalled, or were: none of them is delivered meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gantrymq.workers.scheduler.timerbuckets import span_at
from gantrymq.workers.scheduler.timerpool import ENTRY, NEVER, is_delay

if TYPE_CHECKING:
    from gantrymq.workers.scheduler.timerpool import Entries


class TimerHolds:
    """By position: what waits for its recall's outcome, and what has it in the log."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[Entries, Entries]] = {}
        #: As far as a bucket may still have them: when that bucket ends, NEVER until it is opened.
        self._gone: dict[int, int] = {}

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
        entries = np.concatenate(self._held.pop(position))
        self._gone[position] = span_at(int(entries["ms"].max()))[1] if len(entries) else NEVER

    def forget(self, done_ms: int, floor: int) -> None:
        """Files of buckets that end by a time are gone, and no timer below a position counts."""
        self._gone = {
            position: end_ms
            for position, end_ms in self._gone.items()
            if end_ms > done_ms and position >= floor
        }

    def sift(self, entries: Entries) -> Entries:
        """Of entries that come into memory those that are not held, or gone; the held are kept."""
        for position, (at, after) in self._held.items():
            hit = entries[entries["position"] == position]
            is_after = is_delay(hit)
            self._held[position] = (
                np.concatenate((at, hit[~is_after])), np.concatenate((after, hit[is_after]))
            )  # fmt: skip
        out = [*self._held, *self._gone]
        if not out:
            return entries
        is_out = np.isin(entries["position"], out)
        for ms, position in entries[is_out][["ms", "position"]].tolist():
            if position in self._gone:
                self._gone[position] = span_at(ms)[1]
        return entries[~is_out]

    def parts(self) -> tuple[Entries, Entries]:
        """Points in time, and delays, that are held."""
        pairs = [(np.zeros(0, ENTRY), np.zeros(0, ENTRY)), *self._held.values()]
        return np.concatenate([at for at, _ in pairs]), np.concatenate([a for _, a in pairs])
