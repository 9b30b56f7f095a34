"""Records of a commit-log segment, parsed and judged (SF-87, SF-20, SF-22 to SF-24).

Stricter than RocketMQ where the format allows: a record must stand where it says it stands (LW-2),
and where checksum trailers are binding a record without a true one is none (LW-1).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gantrymq.shm import machine
from gantrymq.shm.codes import Stop
from gantrymq.shm.jit import BYTES_RO, WORDS, i8, kernel
from gantrymq.shm.kernels.bytesearch import find_byte
from gantrymq.shm.kernels.record import CRC_MASK, trailer_crc
from gantrymq.shm.layout import (
    FILLER_MAGIC,
    HOST_BYTES_V4,
    HOST_BYTES_V6,
    RECORD_BODY_CRC,
    RECORD_BORN_HOST,
    RECORD_BYTES_MIN,
    RECORD_MAGIC,
    RECORD_MAGIC_V1,
    RECORD_MAGIC_V2,
    RECORD_PHYSICAL_OFFSET,
    RECORD_QUEUE_ID,
    RECORD_QUEUE_OFFSET,
    RECORD_SYS_FLAG,
    SYS_BORN_V6,
    SYS_STORE_V6,
)
from gantrymq.shm.limits import TRAILER_BYTES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Words = NDArray[np.int64]

DONE = int(Stop.DONE)
LIMIT = int(Stop.LIMIT)
END = int(Stop.END)
INVALID = int(Stop.INVALID)
FILLER = int(Stop.FILLER)
TRUNCATED = int(Stop.TRUNCATED)

# A parsed record: indexes into a row of ROW_WORDS. Places are offsets in the segment's view.
AT, SIZE, QUEUE_ID, QUEUE_OFFSET, SYS_FLAG, STORE_MS, TOPIC_AT, TOPIC_SIZE = range(8)
PROPERTIES_AT, PROPERTIES_SIZE, BODY_AT, BODY_SIZE, PREPARED, UNIQ_AT, TAGS_CODE, DELAY = range(
    8, 16
)
ROW_WORDS = 16

#: What is checked, added up.
CHECK_BODY = 1  # the body's checksum
CHECK_TRAILER = 2  # the trailer must be there and true
CHECK_PLACE = 4  # physicalOffset is the record's own
CHECK_TRAILER_IF_THERE = 8

_UNIQ_KEY = int.from_bytes(b"UNIQ_KEY", "little")
_TAGS = int.from_bytes(b"TAGS\x01", "little")
_DELAY = int.from_bytes(b"DELAY\x01", "little")
UNIQ_BYTES = 32
_NOT_ASCII = -9187201950435737472  # 0x80 in each byte
_31_TO_8 = 31**8 & 0xFFFFFFFF


@kernel()
def hash_on(value: int, memory: Bytes, at: int, count: int) -> int:
    """What Java's String.hashCode is, unsigned, after `value` and these bytes of UTF-8.

    SF-4: over UTF-16 units. Eight letters of ASCII at a time: what waits for one another is then
    one multiplication, not eight.
    """
    end = at + count
    while end - at >= 8:
        word = machine.load64(memory, at)
        if word & _NOT_ASCII:
            break
        pairs = 31 * (word & 0x00FF00FF00FF00FF) + ((word >> 8) & 0x00FF00FF00FF00FF)
        fours = 961 * (pairs & 0x0000FFFF0000FFFF) + ((pairs >> 16) & 0x0000FFFF0000FFFF)
        eight = 923_521 * (fours & 0xFFFFFFFF) + (fours >> 32)
        value = (_31_TO_8 * value + eight) & 0xFFFFFFFF
        at += 8
    if end - at >= 4:
        word = machine.load32(memory, at)
        if not word & 0x80808080:
            pairs = 31 * (word & 0x00FF00FF) + ((word >> 8) & 0x00FF00FF)
            value = (923_521 * value + 961 * (pairs & 0xFFFF) + (pairs >> 16)) & 0xFFFFFFFF
            at += 4
    while at < end:
        lead = machine.load8(memory, at)
        if lead >= 0x80:
            return _hash_wide(value, memory, at, end)
        value = (31 * value + lead) & 0xFFFFFFFF
        at += 1
    return value


@kernel()
def _hash_wide(value: int, memory: Bytes, at: int, end: int) -> int:
    """`hash_on` letter by letter, from one on that is not ASCII."""
    while at < end:
        lead = machine.load8(memory, at)
        if lead < 0x80:
            value = (31 * value + lead) & 0xFFFFFFFF
            at += 1
            continue
        size = 2 if lead < 0xE0 else (3 if lead < 0xF0 else 4)
        point = lead & (0x7F >> size)
        for follow in range(1, size):
            point = (point << 6) | (
                machine.load8(memory, at + follow) & 0x3F if at + follow < end else 0
            )
        at += size
        if point > 0xFFFF:
            high = 0xD800 + ((point - 0x10000) >> 10)
            value = (31 * value + high) & 0xFFFFFFFF
            point = 0xDC00 + ((point - 0x10000) & 0x3FF)
        value = (31 * value + point) & 0xFFFFFFFF
    return value


@kernel()
def java_hash(memory: Bytes, at: int, count: int) -> int:
    """Java's String.hashCode of UTF-8 bytes, as a signed number (SF-4)."""
    value = hash_on(0, memory, at, count)
    return value - 0x100000000 if value > 0x7FFFFFFF else value


