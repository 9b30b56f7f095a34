"""`gantry/dead_letters.json`: what an operator has done with dead letters.

For each group and queue of `%DLQ%group`: ranges of queue offsets that were sent again, and that
were purged. JSON with a checksum (shm.jsonsum). Written by the command line, one at a time, and
by a start that finds other letters at these offsets, of a topic that a RocketMQ has made again.
It is truth: without it dead letters that were sent again or purged are shown as they were before.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from gantrymq.shm.errors import Corrupt
from gantrymq.shm.notefile import read_content, write_content
from gantrymq.shm.ownfiles import open_file
from gantrymq.shm.properties import DLQ_PREFIX
from gantrymq.shm.valueranges import id_of, offset_of

if TYPE_CHECKING:
    from pathlib import Path

    from gantrymq.shm.imported import Visit
    from gantrymq.shm.storage import Storage

FILE: Final = "gantry/dead_letters.json"
VERSION: Final = 1
Ranges = list[tuple[int, int]]


@dataclass(slots=True)
class Marks:
    """Of one queue: ranges [first, end) of offsets, in order, that do not touch."""

    resent: Ranges = field(default_factory=list)
    purged: Ranges = field(default_factory=list)


@dataclass(slots=True)
class DeadLetterNote:
    """All groups' marks, by group and queue id.

    They are of the letters that have these offsets in the log up to position `known`, or behind it
    as far as no other broker wrote that.
    """

    groups: dict[str, dict[int, Marks]] = field(default_factory=dict)
    known: int = 0

    def of(self, group: str, queue_id: int) -> Marks:
        """Marks of a queue, which may be changed."""
        return self.groups.setdefault(group, {}).setdefault(queue_id, Marks())

    def marked(self) -> set[str]:
        """Groups of which a letter is marked."""
        return {
            group
            for group, queues in self.groups.items()
            if any(marks.resent or marks.purged for marks in queues.values())
        }

    def keep(self, groups: Container[str]) -> None:
        """Forget the marks of all other groups."""
        self.groups = {group: marks for group, marks in self.groups.items() if group in groups}


def holds(ranges: Ranges, offset: int) -> bool:
    """Whether an offset is in one of the ranges."""
    return any(first <= offset < end for first, end in ranges)


def count_from(ranges: Ranges, low: int) -> int:
    """How many offsets from `low` on the ranges hold."""
    return sum(end - max(first, low) for first, end in ranges if end > low)


def counted(marks: Marks, low: int, high: int) -> tuple[int, int]:
    """Of a queue's letters [low, high) those that were not purged, and those of them sent again."""
    both = [
        (max(a, c, low), min(b, d))
        for a, b in marks.resent
        for c, d in marks.purged
        if max(a, c, low) < min(b, d)
    ]
    resent = count_from(marks.resent, low) - sum(end - first for first, end in both)
    return high - low - count_from(marks.purged, low), resent


def add(ranges: Ranges, more: Ranges) -> None:
    """Take more ranges in."""
    joined: Ranges = []
    for first, end in sorted([*ranges, *more]):
        if joined and first <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        elif first < end:
            joined.append((first, end))
    ranges[:] = joined


def read_note(storage: Storage) -> DeadLetterNote:
    """What the file says; nothing without it. Raises Corrupt, OSError."""
    if not storage.exists(FILE):
        return DeadLetterNote()
    content = read_content(storage, FILE, VERSION) or {}
    try:
        groups = {
            group: {id_of(queue): _marks(value) for queue, value in queues.items()}
            for group, queues in content["groups"].items()
        }
        return DeadLetterNote(groups, offset_of(content.get("known", 0)))
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    raise Corrupt(
        f"{FILE} is damaged: restore it, or delete it; then what was sent again or purged is shown"
        " as if it had not been",
        path=FILE,
    )


def write_note(storage: Storage, note: DeadLetterNote) -> None:
    """Replace the file, durably. Raises OSError."""
    content: dict[str, Any] = {
        "known": note.known,
        "groups": {
            group: {
                str(queue): {"resent": marks.resent, "purged": marks.purged}
                for queue, marks in sorted(queues.items())
            }
            for group, queues in sorted(note.groups.items())
        },
    }
    write_content(storage, FILE, VERSION, content)


def forget_marks(storage: Storage, visit: Visit) -> None:
    """Forget what was done with letters whose offsets mean others now.

    A RocketMQ has made their topics again. A damaged file stays as it is. Raises OSError.
    """
    try:
        note = read_note(storage)
    except Corrupt:
        return
    if not note.marked() or note.known >= visit.end:
        return
    for group, queues in note.groups.items():
        for queue_id, marks in queues.items():
            end = visit.offset_since(note.known, (f"{DLQ_PREFIX}{group}", queue_id))
            if end is not None:
                marks.resent, marks.purged = _below(marks.resent, end), _below(marks.purged, end)
    note.known = visit.end
    write_note(storage, note)


def _below(ranges: Ranges, end: int) -> Ranges:
    return [(first, min(last, end)) for first, last in ranges if first < end]


@contextmanager
def locked(store: Path) -> Iterator[None]:
    """Alone among those who change the file: waits for others. Raises OSError."""
    with open_file(store / "gantry", os.O_RDONLY | os.O_DIRECTORY) as folder:
        fcntl.flock(folder.number, fcntl.LOCK_EX)
        yield


def _marks(value: Any) -> Marks:  # noqa: ANN401 - JSON
    return Marks(
        *([(offset_of(a), offset_of(b)) for a, b in value[name]] for name in ("resent", "purged")),
    )
