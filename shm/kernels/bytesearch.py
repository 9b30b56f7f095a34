"""Bytes looked at: searched, compared."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shm import machine
from shm.jit import kernel

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]

_ONES = 0x0101010101010101


@kernel()
def is_same(memory: Bytes, at: int, other: Bytes, other_at: int, count: int) -> int:
    """1 if `count` bytes here and there are equal."""
    for step in range(count):
        if memory[at + step] != other[other_at + step]:
            return 0
    return 1


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
