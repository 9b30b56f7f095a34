"""Properties of a timer that is appended again: what is left of its delay takes the delay's place.

A delay counts from its record's storeTimestamp, and the new record has another one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gantrymq.shm import machine
from gantrymq.shm.jit import kernel
from gantrymq.shm.kernels import scan
from gantrymq.shm.kernels.bytesearch import find_byte, is_same
from gantrymq.shm.kernels.decimals import decimal_bytes, store_decimal
from gantrymq.shm.limits import PROPERTIES_BYTES_MAX, TRAILER_BYTES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Words = NDArray[np.int64]

# Scratch: where the value of TIMER_DELAY_MS is, and its length; how much longer the new one is,
# and which it is.
DELAY_AT, DELAY_BYTES, GROWTH, LEFT_MS = range(4)
TIME_WORDS = 4

#: A record's properties without what the writer puts behind them.
_EXTRA_MAX = PROPERTIES_BYTES_MAX - TRAILER_BYTES
_DELAY_MS = np.frombuffer(b"TIMER_DELAY_MS\x01", np.uint8)


@kernel()
def _find_delay(memory: Bytes, form: Words, row: Words) -> None:
    """The value of the property TIMER_DELAY_MS; no bytes without it."""
    at = row[scan.PROPERTIES_AT]
    end = at + row[scan.PROPERTIES_SIZE]
    form[DELAY_BYTES] = 0
    while at < end:
        stop = find_byte(memory, at, end, 2)
        if stop - at > len(_DELAY_MS) and is_same(memory, at, _DELAY_MS, 0, len(_DELAY_MS)):
            form[DELAY_AT] = at + len(_DELAY_MS)
            form[DELAY_BYTES] = stop - at - len(_DELAY_MS)
        at = stop + 1


@kernel()
def find_growth(log: Bytes, form: Words, row: Words, left_ms: int) -> None:
    """By how many bytes the properties grow; none where there is no delay.

    `left_ms` ends with the millisecond behind which it is due, as does what the new record says:
    that is stored now or later, so it is never due before.
    """
    _find_delay(log, form, row)
    form[LEFT_MS] = max(left_ms, 1)
    more = decimal_bytes(form[LEFT_MS]) - form[DELAY_BYTES]
    if form[DELAY_BYTES] == 0 or row[scan.PROPERTIES_SIZE] + more > _EXTRA_MAX:
        form[DELAY_BYTES] = 0
        return
    form[GROWTH] = more


@kernel()
def write_time(arena: Bytes, at: int, log: Bytes, form: Words, row: Words) -> None:
    """The properties at `at`, with what is left in the place of the delay."""
    start = row[scan.PROPERTIES_AT]
    before = form[DELAY_AT] - start
    machine.copy(arena, at, log, start, before)
    at = store_decimal(arena, at + before, form[LEFT_MS])
    behind = form[DELAY_AT] + form[DELAY_BYTES]
    rest = start + row[scan.PROPERTIES_SIZE] - behind
    machine.copy(arena, at, log, behind, rest)
