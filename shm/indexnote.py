"""What of the IndexFiles is sure: `gantry/index.json`, written after all that it names was synced.

Loads no kernels, for `store dump`. What lies behind a note is made again from the log.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any, Final

from gantrymq.shm import layout
from gantrymq.shm.fromhandlers import require_ours
from gantrymq.shm.notefile import read_content, write_content
from gantrymq.shm.valueranges import is_small, offset_of, store_ms_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gantrymq.shm.storage import Storage

DIRECTORY: Final = "index"
NOTE_FILE: Final = "gantry/index.json"
VERSION: Final = 1
CHECKPOINT_FILE: Final = "checkpoint"


@dataclass(frozen=True, slots=True)
class Header:
    """A file's header as numbers, in the order of the kernel's words."""

    begin_ms: int = 0
    end_ms: int = 0
    begin_position: int = 0
    end_position: int = 0
    used_slots: int = 0
    count: int = 1

    def encode(self) -> bytes:
        """The bytes in the file; a count of 1 is written as 0 (SF-79)."""
        return layout.INDEX_HEADER.pack(
            begin_timestamp=self.begin_ms,
            end_timestamp=self.end_ms,
            begin_phy_offset=self.begin_position,
            end_phy_offset=self.end_position,
            hash_slot_count=self.used_slots,
            index_count=self.count if self.count > 1 else 0,
        )

    def following(self) -> Header:
        """Of the file that comes next (SF-80)."""
        return Header(self.end_ms, self.end_ms, self.end_position, self.end_position)


def parse_header(data: bytes | bytearray) -> Header:
    """What a file's first bytes say."""
    row = layout.INDEX_HEADER.unpack(data)
    return Header(
        row["begin_timestamp"], row["end_timestamp"], row["begin_phy_offset"],
        row["end_phy_offset"], row["hash_slot_count"], max(row["index_count"], 1),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Shape:
    """What files look like: RocketMQ's maxHashSlotNum and maxIndexNum give their length."""

    slots: int
    entries: int
    tags: bool = True  # entries for tags too (SF-122)

    @property
    def front_bytes(self) -> int:
        """Header and slots."""
        return layout.INDEX_HEADER_BYTES + layout.INDEX_SLOT_BYTES * self.slots

    @property
    def file_bytes(self) -> int:
        """Length of a file."""
        return self.front_bytes + layout.INDEX_ENTRY_BYTES * self.entries

    def slot_at(self, code: int) -> int:
        """Place of a hash's slot in each file."""
        return layout.INDEX_HEADER_BYTES + layout.INDEX_SLOT_BYTES * (code % self.slots)

    def entry_at(self, number: int) -> int:
        """Place of an entry in its file."""
        return self.front_bytes + layout.INDEX_ENTRY_BYTES * number


#: RocketMQ's.
DEFAULT_SHAPE: Final = Shape(5_000_000, 20_000_000)


@dataclass(frozen=True, slots=True)
class Note:
    """What is sure: all keys of records below `position`, and `key` keys of the record there."""

    position: int
    key: int = 0
    files: tuple[tuple[str, Header], ...] = ()
    #: storeTimestamp of the last message in the last full file, for RocketMQ (SF-84).
    full_ms: int = 0
    #: Where the log's files began then. Of records below it there may be no keys.
    low: int = 0


def save_note(storage: Storage, shape: Shape, note: Note) -> None:
    """Write `gantry/index.json`. Raises OSError."""
    content = {
        "slots": shape.slots,
        "entries": shape.entries,
        "tags": shape.tags,
        "position": note.position,
        "low": note.low,
        "full_ms": note.full_ms,
        "files": {name: astuple(header) for name, header in note.files},
    }
    write_content(storage, NOTE_FILE, VERSION, content)


def read_note(storage: Storage) -> tuple[Shape, Note] | None:
    """What was noted last; None if it is gone or damaged, for it is derived."""
    content = read_content(storage, NOTE_FILE, VERSION)
    if content is None:
        return None
    try:
        files = tuple((name, _header_of(row)) for name, row in content["files"].items())
        position = offset_of(content["position"])
        low = offset_of(content["low"]) if "low" in content else _first_key(files, position)
        note = Note(position, 0, files, store_ms_of(content["full_ms"]), low)
        sizes = content["slots"], content["entries"]
        if not all(map(is_small, sizes)) or not all(sizes):
            raise ValueError(f"files of {sizes}")
        return Shape(*sizes, bool(content["tags"])), note
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        require_ours(error)
        return None


def forget_note(storage: Storage) -> None:
    """Remove `gantry/index.json`: the files are made again from the log. Raises OSError."""
    if storage.exists(NOTE_FILE):
        storage.unlink(NOTE_FILE)


def _header_of(row: Sequence[Any]) -> Header:
    """Raises ValueError, TypeError."""
    begin_ms, end_ms, *numbers = row
    found = Header(store_ms_of(begin_ms), store_ms_of(end_ms), *map(offset_of, numbers))
    if not is_small(found.used_slots) or not is_small(found.count):
        raise ValueError(f"counts of {found}")
    return found


def _first_key(files: tuple[tuple[str, Header], ...], position: int) -> int:
    """From where on there are keys for sure, by a note from before it said so."""
    return next((header.begin_position for _, header in files if header.count > 1), position)


def tell_rocketmq(storage: Storage, full_ms: int) -> None:
    """Write indexMsgTimestamp into its checkpoint, if there is one. Raises OSError."""
    if not storage.exists(CHECKPOINT_FILE):
        return
    file = storage.open(CHECKPOINT_FILE, write=True)
    try:
        if file.size() == layout.CHECKPOINT_FILE_BYTES:
            at = layout.CHECKPOINT.offset("index_msg_timestamp")
            file.write_at(full_ms.to_bytes(8, "big", signed=True), at)
    finally:
        file.close()


def safe_time(storage: Storage) -> int:
    """RocketMQ's indexMsgTimestamp: files up to it are full and synced (SF-84)."""
    found = read_note(storage)
    return found[1].full_ms if found else 0
