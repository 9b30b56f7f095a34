"""A filter's bits in an extension of a ConsumeQueue (FL-62, FL-65)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gantrymq.shm import machine
from gantrymq.shm.jit import kernel
from gantrymq.shm.layout import CQ_EXT_BITMAP, CQ_EXT_BITMAP_BYTES, CQ_EXT_UNIT_BYTES

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Words = NDArray[np.int64]

# What a consumer knows of its filter's bits; their numbers follow.
BITS_FROM = 0  # of records below this log position they are not known
BITS_BYTES = 1  # of a bitmap that has them
BITS_COUNT = 2
BITS_WORDS = 3


@kernel()
def is_whole(extension: Bytes, place: int, room: int) -> int:
    """1 if an extension of ours or of a RocketMQ's is there, in so many bytes."""
    if room < CQ_EXT_UNIT_BYTES:
        return 0
    size = machine.load_be16(extension, place)
    whole = CQ_EXT_UNIT_BYTES + machine.load_be16(extension, place + CQ_EXT_BITMAP_BYTES)
    return 1 if size == whole and size <= room else 0


@kernel()
def may_be_true(extension: Bytes, place: int, position: int, known: Words) -> int:
    """0 if the bits of a filter say that it is not TRUE of the record at a log position."""
    bitmap = machine.load_be16(extension, place + CQ_EXT_BITMAP_BYTES)
    if bitmap != known[BITS_BYTES] or position < known[BITS_FROM]:
        return 1
    for number in range(BITS_WORDS, BITS_WORDS + known[BITS_COUNT]):
        bit = known[number]
        if not extension[place + CQ_EXT_BITMAP + bit // 8] >> bit % 8 & 1:
            return 0
    return 1
