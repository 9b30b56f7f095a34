"""`gantry/transactions.json`: how far the txn-checker has come, as of a log position.

Derived: without it half queue, op queue and log are read from where they begin.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Final

from shm.jsonsum import sum_holds, with_sum
from shm.storage import read_file, replace_file

if TYPE_CHECKING:
    from shm.storage import Storage

FILE: Final = "gantry/transactions.json"
VERSION: Final = 1
#: Open and given-up halves that a note lists; with more of them it says where to read them from.
LISTED_MAX: Final = 1024
#: So much more of the log to read at a start is worth a note.
SCAN_BYTES: Final = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Note:
    """What was durable when it was written."""

    #: Commit copies below this log position have their op records.
    scanned: int = 0
    #: First half that `open` says nothing of, first op and notes record that may speak of such.
    halves_next: int = 0
    ops_next: int = 0
    notes_next: int = 0
    #: Open halves below `halves_next`: offset, position, size, checks.
    open: list[list[int]] = field(default_factory=list)
    #: First record of the give-up queue that `given_up` says nothing of.
    given_next: int = 0
    #: Given up and not settled, below: its queue offset, position and size, the half's position.
    given_up: list[list[int]] = field(default_factory=list)
    #: For RocketMQ: first open half, first op record that may name one from there on (HO-40).
    half_progress: int = 0
    op_progress: int = 0

    def says_more_than(self, other: Note | None) -> bool:
        """Whether it is worth writing: progress, or much less of the log to read at a start."""
        if other is None or self.scanned - other.scanned >= SCAN_BYTES:
            return True
        return replace(self, scanned=0) != replace(other, scanned=0)


def read_note(storage: Storage) -> Note | None:
    """The note; None if it is gone or damaged."""
    try:
        data = read_file(storage, FILE)
    except FileNotFoundError:
        return None
    if not sum_holds(data):
        return None
    try:
        content = json.loads(data)
        if content["version"] != VERSION:
            return None
        lists = {
            name: [[int(n) for n in row[:4]] for row in content[name]]
            for name in ("open", "given_up")
        }
        if any(len(row) != 4 for rows in lists.values() for row in rows):
            return None
        numbers = {
            name: int(content[name])
            for name in (
                "scanned", "halves_next", "ops_next", "notes_next", "given_next",
                "half_progress", "op_progress",
            )
        }  # fmt: skip
        return Note(**numbers, **lists)  # type: ignore[arg-type]
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def write_note(storage: Storage, note: Note) -> None:
    """Replace the note, durably. Raises OSError."""
    content = {"version": VERSION, **asdict(note)}
    replace_file(storage, FILE, with_sum(json.dumps(content)).encode())
