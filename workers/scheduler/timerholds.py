"""Timers that are being recalled, or were: none of them is delivered meanwhile.

Any number may have been recalled long before they are due: no step looks at all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gantrymq.workers.scheduler.timerbuckets import span_at
from gantrymq.workers.scheduler.timerpool import NEVER, is_delay, joined

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gantrymq.workers.scheduler.timerpool import Entries


class TimerHolds:
    """By position: what waits for its recall's outcome, and what has it in the log."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[Entries, Entries]] = {}
        #: As far as a bucket may still have them: when that bucket ends, NEVER until it is opened.
        self._gone: dict[int, int] = {}
        self._by_end: dict[int, set[int]] = {}  # the same, the other way round
        self._floor = 0  # none of these is below

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
        entries = joined(*self._held.pop(position))
        if position >= self._floor:
            self._note(position, span_at(int(entries["ms"].max()))[1] if len(entries) else NEVER)

    def forget(self, done_ms: int, floor: int) -> None:
        """Files of buckets that end by a time are gone, and no timer below a position counts."""
        for end_ms in [end_ms for end_ms in self._by_end if end_ms <= done_ms]:
            for position in self._by_end.pop(end_ms):
                del self._gone[position]
        if floor > self._floor:  # seldom: a move has ended
            self._floor = floor
            for position in [position for position in self._gone if position < floor]:
                self._by_end[self._gone.pop(position)].discard(position)

    def sift(self, entries: Entries) -> Entries:
        """Of entries that come into memory those that are not held, or gone; the held are kept."""
        is_out = self._are_out(entries["position"])
        if not is_out.any():
            return entries
        out = entries[is_out]
        for row, (ms, position) in enumerate(out[["ms", "position"]].tolist()):
            if position in self._gone:
                self._has_come(position, span_at(ms)[1])
            else:
                self._keep(position, out[row : row + 1])
        return entries[~is_out]

    def _are_out(self, positions: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of these are held, or gone: it costs as much as there are of the fewer."""
        held, gone = self._held, self._gone
        if len(positions) > len(held) + len(gone):
            found: NDArray[np.bool_] = np.zeros(len(positions), np.bool_)
            if held or gone:
                found = np.isin(positions, [*held, *gone])
            return found
        return np.array([one in held or one in gone for one in positions.tolist()], np.bool_)

    def _has_come(self, position: int, end_ms: int) -> None:
        """One that is gone was in the bucket that ends so."""
        self._by_end[self._gone[position]].discard(position)
        self._note(position, end_ms)

    def _note(self, position: int, end_ms: int) -> None:
        self._gone[position] = end_ms
        self._by_end.setdefault(end_ms, set()).add(position)

    def _keep(self, position: int, entry: Entries) -> None:
        at, after = self._held[position]
        if is_delay(entry)[0]:
            self._held[position] = at, joined(after, entry)
        else:
            self._held[position] = joined(at, entry), after

    def parts(self) -> tuple[Entries, Entries]:
        """Points in time, and delays, that are held."""
        pairs = self._held.values()
        return joined(*(at for at, _ in pairs)), joined(*(after for _, after in pairs))
