"""Rows of `scan_log` -> who sent the records, and which queues they are in.

Each call numbers what is alike, so that its caller goes through producers and queues, not records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gantrymq.shm import machine
from gantrymq.shm.jit import BYTES_RO, WORDS, WORDS_RO, i8, kernel
from gantrymq.shm.kernels.scan import (
    PREPARED,
    PROPERTIES_AT,
    QUEUE_ID,
    QUEUE_OFFSET,
    ROW_WORDS,
    SYS_FLAG,
    TOPIC_AT,
    TOPIC_SIZE,
    UNIQ_AT,
)
from gantrymq.shm.layout import SYS_COMMIT, SYS_TRANSACTION

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Words = NDArray[np.int64]

# A record that a producer sent: SENT_WORDS each.
SENT_ROW, SENT_PRODUCER, SENT_SEQ = range(3)
SENT_WORDS = 3
# A producer id: its first 15 hex digits and the other five, as numbers.
ID_HIGH, ID_LOW = range(2)
ID_WORDS = 2
_HIGH_DIGITS, _ID_DIGITS, _DIGITS = 15, 20, 32

# A queue: QUEUE_WORDS each. Offsets are those of records that have a place in it (SF-42).
# A queue whose topic another broker has deleted and made again begins at offset 0 once more
# (CQ-109): BEGAN is the row of FIRST, with which it last did, and BACK how often.
FIRST_ROW, FIRST, HIGHEST, BEGAN, BACK = range(5)
QUEUE_WORDS = 5

_UNIQ_KEY_BYTES = 9
"""Of the name and its separator."""


@kernel()
def _digit(letter: int) -> int:
    """Of an upper-case hex digit the value, of others -1."""
    if 48 <= letter <= 57:
        return letter - 48
    return letter - 55 if 65 <= letter <= 70 else -1


@kernel()
def _number(memory: Bytes, at: int, end: int) -> int:
    """A hex number, or -1."""
    value = 0
    for place in range(at, end):
        digit = _digit(machine.load8(memory, place))
        if digit < 0:
            return -1
        value = value << 4 | digit
    return value


@kernel()
def _number_of_id(high: int, low: int, ids: Words, index: Words, mask: int) -> int:
    """Number of a producer id; index[mask + 1] counts them."""
    slot: int = (high ^ (high >> 21) ^ (high >> 42) ^ (low * 40503)) & mask
    while index[slot]:
        known: int = index[slot] - 1
        if ids[known * ID_WORDS + ID_HIGH] == high and ids[known * ID_WORDS + ID_LOW] == low:
            return known
        slot = (slot + 1) & mask
    number: int = index[mask + 1]
    index[mask + 1] = number + 1
    index[slot] = number + 1
    ids[number * ID_WORDS + ID_HIGH] = high
    ids[number * ID_WORDS + ID_LOW] = low
    return number


@kernel()
def _find_sent(
    memory: Bytes, rows: Words, count: int, out: Words, ids: Words, index: Words, mask: int
) -> int:
    found = 0
    for number in range(count):
        row = machine.shift(rows, number * ROW_WORDS)
        at = row[UNIQ_AT]
        derived = row[PREPARED] < 0 or row[SYS_FLAG] & SYS_TRANSACTION
        if derived or at != row[PROPERTIES_AT] + _UNIQ_KEY_BYTES:
            continue
        high = _number(memory, at, at + _HIGH_DIGITS)
        low = _number(memory, at + _HIGH_DIGITS, at + _ID_DIGITS)
        seq = _number(memory, at + _ID_DIGITS, at + _DIGITS)
        if high < 0 or low < 0 or seq < 0:
            continue
        place = found * SENT_WORDS
        out[place + SENT_ROW] = number
        out[place + SENT_PRODUCER] = _number_of_id(high, low, ids, index, mask)
        out[place + SENT_SEQ] = seq
        found += 1
    return found


@kernel(i8, BYTES_RO, WORDS_RO, WORDS, WORDS, WORDS)
def find_sent(memory: Bytes, rows: Words, out: Words, ids: Words, index: Words) -> int:
    """Records that a producer sent, in order, into `out`; returns how many.

    Records that the broker derived share their origin's UNIQ_KEY and are left out: they carry a
    negative preparedTransactionOffset, or are commit copies, or made from one (TX-15). So are those
    whose UNIQ_KEY is not the first property.
    `ids` gets the producers by number; `index` is zero, a power of two of words, twice as many as
    rows or more, and one word, in which their count is left.
    """
    raw = machine.raw
    count = rows.size // ROW_WORDS
    return _find_sent(raw(memory), raw(rows), count, raw(out), raw(ids), raw(index), index.size - 2)


@kernel()
def _is_same_queue(memory: Bytes, row: Words, other: Words) -> int:
    size = row[TOPIC_SIZE]
    if other[QUEUE_ID] != row[QUEUE_ID] or other[TOPIC_SIZE] != size:
        return 0
    at, other_at = row[TOPIC_AT], other[TOPIC_AT]
    for place in range(size):
        if machine.load8(memory, at + place) != machine.load8(memory, other_at + place):
            return 0
    return 1


@kernel()
def _hash_of_queue(memory: Bytes, row: Words) -> int:
    at, size = row[TOPIC_AT], row[TOPIC_SIZE]
    value: int = size + 40503 * (row[QUEUE_ID] & 0xFFFF)
    for place in range(at, at + size):
        value = (31 * value + machine.load8(memory, place)) & 0xFFFFFFFF
    return value ^ (value >> 15)


@kernel()
def _find_queue(
    memory: Bytes, rows: Words, number: int, out: Words, index: Words, mask: int
) -> int:
    """Number of a row's queue; index[mask + 1] counts them."""
    row = machine.shift(rows, number * ROW_WORDS)
    slot = _hash_of_queue(memory, row) & mask
    while index[slot]:
        known: int = index[slot] - 1
        first = out[known * QUEUE_WORDS + FIRST_ROW]
        if _is_same_queue(memory, row, machine.shift(rows, first * ROW_WORDS)):
            return known
        slot = (slot + 1) & mask
    known = index[mask + 1]
    index[mask + 1] = known + 1
    index[slot] = known + 1
    out[known * QUEUE_WORDS + FIRST_ROW] = number
    out[known * QUEUE_WORDS + FIRST] = -1
    out[known * QUEUE_WORDS + HIGHEST] = -1
    out[known * QUEUE_WORDS + BEGAN] = -1
    out[known * QUEUE_WORDS + BACK] = 0
    return known


