"""Timers at hand: rows sorted by (time, position), in a few runs of falling length.

New rows become a run of their own; runs are merged as they come to be of like length, so that each
row is sorted a few times in all, however many come.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from gantrymq.shm.kernels import timer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    Entries = NDArray[np.void]

#: An entry of a bucket file: when it is due, which record it is, and its size with bits of what.
ENTRY: Final = np.dtype([("ms", "<i8"), ("position", "<i8"), ("size", "<u4"), ("hash", "<u4")])
assert ENTRY.itemsize == 24
#: Bits of `size` say what the entry is: shm.kernels.timer's KIND in the upper four.
KIND_SHIFT: Final = 28
SIZE_MASK: Final = (1 << KIND_SHIFT) - 1
AFTER_BIT: Final = timer.AFTER << KIND_SHIFT
DELETE_BIT: Final = timer.DELETE << KIND_SHIFT
#: What says of others that they are not to be delivered.
KILLERS: Final = (timer.DELETE | timer.ROLLED) << KIND_SHIFT
NEVER: Final = 1 << 62


def joined(*parts: Entries) -> Entries:
    """One behind the other; none without any. It names the type: numpy takes long to find out."""
    return np.concatenate(parts, dtype=ENTRY) if parts else np.zeros(0, ENTRY)


def is_delay(entries: Entries) -> NDArray[np.bool_]:
    """Which of them wait for a delay, and not for a point in time."""
    found: NDArray[np.bool_] = entries["size"] & AFTER_BIT != 0
    return found


def in_order(entries: Entries) -> Entries:
    """Sorted by (ms, position), each position once."""
    entries = each_once(entries)
    return entries[np.argsort(entries["ms"], kind="stable")]


def each_once(entries: Entries) -> Entries:
    """Sorted by position, each once."""
    positions = entries["position"]
    if len(entries) > 1 and not (positions[1:] > positions[:-1]).all():
        entries = entries[np.unique(positions, return_index=True)[1]]
    return entries


def are_among(positions: NDArray[np.int64], known: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which positions are among sorted ones."""
    if not len(known):
        return np.zeros(len(positions), np.bool_)
    places = np.minimum(np.searchsorted(known, positions), len(known) - 1)
    found: NDArray[np.bool_] = known[places] == positions
    return found


def that_are(values: NDArray[np.int64], wanted: Callable[[int], bool]) -> NDArray[np.bool_]:
    """Of which values something is true; it is asked once of each that is there."""
    each, rows = np.unique(values, return_inverse=True)
    found: NDArray[np.bool_] = np.array([wanted(value) for value in each.tolist()], np.bool_)[rows]
    return found


class TimerPool:
    """What is due next, by one clock."""

    def __init__(self) -> None:
        self._runs: list[Entries] = []
        #: The largest points in time, and delays' times, of what was dropped.
        self.put_ms = (0, 0)

    def __len__(self) -> int:
        return sum(map(len, self._runs))

    def add(self, entries: Entries) -> None:
        """Take rows in. A row that is there already is its caller's fault."""
        if not len(entries):
            return
        runs = self._runs
        runs.append(in_order(entries))
        while len(runs) > 1 and len(runs[-2]) <= 2 * len(runs[-1]):
            last = runs.pop()
            runs[-1] = in_order(joined(runs[-1], last))

    def next_ms(self) -> int:
        """When the first is due; NEVER if there is none."""
        return min((int(run["ms"][0]) for run in self._runs), default=NEVER)

    def take(self, now_ms: int, most: int) -> Entries:
        """Up to `most` rows that are due, in order; they stay until `drop`."""
        parts = []
        for run in self._runs:
            count = int(np.searchsorted(run["ms"][: most + 1], now_ms, "right"))
            parts.append(run[: min(count, most)])
        return in_order(joined(*parts))[:most]

    def drop(self, taken: Entries) -> None:
        """Rows that `take` has given are taken care of, from the first of them on."""
        if not len(taken):
            return
        after = is_delay(taken)
        new = [int(taken["ms"][kind].max(initial=0)) for kind in (~after, after)]
        self.put_ms = (max(self.put_ms[0], new[0]), max(self.put_ms[1], new[1]))
        last = (int(taken["ms"][-1]), int(taken["position"][-1]))
        kept = []
        for run in self._runs:
            behind = int(np.searchsorted(run["ms"], last[0], "left"))
            same = int(np.searchsorted(run["ms"], last[0], "right"))
            behind += int(np.searchsorted(run["position"][behind:same], last[1], "right"))
            if behind < len(run):
                kept.append(run[behind:])
        self._runs = kept

    def runs(self) -> Iterator[Entries]:
        """All rows, for those who look for some."""
        return iter(self._runs)

    def remove(self, positions: NDArray[np.int64]) -> None:
        """Forget rows of these positions."""
        if not len(positions):
            return
        kept = [run[~np.isin(run["position"], positions)] for run in self._runs]
        self._runs = [run for run in kept if len(run)]

    def pick(self, position: int) -> Entries:
        """Take out the row of one record, if it is here."""
        found = joined(*(run[run["position"] == position] for run in self._runs))
        self.remove(found["position"])
        return found

    def cut(self, from_ms: int) -> Entries:
        """Take out all rows that are due at or after a time."""
        kept, out = [], []
        for run in self._runs:
            at = int(np.searchsorted(run["ms"], from_ms, "left"))
            out.append(run[at:])
            if at:
                kept.append(run[:at].copy())
        self._runs = kept
        return joined(*out)
