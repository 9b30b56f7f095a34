"""A half record as kernels read it: words of a call, states, and what its properties say."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shm.jit import kernel
from shm.kernels import scan
from shm.kernels.again import find_end
from shm.properties import CHECK_IMMUNITY, GANTRY_TX, GANTRY_TX_DELAY

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Words = NDArray[np.int64]

# A half that is to be decided: HALF_WORDS each. The first two are what somebody says of it.
POSITION, OFFSET, STATE, SIZE, TOPIC = range(5)
HALF_WORDS = 5

# What was found of it.
NEW, GOOD, PUT, DELAYED, NO_HALF, FOREIGN, NO_TOPIC, TOO_LARGE = range(8)

# Words of `put_commits` and of the kernels that read queues.
NEXT = 0  # row to go on with; moved on
COUNT = 1  # rows
BASE = 2  # log position of the view's first byte
STRETCH_FROM = 3  # one side wrote the log positions [from, end): shm.ranges
STRETCH_END = 4
OURS = 5  # 1: we did
COMMIT = 6  # 1: put copies; 0: look only
GROUP_BYTES = 7  # of `expected`; -1: any group
TX_BYTES = 8  # behind them; 0: any transaction
REAL_QUEUE = 9  # scratch
VALUES = 10  # scratch: where a property's value is and its length, for each of _NAMES
_PROPERTIES = (
    "REAL_TOPIC", "REAL_QID", "PGROUP", GANTRY_TX, GANTRY_TX_DELAY, CHECK_IMMUNITY,
    "TRANSACTION_CHECK_TIMES", "TRAN_PREPARED_QUEUE_OFFSET", "UNIQ_KEY",
)  # fmt: skip
REAL_TOPIC, REAL_QID, PGROUP, TX, DELAY, IMMUNITY, CHECKS, PREPARED_OFFSET, UNIQ = range(9)
ROW_AT = VALUES + 2 * len(_PROPERTIES)
FORM_WORDS = ROW_AT + scan.ROW_WORDS

_NAMES = np.frombuffer("".join(_PROPERTIES).encode(), np.uint8)
LENGTHS = np.array([len(name) for name in _PROPERTIES], np.int64)
_STARTS = np.cumsum(LENGTHS) - LENGTHS
#: A commit copy has these no more (TX-46 and what only a half needs).
DROPPED = np.array([1, 1, 0, 1, 1, 1, 1, 1, 0], np.int64)


@kernel()
def same(memory: Bytes, at: int, other: Bytes, start: int, count: int) -> int:
    """1 if a stretch of memory reads as `other` from `start` on."""
    for place in range(count):
        if memory[at + place] != other[start + place]:
            return 0
    return 1


@kernel()
def name_of(memory: Bytes, at: int, stop: int) -> int:
    """Which of _NAMES the property at `at` is called, or -1."""
    mid = at
    while mid < stop and memory[mid] != 1:
        mid += 1
    for number in range(len(LENGTHS)):
        size = LENGTHS[number]
        if size == mid - at and mid < stop and memory[at] == _NAMES[_STARTS[number]]:
            if same(memory, at, _NAMES, _STARTS[number], size):
                return number
    return -1


@kernel()
def read_properties(memory: Bytes, form: Words, row: Words) -> None:
    """Find the values of a half's properties; the last of a key counts (SF-28)."""
    at = row[scan.PROPERTIES_AT]
    end = at + row[scan.PROPERTIES_SIZE]
    for field in range(2 * len(LENGTHS)):
        form[VALUES + field] = 0
    while at < end:
        stop = find_end(memory, at, end)
        number = name_of(memory, at, stop)
        if number >= 0 and stop - at > LENGTHS[number] + 1:
            start = at + LENGTHS[number] + 1
            form[VALUES + 2 * number] = start
            form[VALUES + 2 * number + 1] = stop - start
        at = stop + 1
