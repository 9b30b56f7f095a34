"""What a start asks of ConsumeQueue files: are they all there, and what is in a unit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gantrymq.shm import layout
from gantrymq.shm.lognames import positions_in
from gantrymq.shm.queuenames import queue_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gantrymq.shm.board import Board
    from gantrymq.shm.storage import Storage

QueueKey = tuple[str, int]


def has_all_files(
    storage: Storage, cq_bytes: int, key: QueueKey, units: int, kept: int | None
) -> bool:
    """Whether no file is missing from the first one on, or from that of the unit `kept` on.

    `kept` is the first unit whose record is still in the log; None: not known. The queue's very
    first file may also begin with filler units in place of the ones before (SF-65).
    """
    folder = queue_directory(storage, *key)
    bases = set(map(int, positions_in(storage, folder)))
    first = min(bases, default=0)
    wanted = range(first, units * layout.CQ_UNIT_BYTES, cq_bytes)
    if not wanted or not bases.issuperset(wanted):
        return False
    if any(storage.size_of(f"{folder}/{base:020d}") != cq_bytes for base in wanted):
        return False
    if kept is None or first <= min(kept, units - 1) * layout.CQ_UNIT_BYTES:
        return True
    row = unit_of(storage, cq_bytes, key, first // layout.CQ_UNIT_BYTES)
    return row is not None and row["size"] == layout.CQ_FILLER_SIZE


def position_of(storage: Storage, board: Board, key: QueueKey, offset: int) -> int:
    """Log position of a queue's record; 0 where its unit is not to be had: all is needed then."""
    row = unit_of(storage, board.cq_bytes, key, offset)
    return int(row["physical_offset"]) if row else 0


def unit_of(storage: Storage, cq_bytes: int, key: QueueKey, offset: int) -> dict[str, Any] | None:
    """A unit of a queue; None if its file is not there whole."""
    at = offset * layout.CQ_UNIT_BYTES
    name = f"{queue_directory(storage, *key)}/{at // cq_bytes * cq_bytes:020d}"
    try:
        if storage.size_of(name) != cq_bytes:
            return None
        file = storage.open(name)
    except FileNotFoundError:  # retention may have taken it just now
        return None
    unit = bytearray(layout.CQ_UNIT_BYTES)
    file.read_into(unit, at % cq_bytes)
    file.close()
    return layout.CQ_UNIT.unpack(unit)


def is_sound(row: Mapping[str, Any]) -> bool:
    """Whether a unit can be that of a record (SF-68); a filler's is of none (SF-65)."""
    return 0 < row["size"] != layout.CQ_FILLER_SIZE and bool(row["physical_offset"] >= 0)


def sound_position(
    storage: Storage, cq_bytes: int, key: QueueKey, units: range, *, last: bool = False
) -> int | None:
    """The log position in the first (or last) sound one of these units; None if none is.

    Raises OSError.
    """
    folder, per_file = queue_directory(storage, *key), cq_bytes // layout.CQ_UNIT_BYTES
    bases = range(units.start // per_file * per_file, units.stop, per_file)
    for base in reversed(bases) if last else bases:
        first, end = max(units.start, base), min(units.stop, base + per_file)
        data = bytearray((end - first) * layout.CQ_UNIT_BYTES)
        if storage.exists(name := f"{folder}/{base * layout.CQ_UNIT_BYTES:020d}"):
            file = storage.open(name)
            file.read_into(data, (first - base) * layout.CQ_UNIT_BYTES)
            file.close()
        found = _sound_positions(data)
        if found:
            return found[-1 if last else 0]
    return None


def _sound_positions(data: bytearray) -> list[int]:
    """Log positions of the first and last sound unit; none without one."""
    import numpy as np

    rows = np.frombuffer(data, layout.CQ_UNIT.dtype)
    sizes, positions = rows["size"], rows["physical_offset"]
    sound = np.flatnonzero((sizes > 0) & (sizes != layout.CQ_FILLER_SIZE) & (positions >= 0))
    return [int(positions[at]) for at in sound[[0, -1]]] if len(sound) else []


def remove_files(storage: Storage, folder: str) -> None:
    """Remove all files of a queue, by its folder. Raises OSError."""
    for name in positions_in(storage, folder):
        storage.unlink(f"{folder}/{name}")


def write_units(
    storage: Storage, folder: str, file_bytes: int, at: int, units: memoryview,
    written: Callable[[str], None] | None = None,
) -> None:  # fmt: skip
    """Write units from byte `at` of a queue on, in files of that length. Raises OSError.

    `written` is called with each file's name before the next one is written. A file's length is
    durable then before its units: in a RocketMQ's folders a file tells the length of all (S286).
    """
    while units:
        base = at // file_bytes * file_bytes
        part = units[: base + file_bytes - at]
        name = f"{folder}/{base:020d}"
        file = storage.open(name, write=True) if storage.exists(name) else storage.create(name)
        try:
            if file.size() < file_bytes:
                file.truncate(file_bytes)
                if written is not None:
                    file.sync()
            file.write_at(part, at - base)
        finally:
            file.close()
        if written is not None:
            written(name)
        at += len(part)
        units = units[len(part) :]
