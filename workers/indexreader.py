"""Looks keys up in a store's IndexFiles, by small reads (SF-82). Loads no numpy.

Of a store whose broker runs the newest half second may be missing (ADR 0013).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING

from shm import layout
from shm.errors import Rejected
from shm.properties import index_hash
from workers.reader.indexnote import DIRECTORY, Shape, parse_header

if TYPE_CHECKING:
    from shm.storage import File, Storage


class IndexReader:
    """Finds log positions of records that may have a key: those whose key has the same hash."""

    def __init__(self, storage: Storage, shape: Shape) -> None:
        self._storage = storage
        self._shape = shape

    def positions(self, topic: str, key: str) -> Iterator[int]:
        """Newest first. Raises Rejected if a file has another length than its sizes say."""
        code = index_hash(topic, key)
        for name in reversed(self._storage.list(DIRECTORY)):
            path = f"{DIRECTORY}/{name}"
            try:
                file = self._storage.open(path)
            except FileNotFoundError:
                continue  # expired meanwhile
            with closing(file):
                if file.size() != self._shape.file_bytes:
                    raise Rejected(
                        f"{path} has {file.size()} bytes, not {self._shape.file_bytes}: give the"
                        " broker's max_hash_slot_num and max_index_num in gantrymq.toml"
                    )
                yield from self._chain(file, code)

    def _chain(self, file: File, code: int) -> Iterator[int]:
        count = parse_header(_read(file, 0, layout.INDEX_HEADER_BYTES)).count
        slot_at = layout.INDEX_HEADER_BYTES + layout.INDEX_SLOT_BYTES * (code % self._shape.slots)
        number = int.from_bytes(_read(file, slot_at, layout.INDEX_SLOT_BYTES), "big", signed=True)
        while 0 < number < count:
            data = _read(file, self._shape.entry_at(number), layout.INDEX_ENTRY_BYTES)
            row = layout.INDEX_ENTRY.unpack(data)
            if row["key_hash"] == code:
                yield row["physical_offset"]
            before = row["prev"]
            number = before if before < number else 0  # a chain goes back, never on


def _read(file: File, at: int, count: int) -> bytes:
    data = bytearray(count)
    return bytes(data[: file.read_into(data, at)])
