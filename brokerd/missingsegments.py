"""Segments that somebody has taken from the beginning of the log, as a start can tell.

Nothing in the log says where it begins, and sidecars of segments that are gone say little: a power
cut brings them back. But `gantry/first_units.json` says that a removal is under way before the
first segment goes, and where the log begins once the sidecars are gone (brokerd/removal.py). A disk
that is too full for the first of these loses the sidecars before. So a sidecar below the log, and
not below what was noted last, is of a segment that our retention has not removed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gantrymq.brokerd.queuestarts import FILE, read_starts
from gantrymq.shm.lognames import positions_in
from gantrymq.shm.sidecar import DIRECTORY
from gantrymq.workers.housekeeper.progress import UNFINISHED

if TYPE_CHECKING:
    from gantrymq.shm.storage import Storage


def find_missing(storage: Storage, low: int) -> list[int]:
    """Where segments began that are gone from before `low`, where the log begins now.

    Before any agent. Empty if nothing is certain; another broker may have removed them.
    """
    noted = read_starts(storage)
    if noted is None and storage.exists(FILE):  # damaged
        return []
    begin = noted[0] if noted else 0
    if begin == UNFINISHED:
        return []
    return [base for base in map(int, positions_in(storage, DIRECTORY)) if begin <= base < low]
