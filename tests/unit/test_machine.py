"""The checksum of shm.machine against zlib's, through the kernel that seals segments."""

from __future__ import annotations

import random
import zlib

import numpy as np

from gantrymq.shm.kernels.blocks import crc_blocks


def block_sums(data: bytes, at: int, block: int) -> list[int]:
    """CRC-32 of each block of the bytes from `at` on."""
    view = np.frombuffer(data, np.uint8)[at:]
    out = np.zeros(-(-view.size // block), np.int64)
    assert crc_blocks(view, block, out) == out.size
    return [int(number) for number in out]


def test_checksums_are_zlibs_at_every_length_and_place(seed: int) -> None:
    """SF-5: CRC-32 goes by blocks of 16 and 64 bytes, so every remainder and alignment counts."""
    data = random.Random(seed).randbytes(400)
    for at in range(17):
        for count in range(1, 301):
            part = data[: at + count]
            assert block_sums(part, at, count) == [zlib.crc32(part[at:])], (at, count)


def test_every_block_is_summed_at_its_place(seed: int) -> None:
    """Blocks start at any offset; the last is shorter."""
    data = random.Random(seed).randbytes(1000)
    for block in (*range(1, 70), 127, 128, 129, 999, 1000, 1001):
        parts = [data[at : at + block] for at in range(0, len(data), block)]
        assert block_sums(data, 0, block) == [zlib.crc32(part) for part in parts]


def test_plain_patterns_and_large_blocks(seed: int) -> None:
    """Zeroes and ones, where an error of the initial value shows, and a mebibyte."""
    for data in (bytes(4096), b"\xff" * 4096, random.Random(seed).randbytes(1 << 20)):
        for at in (0, 1, 15):
            assert block_sums(data, at, len(data)) == [zlib.crc32(data[at:])]
    assert block_sums(b"", 0, 16) == []
