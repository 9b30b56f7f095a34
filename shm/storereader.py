"""Single records of a store for those who look: by position, id, or queue offset.

Small reads by pread, of a live store or a stopped one, ours or a RocketMQ's; nothing is changed,
no broker is asked, numpy is not loaded.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gantrymq.shm import layout
from gantrymq.shm.errors import Corrupt, Rejected
from gantrymq.shm.lognames import DIRECTORY, segment_name
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
        raise Corrupt(
            f"the record at {position} is damaged: {found.item.fault}, {found.item.detail};"
            " `gantrymq store verify` lists all damage",
            path=found.file,
            position=position,
        )

    def around(self, position: int) -> int | None:
        """Where the record begins that a position lies in, by the sizes of those before it."""
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
                    return None
                if position < at + total:
                    return at
                at += total
        finally:
            file.close()
        return None

    def units(self, topic: str, queue_id: int, start: int, end: int, cq_bytes: int) -> list[int]:
        """Positions of the records at queue offsets [start, end), as far as there are files."""
        found: list[int] = []
        per_file = cq_bytes // layout.CQ_UNIT_BYTES
        folder = queue_directory(self._storage, topic, queue_id)
        while start < end:
            first = start // per_file * per_file
            count = min(end, first + per_file) - start
            name = f"{folder}/{first * layout.CQ_UNIT_BYTES:020d}"
            try:
                at = (start - first) * layout.CQ_UNIT_BYTES
                data = self._read(name, at, count * layout.CQ_UNIT_BYTES)
            except FileNotFoundError:
                data = b""  # expired
            for unit_at in range(0, len(data), layout.CQ_UNIT_BYTES):
                unit = layout.CQ_UNIT.unpack(data, unit_at)
                if 0 < unit["size"] < layout.CQ_FILLER_SIZE:
                    found.append(unit["physical_offset"])
            start += count
        return found

    def _segment(self, position: int) -> tuple[int, int]:
        """Base and length of the segment that holds a position."""
        found = self._known(position)
        if found is None:
            self._bases = [int(n) for n in self._storage.list(DIRECTORY) if n.isdecimal()]
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
        except FileNotFoundError:
            return None
        return (base, size) if position < base + size else None

    def _read(self, name: str, at: int, count: int) -> bytes:
        file = self._storage.open(name)
        try:
            buffer = bytearray(count)
            return bytes(buffer[: file.read_into(buffer, at)])
        finally:
            file.close()


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
    except ValueError:
        raise Rejected(
            f"{text!r} is neither a log position nor an offset message id (32 or 56 hex digits)"
        ) from None
