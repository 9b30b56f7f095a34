"""Numbers in text, as Java reads and compares them (filtering.md FL-31, FL-32).

Twin of shm/sql92/numbers.py. What takes more than one rounding, is hexadecimal, or has digits of
other scripts is left to that: UNSURE.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gantrymq.shm.jit import kernel
from gantrymq.shm.kernels.bytesearch import find_byte
from gantrymq.shm.opcodes import DOUBLE, LONG

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Words = NDArray[np.int64]

# Words that a reader fills: kind and value (a double as its bits), and two of its own.
READ_KIND, READ, AT, POWER = range(4)
NUMBER_WORDS = 4

# How reading ended.
READ_WELL, NO_NUMBER, UNSURE = range(3)
_LONG_MAX = (1 << 63) - 1
_TENTH = _LONG_MAX // 10
#: Doubles up to here and powers of ten up to 22 are exact: one rounding, as it must be.
_EXACT_MAX = 1 << 53
_POWER_MAX = 22
_EXPONENT_MAX = 100_000
_POWERS = np.array([10.0**power for power in range(23)], np.float64)
_NAN_BITS = 0x7FF8 << 48
BLANK, PLUS, MINUS, DOT, ZERO = b" +-.0"
LETTER_D, LETTER_E, LETTER_F, LETTER_I, LETTER_N, LETTER_P, LETTER_X = b"defINpx"
LOWER = 0x20  # a letter's bit that makes it small
_INF_BITS = 0x7FF0 << 48


@kernel()
def read_integer(memory: Bytes, at: int, size: int, scratch: Words) -> int:
    """Java's Long.valueOf into READ; a digit of another script is UNSURE."""
    end = at + size
    negative = 1 if memory[at] == MINUS else 0
    if negative or memory[at] == PLUS:
        at += 1
    status = READ_WELL if at < end else NO_NUMBER
    value = 0
    while at < end and status == READ_WELL:
        digit = int(memory[at]) - ZERO
        if digit < 0 or digit > 9:
            status = UNSURE if memory[at] > 127 else NO_NUMBER
        elif value < 0 or value > _TENTH or (value == _TENTH and digit > 7 + negative):
            status = NO_NUMBER  # value < 0: -2^63 was complete
        value = 10 * value + digit
        at += 1
    if status == READ_WELL:
        scratch[READ] = -value if negative else value
        scratch[READ_KIND] = LONG
    return status


@kernel()
def read_double(memory: Bytes, at: int, size: int, scratch: Words) -> int:
    """Java's Double.valueOf into READ, as bits."""
    end = at + size
    while at < end and memory[at] <= BLANK:
        at += 1
    while end > at and memory[end - 1] <= BLANK:
        end -= 1
    if at == end:
        return NO_NUMBER
    negative = memory[at] == MINUS
    if negative or memory[at] == PLUS:
        at += 1
    scratch[AT] = at
    status = _read_decimal(memory, end, scratch)
    if status == READ_WELL and negative:
        scratch[READ] = np.int64(np.float64(-_double(scratch[READ])).view(np.int64))
    return status


@kernel()
def _double(bits: int) -> float:
    """A double of its bits."""
    value: float = np.int64(bits).view(np.float64)
    return value


@kernel()
def _read_decimal(memory: Bytes, end: int, scratch: Words) -> int:
    """A double without a sign from AT on, as far as one rounding gives it, into READ."""
    at = scratch[AT]
    if at == end:
        return NO_NUMBER
    if _is_rare(memory, at, end):
        return UNSURE
    status = _read_mantissa(memory, end, scratch)
    if status == NO_NUMBER or not _read_exponent(memory, end, scratch):
        return NO_NUMBER
    power = scratch[POWER]
    if status == UNSURE or abs(power) > _POWER_MAX:
        return UNSURE
    value = np.float64(scratch[READ])
    value = value * _POWERS[power] if power >= 0 else value / _POWERS[-power]
    scratch[READ] = np.float64(value).view(np.int64)
    scratch[READ_KIND] = DOUBLE
    return READ_WELL


@kernel()
def _is_rare(memory: Bytes, at: int, end: int) -> int:
    """1 for what may be NaN, Infinity or hexadecimal (0x1p3)."""
    if memory[at] == LETTER_N or memory[at] == LETTER_I:
        return 1
    if memory[at] != ZERO or at + 1 == end or (memory[at + 1] | LOWER) != LETTER_X:
        return 0
    small = find_byte(memory, at, end, LETTER_P)
    return 1 if min(small, find_byte(memory, at, end, LETTER_P ^ LOWER)) < end else 0


@kernel()
def _read_mantissa(memory: Bytes, end: int, scratch: Words) -> int:
    """Digits with a dot into READ and POWER; UNSURE if they are more than a double holds."""
    at = scratch[AT]
    value = 0
    digits = 0
    power = 0
    dotted = 0
    while at < end:
        byte = int(memory[at])
        if byte == DOT and not dotted:
            dotted = 1
        elif byte < ZERO or byte > ZERO + 9:
            break
        else:
            digits += 1
            power -= dotted
            value = 10 * value + byte - ZERO if value <= _EXACT_MAX else value
        at += 1
    scratch[AT] = at
    scratch[READ] = value
    scratch[POWER] = power
    if not digits:
        return NO_NUMBER
    return READ_WELL if value <= _EXACT_MAX else UNSURE


@kernel()
def _read_exponent(memory: Bytes, end: int, scratch: Words) -> int:
    """What may stand behind the mantissa: exponent, suffix. 0 if something else does."""
    at = scratch[AT]
    if at < end and (memory[at] | LOWER) == LETTER_E:
        at += 1
        sign = -1 if at < end and memory[at] == MINUS else 1
        if at < end and (memory[at] == MINUS or memory[at] == PLUS):
            at += 1
        first = at
        exponent = 0
        while at < end and ZERO <= memory[at] <= ZERO + 9:
            exponent = min(_EXPONENT_MAX, 10 * exponent + int(memory[at]) - ZERO)
            at += 1
        if at == first:
            return 0
        scratch[POWER] += sign * exponent
    if at < end and ((memory[at] | LOWER) == LETTER_D or (memory[at] | LOWER) == LETTER_F):
        at += 1
    return 1 if at == end else 0


@kernel()
def _bits(value: int) -> int:
    """A whole number as a double's bits."""
    return int(np.float64(value).view(np.int64))


@kernel()
def order_bits(left: int, right: int) -> int:
    """Double.compare of two doubles' bits."""
    ours = _double(left)
    theirs = _double(right)
    if ours < theirs:
        return -1
    if ours > theirs:
        return 1
    # Equal, zeroes of two signs, or NaN, which is above all.
    if (left & _LONG_MAX) > _INF_BITS:
        left = _NAN_BITS
    if (right & _LONG_MAX) > _INF_BITS:
        right = _NAN_BITS
    return 0 if left == right else (1 if left > right else -1)


@kernel()
def order_numbers(kind: int, left: int, other: int, right: int) -> int:
    """-1, 0, 1 after widening (FL-32)."""
    if kind != DOUBLE and other != DOUBLE:
        return 0 if left == right else (1 if left > right else -1)
    return order_bits(
        left if kind == DOUBLE else _bits(left), right if other == DOUBLE else _bits(right)
    )