@kernel()
def _number(memory: Bytes, at: int, count: int) -> int:
    """A decimal number, or 0 (SF-63's levels are small)."""
    value = 0
    for place in range(at, at + count):
        digit = machine.load8(memory, place) - 48
        if digit < 0 or digit > 9 or value > 1_000_000:
            return 0
        value = value * 10 + digit
    return value


@kernel()
def has_separator(memory: Bytes, at: int) -> int:
    """1 if one of 32 bytes is 2 or less."""
    found = np.int64(0)
    for step in range(4):
        word = machine.load64(memory, at + 8 * step)
        found |= (word - 0x0303030303030303) & ~word & _NOT_ASCII
    return 1 if found else 0


@kernel()
def read_properties(memory: Bytes, row: Words) -> None:
    """Find UNIQ_KEY, TAGS and DELAY in a record's properties by SF-28; a later key wins."""
    at = row[PROPERTIES_AT]
    end = at + row[PROPERTIES_SIZE]
    row[UNIQ_AT] = -1
    row[TAGS_CODE] = 0
    row[DELAY] = 0
    while at < end:
        if end - at >= 42 and machine.load64(memory, at) == _UNIQ_KEY and memory[at + 8] == 1:
            if memory[at + 41] == 2 and not has_separator(memory, at + 9):
                row[UNIQ_AT] = at + 9
                at += 42
                continue
        if end - at == TRAILER_BYTES and memory[at] == 95:  # "__CRC32#", nearly always
            if trailer_crc(memory, at, TRAILER_BYTES) >= 0:
                return
        stop = find_byte(memory, at, end, 2)
        _read_property(memory, row, at, stop)
        at = stop + 1


@kernel()
def _read_property(memory: Bytes, row: Words, at: int, stop: int) -> None:
    """One `key 01 value` from `at` to `stop`, if it is one of those that matter."""
    size = stop - at
    if size > 5 and memory[at] == 84 and machine.load32(memory, at) == _TAGS & 0xFFFFFFFF:
        if memory[at + 4] == 1:
            row[TAGS_CODE] = java_hash(memory, at + 5, size - 5)
    elif size > 6 and memory[at] == 68 and machine.load32(memory, at) == _DELAY & 0xFFFFFFFF:
        if memory[at + 4] == 89 and memory[at + 5] == 1:
            row[DELAY] = _number(memory, at + 6, size - 6)
    elif size == 41 and memory[at + 8] == 1 and machine.load64(memory, at) == _UNIQ_KEY:
        row[UNIQ_AT] = at + 9


@kernel()
def parse_record(memory: Bytes, at: int, limit: int, position: int, checks: int, row: Words) -> int:
    """Judge the record at `at` of a segment view of `limit` bytes; it should be at log `position`.

    Fills `row`. Returns DONE, FILLER (row's SIZE = bytes to the file's end), END (zeroes or fewer
    than 8 bytes), TRUNCATED or INVALID.
    """
    if limit - at < 8:
        return END
    size = machine.load_be32(memory, at)
    magic = machine.load_be32(memory, at + RECORD_MAGIC)
    row[AT] = at
    row[SIZE] = size
    if magic == FILLER_MAGIC:
        return FILLER if size == limit - at else INVALID
    if magic != RECORD_MAGIC_V1 and magic != RECORD_MAGIC_V2:
        return END if size == 0 and magic == 0 else INVALID
    if size < RECORD_BYTES_MIN or size > 0x7FFFFFFF:
        return INVALID
    if size > limit - at:
        return TRUNCATED
    if not _read_fields(memory, at, size, magic, row):
        return INVALID
    if checks & CHECK_PLACE and machine.load_be64(memory, at + RECORD_PHYSICAL_OFFSET) != position:
        return INVALID
    return DONE if _sums_hold(memory, at, size, checks, row) else INVALID


