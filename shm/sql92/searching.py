"""Tables by which a filter's strings are looked for, and the same search in Python.

Both ways take time in proportion to what they look through, whatever they look for.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from gantrymq.shm.opcodes import CLASSES, MASK_BITS

#: Characters in their order; None is any one.
Part = Sequence[str | None]


def fallbacks(wanted: bytes) -> bytes:
    """Of each beginning of `wanted`: how many of its last bytes begin it too; 32-bit words."""
    found = [0] * len(wanted)
    matched = 0
    for at in range(1, len(wanted)):
        while matched and wanted[at] != wanted[matched]:
            matched = found[matched - 1]
        matched += wanted[at] == wanted[matched]
        found[at] = matched
    return struct.pack(f"<{len(found)}I", *found)


def mask_words(part: Part) -> int:
    """Words of a mask that has a bit for each character."""
    return -(-len(part) // MASK_BITS)


def masks(part: Part) -> bytes:
    """Of each ASCII character the number of its mask (a byte), then the masks.

    Bit i of a mask: such a character may stand at place i. All characters that the part does not
    name have mask 0.
    """
    by_character, others = _places(part)
    numbers = bytearray(CLASSES)
    found = [others]
    for character, places in by_character.items():
        numbers[ord(character)] = len(found)
        found.append(places)
    size = 8 * mask_words(part)
    return bytes(numbers) + b"".join(places.to_bytes(size, "little") for places in found)


def find_part(text: str, at: int, end: int, part: Part) -> int:
    """Where a part that is found first in text[at:end] ends, or -1."""
    if None not in part:
        wanted = "".join(map(str, part))
        found = text.find(wanted, at, end)
        return -1 if found < 0 else found + len(wanted)
    by_character, others = _places(part)
    state, top = 0, 1 << len(part) - 1
    for place in range(at, end):
        state = (state << 1 | 1) & by_character.get(text[place], others)
        if state & top:
            return place + 1
    return -1


def _places(part: Part) -> tuple[dict[str, int], int]:
    """Where each character of a part may stand, and where all others may; a bit for each place."""
    others = sum(1 << place for place, want in enumerate(part) if want is None)
    found: dict[str, int] = {}
    for place, want in enumerate(part):
        if want is not None:
            found[want] = found.get(want, others) | 1 << place
    return found, others
