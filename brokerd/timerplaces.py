"""Where the timers lie that wait in bucket files, for retention: each byte of them is read once.

Buckets grow at their ends. Of each only the number of its timers per segment is kept, and the
lowest position there: of ten million timers in thousands of minutes that is little.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from gantrymq.workers.scheduler.timerbuckets import (
    DIRECTORY,
    bucket_names,
    entries_at,
    owner_name,
    span_of,
)
from gantrymq.workers.scheduler.timerpool import ENTRY

if TYPE_CHECKING:
    from gantrymq.shm.storage import Storage
    from gantrymq.workers.scheduler.note import Note
    from gantrymq.workers.scheduler.timerpool import Entries

#: Base of a segment -> the lowest position of a timer there, and how many there are.
Places = dict[int, tuple[int, int]]


@dataclass(slots=True)
class _Known:
    """What of a bucket was read."""

    bytes: int = 0
    places: Places = field(default_factory=dict)


class TimerPlaces:
    """Looks at the scheduler's buckets as they are now, by its note."""

    def __init__(self, storage: Storage, segment_bytes: int) -> None:
        self._storage = storage
        self._segment_bytes = segment_bytes
        self._known: dict[str, _Known] = {}
        self._made = ""  # by which note these buckets are what they are

    def waiting(self, note: Note) -> Places:
        """What the note does not count; never less than what waits. Raises OSError."""
        while True:
            found = self._storage.list(DIRECTORY)
            places = self._look(found, note)
            if set(found) <= set(self._storage.list(DIRECTORY)):
                return places  # else a minute may have been split into files not looked at

    def are_believed(self, note: Note) -> bool:
        """Whether the buckets have all that the note counts; else a start reads the log again."""
        return self._storage.exists(f"{DIRECTORY}/{owner_name(note.made)}")

    def _look(self, found: list[str], note: Note) -> Places:
        names = bucket_names(found)
        # Files that belong to no note may be removed and begin anew under the same names.
        if note.made != self._made or owner_name(note.made) not in found:
            self._known.clear()
        self._made = note.made
        self._known = {name: known for name, known in self._known.items() if name in names}
        places: Places = {}
        for name in names:
            for base, (lowest, count) in self._of(name, note).items():
                if base + self._segment_bytes > note.timers_floor:
                    before = places.get(base, (lowest, 0))
                    places[base] = min(before[0], lowest), before[1] + count
        return places

    def _of(self, name: str, note: Note) -> Places:
        start, end = span_of(name)
        if end <= note.counted_ms:
            return {}
        try:
            if start < note.counted_ms:  # some of it is done with
                passing = _Known()
                self._read(name, passing, note.counted_ms)
                return passing.places
            known = self._known.setdefault(name, _Known())
            self._read(name, known, start)
        except FileNotFoundError:
            return {}  # it was delivered, or split, meanwhile
        return known.places

    def _read(self, name: str, known: _Known, later_ms: int) -> None:
        size = self._storage.size_of(f"{DIRECTORY}/{name}")
        if size < known.bytes:
            known.bytes, known.places = 0, {}
        if size - known.bytes < ENTRY.itemsize:
            return
        for entries, end in entries_at(self._storage, name, known.bytes):
            known.bytes = end
            self._count(entries[entries["ms"] > later_ms], known.places)

    def _count(self, entries: Entries, places: Places) -> None:
        positions = np.sort(entries["position"])
        bases = positions // self._segment_bytes * self._segment_bytes
        found, firsts, counts = np.unique(bases, return_index=True, return_counts=True)
        for base, lowest, count in zip(
            found.tolist(), positions[firsts].tolist(), counts.tolist(), strict=True
        ):
            before = places.get(base, (lowest, 0))
            places[base] = min(before[0], lowest), before[1] + count
