"""Index files in memory: read, dropped and completed as RocketMQ does at start, and queried.

Rules SF-78 to SF-82, SF-96, SF-118, SF-122.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gantrymq.shm import layout
from gantrymq.shm.properties import index_hash
from gantrymq.shm.segment import columns, require_length
from gantrymq.shm.storage import map_still

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gantrymq.shm.record import Record
    from gantrymq.shm.storage import Storage

_SECONDS_MAX: Final = (1 << 31) - 1
_RESULTS_MAX: Final = 64  # SF-82


@dataclass(slots=True)
class Header:
    """Fields of layout.INDEX_HEADER."""

    begin_timestamp: int = 0
    end_timestamp: int = 0
    begin_phy_offset: int = 0
    end_phy_offset: int = 0
    hash_slot_count: int = 0
    index_count: int = 1


@dataclass(slots=True)
class IndexFile:
    """One index file: its bytes on disk, if any, and what was added in memory."""

    name: str
    header: Header
    slot_count: int
    entry_count: int
    slots: NDArray[Any] = field(default_factory=lambda: np.empty(0, ">i4"))
    entries: NDArray[Any] = field(default_factory=lambda: np.empty(0, layout.INDEX_ENTRY.dtype))
    size: int = 0
    added_slots: dict[int, int] = field(default_factory=dict)
    added: list[tuple[int, int, int, int]] = field(default_factory=list)
    _on_disk: int = 1  # entry numbers below are in `entries`

    @property
    def full(self) -> bool:
        """Whether no further entry fits."""
        return self.header.index_count >= self.entry_count

    def slot(self, number: int) -> int:
        """Newest entry number of a slot's chain, 0 if there is none."""
        if number in self.added_slots:
            return self.added_slots[number]
        return int(self.slots[number]) if number < len(self.slots) else 0

    def entry(self, number: int) -> tuple[int, int, int, int]:
        """Fields of layout.INDEX_ENTRY of one entry."""
        if number >= self._on_disk:
            return self.added[number - self._on_disk]
        found: tuple[int, int, int, int] = self.entries[number].item()
        return found

    def put(self, key_hash: int, position: int, store_timestamp: int) -> None:
        """Add an entry (SF-79)."""
        head = self.header
        number = key_hash % self.slot_count
        prev = self.slot(number)
        prev = prev if 0 < prev <= head.index_count else 0
        seconds = (store_timestamp - head.begin_timestamp) // 1000
        diff = min(max(seconds, 0), _SECONDS_MAX) if head.begin_timestamp > 0 else 0
        self.added.append((key_hash, position, diff, prev))
        self.added_slots[number] = head.index_count
        if head.index_count <= 1:
            head.begin_phy_offset = position
            head.begin_timestamp = store_timestamp
        head.hash_slot_count += prev == 0
        head.index_count += 1
        head.end_phy_offset = position
        head.end_timestamp = store_timestamp

    def select(self, key_hash: int, results: list[int]) -> None:
        """Append positions with that hash, newest first (SF-82 for all times)."""
        number = self.slot(key_hash % self.slot_count)
        while 0 < number <= self.header.index_count and len(results) < _RESULTS_MAX:
            if number == self.header.index_count:  # a slot that is ahead of the header
                return
            found_hash, position, diff, prev = self.entry(number)
            if diff < 0:
                return
            if found_hash == key_hash:
                results.append(position)
            if prev == number:
                return
            number = prev


