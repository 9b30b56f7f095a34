"""`gantry/ranges.json`: which parts of the CommitLog GantryMQ wrote.

There the `__CRC32#` trailer is binding (SF-22); what lies elsewhere another broker wrote, and a
trailer may be a stale copy or missing: the body's checksum counts. The file is JSON,

    {"boot_id": "...", "crc": 123, "life": "2f0001", "ranges": [[0, 4096], [8192, null]],
     "version": 2}

`ranges`: [start, end) in log positions, rising, none touching another; null = still being written.
`boot_id`: the machine's boot under which the last one was opened, as in `abort`. `life`: the epoch
of the broker's life that has opened it, in hexadecimal digits; the board of no other life tells
anything of this store, whatever was copied or put back since. Behind a clean stop, and in a store
that a command has made of another, no life is named, and `version` is 1. `crc`: CRC-32 of the other
fields as compact JSON with sorted keys. The file is replaced whole; a start, a clean stop of the
broker, and commands on a stopped store write it. Nothing here imports numba.
"""

from __future__ import annotations

import json
import zlib
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from gantrymq.shm.errors import Corrupt
from gantrymq.shm.fromhandlers import require_ours
from gantrymq.shm.jsontext import parse_json
from gantrymq.shm.storage import read_file, replace_file
from gantrymq.shm.valueranges import offset_of

if TYPE_CHECKING:
    from gantrymq.shm.storage import Storage

FILE: Final = "gantry/ranges.json"
#: A store without it is another broker's.
_OWN_FILE: Final = "gantry/checkpoint"
#: Of a file that names no life, and of one that does.
VERSIONS: Final = (1, 2)
#: End of a range that is being written, and of what lies behind all ranges.
OPEN: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Stretch:
    """Log positions [start, end) that one side wrote."""

    start: int
    end: int
    ours: bool


@dataclass(frozen=True, slots=True)
class Ranges:
    """Log positions that GantryMQ wrote: spans (start, end), rising; the last end may be OPEN."""

    spans: tuple[tuple[int, int], ...] = ()
    boot_id: str = ""
    life: str = ""  # none behind a clean stop

    @property
    def is_open(self) -> bool:
        """Whether the last range is still being written, or was when its broker died."""
        return bool(self.spans) and self.spans[-1][1] == OPEN

    @property
    def end(self) -> int:
        """Where the last range ends (OPEN: not yet); 0 without any."""
        return self.spans[-1][1] if self.spans else 0

    def stretch(self, position: int) -> Stretch:
        """The longest stretch around a position that one side wrote."""
        index = bisect_right(self.spans, position, key=lambda span: span[0]) - 1
        if index >= 0 and position < self.spans[index][1]:
            return Stretch(*self.spans[index], True)
        before = self.spans[index][1] if index >= 0 else 0
        following = self.spans[index + 1][0] if index + 1 < len(self.spans) else OPEN
        return Stretch(before, following, False)

    def contains(self, position: int) -> bool:
        """Whether GantryMQ wrote the byte at a log position."""
        return self.stretch(position).ours

    def stretches(self, start: int, end: int) -> Iterator[Stretch]:
        """[start, end) in pieces that one side wrote."""
        while start < end:
            found = self.stretch(start)
            yield Stretch(start, min(found.end, end), found.ours)
            start = found.end

    def opened(self, start: int, boot_id: str, life: str) -> Ranges:
        """With a range that a life opens from `start` on; one that ends there goes on."""
        kept = self.closed(start).spans
        if kept and kept[-1][1] == start:
            start = kept[-1][0]
            kept = kept[:-1]
        return Ranges((*kept, (start, OPEN)), boot_id, life)

    def closed(self, end: int) -> Ranges:
        """With nothing at or behind `end`; the range around it ends there.

        Its life may still be asked what it has left, and has not ended well.
        """
        spans = tuple((first, min(last, end)) for first, last in self.spans if first < end)
        return Ranges(spans, self.boot_id, self.life)

    def ended(self, end: int) -> Ranges:
        """The same of a store that nobody's life has to be asked about."""
        return replace(self.closed(end), life="")


#: The log of a broker that nobody else has touched.
EVERYTHING: Final = Ranges(((0, OPEN),))


def read_ranges(storage: Storage) -> Ranges | None:
    """What the file says; None without it. Raises Corrupt if it is damaged."""
    try:
        data = read_file(storage, FILE)
    except FileNotFoundError as error:
        require_ours(error)
        return None
    try:
        content = parse_json(data)
        spans = tuple((offset_of(first), _end(last)) for first, last in content["ranges"])
        found = Ranges(spans, str(content["boot_id"]), str(content.get("life", "")))
        whole = content["version"] in VERSIONS and content.pop("crc") == _sum_of(content)
    except (ValueError, KeyError, TypeError) as error:
        require_ours(error)
        whole = False
    if not whole or not _is_rising(spans):
        raise Corrupt(
            f"{FILE} is damaged: it says which parts of the log this broker wrote; restore it, or"
            " delete it, and all up to another broker's first record counts as ours",
            path=FILE,
        )
    return found


def ranges_of(storage: Storage) -> Ranges:
    """The same of any store: without the file all is ours, or nothing. Raises Corrupt."""
    return read_ranges(storage) or (EVERYTHING if storage.exists(_OWN_FILE) else Ranges())


def write_ranges(storage: Storage, ranges: Ranges) -> None:
    """Replace the file, durably. Raises OSError."""
    text = json.dumps(_content(ranges), sort_keys=True)
    replace_file(storage, FILE, text.encode() + b"\n")


def _end(value: int | None) -> int:
    return OPEN if value is None else offset_of(value)


def _content(ranges: Ranges) -> dict[str, Any]:
    rows = [[first, None if last == OPEN else last] for first, last in ranges.spans]
    content: dict[str, Any] = {"boot_id": ranges.boot_id, "ranges": rows}
    content["version"] = VERSIONS[bool(ranges.life)]
    if ranges.life:
        content["life"] = ranges.life
    return {**content, "crc": _sum_of(content)}


def _sum_of(content: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())


def _is_rising(spans: tuple[tuple[int, int], ...]) -> bool:
    bounds = [position for span in spans for position in span]
    return all(left < right for left, right in pairwise([-1, *bounds]))
