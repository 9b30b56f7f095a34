"""Another broker that goes on with a store: RocketMQ's own bytes, moved to where they go now.

Records come from a golden store (a real RocketMQ's, without trailers) or are copies of records of
ours, as a broker with the trailer switched off makes them: their `__CRC32#` is stale then. Only
offsets and times are changed, at fixed places, so nothing here computes a checksum.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from gantrymq.shm.storage import Storage
from tests.support.golden import dump_lines, unpack

QUEUE_ID, QUEUE_OFFSET, POSITION, STORE_MS = (12, 4), (20, 8), (28, 8), (56, 8)
FILLER_MAGIC = 0xCBD43194
#: What RocketMQ writes into `abort`.
PROCESS_ID = b"4711"


def golden_records(folder: Path, count: int, bytes_max: int = 3000) -> list[bytes]:
    """Records of a real RocketMQ as it stored them, of topics PlainA and PlainB; IPv4 hosts."""
    folder.mkdir()
    golden = unpack("plain", folder)
    files = {int(path.name): path.read_bytes() for path in (golden.store / "commitlog").iterdir()}
    found = []
    for line in dump_lines("plain", "record"):
        at, size = line["physicalOffset"], line["size"]
        base = at // golden.segment_bytes * golden.segment_bytes
        if line["topic"] in ("PlainA", "PlainB") and size <= bytes_max:
            found.append(files[base][at - base : at - base + size])
    return found[:count]


@dataclass(slots=True)
class AnotherBroker:
    """Appends from log position `end` on; `next_offsets` are those of queues it finds."""

    storage: Storage
    segment_bytes: int
    end: int
    next_offsets: Counter[tuple[str, int]] = field(default_factory=Counter)
    places: list[tuple[int, int]] = field(default_factory=list)  # log position, size
    now_ms: int = field(default_factory=lambda: time.time_ns() // 1_000_000)

    def append(self, record: bytes, queue_id: int | None = None) -> int:
        """Store a record in its queue, or in another one; returns its log position."""
        data = bytearray(record)
        if queue_id is None:
            queue_id = _number(data, QUEUE_ID)
        left = self.segment_bytes - self.end % self.segment_bytes
        if len(data) + 8 > left:  # SF-20
            self._write(left.to_bytes(4, "big") + FILLER_MAGIC.to_bytes(4, "big"))
            self.end += left
        queue = topic_of(record), queue_id
        _set(data, QUEUE_ID, queue_id)
        _set(data, QUEUE_OFFSET, self.next_offsets[queue])
        _set(data, POSITION, self.end)
        _set(data, STORE_MS, self.now_ms)
        self.next_offsets[queue] += 1
        self._write(bytes(data))
        self.places.append((self.end, len(data)))
        self.end += len(data)
        return self.places[-1][0]

    def leave(self, *, killed: bool) -> None:
        """RocketMQ's clean stop removes `abort`; a killed one leaves its own."""
        if self.storage.exists("abort"):
            self.storage.unlink("abort")
        if killed:
            file = self.storage.create("abort")
            file.write_at(PROCESS_ID, 0)
            file.close()

    def _write(self, data: bytes) -> None:
        base = self.end // self.segment_bytes * self.segment_bytes
        name = f"commitlog/{base:020d}"
        exists = self.storage.exists(name)
        file = self.storage.open(name, write=True) if exists else self.storage.create(name)
        if not exists:
            file.truncate(self.segment_bytes)
        file.write_at(data, self.end - base)
        file.sync()
        file.close()
        self.storage.sync_directory("commitlog")


def body_of(record: bytes) -> bytes:
    """The body; IPv4 hosts only."""
    return record[88 : 88 + int.from_bytes(record[84:88], "big")]


def topic_of(record: bytes) -> str:
    """The topic; V1 records with IPv4 hosts only."""
    at = 88 + len(body_of(record))
    return record[at + 1 : at + 1 + record[at]].decode()


def _number(data: bytearray, place: tuple[int, int]) -> int:
    at, size = place
    return int.from_bytes(data[at : at + size], "big")


def _set(data: bytearray, place: tuple[int, int], value: int) -> None:
    at, size = place
    data[at : at + size] = value.to_bytes(size, "big")
