"""ConsumeQueue files rebuilt from the log alone, sharing nothing with the product.

Plain Python from SF-20, SF-28, SF-61 to SF-65, SF-71 and SF-72 with literal offsets, so that a
wrong table in shm/layout.py cannot hide in both.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

RECORD_MAGICS = (0xDAA320A7, 0xDAA320AB)
FILLER_MAGIC = 0xCBD43194
UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
DEFAULT_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"


@dataclass
class Stored:
    """What a queue needs to know of a record."""

    position: int
    size: int
    queue_id: int
    queue_offset: int
    transaction: int
    store_ms: int
    topic: str
    properties: dict[str, str]


@dataclass
class Extension:
    """Extension file of one queue: bytes of all its files one after the other."""

    file_bytes: int
    bitmaps: list[bytes]
    data: bytearray = field(default_factory=bytearray)
    units: int = 0

    def put(self, code: int, store_ms: int) -> int:
        """Add a unit; returns its address (SF-71, SF-72)."""
        bitmap = self.bitmaps[self.units]
        self.units += 1
        unit = struct.pack(">hqqh", 20 + len(bitmap), code, store_ms, len(bitmap)) + bitmap
        left = self.file_bytes - len(self.data) % self.file_bytes
        if len(unit) > left - 4:
            self.data += (struct.pack(">h", -1)).ljust(left, b"\0")
        address = len(self.data) - (1 << 63)
        self.data += unit
        return address


def records(log_directory: Path, end: int) -> Iterator[Stored]:
    """Records of a log up to position `end`, in order."""
    for path in sorted(log_directory.iterdir()):
        data, base, at = path.read_bytes(), int(path.name), 0
        while base + at < end and at + 8 <= len(data):
            size, magic = struct.unpack_from(">iI", data, at)
            if magic not in RECORD_MAGICS:
                break
            yield parse(data[at : at + size], magic, base + at)
            at += size
        else:
            continue
        assert magic == FILLER_MAGIC or base + at >= end, f"{path.name} has no record at {at}"


def parse(data: bytes, magic: int, position: int) -> Stored:
    """One record (spec section 3)."""
    sys_flag = struct.unpack_from(">i", data, 36)[0]
    store_ms_at = 68 if sys_flag & 0x10 else 56
    body_at = store_ms_at + 8 + (20 if sys_flag & 0x20 else 8) + 12
    at = body_at + 4 + struct.unpack_from(">i", data, body_at)[0]
    width = 2 if magic == RECORD_MAGICS[1] else 1
    topic_bytes = int.from_bytes(data[at : at + width], "big")
    at += width
    properties = data[at + topic_bytes + 2 :]
    assert len(properties) == int.from_bytes(data[at + topic_bytes :][:2], "big")
    return Stored(
        position,
        len(data),
        struct.unpack_from(">i", data, 12)[0],
        struct.unpack_from(">q", data, 20)[0],
        sys_flag & 0xC,
        struct.unpack_from(">q", data, store_ms_at)[0],
        data[at : at + topic_bytes].decode(),
        properties_of(properties.decode()),
    )


def properties_of(text: str) -> dict[str, str]:
    """Properties as SF-28 reads them."""
    pairs = (part.split("\x01", 1) for part in text.split("\x02") if "\x01" in part)
    return {key: value for key, value in pairs if key and value}


def tags_code(record: Stored, levels: list[int]) -> int:
    """SF-62, SF-63."""
    if record.topic == "SCHEDULE_TOPIC_XXXX" and "DELAY" in record.properties:
        return record.store_ms + levels[min(int(record.properties["DELAY"]), len(levels)) - 1]
    code = 0
    for (unit,) in struct.iter_unpack(">H", record.properties.get("TAGS", "").encode("utf-16-be")):
        code = (code * 31 + unit) % (1 << 32)
    return code - (1 << 32) if code >= 1 << 31 else code


def queue_bytes(
    stored: list[Stored], settings: dict[str, str], extensions: dict[tuple[str, int], Extension]
) -> dict[tuple[str, int], bytes]:
    """Units of every plain queue, by topic and queue id (SF-61 to SF-65)."""
    words = settings.get("messageDelayLevel", DEFAULT_LEVELS).split()
    levels = [int(word[:-1]) * UNITS_MS[word[-1]] for word in words]
    queues: dict[tuple[str, int], bytearray] = {}
    for record in stored:
        if record.transaction in (0x4, 0xC):
            continue
        key = (record.topic, record.queue_id)
        queue = queues.setdefault(key, bytearray())
        assert record.queue_offset * 20 == len(queue), "a queue offset is missing or doubled"
        code = tags_code(record, levels)
        if key in extensions:
            code = extensions[key].put(code, record.store_ms)
        queue += struct.pack(">qiq", record.position, record.size, code)
    return {key: bytes(queue) for key, queue in queues.items()}


def split_into_files(data: bytes, file_bytes: int) -> dict[str, bytes]:
    """Names and whole contents of the files that hold a queue, unused bytes zero."""
    starts = range(0, len(data), file_bytes)
    return {f"{at:020d}": data[at : at + file_bytes].ljust(file_bytes, b"\0") for at in starts}
