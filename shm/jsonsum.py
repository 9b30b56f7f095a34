"""A checksum inside of a JSON object: what `store verify` finds flipped bits of small files by.

The last field of a file that we write is

    "gantryCrc32":"89abcdef"

the CRC-32 of the file's bytes with these eight digits as zeroes. RocketMQ ignores unknown fields
(SF-104, SF-120) and leaves it out when it writes a file anew: then there is nothing to check.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from operator import ne
from typing import Any, Final

FIELD: Final = "gantryCrc32"
_BEFORE: Final = f'"{FIELD}":"'.encode()
_ZEROES: Final = b"0" * 8


def with_sum(text: str) -> str:
    """A JSON object's text with the checksum as its last field."""
    head = text.rstrip().removesuffix("}").rstrip()
    comma = "" if head.endswith("{") else ","
    before = f'{head}{comma}\n\t"{FIELD}":"'
    behind = '"\n}'
    crc = zlib.crc32(behind.encode(), zlib.crc32(before.encode() + _ZEROES))
    return f"{before}{crc:08x}{behind}"


def sum_holds(data: bytes) -> bool | None:
    """Whether a file's checksum is that of its bytes; None if it has none."""
    at = data.rfind(_BEFORE)
    if at < 0:
        return None
    at += len(_BEFORE)
    behind = at + len(_ZEROES)
    crc = zlib.crc32(data[behind:], zlib.crc32(data[:at] + _ZEROES))
    return data[at:behind] == b"%08x" % crc


def without_sum(content: Any) -> Any:  # noqa: ANN401 - JSON
    """A parsed file without the field."""
    if isinstance(content, Mapping) and FIELD in content:
        return {name: value for name, value in content.items() if name != FIELD}
    return content


def looks_like_sum(name: str) -> bool:
    """Whether a field's name is the checksum's but for damage: then nothing would be checked."""
    differing = sum(map(ne, name, FIELD))
    return len(name) == len(FIELD) and 0 < differing <= len(FIELD) // 2
