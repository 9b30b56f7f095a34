"""Words of shared memory, for code outside kernels: one at a time, and looking out for a change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shm import atomics, machine
from shm.jit import BYTES, BYTES_RO, WORDS_RO, i8, kernel

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Words = NDArray[np.int64]


@kernel(i8, BYTES, i8)
def load_word(memory: Bytes, at: int) -> int:
    """A 64-bit word by acquire, for code outside kernels."""
    return atomics.load_acquire(memory, at)


@kernel(i8, BYTES, i8, i8)
def store_word(memory: Bytes, at: int, value: int) -> int:
    """A 64-bit word by release, for code outside kernels."""
    atomics.store_release(memory, at, value)
    return value


@kernel(i8, BYTES, i8, i8)
def store_half(memory: Bytes, at: int, value: int) -> int:
    """A 32-bit word by release, for code outside kernels."""
    atomics.store_release32(memory, at, value)
    return value


#: Rounds of `spin` between two looks for others that wait for the processor.
SPIN_ROUNDS_OWN = 32


@kernel(i8, BYTES_RO, i8, i8, i8, nogil=True)
def spin(memory: Bytes, at: int, seen: int, rounds: int) -> int:
    """Look at a word until it differs from `seen`, with a pause each round; 1 if it does.

    Whoever is to change the word may have been woken on this very processor: it goes first.
    """
    for turn in range(rounds):
        if atomics.load_acquire(memory, at) != seen:
            return 1
        machine.pause()
        if turn % SPIN_ROUNDS_OWN == 0:
            machine.give_way()
    return 0


@kernel(i8, WORDS_RO, i8, i8, nogil=True)
def watch(table: Words, count: int, rounds: int) -> int:
    """As `spin`, several words at a time: 1 once one differs from what was seen of it.

    `table`: for each the address of the word, whose memory the caller holds, and what was seen.
    """
    for turn in range(rounds):
        for number in range(count):
            memory = machine.bytes_at(table[2 * number])
            if atomics.load_acquire(memory, 0) != table[2 * number + 1]:
                return 1
        machine.pause()
        if turn % SPIN_ROUNDS_OWN == 0:
            machine.give_way()
    return 0
