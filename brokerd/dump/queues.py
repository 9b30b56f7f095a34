"""ConsumeQueues in memory: read from disk, completed and cut as RocketMQ does at start.

Files stay as they are; `add` and `cut` change the picture only.
Rules SF-64 to SF-68, SF-75, SF-88, SF-92.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

import numpy as np

from gantrymq.shm import layout
from gantrymq.shm.segment import columns, open_files, require_length

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gantrymq.shm.storage import Storage
    from gantrymq.shm.structs import Struct

#: Recovery trusts what lies before the third last file (SF-88).
_FILES_SCANNED: Final = 3
_FILLER: Final = (0, layout.CQ_FILLER_SIZE, 0)


class Dispatched(NamedTuple):
    """What dispatch knows of one record."""

    physical_offset: int
    size: int
    tags_code: int
    store_timestamp: int
    queue_offset: int
    messages: int  # 1, or those of an inner batch
    ext: dict[str, Any] | None = None  # what an extension unit would say

    @property
    def end(self) -> int:
        """Position behind the record."""
        return self.physical_offset + self.size


class QueueFile:
    """One file: position of its first byte in the queue, its units, and how many count."""

    def __init__(self, base: int, units: NDArray[Any]) -> None:
        self.base = base
        self.units = units
        self.count = len(units)


class Queue:
    """A plain ConsumeQueue."""

    kind: ClassVar[str] = "SimpleCQ"
    directory: ClassVar[str] = "consumequeue"
    table: ClassVar[Struct] = layout.CQ_UNIT

    def __init__(self, topic: str, queue_id: int, file_bytes: int) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.file_bytes = file_bytes
        self.files: list[QueueFile] = []
        self.added: list[tuple[int, ...]] = []
        self.exts: dict[int, dict[str, Any]] = {}  # extensions of added units, by unit number
        self.max_physical = -1
        self._first = 0  # unit number where `added` starts if there is no file
        self._min = 0

    def load(self, storage: Storage) -> None:
        """Map the queue's files and find its end (SF-88)."""
        directory = f"{self.directory}/{self.topic}/{self.queue_id}"
        files = open_files(storage, directory)
        for base, view in files:
            require_length(f"{directory}/{base:020d}", len(view), self.file_bytes)
        self.files = [QueueFile(base, columns(view, self.table)) for base, view in files]
        self._min = self.first
        for number in range(max(0, len(self.files) - _FILES_SCANNED), len(self.files)):
            file = self.files[number]
            invalid = np.flatnonzero(~self.valid(file.units))
            file.count = int(invalid[0]) if len(invalid) else len(file.units)
            if file.count:
                self.max_physical = self.reach(file)
            if len(invalid):
                del self.files[number + 1 :]
                break

    def reach(self, file: QueueFile) -> int:
        """Position that `max_physical` takes from a file's last unit: the end of its record."""
        unit = file.units[file.count - 1]
        return int(unit["physical_offset"]) + int(unit["size"])

    def valid(self, units: NDArray[Any]) -> NDArray[np.bool_]:
        """Which units recovery takes (SF-68)."""
        found: NDArray[np.bool_] = (units["physical_offset"] >= 0) & (units["size"] > 0)
        return found

    @property
    def first(self) -> int:
        """Number of the first unit in the oldest file."""
        return self.files[0].base // self.table.size if self.files else self._first

    @property
    def end(self) -> int:
        """Number of the next unit."""
        last = self.files[-1] if self.files else None
        kept = last.base // self.table.size + last.count if last else self._first
        return kept + len(self.added)

    @property
    def max_offset(self) -> int:
        """Queue offset of the next message (SF-67)."""
        return self.end

    @property
    def min_offset(self) -> int:
        """Queue offset of the first message that still exists (SF-67)."""
        return self._min

    def add(self, record: Dispatched) -> None:
        """Append a record's unit, or skip it as a duplicate (SF-65)."""
        if record.end <= self.max_physical:
            return
        if record.queue_offset and not self.files and not self.added:
            start = record.queue_offset * self.table.size
            self._first = start // self.file_bytes * self.file_bytes // self.table.size
            self._min = record.queue_offset
            self.added = [_FILLER] * (record.queue_offset - self._first)
        if record.queue_offset and record.queue_offset < self.end:
            return
        if record.ext is not None:
            self.exts[self.end] = record.ext
        self.added.append(self.unit_of(record))
        self.max_physical = record.end

    def unit_of(self, record: Dispatched) -> tuple[int, ...]:
        """Fields of the unit that stands for a record."""
        return record.physical_offset, record.size, record.tags_code

    def cut(self, end: int) -> None:
        """Drop units of records at or behind position `end` (SF-92).

        What was added lies before it, so a queue with added units has none to drop.
        """
        if self.added:
            return
        self.max_physical = end
        while self.files:
            file = self.files[-1]
            offsets = file.units["physical_offset"]
            if offsets[0] < end:
                stays = self.valid(file.units) & (offsets < end)
                stays[0] = True  # taken without a look at its size
                gone = np.flatnonzero(~stays)
                file.count = int(gone[0]) if len(gone) else len(file.units)
                self.max_physical = self.reach(file)
                return
            self.files.pop()

    def correct_min(self, log_min: int) -> None:
        """Move the min offset to the first unit whose record still exists (SF-67).

        RocketMQ looks for it in the oldest file only: if all records of that file are gone, and the
        file is not, the min offset stays.
        """
        last = next(self.units(self.end - 1), None) if self.end > self.first else None
        if last is None or last[1][0] < log_min:
            self._min = self.end
            return
        limit = self.first - self.first % self.units_per_file + self.units_per_file
        for number, unit in self.units(self._min):
            if number >= limit:
                return
            if unit[0] >= log_min:
                self._min = number
                return

    @property
    def units_per_file(self) -> int:
        """Units that one file holds."""
        return max(1, self.file_bytes // self.table.size)

    def destroy(self) -> None:
        """Forget all units (SF-95)."""
        self.files = []
        self._first = self._min = 0
        self.max_physical = -1

    def units(self, start: int) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Unit numbers and fields from unit number `start` on."""
        number = self.first
        for file in self.files:
            if number + file.count > start:
                skip = max(0, start - number)
                yield from enumerate(file.units[skip : file.count].tolist(), number + skip)
            number += file.count
        for unit in self.added:
            if number >= start:
                yield number, unit
            number += 1


class BatchQueue(Queue):
    """The queue of a topic with `queue.type=BatchCQ`: a unit is a batch (SF-75)."""

    kind = "BatchCQ"
    directory = "batchconsumequeue"
    table = layout.BATCH_CQ_UNIT

    def reach(self, file: QueueFile) -> int:
        """Start of the last unit's record, not its end as in a plain queue."""
        return int(file.units["physical_offset"][file.count - 1])

    def valid(self, units: NDArray[Any]) -> NDArray[np.bool_]:
        """Which units recovery takes."""
        counts = (units["base_offset"] >= 0) & (units["batch_size"] > 0)
        found: NDArray[np.bool_] = super().valid(units) & counts
        return found

    @property
    def max_offset(self) -> int:
        """Last base offset and its count."""
        last = next(self.units(self.end - 1), None) if self.end > self.first else None
        return last[1][4] + last[1][5] if last else 0

    @property
    def min_offset(self) -> int:
        """Base offset of the first batch that still exists."""
        first = next(self.units(self._min), None)
        return first[1][4] if first else self.max_offset

    def add(self, record: Dispatched) -> None:
        """Append a batch's unit, or skip it as a duplicate; its place says nothing."""
        if record.physical_offset > self.max_physical:
            self.added.append(self.unit_of(record))
            self.max_physical = record.physical_offset

    def unit_of(self, record: Dispatched) -> tuple[int, ...]:
        """Fields of the unit that stands for a batch."""
        head = (record.physical_offset, record.size, record.tags_code, record.store_timestamp)
        return (*head, record.queue_offset, record.messages, -1, 0)


def load_queues(storage: Storage, plain_bytes: int, batch_bytes: int) -> list[Queue]:
    """All queues of a store, by topic and number; names that are no numbers are skipped (SF-77)."""
    found: list[Queue] = []
    for queue_class, file_bytes in ((Queue, plain_bytes), (BatchQueue, batch_bytes)):
        for topic in storage.list(queue_class.directory):
            for name in storage.list(f"{queue_class.directory}/{topic}"):
                if name.isdecimal():
                    queue = queue_class(topic, int(name), file_bytes)
                    queue.load(storage)
                    found.append(queue)
    return found


class ExtFiles:
    """A queue's ConsumeQueueExt files: filter data by address (SF-71)."""

    def __init__(self, storage: Storage, topic: str, queue_id: int) -> None:
        self.files = open_files(storage, f"consumequeue_ext/{topic}/{queue_id}")

    def unit(self, tags_code: int) -> dict[str, Any] | None:
        """Return the extension that a unit's tagsCode is the address of; None if it is none."""
        if tags_code > layout.CQ_EXT_ADDRESS_MAX:
            return None
        position = tags_code - layout.CQ_EXT_ADDRESS_BASE
        for base, view in self.files:
            at = position - base
            if 0 <= at <= len(view) - layout.CQ_EXT_UNIT.size:
                fields = layout.CQ_EXT_UNIT.unpack(view.data, at)
                bits = at + layout.CQ_EXT_UNIT.size
                bitmap = bytes(view[bits : bits + max(0, fields["bitmap_bytes"])])
                return ext_fields(fields["tags_code"], fields["store_timestamp"], bitmap)
        return None


def ext_fields(tags_code: int, store_timestamp: int, bitmap: bytes) -> dict[str, Any]:
    """Extension unit as the dump shows it (SF-72)."""
    return {
        "size": layout.CQ_EXT_UNIT.size + len(bitmap),
        "tagsCode": tags_code,
        "storeTimestamp": store_timestamp,
        "bitMap": bitmap.hex(),
    }