@kernel()
def _read_fields(memory: Bytes, at: int, size: int, magic: int, row: Words) -> int:
    """Walk the record's parts; 0 if their lengths do not add up to its size."""
    end = at + size
    sys_flag = machine.load_be32(memory, at + RECORD_SYS_FLAG)
    row[SYS_FLAG] = sys_flag
    queue = machine.load_be32(memory, at + RECORD_QUEUE_ID)
    row[QUEUE_ID] = queue - ((queue & 0x80000000) << 1)  # signed
    row[QUEUE_OFFSET] = machine.load_be64(memory, at + RECORD_QUEUE_OFFSET)
    place = at + RECORD_BORN_HOST + (HOST_BYTES_V6 if sys_flag & SYS_BORN_V6 else HOST_BYTES_V4)
    row[STORE_MS] = machine.load_be64(memory, place)
    place += 8 + (HOST_BYTES_V6 if sys_flag & SYS_STORE_V6 else HOST_BYTES_V4)
    if place + 16 > end:
        return 0
    row[PREPARED] = machine.load_be64(memory, place + 4)
    body = machine.load_be32(memory, place + 12)
    place += 16
    if body > end - place - 3:
        return 0
    row[BODY_AT] = place
    row[BODY_SIZE] = body
    place += body
    if magic == RECORD_MAGIC_V2:
        name = machine.load_be16(memory, place)
        place += 2
    else:
        name = machine.load8(memory, place)
        place += 1
    if name > end - place - 2:
        return 0
    row[TOPIC_AT] = place
    row[TOPIC_SIZE] = name
    place += name
    row[PROPERTIES_AT] = place + 2
    row[PROPERTIES_SIZE] = machine.load_be16(memory, place)
    return 1 if place + 2 + row[PROPERTIES_SIZE] == end else 0


@kernel()
def _sums_hold(memory: Bytes, at: int, size: int, checks: int, row: Words) -> int:
    """1 if the checksums that are asked for are true."""
    if checks & (CHECK_TRAILER | CHECK_TRAILER_IF_THERE):
        stored = -1
        if row[PROPERTIES_SIZE] >= TRAILER_BYTES:
            stored = trailer_crc(memory, at, size)
        if stored >= 0:
            return 1 if machine.crc32(memory, at, size - TRAILER_BYTES) & CRC_MASK == stored else 0
        if checks & CHECK_TRAILER:
            return 0
    if checks & CHECK_BODY and row[BODY_SIZE]:
        stored = machine.load_be32(memory, at + RECORD_BODY_CRC)
        return 1 if machine.crc32(memory, row[BODY_AT], row[BODY_SIZE]) & CRC_MASK == stored else 0
    return 1


@kernel()
def _scan(memory: Bytes, limit: int, form: Words, rows: Words, room: int) -> int:
    at = form[0]
    count = 0
    row = rows
    while count < room:
        row = machine.shift(rows, count * ROW_WORDS)
        stop = parse_record(memory, at, limit, form[1] + at, form[2], row)
        if stop == DONE and form[4] and row[STORE_MS] < form[3]:
            stop = INVALID  # LW-3: time never goes back in what we wrote
        if stop != DONE:
            form[0] = at
            form[5] = count
            return stop
        read_properties(memory, row)
        form[3] = row[STORE_MS]
        at += row[SIZE]
        count += 1
    form[0] = at
    form[5] = count
    return LIMIT


@kernel(i8, BYTES_RO, WORDS, WORDS)
def scan_log(memory: Bytes, form: Words, rows: Words) -> int:
    """Parse records of a segment's view one after the other into `rows` (ROW_WORDS each).

    `form`: 0 offset to start at (moved on), 1 segment's base position, 2 checks, 3 last
    storeTimestamp (moved on), 4 refuse a storeTimestamp that goes back, 5 out: records parsed.
    Returns why it stopped: LIMIT (rows full), FILLER, END, TRUNCATED, INVALID.
    """
    room = rows.size // ROW_WORDS
    return _scan(machine.raw(memory), memory.size, machine.raw(form), machine.raw(rows), room)
