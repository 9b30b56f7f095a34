"""Strings of a filter in a property: CONTAINS and the like, IN, LIKE (FL-44, FL-51).

What each looks at is counted in SPENT; nothing takes longer than in proportion to the value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gantrymq.shm import machine
from gantrymq.shm.jit import kernel
from gantrymq.shm.kernels.bytesearch import find_bytes, find_masked, is_ascii, is_same
from gantrymq.shm.kernels.javanumbers import NUMBER_WORDS
from gantrymq.shm.opcodes import (
    ASK,
    CONTAINS,
    EXOTIC,
    FALSE,
    FIND_BITS,
    MASKS_MAX,
    NEGATED,
    NULL,
    PART_AT,
    PART_BYTES,
    PART_MASKS,
    PART_TABLE,
    PART_WORDS,
    STARTSWITH,
    TEXT,
    TRUE,
    UNKNOWN,
    WILD_BEYOND,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Words = NDArray[np.int64]

# Words of an operator's scratch, behind a number that was read.
SPENT: Final = NUMBER_WORDS  # counts work: bytes looked at, and steps; each about a nanosecond
STATE: Final = SPENT + 1  # of a search by masks
SCRATCH_WORDS: Final = STATE + MASKS_MAX


@kernel()
def find_text(
    words: Words, code: int, value: Words, log: Bytes, pool: Bytes, scratch: Words
) -> int:
    """FL-44."""
    place = words[code + 2]
    wanted = words[code + 3]
    if value[0] < TEXT or wanted == 0:
        return FALSE
    memory = log if value[0] == TEXT else pool
    at = value[1]
    size = value[2]
    if words[EXOTIC] and value[0] == TEXT:
        scratch[SPENT] += size
        if not is_ascii(memory, at, size):
            return ASK
    kind = words[code + 1] & 3
    found = 0
    if size >= wanted:
        if kind == CONTAINS:
            table = words[code + 1] >> FIND_BITS
            there = find_bytes(memory, at, at + size, pool, place, wanted, table)
            found = 0 if there < 0 else 1
            scratch[SPENT] += there + wanted - at if found else size
        else:
            start = at if kind == STARTSWITH else at + size - wanted
            found = is_same(memory, start, pool, place, wanted)
            scratch[SPENT] += wanted
    if words[code + 1] & NEGATED:
        found = 1 - found
    return TRUE if found else FALSE


@kernel()
def _stands(words: Words, row: int, value: Words, log: Bytes, pool: Bytes) -> int:
    """-1, 0, 1: a row's string before, at or behind the value, by length and then bytes."""
    size = words[row + 1]
    if size != value[2]:
        return -1 if size < value[2] else 1
    for step in range(size):
        ours = pool[words[row] + step]
        theirs = log[value[1] + step]
        if ours != theirs:
            return -1 if ours < theirs else 1
    return 0


@kernel()
def is_in(words: Words, code: int, value: Words, log: Bytes, pool: Bytes, scratch: Words) -> int:
    """Whether a string is one of a list that is sorted by length, then bytes."""
    if value[0] == NULL:
        return UNKNOWN
    if words[EXOTIC]:
        scratch[SPENT] += value[2]
        if not is_ascii(log, value[1], value[2]):
            return ASK
    low = 0
    high = words[code + 2]
    while low < high:
        middle = (low + high) // 2
        row = words[code + 1] + 2 * middle
        scratch[SPENT] += value[2] if words[row + 1] == value[2] else 1
        found = _stands(words, row, value, log, pool)
        if found == 0:
            return TRUE
        if found < 0:
            low = middle + 1
        else:
            high = middle
    return FALSE


@kernel()
def _fits(log: Bytes, at: int, words: Words, part: int, pool: Bytes) -> int:
    """1 if a part of a pattern stands there; behind its bytes is its mask."""
    place = words[part + PART_AT]
    size = words[part + PART_BYTES]
    for step in range(size):
        if log[at + step] != pool[place + step] and not pool[place + size + step]:
            return 0
    return 1


@kernel()
def is_like(words: Words, code: int, value: Words, log: Bytes, pool: Bytes, scratch: Words) -> int:
    """LIKE; where `_` may mean more than a byte its reference is asked."""
    if value[0] == NULL:
        return UNKNOWN
    kind = words[code + 3]
    if words[EXOTIC] or kind:
        scratch[SPENT] += value[2]
        if not is_ascii(log, value[1], value[2]):
            return ASK
    if kind == WILD_BEYOND:
        return FALSE
    return TRUE if _has_parts(words, code, value, log, pool, scratch) else FALSE


@kernel()
def _has_parts(
    words: Words, code: int, value: Words, log: Bytes, pool: Bytes, scratch: Words
) -> int:
    """The first part at the start, the last one at the end, those between in their order."""
    first = words[code + 1]
    last = first + PART_WORDS * (words[code + 2] - 1)
    at = value[1] + words[first + PART_BYTES]
    end = value[1] + value[2]
    if at > end or (first == last and at != end):
        return 0
    scratch[SPENT] += words[first + PART_BYTES] + words[last + PART_BYTES]
    begins = _fits(log, value[1], words, first, pool)
    if not begins or first == last:
        return begins
    end -= words[last + PART_BYTES]
    if end < at or not _fits(log, end, words, last, pool):
        return 0
    return _like_parts(words, first + PART_WORDS, last, log, at, end, pool, scratch)


@kernel()
def _like_parts(
    words: Words, part: int, last: int, log: Bytes, at: int, end: int, pool: Bytes, scratch: Words
) -> int:
    """The parts between, each where it fits first: none looks at what one before has passed."""
    while part < last:
        size = words[part + PART_BYTES]
        table = words[part + PART_TABLE]
        masks = words[part + PART_MASKS]
        if masks:
            state = machine.shift(scratch, STATE)
            behind = find_masked(log, at, end, pool, table, size, state)
        else:
            behind = find_bytes(log, at, end, pool, words[part + PART_AT], size, table)
            behind += size if behind >= 0 else 0
        scratch[SPENT] += ((end if behind < 0 else behind) - at) * max(1, masks)
        if behind < 0:
            return 0
        at = behind
        part += PART_WORDS
    return 1
