"""Whether some broker has a store: its lock is an open-file-description lock (SF-86).

How it is taken: brokerd/lock.py.
"""

from __future__ import annotations

import fcntl
import os
import struct
from typing import Final

from gantrymq.shm.fromhandlers import require_ours
from gantrymq.shm.ownfiles import is_nowhere, open_file

LOCK_NAME: Final = "lock"
#: Bytes of the lock: of whoever has the store, a RocketMQ too; and of a life of a broker that has
#: named its board in `run/board`: until then the file names that of the life before.
STORE_BYTE: Final = 0
BOARD_BYTE: Final = 1
_F_OFD_GETLK: Final = 36
# struct flock of 64-bit Linux: type, whence, start, length, pid (must be 0).
FLOCK: Final = struct.Struct("hhqqi4x")


def is_held(store: str | os.PathLike[str], byte: int = STORE_BYTE) -> bool:
    """True if some broker, or a child of one, holds the lock, or its other byte."""
    try:  # who only looks needs no right to write, nor a file system that can be written
        lock = open_file(os.path.join(store, LOCK_NAME), os.O_RDONLY)
    except OSError as error:
        require_ours(error)
        if not is_nowhere(error):
            raise
        return False
    asked = FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
    with lock:
        answer = fcntl.fcntl(lock.number, _F_OFD_GETLK, asked)
    return bool(FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)
