"""Properties of a timer that is appended again: where its delay ends takes the delay's place.

A delay counts from its record's storeTimestamp, and the new record has another one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shm import machine
from shm.jit import kernel
from shm.kernels import scan
from shm.kernels.bytesearch import find_byte, is_same
from shm.limits import PROPERTIES_BYTES_MAX, TRAILER_BYTES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Words = NDArray[np.int64]

#: Of a time: as the record has it.
SAME_TIME = 1

# Scratch: where the property TIMER_DELAY_MS is, and its length with its end mark;
# how much longer what takes its place is.
DELAY_AT, DELAY_BYTES, GROWTH = range(3)
TIME_WORDS = 3

_DELAY_MS = np.frombuffer(b"TIMER_DELAY_MS\x01", np.uint8)
_DELIVER_MS = np.frombuffer(b"TIMER_DELIVER_MS\x01", np.uint8)


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
def _find_delay(memory: Bytes, form: Words, row: Words) -> None:
    """The property TIMER_DELAY_MS with its end mark; no bytes without it."""
    at = row[scan.PROPERTIES_AT]
    end = at + row[scan.PROPERTIES_SIZE]
    form[DELAY_BYTES] = 0
    while at < end:
        stop = find_byte(memory, at, end, 2)
        if stop < end and stop - at >= len(_DELAY_MS):
            if is_same(memory, at, _DELAY_MS, 0, len(_DELAY_MS)):
                form[DELAY_AT] = at
                form[DELAY_BYTES] = stop + 1 - at
        at = stop + 1


@kernel()
def _digits_of(number: int) -> int:
    count = 1
    while number >= 10:
        number //= 10
        count += 1
    return count


@kernel()
def find_growth(log: Bytes, form: Words, row: Words, due_ms: int) -> None:
    """By how many bytes the properties grow; none where the delay stays as it is."""
    if due_ms <= SAME_TIME:
        return
    _find_delay(log, form, row)
    more = len(_DELIVER_MS) + _digits_of(due_ms) + 1 - form[DELAY_BYTES]
    room = PROPERTIES_BYTES_MAX - TRAILER_BYTES - row[scan.PROPERTIES_SIZE]
    if form[DELAY_BYTES] == 0 or more < 0 or more > room:
        form[DELAY_BYTES] = 0
        return
    form[GROWTH] = more


@kernel()
def write_time(arena: Bytes, at: int, log: Bytes, form: Words, row: Words, due_ms: int) -> None:
    """The properties at `at`, TIMER_DELIVER_MS in the place of the delay."""
    start = row[scan.PROPERTIES_AT]
    before = form[DELAY_AT] - start
    machine.copy(arena, at, log, start, before)
    at += before
    for place in range(len(_DELIVER_MS)):
        arena[at + place] = _DELIVER_MS[place]
    at += len(_DELIVER_MS) + _digits_of(due_ms)
    arena[at] = 2
    last = at - 1
    while due_ms > 0:
        arena[last] = 48 + due_ms % 10
        due_ms //= 10
        last -= 1
    behind = form[DELAY_AT] + form[DELAY_BYTES]
    rest = start + row[scan.PROPERTIES_SIZE] - behind
    machine.copy(arena, at + 1, log, behind, rest)
