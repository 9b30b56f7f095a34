"""Parts of a commit-log record as kernels write and read them (SF-16 to SF-24)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gantrymq.shm import machine
from gantrymq.shm.jit import BYTES_RO, i8, kernel
from gantrymq.shm.layout import (
    RECORD_FLAG,
    RECORD_PHYSICAL_OFFSET,
    RECORD_QUEUE_ID,
    RECORD_QUEUE_OFFSET,
    RECORD_SYS_FLAG,
)
from gantrymq.shm.limits import CLIENTS_KEYS, RESERVED_KEYS, TRAILER_BYTES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Words = NDArray[np.int64]

CRC_MASK = 0x7FFFFFFF  # SF-5

#: Two decimal digits of 0..99, least significant first, as one little-endian word.
_DIGIT_PAIRS = np.array([(48 + n // 10) << 8 | (48 + n % 10) for n in range(100)], np.int64)
#: "__CRC32#" as a little-endian word.
_TRAILER_KEY = int.from_bytes(b"__CRC32#", "little")

#: Keys that no client may bring along; some come by the client's own way, as properties.
_FORBIDDEN = sorted(key.encode() for key in RESERVED_KEYS - CLIENTS_KEYS)
_FORBIDDEN_TEXT = np.frombuffer(b"".join(_FORBIDDEN), np.uint8)
_FORBIDDEN_ENDS = np.cumsum([len(key) for key in _FORBIDDEN]).astype(np.int64)
#: By a key's first byte: a bit per length that a forbidden key with that first byte has.
_FORBIDDEN_LENGTHS = np.array(
    [sum({1 << len(key) for key in _FORBIDDEN if key[0] == first}) for first in range(256)],
    np.int64,
)
assert max(map(len, _FORBIDDEN)) < 63


@kernel()
def store_trailer(record: Bytes, at: int, size: int) -> None:
    """Write the 20-byte checksum property at the end of a record of `size` bytes (SF-22, SF-23)."""
    place = at + size - TRAILER_BYTES
    crc = machine.crc32(record, at, size - TRAILER_BYTES) & CRC_MASK
    machine.store64(record, place, _TRAILER_KEY)
    record[place + 8] = 1
    for pair in range(5):
        rest = crc // 100
        machine.store16(record, place + 9 + 2 * pair, _DIGIT_PAIRS[crc - 100 * rest])
        crc = rest
    record[place + 19] = 2


@kernel()
def trailer_crc(record: Bytes, at: int, size: int) -> int:
    """The checksum in a record's trailer, or -1 if its last 20 bytes are none."""
    place = at + size - TRAILER_BYTES
    if machine.load64(record, place) != _TRAILER_KEY:
        return -1
    if record[place + 8] != 1 or record[place + 19] != 2:
        return -1
    crc = 0
    for digit in range(10):
        value = machine.load8(record, place + 18 - digit) - 48
        if value < 0 or value > 9:
            return -1
        crc = crc * 10 + value
    return crc


@kernel()
def store_place(record: Bytes, at: int, queue: int, offset: int, position: int) -> None:
    """Write where the record stands: queue id, queue offset, physical offset."""
    machine.store_be32(record, at + RECORD_QUEUE_ID, queue)
    machine.store_be64(record, at + RECORD_QUEUE_OFFSET, offset)
    machine.store_be64(record, at + RECORD_PHYSICAL_OFFSET, position)


@kernel()
def store_flags(record: Bytes, at: int, flag: int, sys_flag: int) -> None:
    """Write the application's flag and sysFlag."""
    machine.store_be32(record, at + RECORD_FLAG, flag)
    machine.store_be32(record, at + RECORD_SYS_FLAG, sys_flag)


@kernel()
def _is_forbidden(memory: Bytes, at: int, count: int) -> int:
    """1 if a key is one that only the broker writes (SF-30)."""
    start = np.int64(0)
    for number in range(len(_FORBIDDEN_ENDS)):
        end = _FORBIDDEN_ENDS[number]
        if end - start == count:
            same = 0
            while same < count and memory[at + same] == _FORBIDDEN_TEXT[start + same]:
                same += 1
            if same == count:
                return 1
        start = end
    return 0


@kernel()
def copy_without_trailer(
    target: Bytes, at: int, source: Bytes, source_at: int, count: int, room: int
) -> int:
    """Copy properties but for `__CRC32#` (SF-22), `room` bytes at most; returns how many are kept.

    Negative if what is kept lacks its last separator. With `room` 0 they are only counted.
    """
    kept = 0
    sign = 1
    place = source_at
    end = source_at + count
    while place < end:
        start = place
        while place < end and source[place] != 2:
            place += 1
        place = min(place + 1, end)
        size = place - start
        if size > 8 and source[start + 8] == 1 and machine.load64(source, start) == _TRAILER_KEY:
            continue
        if kept + size <= room:
            machine.copy(target, at + kept, source, start, size)
        kept += size
        sign = 1 if source[place - 1] == 2 else -1
    return sign * kept


@kernel()
def properties_legal(memory: Bytes, at: int, count: int) -> int:
    """1 if the bytes are `key 01 value 02` again and again, as a client may send them.

    No key or value is empty (SF-27), no key is the broker's (SF-30).
    """
    end = at + count
    while at < end:
        start = at
        while at < end and memory[at] > 2:
            at += 1
        if at == start or at >= end or memory[at] != 1:
            return 0
        # Nearly every key is let through by its length and first byte.
        suspect = _FORBIDDEN_LENGTHS[memory[start]] >> ((at - start) & 63) & 1
        if suspect and _is_forbidden(memory, start, at - start):
            return 0
        at += 1
        start = at
        while at < end and (memory[at] > 2 or memory[at] == 0):
            at += 1
        if at == start or at >= end or memory[at] != 2:
            return 0
        at += 1
    return 1


@kernel(i8, BYTES_RO)
def legal_properties(block: Bytes) -> int:
    """`properties_legal` of a whole array."""
    return properties_legal(machine.raw(block), 0, block.size)


@kernel()
def _spread(value: int) -> int:
    """The 8 nibbles of a 32-bit value as 8 upper-case hex digits, first digit in the top byte."""
    value = ((value << 16) | value) & 0x0000FFFF0000FFFF
    value = ((value << 8) | value) & 0x00FF00FF00FF00FF
    value = ((value << 4) | value) & 0x0F0F0F0F0F0F0F0F
    letters = ((value + 0x0606060606060606) >> 4) & 0x0101010101010101
    return value + 0x3030303030303030 + letters * 7


@kernel()
def store_hex48(memory: Bytes, at: int, value: int) -> None:
    """Twelve hex digits of a 48-bit number."""
    machine.store_be32(memory, at, _spread((value >> 32) & 0xFFFF))
    machine.store_be64(memory, at + 4, _spread(value & 0xFFFFFFFF))
