"""Whether some broker has a store: its lock is an open-file-description lock (SF-86).

How it is taken: brokerd/lock.py.
"""

from __future__ import annotations

import fcntl
import os
import struct
from typing import Final

from gantrymq.shm.ownfiles import open_file

LOCK_NAME: Final = "lock"
_F_OFD_GETLK: Final = 36
# struct flock of 64-bit Linux: type, whence, start, length, pid (must be 0).
FLOCK: Final = struct.Struct("hhqqi4x")


def is_held(store: str | os.PathLike[str]) -> bool:
    """True if some broker, or a child of one, holds the lock."""
    try:
        lock = open_file(os.path.join(store, LOCK_NAME), os.O_RDWR)
    except FileNotFoundError:
        return False
    asked = FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
    with lock:
        answer = fcntl.fcntl(lock.number, _F_OFD_GETLK, asked)
    return bool(FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)
