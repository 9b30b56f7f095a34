"""Looks for bytes that are not zero without reading the holes of sparse files."""

from __future__ import annotations

import os
from typing import Final

from gantrymq.shm.ownfiles import open_file
from gantrymq.shm.storage import PosixFile

_BLOCK: Final = 1 << 20
_ZEROES: Final = bytes(_BLOCK)


def first_nonzero(path: str, start: int, stop: int) -> int | None:
    """Place of the first byte in [start, stop) of a file that is not zero. Raises OSError."""
    file = PosixFile(open_file(path, os.O_RDONLY), path)
    try:
        for begin, end in file.extents(start, stop):
            for at in range(begin, end, _BLOCK):
                data = os.pread(file.descriptor, min(_BLOCK, end - at), at)
                # A comparison is ten times as fast as a search for the first byte.
                if data != _ZEROES[: len(data)]:
                    return at + len(data) - len(data.lstrip(b"\0"))
    finally:
        file.close()
    return None
