"""Bloom filters over (group, topic), as a ConsumeQueueExt keeps them (filtering.md section 4).

They may save reading a record: a message whose bitmap lacks a group's bits did not pass its filter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

_MASK: Final = (1 << 64) - 1
_C1: Final = 0x87C37B91114253D5
_C2: Final = 0x4CF5AD432745937F
_BLOCK: Final = 16


@dataclass(frozen=True, slots=True)
class BloomForm:
    """`hashes` positions per key in `bits` bits, a multiple of 8 (FL-60).

    A bit p is in byte p / 8 of a bitmap, value 1 << p % 8 (FL-62); shm/kernels/extend.py sets them.
    """

    hashes: int
    bits: int

    @classmethod
    def of(cls, error_percent: int, groups: int) -> BloomForm:
        """The form for an error rate in percent at so many groups."""
        if not 0 < error_percent < 100 or groups < 1:
            raise ValueError(f"error rate {error_percent} % for {groups} groups")
        hashes = math.ceil(math.log(100 / error_percent) / math.log(2))
        bits = math.ceil(groups * math.log(100 / error_percent) / math.log(2) / math.log(2))
        return cls(hashes, -(-bits // 8) * 8)

    def positions(self, group: str, topic: str) -> list[int]:
        """Which bits a group's filter of a topic has (FL-61)."""
        return self.positions_of(f"{group}#{topic}".encode())

    def positions_of(self, key: bytes) -> list[int]:
        """Which bits a key has."""
        value = murmur3(key)
        low, high = value & 0xFFFFFFFF, value >> 32
        found = []
        for number in range(1, self.hashes + 1):
            combined = (low + number * high) & 0xFFFFFFFF
            if combined >> 31:
                combined ^= 0xFFFFFFFF  # ~ of a negative int
            found.append(combined % self.bits)
        return found


def murmur3(data: bytes) -> int:
    """First 8 bytes of MurmurHash3 x64 128 with seed 0, little-endian."""
    first = second = 0
    whole = len(data) // _BLOCK * _BLOCK
    for at in range(0, whole, _BLOCK):
        first ^= _mix_first(int.from_bytes(data[at : at + 8], "little"))
        first = (_rotate(first, 27) + second) * 5 + 0x52DCE729 & _MASK
        second ^= _mix_second(int.from_bytes(data[at + 8 : at + 16], "little"))
        second = (_rotate(second, 31) + first) * 5 + 0x38495AB5 & _MASK
    tail = data[whole:]
    second ^= _mix_second(int.from_bytes(tail[8:], "little"))
    first ^= _mix_first(int.from_bytes(tail[:8], "little"))
    first ^= len(data)
    second ^= len(data)
    first = first + second & _MASK
    second = second + first & _MASK
    return _finish(first) + _finish(second) & _MASK


def _mix_first(word: int) -> int:
    return _rotate(word * _C1 & _MASK, 31) * _C2 & _MASK


def _mix_second(word: int) -> int:
    return _rotate(word * _C2 & _MASK, 33) * _C1 & _MASK


def _rotate(value: int, by: int) -> int:
    return (value << by | value >> (64 - by)) & _MASK


def _finish(value: int) -> int:
    value = (value ^ value >> 33) * 0xFF51AFD7ED558CCD & _MASK
    value = (value ^ value >> 33) * 0xC4CEB9FE1A85EC53 & _MASK
    return value ^ value >> 33
