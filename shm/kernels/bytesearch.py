"""Bytes looked at: searched, compared. No search looks at a byte more than a few times."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gantrymq.shm import machine
from gantrymq.shm.jit import kernel
from gantrymq.shm.opcodes import CLASSES, MASK_BITS

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Words = NDArray[np.int64]

_ONES = 0x0101010101010101


@kernel()
def is_same(memory: Bytes, at: int, other: Bytes, other_at: int, count: int) -> int:
    """1 if `count` bytes here and there are equal."""
    for step in range(count):
        if memory[at + step] != other[other_at + step]:
            return 0
    return 1


@kernel()
def which_name(memory: Bytes, at: int, count: int, names: Bytes, lengths: Words) -> int:
    """Which of `names`, one behind the other, is all of these `count` bytes, or -1.

    By every letter: a name of an application may be as long as one of ours, and begin and end so.
    """
    start = 0
    for number in range(len(lengths)):
        size = lengths[number]
        if size == count and memory[at] == names[start]:
            if is_same(memory, at, names, start, size):
                return number
        start += size
    return -1


@kernel()
def find_byte(memory: Bytes, at: int, end: int, wanted: int) -> int:
    """Where a byte stands in [at, end), or `end`."""
    pattern = wanted * 0x0101010101010101
    while at + 8 <= end:
        word = machine.load64(memory, at) ^ pattern
        hits = (word - _ONES) & ~word & -0x7F7F7F7F7F7F7F80
        if hits:  # the lowest bit is the first hit's: as many bytes as there are ones below it
            below = ((hits & -hits) - 1) >> 7
            return at + ((((below & _ONES) * _ONES) >> 56) & 7)
        at += 8
    while at < end and memory[at] != wanted:
        at += 1
    return at


@kernel()
def is_ascii(memory: Bytes, at: int, size: int) -> int:
    """1 if all these bytes are below 128."""
    for step in range(size):
        if memory[at + step] > 127:
            return 0
    return 1


@kernel()
def find_bytes(
    memory: Bytes, at: int, end: int, pool: Bytes, place: int, size: int, table: int
) -> int:
    """Where `size` bytes of the pool, one or more, stand first in [at, end), or -1.

    Knuth, Morris and Pratt: the 32-bit words of `table` say, of each beginning of what is wanted,
    how many of its last bytes begin it as well. Between the beginnings bytes go by eight at a time.
    """
    first = int(pool[place])
    last = end - size  # it begins there at the latest
    matched = 0
    while at - matched <= last:
        if matched == size:
            return at - size
        if matched == 0:
            at = find_byte(memory, at, last + 1, first) + 1
            matched = 1
        elif memory[at] == pool[place + matched]:
            at += 1
            matched += 1
        else:
            matched = machine.load32(pool, table + 4 * (matched - 1))
    return -1


@kernel()
def find_masked(
    memory: Bytes, at: int, end: int, pool: Bytes, table: int, size: int, state: Words
) -> int:
    """Where `size` characters by masks end first in [at, end) of ASCII, or -1.

    Shift-And: bit i of `state` says that the last i + 1 bytes may be the first of what is wanted.
    `table`: CLASSES, then of each mask a bit for each place that its characters may stand at.
    """
    words = (size + MASK_BITS - 1) // MASK_BITS
    top = (size - 1) % MASK_BITS
    for word in range(words):
        state[word] = 0
    while at < end:
        mask = table + CLASSES + 8 * words * int(pool[table + int(memory[at])])
        carry = 1
        for word in range(words):
            bits = state[word]
            state[word] = (bits << 1 | carry) & machine.load64(pool, mask + 8 * word)
            carry = (bits >> (MASK_BITS - 1)) & 1
        at += 1
        if state[words - 1] >> top & 1:
            return at
    return -1
