"""CRC-32 of each block of a segment, for its sidecar, at memory speed: sealing stalls nobody."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shm import machine
from shm.jit import BYTES_RO, WORDS, i8, kernel

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@kernel(i8, BYTES_RO, i8, WORDS)
def crc_blocks(memory: NDArray[np.uint8], block: int, out: NDArray[np.int64]) -> int:
    """Fill `out` with the CRC-32 of each `block` bytes (the last may be shorter); how many."""
    count = 0
    at = 0
    while at < memory.size:
        out[count] = machine.crc32(memory, at, min(block, memory.size - at))
        at += block
        count += 1
    return count
