"""A file that one process has at a time, as long as it keeps it open."""

from __future__ import annotations

import fcntl
import os

from gantrymq.shm.ownfiles import open_file


def try_lock(path: str | os.PathLike[str]) -> int | None:
    """A descriptor that keeps others out until it is closed; None if somebody else has one.

    The file is made if it is not there. Raises OSError.
    """
    descriptor = open_file(path, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
