"""`gantry/transactions.json`: how far the txn-checker has come, as of a log position.

Derived: without it half queue, op queue and log are read from where they begin.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Final

from gantrymq.shm.notefile import SCAN_BYTES, read_content, write_content
from gantrymq.shm.valueranges import is_offset, is_small
from gantrymq.workers.transactions.begun import BINDING

if TYPE_CHECKING:
    from gantrymq.shm.storage import Storage

FILE: Final = "gantry/transactions.json"
VERSION: Final = 1
#: Open and given-up halves that a note lists; with more of them it says where to read them from.
LISTED_MAX: Final = 1024
#: Halves before `halves_next` among which those are that a settlement without an answer has stored.
BEFORE_NOTE: Final = 4096


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
    #: Transactions of these of which something is decided: id and outcome.
    begun: list[list[str]] = field(default_factory=list)
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
    content = read_content(storage, FILE, VERSION)
    if content is None:
        return None
    try:
        lists = {
            name: [[int(n) for n in row[:4]] for row in content[name]]
            for name in ("open", "given_up")
        }
        if not all(_is_row(name, row) for name, rows in lists.items() for row in rows):
            return None
        numbers = {
            name: int(content[name])
            for name in (
                "scanned", "halves_next", "ops_next", "notes_next", "given_next",
                "half_progress", "op_progress",
            )
        }  # fmt: skip
        begun = [[str(tx), str(outcome)] for tx, outcome in content.get("begun", [])]
        if not all(outcome in BINDING for _tx, outcome in begun):
            return None
        return Note(**numbers, **lists, begun=begun)  # type: ignore[arg-type]
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _is_row(name: str, row: list[int]) -> bool:
    counts = row[2:] if name == "open" else row[2:3]
    return len(row) == 4 and all(map(is_offset, row)) and all(map(is_small, counts))


def write_note(storage: Storage, note: Note) -> None:
    """Replace the note, durably. Raises OSError."""
    write_content(storage, FILE, VERSION, asdict(note))
