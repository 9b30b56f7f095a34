"""Units of many queues into their files, by one call instead of one for each queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gantrymq.shm import machine
from gantrymq.shm.jit import WORDS_RO, i8, kernel
from gantrymq.shm.kernels.dispatch import (
    TOUCH_COUNT,
    TOUCH_FIRST,
    TOUCH_QUEUE,
    TOUCH_START,
    TOUCH_WORDS,
)
from gantrymq.shm.layout import CQ_UNIT_BYTES

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Words = NDArray[np.int64]

# A row for each queue of the board: the file that its units go to.
DESCRIPTOR = 0  # below 0: none is open that a kernel may write to
BASE = 1  # byte of the queue that it begins with
FILE_WORDS = 2


@kernel(i8, WORDS_RO, i8, i8, WORDS_RO, i8, i8)
def write_units(
    touched: Words, first: int, end: int, files: Words, file_bytes: int, units: int
) -> int:
    """Write the units of touched queues `first` to before `end`, as `dispatch_log` leaves them.

    `units` is the address of their bytes, which the caller holds; `files` has FILE_WORDS for each
    queue. Returns `end`, or the first touched queue whose units are not, or not all, written: it
    has no open file, they reach beyond its end, or the write was short. An error is not tried
    again: it is told as minus errno.
    """
    for place in range(first, end):
        at = place * TOUCH_WORDS
        row = touched[at + TOUCH_QUEUE] * FILE_WORDS
        size = touched[at + TOUCH_COUNT] * CQ_UNIT_BYTES
        position = touched[at + TOUCH_FIRST] * CQ_UNIT_BYTES - files[row + BASE]
        if files[row + DESCRIPTOR] < 0 or position < 0 or position + size > file_bytes:
            return place
        start = units + touched[at + TOUCH_START] - size
        done = machine.write_at(files[row + DESCRIPTOR], start, size, position)
        if done < 0:
            return done
        if done != size:
            return place
    return end
