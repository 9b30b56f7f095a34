"""`gantry/queues.json`: how far the ConsumeQueues are on the disk, which a start believes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from gantrymq.shm.jsonsum import sum_holds, with_sum
from gantrymq.shm.jsontext import parse_json
from gantrymq.shm.storage import read_file, replace_file
from gantrymq.shm.valueranges import id_of, offset_of

if TYPE_CHECKING:
    from gantrymq.shm.storage import Storage

PROGRESS_FILE: Final = "gantry/queues.json"
#: In place of the position, of a note whose position is still to come.
UNFINISHED: Final = -1


def save_progress(storage: Storage, position: int, written: Mapping[tuple[str, int], int]) -> None:
    """Note that these units, of all records below `position`, are durable. Raises OSError."""
    save_table(storage, PROGRESS_FILE, ("position", position), written)


def read_progress(storage: Storage) -> tuple[int, dict[tuple[str, int], int]] | None:
    """What was saved last; None if it is gone or damaged, for it is derived from the log."""
    return read_table(storage, PROGRESS_FILE, "position")


def save_table(
    storage: Storage, path: str, position: tuple[str, int], offsets: Mapping[tuple[str, int], int]
) -> None:
    """Write a log position, under its name, and a queue offset for each queue. Raises OSError."""
    name, value = position
    queues = {f"{topic}@{queue_id}": offset for (topic, queue_id), offset in offsets.items()}
    content = json.dumps({name: value, "queues": queues})
    replace_file(storage, path, with_sum(content).encode())


def read_table(
    storage: Storage, path: str, position: str
) -> tuple[int, dict[tuple[str, int], int]] | None:
    """What `save_table` wrote; None if it is gone or damaged."""
    try:
        data = read_file(storage, path)
        if sum_holds(data) is False:
            return None
        content = parse_json(data)
        parts = ((key.rpartition("@"), offset) for key, offset in content["queues"].items())
        offsets = {(topic, id_of(queue)): offset_of(offset) for (topic, _, queue), offset in parts}
        found = content[position]
        return UNFINISHED if found == UNFINISHED else offset_of(found), offsets
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        return None
