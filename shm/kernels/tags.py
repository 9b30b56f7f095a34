"""Which tags a consumer wants: by a unit's hash, then exactly on the record (FL-3, FL-4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gantrymq.shm import machine
from gantrymq.shm.jit import kernel
from gantrymq.shm.kernels import scan
from gantrymq.shm.kernels.bytesearch import find_byte, is_same
from gantrymq.shm.layout import CQ_EXT_ADDRESS_MAX, CQ_TAGS, CQ_UNIT_BYTES
from gantrymq.shm.properties import LOST_TAG, java_hash

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Words = NDArray[np.int64]

# Words per tag of `tags`, by rising hash.
TAG_HASH, TAG_AT, TAG_END = range(3)
TAG_WORDS = 3

_TAGS_WORD = int.from_bytes(b"TAGS", "little")
#: Tag code of a unit, and the two words, 3 bytes on each other, of the 11 bytes of the tag.
LOST_CODE = java_hash(LOST_TAG)
_LOST_HEAD = int.from_bytes(LOST_TAG.encode()[:8], "little")
_LOST_TAIL = int.from_bytes(LOST_TAG.encode()[3:], "little")
_LOST_BYTES = len(LOST_TAG)


@kernel()
def signed32(value: int) -> int:
    """A 32-bit word with its sign."""
    return value - 0x100000000 if value > 0x7FFFFFFF else value


@kernel()
def _first_of_hash(tags: Words, count: int, code: int) -> int:
    """Index of the first tag with this hash, or -1 (binary search)."""
    low = 0
    high = count
    while low < high:
        middle = (low + high) // 2
        if tags[middle * TAG_WORDS + TAG_HASH] < code:
            low = middle + 1
        else:
            high = middle
    if low < count and tags[low * TAG_WORDS + TAG_HASH] == code:
        return low
    return -1


@kernel()
def code_wanted(code: int, tags: Words, count: int) -> int:
    """1 if a tag code is one of those wanted (FL-3)."""
    return 1 if _first_of_hash(tags, count, signed32(code & 0xFFFFFFFF)) >= 0 else 0


@kernel()
def next_wanted(units: Bytes, index: int, end: int, tags: Words, count: int) -> int:
    """Index of the first unit in [index, end) whose tag code is wanted, or is none, or `end`.

    Whoever wants one rare tag passes over units as fast as memory brings them.
    """
    wanted = tags[TAG_HASH] if count == 1 else 0
    at = index * CQ_UNIT_BYTES + CQ_TAGS
    while index < end:
        code = machine.load_be64(units, at)
        if code <= CQ_EXT_ADDRESS_MAX:
            return index
        if count == 1:
            if signed32(code & 0xFFFFFFFF) == wanted:
                return index
        elif code_wanted(code, tags, count):
            return index
        index += 1
        at += CQ_UNIT_BYTES
    return end


@kernel()
def _find_tag(log: Bytes, row: Words) -> int:
    """Where the record's TAGS begins, -1 without one; the last one counts (SF-28)."""
    at = row[scan.PROPERTIES_AT]
    end = at + row[scan.PROPERTIES_SIZE]
    found = -1
    while at < end:
        stop = find_byte(log, at, end, 2)
        if stop - at > 5 and machine.load32(log, at) == _TAGS_WORD and log[at + 4] == 1:
            found = at + 5
        at = stop + 1
    return found


@kernel()
def _tag_bytes(log: Bytes, row: Words, found: int) -> int:
    """How long the tag is that begins there."""
    end = row[scan.PROPERTIES_AT] + row[scan.PROPERTIES_SIZE]
    return find_byte(log, found, end, 2) - found


@kernel()
def is_lost(log: Bytes, row: Words) -> int:
    """1 if the record only stands for one that was lost (ADR 0014)."""
    found = _find_tag(log, row)
    if found < 0 or _tag_bytes(log, row, found) != _LOST_BYTES:
        return 0
    same = (
        machine.load64(log, found) == _LOST_HEAD
        and machine.load64(log, found + _LOST_BYTES - 8) == _LOST_TAIL
    )
    return 1 if same else 0


@kernel()
def tag_wanted(log: Bytes, row: Words, tags: Words, tag_bytes: Bytes, count: int) -> int:
    """1 if the record's TAGS is exactly one of the tags (FL-4)."""
    found = _find_tag(log, row)
    if found < 0:
        return 0
    size = _tag_bytes(log, row, found)
    for index in range(count):
        place = tags[index * TAG_WORDS + TAG_AT]
        if tags[index * TAG_WORDS + TAG_END] - place == size:
            if is_same(log, found, tag_bytes, place, size):
                return 1
    return 0
