"""Entries whose bytes are ready, as agents put them: many by one store of the tail."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gantrymq.shm import machine
from gantrymq.shm.jit import BYTES, BYTES_RO, WORDS, i8, kernel
from gantrymq.shm.kernels import frames
from gantrymq.shm.kernels.ring import TOO_LARGE, URGENT, publish_entries, reserve
from gantrymq.shm.layout import ENTRY_SEQ

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Words = NDArray[np.int64]


@kernel()
def _put_entries(arena: Bytes, lane: Words, entries: Bytes, limit: int) -> int:
    cursor = lane[frames.UP_CURSOR]
    seq: int = lane[frames.SEQ]
    count = 0
    at = 0
    while at < limit:
        size = machine.load32(entries, at)
        if 2 * size > lane[frames.UP_MASK] + 1:
            return TOO_LARGE
        start = reserve(arena, lane, cursor, size)
        if start < 0:
            break
        place = lane[frames.UP] + (start & lane[frames.UP_MASK])
        machine.copy(arena, place, entries, at, size)
        count += 1
        machine.store64(arena, place + ENTRY_SEQ, seq + count)
        cursor = start + size
        at += size
    lane[frames.RING] = 0
    if count:
        publish_entries(arena, lane, cursor, seq + count, URGENT)
    return count


@kernel(i8, BYTES, WORDS, BYTES_RO)
def put_entries(arena: Bytes, lane: Words, entries: Bytes) -> int:
    """Put entries whose bytes are ready but for the seq, one behind the other, by one store.

    Returns for how many there was room, or TOO_LARGE: then nothing is put.
    """
    return _put_entries(machine.raw(arena), machine.raw(lane), machine.raw(entries), entries.size)
