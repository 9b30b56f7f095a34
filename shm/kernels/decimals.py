"""Decimal numbers in properties and bodies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gantrymq.shm import machine
from gantrymq.shm.jit import kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]

#: Two decimal digits of 0..99 as one little-endian word.
_DIGIT_PAIRS = np.array([(48 + n % 10) << 8 | (48 + n // 10) for n in range(100)], np.int64)
#: Times from the year 2001 to 2286 have 13 digits.
_MS_LEAST, _MS_END = 10**12, 10**13


@kernel()
def number_of(memory: Bytes, at: int, count: int) -> int:
    """A decimal number of up to 18 digits, or -1."""
    if count <= 0 or count > 18:
        return -1
    value = 0
    for place in range(at, at + count):
        digit = machine.load8(memory, place) - 48
        if digit < 0 or digit > 9:
            return -1
        value = value * 10 + digit
    return value


@kernel()
def decimal_bytes(value: int) -> int:
    """How many digits a number of 0 or more has."""
    if _MS_LEAST <= value < _MS_END:
        return 13
    count = 1
    while value > 9:
        value //= 10
        count += 1
    return count


@kernel()
def store_decimal(memory: Bytes, at: int, value: int) -> int:
    """The digits of a number of 0 or more; returns where they end."""
    end = at + decimal_bytes(value)
    place = end
    while value > 99:
        rest = value // 100
        place -= 2
        machine.store16(memory, place, _DIGIT_PAIRS[value - 100 * rest])
        value = rest
    if value > 9:
        machine.store16(memory, place - 2, _DIGIT_PAIRS[value])
    else:
        memory[place - 1] = 48 + value
    return end
