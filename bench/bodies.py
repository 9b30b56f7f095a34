"""The bodies that every contestant sends, and the proof that each of them arrived.

A consumer "touches" a body by adding its first and its last byte to its checksum: both cache lines
of 100 bytes are read, at the same small price for rows in Python and for columns in numpy. On
schedule, where a body begins with its intended time, the checksum is the sum of these times.
"""

from __future__ import annotations

import random
import struct
from itertools import islice
from typing import TYPE_CHECKING, Final

from bench.sizes import BODIES, BODY_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy import integer
    from numpy.typing import NDArray

_SEED: Final = 7
_DUE: Final = struct.Struct("<q")
_FILLER: Final = bytes(BODY_BYTES - _DUE.size)


def make_bodies(size: int = BODY_BYTES) -> list[bytes]:
    """Return the bodies that one cycle sends; always the same ones."""
    return list(islice(unlike_bodies(size), BODIES))


def unlike_bodies(size: int) -> Iterator[bytes]:
    """Yield bodies of which none is like another, for tables that say a repeated one in a byte."""
    source = random.Random(_SEED)
    while True:
        yield source.randbytes(size)


def checksum_of(count: int) -> int:
    """Return the checksum of `count` consumed messages, a multiple of BODIES."""
    return sum(body[0] + body[-1] for body in make_bodies()) * (count // BODIES)


def timed_body(due_ns: int) -> bytes:
    """Return a body that tells when it was to be sent, in ns of CLOCK_MONOTONIC."""
    return _DUE.pack(due_ns) + _FILLER


def due_of(body: bytes | memoryview) -> int:
    """Return when a timed body was to be sent."""
    return int(_DUE.unpack_from(body)[0])


def touch_columns(buffer: NDArray[integer], offsets: NDArray[integer]) -> int:
    """Return the checksum of a batch: bytes in `buffer`, body i at offsets[i]:offsets[i + 1]."""
    first = buffer[offsets[:-1]].sum(dtype="u8")
    last = buffer[offsets[1:] - 1].sum(dtype="u8")
    return int(first) + int(last)