@kernel()
def _find_queues(
    memory: Bytes, rows: Words, count: int, out: Words, index: Words, mask: int
) -> int:
    for number in range(count):
        known = _find_queue(memory, rows, number, out, index, mask)
        row = machine.shift(rows, number * ROW_WORDS)
        kind = row[SYS_FLAG] & SYS_TRANSACTION
        if kind != 0 and kind != SYS_COMMIT:
            continue
        place = known * QUEUE_WORDS
        if row[QUEUE_OFFSET] == 0 and out[place + FIRST] >= 0:
            out[place + BACK] += 1
            out[place + HIGHEST] = 0
        if out[place + FIRST] < 0 or row[QUEUE_OFFSET] == 0:
            out[place + FIRST] = row[QUEUE_OFFSET]
            out[place + BEGAN] = number
        out[place + HIGHEST] = max(out[place + HIGHEST], row[QUEUE_OFFSET])
    total: int = index[mask + 1]
    return total


@kernel(i8, BYTES_RO, WORDS_RO, WORDS, WORDS)
def find_queues(memory: Bytes, rows: Words, out: Words, index: Words) -> int:
    """Queues of the rows in order of their first ones, into `out`; returns how many.

    FIRST and HIGHEST are -1 where none of its records has a place, and else of those from BEGAN on.
    `index` as for `find_sent`.
    """
    raw = machine.raw
    count = rows.size // ROW_WORDS
    return _find_queues(raw(memory), raw(rows), count, raw(out), raw(index), index.size - 2)
