"""A half record as kernels read it: words of a call, states, and what its properties say."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gantrymq.shm.jit import kernel
from gantrymq.shm.kernels import scan
from gantrymq.shm.kernels.bytesearch import find_byte, is_same, which_name
from gantrymq.shm.kernels.stretch import STRETCH_WORDS
from gantrymq.shm.properties import (
    CHECK_IMMUNITY,
    GANTRY_TX,
    GANTRY_TX_DELAY,
    HALF_DROPPED,
    HALF_TOPIC,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Words = NDArray[np.int64]

#: Hex digits of a transaction's id in GANTRY_TX; its number in it follows, behind a comma.
ID_DIGITS = 32

# A half that is to be decided: HALF_WORDS each. The first two are what somebody says of it.
POSITION, OFFSET, STATE, SIZE, TOPIC = range(5)
HALF_WORDS = 5

# What was found of it.
NEW, GOOD, PUT, DELAYED, NO_HALF, FOREIGN, NO_TOPIC, TOO_LARGE, DAMAGED = range(9)

# What is done with halves: nothing; their commit copies are put; these could be put.
LOOK, PUTS, LOOK_TO_PUT = range(3)

# Words of `put_commits` and of the kernels that read queues, behind those of shm.kernels.stretch.
COMMIT = STRETCH_WORDS  # LOOK, PUTS, LOOK_TO_PUT
GROUP_BYTES = COMMIT + 1  # of `expected`; -1: any group
TX_BYTES = COMMIT + 2  # behind them; 0: any transaction
OP_ROOM = COMMIT + 3  # so much must be left in the ring behind each copy, for the op record
REAL_QUEUE = COMMIT + 4  # scratch
VALUES = COMMIT + 5  # scratch: where a property's value is and its length, for each of _NAMES
_PROPERTIES = (
    "REAL_TOPIC", "REAL_QID", "PGROUP", GANTRY_TX, GANTRY_TX_DELAY, CHECK_IMMUNITY,
    "TRANSACTION_CHECK_TIMES", "TRAN_PREPARED_QUEUE_OFFSET", "UNIQ_KEY",
)  # fmt: skip
REAL_TOPIC, REAL_QID, PGROUP, TX, DELAY, IMMUNITY, CHECKS, PREPARED_OFFSET, UNIQ = range(9)
ROW_AT = VALUES + 2 * len(_PROPERTIES)
FORM_WORDS = ROW_AT + scan.ROW_WORDS

_HALF = np.frombuffer(HALF_TOPIC.encode(), np.uint8)
_NAMES = np.frombuffer("".join(_PROPERTIES).encode(), np.uint8)
LENGTHS = np.array([len(name) for name in _PROPERTIES], np.int64)
#: 1: a commit copy has it no more.
DROPPED = np.array([name in HALF_DROPPED for name in _PROPERTIES], np.int64)


@kernel()
def is_half_topic(memory: Bytes, at: int, count: int) -> int:
    """1 if a name is that of the half topic."""
    return is_same(memory, at, _HALF, 0, count) if count == len(_HALF) else 0


@kernel()
def name_of(memory: Bytes, at: int, stop: int) -> int:
    """Which of _NAMES the property at `at` is called, or -1."""
    mid = find_byte(memory, at, stop, 1)
    number: int = which_name(memory, at, mid - at, _NAMES, LENGTHS) if mid < stop else -1
    return number


@kernel()
def read_properties(memory: Bytes, form: Words, row: Words) -> None:
    """Find the values of a half's properties; the last of a key counts (SF-28)."""
    at = row[scan.PROPERTIES_AT]
    end = at + row[scan.PROPERTIES_SIZE]
    for field in range(2 * len(LENGTHS)):
        form[VALUES + field] = 0
    while at < end:
        stop = find_byte(memory, at, end, 2)
        number = name_of(memory, at, stop)
        if number >= 0 and stop - at > LENGTHS[number] + 1:
            start = at + LENGTHS[number] + 1
            form[VALUES + 2 * number] = start
            form[VALUES + 2 * number + 1] = stop - start
        at = stop + 1


@kernel()
def is_first(memory: Bytes, form: Words, id_bytes: int) -> int:
    """1 if the half whose properties were read is number 1 of its transaction."""
    at = form[VALUES + 2 * TX] + id_bytes
    end = form[VALUES + 2 * TX] + form[VALUES + 2 * TX + 1]
    if at + 2 > end or memory[at + 1] != 49:
        return 0
    return 1 if at + 2 == end or memory[at + 2] == 44 else 0  # where it was first may follow
