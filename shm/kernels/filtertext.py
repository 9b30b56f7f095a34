"""Strings of a filter in a property: CONTAINS and the like, IN, LIKE (FL-44, FL-51)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shm.jit import kernel
from shm.kernels.bytesearch import find_byte, is_ascii, is_same
from shm.opcodes import (
    ASK,
    CONTAINS,
    EXOTIC,
    FALSE,
    NEGATED,
    NULL,
    STARTSWITH,
    TEXT,
    TRUE,
    UNKNOWN,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Words = NDArray[np.int64]


@kernel()
def _contains(log: Bytes, at: int, size: int, pool: Bytes, place: int, wanted: int) -> int:
    first = int(pool[place])
    end = at + size - wanted + 1
    while at < end:
        at = find_byte(log, at, end, first)
        if at < end and is_same(log, at, pool, place, wanted):
            return 1
        at += 1
    return 0


@kernel()
def find_text(words: Words, code: int, value: Words, log: Bytes, pool: Bytes) -> int:
    """FL-44."""
    place = words[code + 2]
    wanted = words[code + 3]
    if value[0] < TEXT or wanted == 0:
        return FALSE
    memory = log if value[0] == TEXT else pool
    at = value[1]
    size = value[2]
    if words[EXOTIC] and value[0] == TEXT and not is_ascii(memory, at, size):
        return ASK
    kind = words[code + 1] & 3
    found = 0
    if size >= wanted:
        if kind == CONTAINS:
            found = _contains(memory, at, size, pool, place, wanted)
        elif kind == STARTSWITH:
            found = is_same(memory, at, pool, place, wanted)
        else:
            found = is_same(memory, at + size - wanted, pool, place, wanted)
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
def is_in(words: Words, code: int, value: Words, log: Bytes, pool: Bytes) -> int:
    """Whether a string is one of a list that is sorted by length, then bytes."""
    if value[0] == NULL:
        return UNKNOWN
    if words[EXOTIC] and not is_ascii(log, value[1], value[2]):
        return ASK
    low = 0
    high = words[code + 2]
    while low < high:
        middle = (low + high) // 2
        found = _stands(words, words[code + 1] + 2 * middle, value, log, pool)
        if found == 0:
            return TRUE
        if found < 0:
            low = middle + 1
        else:
            high = middle
    return FALSE


@kernel()
def _fits(log: Bytes, at: int, pool: Bytes, place: int, size: int) -> int:
    """1 if a part of a pattern stands there; behind its bytes is its mask."""
    for step in range(size):
        if log[at + step] != pool[place + step] and not pool[place + size + step]:
            return 0
    return 1


@kernel()
def is_like(words: Words, code: int, value: Words, log: Bytes, pool: Bytes) -> int:
    """The first part at the start, the last one at the end, those between in their order."""
    if value[0] == NULL:
        return UNKNOWN
    if (words[EXOTIC] or words[code + 3]) and not is_ascii(log, value[1], value[2]):
        return ASK
    rows = words[code + 1]
    last = rows + 2 * (words[code + 2] - 1)
    at = value[1] + words[rows + 1]
    end = value[1] + value[2]
    if rows == last and at != end:
        return FALSE
    if at > end or not _fits(log, value[1], pool, words[rows], words[rows + 1]):
        return FALSE
    if rows == last:
        return TRUE
    end -= words[last + 1]
    if end < at or not _fits(log, end, pool, words[last], words[last + 1]):
        return FALSE
    return _like_parts(words, rows + 2, last, log, at, end, pool)


@kernel()
def _like_parts(
    words: Words, row: int, last: int, log: Bytes, at: int, end: int, pool: Bytes
) -> int:
    """The parts between, each where it fits first: so no pattern takes long."""
    while row < last:
        size = words[row + 1]
        while at + size <= end and not _fits(log, at, pool, words[row], size):
            at += 1
        at += size
        if at > end:
            return FALSE
        row += 2
    return TRUE
