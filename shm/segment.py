"""The segments of a commit log seen as one log, through read-only maps.

What `store dump`, `store verify` and Spark read with. Sealed segments never change, so whole
columns come from numpy views; nothing here imports numba or writes.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gantrymq.shm import layout
from gantrymq.shm.errors import Incompatible
from gantrymq.shm.fromhandlers import require_ours
from gantrymq.shm.lognames import DIRECTORY
from gantrymq.shm.record import (
    RECORD_MAGICS,
    RECOVERY,
    Check,
    Filler,
    Invalid,
    Record,
    parse_record,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gantrymq.shm.storage import Storage
    from gantrymq.shm.structs import Struct

#: What lies at one position of the log.
Item = Record | Filler | Invalid

_HEAD8: Final = struct.Struct(">iI")
_NAME_DIGITS: Final = 20


@dataclass(frozen=True, slots=True)
class Segment:
    """One file: `base` is the position of its first byte, `view` its bytes, read-only."""

    base: int
    view: NDArray[np.uint8]

    @property
    def end(self) -> int:
        """Position behind the file's last byte."""
        return self.base + len(self.view)

    def item_at(self, position: int, check: Check = RECOVERY) -> Item:
        """What starts at a position of this segment, checked up to the file's end (SF-87)."""
        return parse_record(self.view.data, position - self.base, len(self.view), check)

    def scan(self, start: int, end: int, check: Check = RECOVERY) -> Iterator[tuple[int, Item]]:
        """Items from `start` on that begin before `end`; a filler or invalid bytes are the last."""
        position = start
        while position < min(end, self.end):
            item = self.item_at(position, check)
            yield position, item
            if not isinstance(item, Record):
                return
            position += item.total_size

    def record_starts(self, start: int, end: int) -> NDArray[np.int64]:
        """Positions of the records in [start, end), by sizes and magics only."""
        data = self.view.data
        found = []
        at, limit = start - self.base, min(end, self.end) - self.base
        while at + layout.RECORD_BYTES_MIN <= limit:
            size, magic = _HEAD8.unpack_from(data, at)
            if magic not in RECORD_MAGICS or size < layout.RECORD_BYTES_MIN:
                break
            found.append(at)
            at += size
        return np.array(found, np.int64) + self.base

    def heads(self, positions: NDArray[np.int64]) -> NDArray[np.void]:
        """Heads of records as columns named in layout.RECORD.

        From `store_timestamp` on, columns hold for records with an IPv4 born host only, behind it
        for those with two IPv4 hosts (SF-16).
        """
        spans = (positions - self.base)[:, None] + np.arange(layout.RECORD_HEAD_BYTES)
        heads: NDArray[np.void] = self.view[spans].view(layout.RECORD.dtype)
        return heads[:, 0]


@dataclass(frozen=True, slots=True)
class LogView:
    """All segments of a commit log, oldest first."""

    segments: tuple[Segment, ...]

    @property
    def min_position(self) -> int:
        """Start of the oldest segment (SF-102); 0 without any."""
        return self.segments[0].base if self.segments else 0

    @property
    def file_end(self) -> int:
        """Position behind the last file's last byte, used or not."""
        return self.segments[-1].end if self.segments else 0

    @property
    def segment_bytes(self) -> int:
        """Length of every segment; 0 without any."""
        return len(self.segments[0].view) if self.segments else 0

    def segment_at(self, position: int) -> Segment | None:
        """Return the segment that holds a position, None if no file does."""
        number = bisect_right(self.segments, position, key=lambda segment: segment.base) - 1
        if number < 0 or position >= self.segments[number].end:
            return None
        return self.segments[number]

    def scan(
        self, start: int, end: int | None = None, check: Check = RECOVERY
    ) -> Iterator[tuple[int, Item]]:
        """Items from position `start` up to `end`, over fillers; invalid bytes are the last one.

        A log that ends exactly at a segment's end stops without an item.
        """
        limit = self.file_end if end is None else end
        for segment in self.segments:
            if segment.end <= start:
                continue
            for position, item in segment.scan(max(start, segment.base), limit, check):
                yield position, item
                if isinstance(item, Invalid):
                    return


def open_log(
    storage: Storage, directory: str = DIRECTORY, segment_bytes: int | None = None
) -> LogView:
    """Map the segments of a directory; an empty last file does not count (SF-11).

    Raises Incompatible if a name is no position or a length differs from `segment_bytes`, or
    without that from the first file's.
    """
    files = open_files(storage, directory)
    if files and segment_bytes is None:
        segment_bytes = len(files[0][1])
    for base, view in files:
        require_length(f"{directory}/{base:020d}", len(view), segment_bytes or 0)
    return LogView(tuple(Segment(base, view) for base, view in files))


def open_files(
    storage: Storage,
    directory: str,
    foreign: Callable[[str], None] | None = None,
    *,
    live: bool = False,
) -> list[tuple[int, NDArray[np.uint8]]]:
    """First positions and read-only views of the files of one directory, oldest first (SF-9).

    `live` ones show what is written later, too: for who learns afterwards how far a broker is.

    Sub-directories are skipped, an empty last file does not count (SF-11). A file
    whose name is no position is passed over if `foreign`, called with its path, returns; without
    that Incompatible is raised.
    """
    found = []
    for name in storage.list(directory):
        path = f"{directory}/{name}"
        if storage.is_directory(path):
            continue
        if len(name) != _NAME_DIGITS or not name.isdecimal():
            if foreign is not None:
                foreign(path)
                continue
            raise Incompatible(f"{path} does not belong there: move it away", path=path)
        try:
            file = storage.open(path)
        except FileNotFoundError as error:
            require_ours(error)
            continue  # a broker has removed it since it was listed
        try:
            found.append((int(name), file.view() if live else file.still_view()))
        finally:
            file.close()
    if found and len(found[-1][1]) == 0:
        found.pop()
    return found


def require_length(path: str, found: int, expected: int) -> None:
    """Raise Incompatible if a file has not the length that the settings give it (SF-11)."""
    if found != expected:
        raise Incompatible(
            f"{path} has {found} bytes, not {expected}: give the sizes the store was written with",
            path=path,
            expected=expected,
            found=found,
        )


def lengths_of(segments: Sequence[Segment]) -> list[int]:
    """Bytes that each file must have, as far as the log itself says so; `segments` oldest first.

    All have the same size (SF-11): that which reaches from a file to the next one. If none does,
    one may end before the next begins only by whole segments, which are missing then.
    """
    distances = [behind.base - segment.base for segment, behind in pairwise(segments)]
    found = [len(segment.view) for segment in segments]
    sizes = {size for size, distance in zip(found, distances, strict=False) if size == distance}
    if len(sizes) == 1:
        return [*sizes] * len(segments)
    for number, distance in enumerate(distances):
        if not found[number] or distance % found[number]:
            found[number] = distance
    return found


def columns(view: NDArray[np.uint8], table: Struct) -> NDArray[Any]:
    """Whole units of a derived file as a structured array; the bytes stay where they are."""
    count = len(view) // table.size
    return view[: count * table.size].view(table.dtype)
