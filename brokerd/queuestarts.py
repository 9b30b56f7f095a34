"""Where queues begin once segments are gone, and the note of it that a start compares files with.

`gantry/first_units.json`: the log's lowest position, and by `topic@queue` the first queue offset
whose record is still there. Written by retention after the segments went and before the files of
queues do, so a start can tell files that were removed from files that were lost. Before the
segments go as well: a queue of which all records go with them goes on where it was, also if the
power fails then.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from gantrymq.brokerd.queuefiles import QueueKey, is_sound, sound_position, unit_of
from gantrymq.shm import layout
from gantrymq.workers.housekeeper.progress import read_table, save_table

if TYPE_CHECKING:
    from gantrymq.shm.board import Board, TopicSlot
    from gantrymq.shm.storage import Storage

FILE: Final = "gantry/first_units.json"


def first_unit(storage: Storage, cq_bytes: int, key: QueueKey, units: range, low: int) -> int:
    """First queue offset among `units` whose record is at log position `low` or above.

    If all are removed, it is the offset behind the last. Positions rise in a queue: a damaged unit
    behind one whose record is there has its record there as well. Where none is known to be it
    says what the next sound one does; if none follows, its record is there, so that whoever reads
    it meets the damage. A filler unit (SF-65) says what the sound one before it does.
    """
    return units.start + bisect_left(
        units, True, key=lambda offset: _is_there(storage, cq_bytes, key, units, offset, low)
    )


def _is_there(
    storage: Storage, cq_bytes: int, key: QueueKey, units: range, offset: int, low: int
) -> bool:
    """Whether the record of a unit is, as far as one can know."""
    row = unit_of(storage, cq_bytes, key, offset)
    if row is None:
        return False
    left = unit_of(storage, cq_bytes, key, offset - 1) if offset > units.start else None
    if any(one and is_sound(one) and one["physical_offset"] >= low for one in (row, left)):
        return True
    if is_sound(row):
        return False
    if row["size"] == layout.CQ_FILLER_SIZE:
        before = sound_position(storage, cq_bytes, key, range(units.start, offset), last=True)
        return before is not None and before >= low
    following = sound_position(storage, cq_bytes, key, range(offset + 1, units.stop))
    return following is None or following >= low


def queue_start(storage: Storage, board: Board, topic: TopicSlot, queue_id: int, low: int) -> int:
    """The same of a queue on the board, among all units that it has by now."""
    at = board.queue_at(topic.queue_base + queue_id)
    units = range(board.word(at + layout.QUEUE_WRITTEN))
    return first_unit(storage, board.cq_bytes, (topic.name, queue_id), units, low) if units else 0


def starts_at(storage: Storage, board: Board, low: int) -> dict[QueueKey, int]:
    """Where all queues on the board begin in a log that begins at `low`."""
    return {
        (topic.name, queue_id): queue_start(storage, board, topic, queue_id, low)
        for topic in board.topics()
        for queue_id in range(topic.queue_count)
    }


def save_starts(storage: Storage, low: int, firsts: Mapping[QueueKey, int]) -> None:
    """Note where queues begin. Raises OSError."""
    begun = {key: first for key, first in firsts.items() if first}
    save_table(storage, FILE, ("low", low), begun)


def read_starts(storage: Storage) -> tuple[int, dict[QueueKey, int]] | None:
    """What was noted last; None without a note, or if it is damaged: then files are believed."""
    return read_table(storage, FILE, "low")
