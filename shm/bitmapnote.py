"""`gantry/bitmaps.json`: of which filters the bits in ConsumeQueueExt are known, and from where on.

The reader writes it, consumers read it; the board's `bitmap_changes` tells them when. Derived: a
consumer that finds no filter of its own there reads every record, as it does without bitmaps.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from gantrymq.shm.fromhandlers import require_ours
from gantrymq.shm.jsonsum import sum_holds, with_sum
from gantrymq.shm.jsontext import parse_json
from gantrymq.shm.queuenames import folder_of
from gantrymq.shm.storage import read_file, replace_file
from gantrymq.shm.valueranges import is_offset, is_small

if TYPE_CHECKING:
    from gantrymq.shm.storage import Storage

FILE: Final = "gantry/bitmaps.json"
DIRECTORY: Final = "consumequeue_ext"


@dataclass(frozen=True, slots=True)
class Covered:
    """A filter whose bits are in all bitmaps of records at log position `start` or above.

    `bits` is the length of a bitmap, `positions` are those of the filter's own bits (FL-61).
    """

    topic: str
    group: str
    dialect: str
    expression: str
    bits: int
    positions: tuple[int, ...]
    start: int

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What tells it from others: another text is another filter."""
        return (self.topic, self.group, self.dialect, self.expression)


def extension_directory(topic: str, queue_id: int) -> str:
    """Folder of a queue's extensions (SF-8)."""
    return f"{DIRECTORY}/{folder_of(topic)}/{queue_id}"


def write_covered(storage: Storage, filters: Sequence[Covered]) -> None:
    """Replace the note, durably. Raises OSError."""
    text = json.dumps({"filters": [asdict(item) for item in filters]})
    replace_file(storage, FILE, with_sum(text).encode())


def read_covered(storage: Storage) -> list[Covered]:
    """What was noted last; nothing without a note, or if it is damaged."""
    try:
        data = read_file(storage, FILE)
        if sum_holds(data) is False:
            return []
        return [_covered(item) for item in parse_json(data)["filters"]]
    except (FileNotFoundError, ValueError, KeyError, TypeError) as error:
        require_ours(error)
        return []


def forget_covered(storage: Storage) -> None:
    """Nothing is known of any filter's bits from now on. Raises OSError."""
    if storage.exists(FILE):
        storage.unlink(FILE)
        storage.sync_directory("gantry")


def extension_files(storage: Storage) -> list[str]:
    """All files of extensions, and those that stand where their folders should."""
    return [
        path
        for topic in storage.list(DIRECTORY)
        for queue in _in(storage, f"{DIRECTORY}/{topic}")
        for path in _in(storage, queue)
    ]


def _in(storage: Storage, path: str) -> list[str]:
    """What is in a folder; a file by itself."""
    if not storage.is_directory(path):
        return [path]
    return [f"{path}/{name}" for name in storage.list(path)]


def _covered(item: Mapping[str, Any]) -> Covered:
    positions = tuple(item["positions"])
    found = Covered(**{**item, "positions": positions})
    if not all(map(is_small, (found.bits, *positions))) or not is_offset(found.start):
        raise ValueError(f"bits {positions} of {found.bits} from {found.start}")
    if not all(position < found.bits for position in positions) or not positions:
        raise ValueError(f"bits {positions} of {found.bits}")
    if not all(isinstance(text, str) for text in found.key):
        raise ValueError(f"a filter {found.key}")
    return found
