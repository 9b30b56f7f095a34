"""Numbers as Java reads and compares them (filtering.md FL-31, FL-32)."""

from __future__ import annotations

import math
import re
import struct
import unicodedata
from typing import Final

from gantrymq.shm.fromhandlers import require_ours
from gantrymq.shm.sql92.tree import LONG_MAX, Number, Width

_LEAST: Final = {Width.INT: -(1 << 31), Width.LONG: -(1 << 63)}
_MOST: Final = {Width.INT: (1 << 31) - 1, Width.LONG: LONG_MAX}
#: Characters that Java's String.trim takes away: all up to the blank.
_TRIMMED: Final = "".join(map(chr, range(33)))
# There is one way only to match any text: with two it would take the square of a long one's length.
_DECIMAL: Final = re.compile(
    r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?(?P<suffix>[fFdD]?)"
)
_HEX: Final = re.compile(
    r"[+-]?0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?[0-9]+(?P<suffix>[fFdD]?)"
)
_NAMED: Final = re.compile(r"(?P<sign>[+-]?)(?P<name>NaN|Infinity)")


def read_integer(text: str, width: Width) -> int | None:
    """Integer.valueOf or Long.valueOf; None where it throws."""
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not digits:
        return None
    value = 0
    for character in digits:
        digit = unicodedata.decimal(character, None)
        if digit is None or ord(character) > 0xFFFF:
            return None
        value = 10 * value + digit
        if value > 1 << 63:
            return None
    value = -value if text[0] == "-" else value
    return value if _LEAST[width] <= value <= _MOST[width] else None


def read_double(text: str) -> float | None:
    """Double.valueOf; None where it throws."""
    text = text.strip(_TRIMMED)
    if named := _NAMED.fullmatch(text):
        value = float(named["name"])
        return -value if named["sign"] == "-" else value
    if found := _DECIMAL.fullmatch(text):
        return float(text[: found.start("suffix")])
    if found := _HEX.fullmatch(text):
        try:
            return float.fromhex(text[: found.start("suffix")])
        except OverflowError as error:
            require_ours(error)
            return -math.inf if text[0] == "-" else math.inf
    return None


def read_number(text: str) -> int | float | None:
    """A number in any form, exactly if it is whole (dialect `sql`)."""
    whole = read_integer(text, Width.LONG)
    return read_double(text) if whole is None else whole


def order_doubles(left: float, right: float) -> int:
    """Double.compare: NaN above all and equal to itself, -0.0 below 0.0."""
    if left < right:
        return -1
    if left > right:
        return 1
    ours, theirs = _bits(left), _bits(right)
    return (ours > theirs) - (ours < theirs)


def _bits(value: float) -> int:
    if math.isnan(value):
        return 0x7FF8 << 48
    bits: int = struct.unpack("<q", struct.pack("<d", value))[0]
    return bits


def compare_numbers(left: Number, right: Number) -> int:
    """-1, 0 or 1 after widening (FL-32)."""
    if Width.DOUBLE in (left.width, right.width):
        return order_doubles(float(left.value), float(right.value))
    return (left.value > right.value) - (left.value < right.value)
