"""Words of shared memory, for code outside kernels: one at a time, and looking out for a change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gantrymq.shm import atomics, machine
from gantrymq.shm.jit import BYTES, BYTES_RO, WORDS_RO, i8, kernel

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
#: Whose processor was another's for so long waits awake no more: a wake-up takes less, and what
#: else asks for it, at which it does not look, would wait for another's time slice after the other.
LOST_NS = 1_000_000


@kernel()
def rounds_left(turn: int, rounds: int) -> int:
    """Let others go first now and then; the rounds there are to be: one more if that took long."""
    if turn % SPIN_ROUNDS_OWN:
        return rounds
    before = machine.monotonic_ns()
    machine.give_way()
    if machine.monotonic_ns() - before < LOST_NS:
        return rounds
    return min(rounds, turn + 2)


@kernel(i8, BYTES_RO, i8, i8, i8, nogil=True)
def spin(memory: Bytes, at: int, seen: int, rounds: int) -> int:
    """Look at a word until it differs from `seen`, with a pause each round; 1 if it does.

    Whoever is to change the word may have been woken on this very processor: it goes first.
    """
    turn = 0
    while turn < rounds:
        if atomics.load_acquire(memory, at) != seen:
            return 1
        machine.pause()
        rounds = rounds_left(turn, rounds)
        turn += 1
    return 0


@kernel(i8, BYTES_RO, i8, i8, i8, i8, i8, nogil=True)
def await_told(memory: Bytes, told_at: int, serial: int, at: int, seen: int, rounds: int) -> int:
    """As `spin`: 1 once the word `told_at` is `serial`, -1 once the other one is not `seen`."""
    turn = 0
    while turn < rounds:
        # SYNC POINT: told (other end: `_tell`)
        if atomics.load_acquire(memory, told_at) == serial:
            return 1
        if atomics.load_acquire(memory, at) != seen:
            return -1
        machine.pause()
        rounds = rounds_left(turn, rounds)
        turn += 1
    return 0


@kernel()
def has_moved(table: Words, first: int, count: int) -> int:
    """1 if a word of a table as `watch` has it differs from what was seen, from `first` on."""
    for number in range(first, count):
        memory = machine.bytes_at(table[2 * number])
        if atomics.load_acquire(memory, 0) != table[2 * number + 1]:
            return 1
    return 0


@kernel()
def watch_raw(table: Words, count: int, rounds: int) -> int:
    """`watch` of a raw array."""
    turn = 0
    while turn < rounds:
        if has_moved(table, 0, count):
            return 1
        machine.pause()
        rounds = rounds_left(turn, rounds)
        turn += 1
    return 0


@kernel(i8, WORDS_RO, i8, i8, nogil=True)
def watch(table: Words, count: int, rounds: int) -> int:
    """As `spin`, several words at a time: 1 once one differs from what was seen of it.

    `table`: for each the address of the word, whose memory the caller holds, and what was seen.
    """
    return watch_raw(machine.raw(table), count, rounds)
