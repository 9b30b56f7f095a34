"""Single records of a store for those who look: by position, id, or queue offset.

Small reads by pread, of a live store or a stopped one, ours or a RocketMQ's; nothing is changed,
no broker is asked, numpy is not loaded.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from gantrymq.shm import layout
from gantrymq.shm.errors import Corrupt, Rejected
from gantrymq.shm.fromhandlers import require_ours
from gantrymq.shm.innerbatch import is_inner_batch
from gantrymq.shm.lognames import bases_of, segment_name
from gantrymq.shm.messageid import parse_offset_message_id
from gantrymq.shm.queuenames import queue_directory
from gantrymq.shm.ranges import Ranges, ranges_of
from gantrymq.shm.record import OWN, RECORD_MAGICS, RECOVERY, Filler, Invalid, Record, parse_record

if TYPE_CHECKING:
    from gantrymq.shm.storage import Storage

_HEAD: Final = layout.FILLER.size
#: Most records are no longer: one read brings them.
_FIRST_READ: Final = 2048


@dataclass(frozen=True, slots=True)
class Place:
    """What lies at a position: `data` are its bytes, `ours` whether GantryMQ wrote them."""

    position: int
    item: Record | Filler | Invalid
    data: bytes
    file: str
    ours: bool


class Unit(NamedTuple):
    """What a queue says of a message: where its record is, how long that is, and its offset.

    `older`: what it says of the message before, where that was looked at; positions rise.
    """

    position: int
    size: int
    offset: int
    older: int = -1

    def is_of(self, record: Record) -> bool:
        """Whether a record is the one that is meant; an inner batch has offsets of its own."""
        same = record.queue_offset == self.offset or is_inner_batch(record.sys_flag)
        return same and record.total_size == self.size


class StoreReader:
    """Reads the store below `storage`."""

    def __init__(self, storage: Storage, ranges: Ranges | None = None) -> None:
        """`ranges`: what of it is ours, if that was read already."""
        self._storage = storage
        #: What of it GantryMQ wrote.
        self.ranges = ranges_of(storage) if ranges is None else ranges
        self._bases: list[int] = []

    def place(self, position: int) -> Place:
        """What starts at a log position. Raises Rejected if no segment holds it."""
        base, size = self._segment(position)
        name = segment_name(base)
        left = base + size - position
        data = self._read(name, position - base, min(left, _FIRST_READ))
        total = int.from_bytes(data[:4], "big", signed=True)
        known = int.from_bytes(data[4:8], "big") in RECORD_MAGICS
        size = min(left, max(total, _HEAD) if known else _HEAD)
        data = data[:size] if size <= len(data) else self._read(name, position - base, size)
        ours = self.ranges.contains(position)
        check = OWN if ours else RECOVERY
        item = parse_record(data, 0, left, check, position)
        return Place(position, item, data, name, ours)

    def record(self, position: int) -> Record:
        """The record at a position. Raises Corrupt, or Rejected where none starts."""
        found = self.place(position)
        if isinstance(found.item, Record):
            return found.item
        if isinstance(found.item, Filler):
            raise Rejected(f"at {position} the segment's filler begins, no record")
        around = self.around(position)
        if around is None:
            raise Rejected(f"no record begins at {position}: {found.item.detail}")
        if around < position:
            raise Rejected(f"no record begins at {position}: it lies in the one at {around}")
        raise _damaged(found)

    def named(self, position: int) -> Record | None:
        """The record at a position that a unit or an index names; None if retention has removed it.

        That is so only below the log's beginning: whatever else is no record there is damage.
        Raises Corrupt, OSError.
        """
        found: Place | None = None
        fault = ""
        try:
            found = self.place(position)
        except (Rejected, FileNotFoundError) as error:
            require_ours(error)
            fault = str(error)
        if found is not None and isinstance(found.item, Record):
            return found.item
        # Looked at last: what retention has taken meanwhile may read as zeroes.
        if 0 <= position < self._low():
            return None
        if found is not None:
            raise _damaged(found)
        raise Corrupt(
            f"what names a record at {position} is damaged, or its segment is gone: {fault};"
            " `gantrymq store verify` lists all damage",
            path=segment_name(max(position, 0)),
            position=position,
        )

    def of_unit(self, unit: Unit) -> Record | None:
        """The record that a unit means; None if retention has removed it. Raises Corrupt, OSError.

        No other one's message is taken for it.
        """
        record = self.named(unit.position)
        if record is None and unit.position >= unit.older:
            return None
        if record is not None and unit.is_of(record):
            return record
        raise Corrupt(
            f"the record at {unit.position} is not what its queue says of offset {unit.offset}:"
            " `gantrymq store verify` lists all damage",
            position=unit.position,
            queue_offset=unit.offset,
        )

    def around(self, position: int) -> int | None:
        """Where the record begins that a position lies in, by the sizes of those before it.

        One begins where they lead to, whatever its own size says; not where the log ends.
        """
        base, size = self._segment(position)
        at = base
        file = self._storage.open(segment_name(base))
        head = bytearray(_HEAD)
        try:
            while at <= position < base + size:
                file.read_into(head, at - base)
                total = int.from_bytes(head[:4], "big", signed=True)
                known = int.from_bytes(head[4:], "big") in RECORD_MAGICS
                if not known or total < layout.RECORD_BYTES_MIN:
                    return at if at == position and any(head) else None
                if position < at + total:
                    return at
                at += total
        finally:
            file.close()
        return None

    def units(self, topic: str, queue_id: int, start: int, end: int, cq_bytes: int) -> list[Unit]:
        """Units of queue offsets [start, end), damaged or not, as far as there are files."""
        found: list[Unit] = []
        per_file = cq_bytes // layout.CQ_UNIT_BYTES
        folder = queue_directory(self._storage, topic, queue_id)
        while start < end:
            first = start // per_file * per_file
            count = min(end, first + per_file) - start
            name = f"{folder}/{first * layout.CQ_UNIT_BYTES:020d}"
            try:
                at = (start - first) * layout.CQ_UNIT_BYTES
                data = self._read(name, at, count * layout.CQ_UNIT_BYTES)
            except FileNotFoundError as error:
                require_ours(error)
                data = b""  # expired
            for unit_at in range(0, len(data), layout.CQ_UNIT_BYTES):
                row = layout.CQ_UNIT.unpack(data, unit_at)
                offset = start + unit_at // layout.CQ_UNIT_BYTES
                older = found[-1].position if found else -1
                unit = Unit(row["physical_offset"], row["size"], offset, older)
                if not is_filler(unit):
                    found.append(unit)
            start += count
        return found

    def _low(self) -> int:
        """Where the log begins: bytes of a segment change only once it is out of the folder."""
        return min(bases_of(self._storage), default=1 << 63)

    def _segment(self, position: int) -> tuple[int, int]:
        """Base and length of the segment that holds a position."""
        found = self._known(position)
        if found is None:
            self._bases = bases_of(self._storage)
            found = self._known(position)
        if found is None:
            held = f"they hold {self._bases[0]} and more" if self._bases else "there are none"
            raise Rejected(f"no segment holds log position {position}: {held}")
        return found

    def _known(self, position: int) -> tuple[int, int] | None:
        """The same by the segments that were there at the last look."""
        index = bisect_right(self._bases, position) - 1
        if index < 0:
            return None
        base = self._bases[index]
        try:
            size = self._storage.size_of(segment_name(base))
        except FileNotFoundError as error:
            require_ours(error)
            return None
        return (base, size) if position < base + size else None

    def _read(self, name: str, at: int, count: int) -> bytes:
        file = self._storage.open(name)
        try:
            buffer = bytearray(count)
            return bytes(buffer[: file.read_into(buffer, at)])
        finally:
            file.close()


def is_filler(unit: Unit) -> bool:
    """Whether there never was a message at this offset (SF-65)."""
    return unit.size == layout.CQ_FILLER_SIZE and unit.position == 0


def _damaged(found: Place) -> Corrupt:
    """The error of what should be a record."""
    item = found.item
    what = f"{item.fault}, {item.detail}" if isinstance(item, Invalid) else "a filler begins there"
    return Corrupt(
        f"the record at {found.position} is damaged: {what}; `gantrymq store verify` lists all"
        " damage",
        path=found.file,
        position=found.position,
    )


def is_position(text: str) -> bool:
    """Whether it is a log position: fewer digits than an id has."""
    return text.isdecimal() and len(text) <= len(str(1 << 63))


def position_of(text: str) -> int:
    """A log position: a number, or an offset message id (SF-31, SF-33).

    Raises Rejected. A number has fewer digits than an id.
    """
    if is_position(text):
        return int(text)
    try:
        return parse_offset_message_id(text)[1]
    except ValueError as error:
        require_ours(error)
        raise Rejected(
            f"{text!r} is neither a log position nor an offset message id (32 or 56 hex digits)"
        ) from None
