"""Index files rebuilt from the log alone, sharing nothing with the product.

Plain Python from SF-28, SF-61, SF-78 to SF-80, SF-118 and SF-122 with literal offsets, over the
records of `cq_oracle`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from tests.support.cq_oracle import Stored

HEADER = 40
ENTRY = struct.Struct(">iqii")
HASH_MAX = 0x7FFFFFFF


@dataclass
class File:
    """One index file to be."""

    slot_count: int
    entry_count: int
    begin_ms: int = 0
    end_ms: int = 0
    begin_position: int = 0
    end_position: int = 0
    used_slots: int = 0
    count: int = 1
    slots: dict[int, int] = field(default_factory=dict)
    entries: list[bytes] = field(default_factory=list)

    @property
    def full(self) -> bool:
        """No further entry fits (SF-79)."""
        return self.count >= self.entry_count

    def following(self) -> File:
        """The file behind this one, without an entry yet (SF-80)."""
        place = (self.end_ms, self.end_ms, self.end_position, self.end_position)
        return File(self.slot_count, self.entry_count, *place)

    def put(self, key_hash: int, position: int, store_ms: int) -> None:
        """SF-79."""
        slot = key_hash % self.slot_count
        prev = self.slots.get(slot, 0)
        seconds = (store_ms - self.begin_ms) // 1000 if self.begin_ms > 0 else 0
        diff = max(0, min(seconds, HASH_MAX))
        self.entries.append(ENTRY.pack(key_hash, position, diff, prev))
        self.slots[slot] = self.count
        if self.count <= 1:
            self.begin_position, self.begin_ms = position, store_ms
        if prev == 0:
            self.used_slots += 1
        self.count += 1
        self.end_position, self.end_ms = position, store_ms

    def encode(self) -> bytes:
        """The whole file."""
        on_disk = self.count if self.count > 1 else 0
        header = struct.pack(
            ">qqqqii", self.begin_ms, self.end_ms, self.begin_position, self.end_position,
            self.used_slots, on_disk,
        )  # fmt: skip
        slots = bytearray(4 * self.slot_count)
        for slot, number in self.slots.items():
            struct.pack_into(">i", slots, 4 * slot, number)
        entries = bytes(ENTRY.size) + b"".join(self.entries)
        return header + bytes(slots) + entries.ljust(ENTRY.size * self.entry_count, b"\0")


def key_hash(text: str) -> int:
    """|Java's hash|, 0 for -2^31 (SF-4, SF-78)."""
    value = 0
    for (unit,) in struct.iter_unpack(">H", text.encode("utf-16-be")):
        value = (value * 31 + unit) % (1 << 32)
    value = abs(value - (1 << 32) if value >= 1 << 31 else value)
    return value if value <= HASH_MAX else 0


def keys_of(record: Stored, *, tags: bool) -> Iterator[str]:
    """Key texts of a record in the order of their entries (SF-61, SF-78, SF-122)."""
    if record.transaction == 0xC:
        return
    if "UNIQ_KEY" in record.properties:
        yield f"{record.topic}#{record.properties['UNIQ_KEY']}"
    for word in record.properties.get("KEYS", "").split(" "):
        if word:
            yield f"{record.topic}#{word}"
    if tags and "TAGS" in record.properties:
        yield f"{record.topic}#T#{record.properties['TAGS']}"


def index_files(
    records: Iterable[Stored], slot_count: int, entry_count: int, *, tags: bool
) -> list[File]:
    """All files of a log, oldest first (SF-80, SF-118)."""
    files: list[File] = []

    def last() -> File:
        if not files or files[-1].full:
            files.append(files[-1].following() if files else File(slot_count, entry_count))
        return files[-1]

    for record in records:
        last()
        for key in keys_of(record, tags=tags):
            last().put(key_hash(key), record.position, record.store_ms)
    return files


def find(data: bytes, text: str, slot_count: int) -> list[int]:
    """Positions of entries with a key's hash in one file's bytes, newest first (SF-82)."""
    wanted = key_hash(text)
    count = max(1, struct.unpack_from(">i", data, 36)[0])
    number = struct.unpack_from(">i", data, HEADER + 4 * (wanted % slot_count))[0]
    found = []
    while 0 < number < count:
        at = HEADER + 4 * slot_count + ENTRY.size * number
        entry_hash, position, diff, prev = ENTRY.unpack_from(data, at)
        if diff < 0:
            break
        if entry_hash == wanted:
            found.append(position)
        if prev == number:
            break
        number = prev
    return found
