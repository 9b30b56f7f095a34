"""Bucket files of timers against the scheduler's note. A start makes all anew if one is damaged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gantrymq.workers.scheduler.note import read_note
from gantrymq.workers.scheduler.timerbuckets import (
    DIRECTORY,
    bucket_names,
    damage_in,
    is_obstructed,
    owner_name,
    strangers,
)

if TYPE_CHECKING:
    from gantrymq.brokerd.verify.report import Report
    from gantrymq.shm.storage import Storage
    from gantrymq.workers.scheduler.note import Note


class TimerCheck:
    """Looks at what the note speaks of; behind that the next start reads the log."""

    def __init__(self, storage: Storage, report: Report) -> None:
        self._storage = storage
        self._report = report

    def run(self) -> None:
        """What has no business there, and what the note speaks of."""
        for path in strangers(self._storage):
            self._report.add(path, None, "stray file", "files of minutes and seconds")
        for name in bucket_names(self._storage.list(DIRECTORY)):
            if is_obstructed(self._storage, name):
                self._report.add(f"{DIRECTORY}/{name}", None, "not a file", "a file, and no link")
        self._check_note()

    def _check_note(self) -> None:
        """A scheduler at work removes files behind a note: then the next one is asked."""
        note = read_note(self._storage)
        while note is not None:
            found, before = self._damaged(note), note
            if not found or (note := read_note(self._storage)) == before:
                for path, at in found:
                    what = "missing file" if at is None else "damaged entry"
                    self._report.add(path, at, what, "whole entries, as the note says")
                return

    def _damaged(self, note: Note) -> list[tuple[str, int | None]]:
        """Files that are not as the note says, and where."""
        if not self._storage.exists(f"{DIRECTORY}/{owner_name(note.made)}"):
            return []  # they are another version's, or nobody's: a start makes them anew
        found: list[tuple[str, int | None]] = []
        for name, noted in sorted(note.buckets.items()):
            path = f"{DIRECTORY}/{name}"
            if is_obstructed(self._storage, name):
                continue  # it was told of
            try:
                at: int | None = damage_in(self._storage, name, noted)
            except FileNotFoundError:
                at = None
            if at != -1:
                found.append((path, at))
        return found
