"""A file that one process has at a time, as long as it keeps it open."""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING

from gantrymq.shm.fromhandlers import require_ours
from gantrymq.shm.ownfiles import open_file

if TYPE_CHECKING:
    from gantrymq.shm.held import Descriptor


def try_lock(path: str | os.PathLike[str]) -> Descriptor | None:
    """What keeps others out as long as somebody has it; None if somebody else has one.

    The file is made if it is not there. Raises OSError.
    """
    lock = open_file(path, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(lock.number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        require_ours(error)
        return None
    return lock
