"""The properties with which a half's extras begin: only the client of a transaction sends them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gantrymq.shm.jit import kernel
from gantrymq.shm.properties import CHECK_IMMUNITY, GANTRY_TX, GANTRY_TX_DELAY

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]

#: TX-1, TX-6 and our own, in this order; those from _NEEDED on may be missing.
_STARTS = [
    b"TRAN_MSG\x01true", b"PGROUP\x01",
    *(f"{name}\x01".encode() for name in (GANTRY_TX, GANTRY_TX_DELAY, CHECK_IMMUNITY)),
]  # fmt: skip
_NEEDED = 3
#: How many bytes may follow a start, up to the separator.
_ROOM = np.array([0, 255, 64, 32, 32], np.int64)
_TEXT = np.frombuffer(b"".join(_STARTS), np.uint8)
_ENDS = np.cumsum([len(start) for start in _STARTS]).astype(np.int64)


@kernel()
def _begins(memory: Bytes, at: int, end: int, first: int, last: int) -> int:
    """1 if the text from `first` to `last` of all starts stands there."""
    if end - at < last - first:
        return 0
    for index in range(last - first):
        if memory[at + index] != _TEXT[first + index]:
            return 0
    return 1


@kernel()
def transaction_bytes(memory: Bytes, at: int, count: int) -> int:
    """How many bytes the properties of a transaction take; 0 if they are not as they must be."""
    place = at
    end = at + count
    first = 0
    for number in range(len(_ENDS)):
        last = _ENDS[number]
        if _begins(memory, place, end, first, last):
            place += last - first
            start = place
            while place < end and (memory[place] > 2 or memory[place] == 0):
                place += 1
            size = place - start
            if place == end or memory[place] != 2 or size > _ROOM[number]:
                return 0
            if size == 0 and number:
                return 0
            place += 1
        elif number < _NEEDED:
            return 0
        first = last
    return place - at
