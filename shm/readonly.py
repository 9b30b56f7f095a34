"""File systems that are mounted read-only: how that is seen, and what to do about it."""

from __future__ import annotations

import errno
import os
from typing import Final

MEND: Final = (
    "the file system there is read-only: mount it for writing (in a unit of systemd:"
    " ReadWritePaths=), or name a place on another one"
)


def is_read_only(place: str | os.PathLike[str]) -> bool:
    """Whether nothing can be written there, whoever asks. Raises OSError."""
    return bool(os.statvfs(place).f_flag & os.ST_RDONLY)


def told(error: OSError) -> str:
    """What an error says, and what to do if it comes of such a file system."""
    return f"{error}: {MEND}" if error.errno == errno.EROFS else str(error)