class Index:
    """All index files, oldest first; `tags_too` as 5.4.0 does (SF-122).

    Slot and entry counts cannot be told from a file's length. If they are not known, `readable` is
    False: headers are there, but neither entries nor queries.
    """

    def __init__(
        self, slot_count: int, entry_count: int, *, tags_too: bool, now_ms: int | None = None
    ) -> None:
        self.slot_count = slot_count
        self.entry_count = entry_count
        self.tags_too = tags_too
        self.files: list[IndexFile] = []
        self.readable = True
        # Files that recovery makes are named by the clock.
        self.now_ms = int(time.time() * 1000) if now_ms is None else now_ms

    def load(self, storage: Storage, *, sized: bool) -> None:
        """Map the files of `index/`.

        With `sized`, the counts were given: raises Incompatible for a file of another length.
        """
        for name in storage.list("index"):
            try:
                view = map_still(storage, f"index/{name}")
            except FileNotFoundError:
                continue  # a broker has removed it since it was listed
            expected = self._entries_at + layout.INDEX_ENTRY.size * self.entry_count
            if sized:
                require_length(f"index/{name}", len(view), expected)
            self.readable = self.readable and len(view) == expected
            self.files.append(self._open(name, view))

    @property
    def _entries_at(self) -> int:
        return layout.INDEX_HEADER.size + layout.INDEX_SLOT_BYTES * self.slot_count

    def _open(self, name: str, view: NDArray[np.uint8]) -> IndexFile:
        header = Header(**layout.INDEX_HEADER.unpack(view.data))
        header.index_count = max(header.index_count, 1)
        file = IndexFile(name, header, self.slot_count, self.entry_count, size=len(view))
        if not self.readable:
            return file
        return IndexFile(
            name,
            header,
            self.slot_count,
            self.entry_count,
            view[layout.INDEX_HEADER.size : self._entries_at].view(">i4"),
            columns(view[self._entries_at :], layout.INDEX_ENTRY),
            len(view),
            _on_disk=header.index_count,
        )

    def drop_newer(self, index_msg_timestamp: int) -> None:
        """After a crash: only files that the checkpoint covers stay (SF-96)."""
        self.files = [f for f in self.files if f.header.end_timestamp <= index_msg_timestamp]

    def add(self, record: Record) -> None:
        """Index a record that is dispatched (SF-61, SF-78, SF-81)."""
        if not self.readable:
            return
        file = self._last()
        if record.physical_offset < file.header.end_phy_offset:
            return
        if record.transaction == layout.SYS_ROLLBACK:
            return
        for code in self._codes(record):
            self._last().put(code, record.physical_offset, record.store_timestamp)

    def _codes(self, record: Record) -> Iterator[int]:
        properties = record.property_map()
        for key in message_keys(properties):
            yield index_hash(record.topic, key)
        if self.tags_too and "TAGS" in properties:
            yield index_hash(record.topic, f"T#{properties['TAGS']}")

    def _last(self) -> IndexFile:
        last = self.files[-1] if self.files else None
        if last is not None and not last.full:
            return last
        header = Header()
        if last is not None:  # SF-80
            header.begin_timestamp = header.end_timestamp = last.header.end_timestamp
            header.begin_phy_offset = header.end_phy_offset = last.header.end_phy_offset
        self.files.append(IndexFile(self._new_name(), header, self.slot_count, self.entry_count))
        return self.files[-1]

    def _new_name(self) -> str:
        """Return the clock's time; files of one run get different ones."""
        self.now_ms += 1
        seconds, ms = divmod(self.now_ms - 1, 1000)
        return time.strftime("%Y%m%d%H%M%S", time.localtime(seconds)) + f"{ms:03d}"

    def query(self, topic: str, key: str) -> list[int]:
        """Positions of records that may have a key, newest first (SF-82)."""
        results: list[int] = []
        for file in reversed(self.files):
            file.select(index_hash(topic, key), results)
            if file.header.begin_timestamp < 0 or len(results) >= _RESULTS_MAX:
                break
        return results


def message_keys(properties: dict[str, str]) -> list[str]:
    """Keys that a message is found by: UNIQ_KEY, then the words of KEYS (SF-78)."""
    unique = [properties["UNIQ_KEY"]] if "UNIQ_KEY" in properties else []
    return unique + [word for word in properties.get("KEYS", "").split(" ") if word]
