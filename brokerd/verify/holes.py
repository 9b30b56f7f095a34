"""Looks for bytes that are not zero without reading the holes of sparse files."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from typing import Final

_BLOCK: Final = 1 << 20
_ZEROES: Final = bytes(_BLOCK)


def first_nonzero(path: str, start: int, stop: int) -> int | None:
    """Place of the first byte in [start, stop) of a file that is not zero. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for begin, end in _extents(descriptor, start, stop):
            for at in range(begin, end, _BLOCK):
                data = os.pread(descriptor, min(_BLOCK, end - at), at)
                # A comparison is ten times as fast as a search for the first byte.
                if data != _ZEROES[: len(data)]:
                    return at + len(data) - len(data.lstrip(b"\0"))
    finally:
        os.close(descriptor)
    return None


def _extents(descriptor: int, start: int, stop: int) -> Iterator[tuple[int, int]]:
    while start < stop:
        try:
            begin = os.lseek(descriptor, start, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # only a hole is left
                return
            raise
        if begin >= stop:
            return
        end = min(stop, os.lseek(descriptor, begin, os.SEEK_HOLE))
        yield begin, end
        start = end
