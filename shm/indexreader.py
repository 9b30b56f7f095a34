"""Looks keys up in a store's IndexFiles, by small reads (SF-82). Loads no numpy.

An entry names a record that may have a key: one whose key has the same hash. A chain that does not
hold is never passed over in silence: it raises, and the log has to be asked.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

from gantrymq.shm import layout
from gantrymq.shm.errors import Rejected
from gantrymq.shm.fromhandlers import require_ours
from gantrymq.shm.indexnote import DIRECTORY, Header, Shape, parse_header
from gantrymq.shm.properties import index_hash

if TYPE_CHECKING:
    from gantrymq.shm.storage import File, Storage

_ENTRY: Final = layout.INDEX_ENTRY.codec("key_hash", "physical_offset", "time_diff", "prev")
_SECONDS_MAX: Final = (1 << 31) - 1
#: In the chain of slot 0 these look like an entry of hash 0 that is the chain's last.
_NEVER_WRITTEN: Final = bytes(layout.INDEX_ENTRY_BYTES)
#: Bounds of a time that an entry does not tell.
EVER_MS: Final = 1 << 62


class FileUnfit(Rejected):
    """An index file can't be read: of another length, or its chains do not hold (any more, yet)."""


class Entry(NamedTuple):
    """A record that may have the key, and between which times it was stored, Unix ms."""

    position: int
    earliest_ms: int
    latest_ms: int


class IndexFile:
    """One open file; its header as of then."""

    def __init__(self, path: str, file: File, shape: Shape) -> None:
        self.path = path
        self._file = file
        self._shape = shape
        self.header: Header = parse_header(_read(file, 0, layout.INDEX_HEADER_BYTES))

    def require_length(self) -> None:
        """Raise FileUnfit if its sizes are others."""
        size = self._file.size()
        if size != self._shape.file_bytes:
            raise FileUnfit(
                f"{self.path} has {size} bytes, not {self._shape.file_bytes}: give the broker's"
                " max_hash_slot_num and max_index_num in gantrymq.toml"
            )

    def chain(self, code: int) -> Iterator[Entry]:
        """Entries of a hash, newest first. Raises FileUnfit as soon as something does not hold.

        A file that is being written is read while it grows: entries come before the header that
        counts them, that before slots that name them.
        """
        self.require_length()
        slot = code % self._shape.slots
        number = self._slot(code)
        if number >= self.header.count:
            self.header = parse_header(_read(self._file, 0, layout.INDEX_HEADER_BYTES))
        count, last = self.header.count, self.header.end_position
        while number > 0:
            if number >= count:
                raise FileUnfit(f"{self.path}: a chain leads to entry {number} of {count - 1}")
            data = _read(self._file, self._shape.entry_at(number), layout.INDEX_ENTRY_BYTES)
            key_hash, position, seconds, before = _ENTRY.unpack(data)
            if (
                key_hash % self._shape.slots != slot
                or not self.header.begin_position <= position <= last
                or before >= number
                or data == _NEVER_WRITTEN
            ):
                raise FileUnfit(f"{self.path}: entry {number} is none of slot {slot}'s chain")
            if key_hash == code:
                yield self._entry(number, position, seconds)
            number, last = before, position

    def _slot(self, code: int) -> int:
        data = _read(self._file, self._shape.slot_at(code), layout.INDEX_SLOT_BYTES)
        return int.from_bytes(data, "big", signed=True)

    def _entry(self, number: int, position: int, seconds: int) -> Entry:
        """SF-79, SF-80: whole seconds, cut off at 0; the first entry's are of another beginning."""
        begin_ms = self.header.begin_ms
        if begin_ms <= 0 or not 0 <= seconds < _SECONDS_MAX:
            return Entry(position, -EVER_MS, EVER_MS)
        if number == 1:
            return Entry(position, begin_ms, begin_ms)
        earliest_ms = begin_ms + 1000 * seconds
        return Entry(position, earliest_ms if seconds else -EVER_MS, earliest_ms + 999)


class IndexReader:
    """Finds log positions of records that may have a key."""

    def __init__(self, storage: Storage, shape: Shape) -> None:
        self._storage = storage
        self._shape = shape

    def names(self) -> list[str]:
        """Paths of the files, newest first."""
        return [f"{DIRECTORY}/{name}" for name in reversed(self._storage.list(DIRECTORY))]

    @contextmanager
    def open(self, path: str) -> Iterator[IndexFile | None]:
        """One of them; None if it has expired meanwhile."""
        try:
            file = self._storage.open(path)
        except FileNotFoundError as error:
            require_ours(error)
            yield None
            return
        with closing(file):
            yield IndexFile(path, file, self._shape)

    def positions(self, topic: str, key: str) -> Iterator[int]:
        """Newest first. Raises FileUnfit.

        Of a store whose broker runs the newest half second may be missing (ADR 0013).
        """
        code = index_hash(topic, key)
        for path in self.names():
            with self.open(path) as file:
                if file is not None:
                    yield from (entry.position for entry in file.chain(code))


def _read(file: File, at: int, count: int) -> bytes:
    data = bytearray(count)
    file.read_into(data, at)
    return bytes(data)
