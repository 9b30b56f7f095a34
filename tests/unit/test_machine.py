"""Words, copies and checksums of shm.machine: compiled code against Python's own."""

from __future__ import annotations

import random
import zlib

import numpy as np

from shm import machine
from shm.jit import kernel

WORD = 0x0123456789ABCDEF - (1 << 63)


@kernel()
def _sum(memory: np.ndarray, at: int, count: int) -> int:
    return machine.crc32(memory, at, count)


@kernel()
def _swap_words(memory: np.ndarray) -> None:
    """Read each kind of word from odd places, write it to others."""
    machine.store_be64(memory, 65, machine.load64(memory, 1))
    machine.store64(memory, 73, machine.load_be64(memory, 1))
    machine.store_be32(memory, 81, machine.load32(memory, 1))
    machine.store32(memory, 85, machine.load_be32(memory, 1))
    machine.store_be16(memory, 89, machine.load16(memory, 1))
    machine.store16(memory, 91, machine.load_be16(memory, 1))
    machine.copy(memory, 93, memory, 1, 7)


def test_checksums_are_zlibs_at_every_length_and_place(seed: int) -> None:
    """SF-5: CRC-32 by blocks of 16 and 64 bytes, so every remainder and alignment counts."""
    data = np.frombuffer(random.Random(seed).randbytes(400), np.uint8)
    for at in range(17):
        for count in range(301):
            found = _sum(data, at, count)
            assert found == zlib.crc32(data[at : at + count].tobytes()), (at, count)


def test_checksums_of_plain_patterns(seed: int) -> None:
    """Zeroes and ones, where an error of the initial value would show, and a large body."""
    for data in (bytes(4096), b"\xff" * 4096, random.Random(seed).randbytes(1 << 20)):
        for count in (0, 1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 4095, len(data)):
            assert _sum(np.frombuffer(data, np.uint8), 0, count) == zlib.crc32(data[:count])


def test_words_are_read_and_written_at_odd_places() -> None:
    memory = np.zeros(128, np.uint8)
    raw = WORD.to_bytes(8, "little", signed=True)
    memory[1:9] = np.frombuffer(raw, np.uint8)
    _swap_words(memory)
    assert memory[65:73].tobytes() == raw[::-1]
    assert memory[73:81].tobytes() == raw[::-1]
    assert memory[81:85].tobytes() == raw[:4][::-1]
    assert memory[85:89].tobytes() == raw[:4][::-1]
    assert memory[89:91].tobytes() == raw[:2][::-1]
    assert memory[91:93].tobytes() == raw[:2][::-1]
    assert memory[93:100].tobytes() == raw[:7]
    assert not memory[9:65].any()
    assert not memory[100:].any()
