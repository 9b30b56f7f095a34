"""Records that another broker has appended since our last clean stop: noticed, not cut off."""

from __future__ import annotations

from brokerd.logscan import walk
from shm.errors import Incompatible
from shm.kernels import scan
from shm.storage import Storage

#: Its records have no trailer, or none that binds: place and body's checksum must do.
CHECKS = scan.CHECK_PLACE | scan.CHECK_BODY


def refuse_foreign(storage: Storage, segment_bytes: int, end: int) -> None:
    """Raise Incompatible if a record lies behind the end that we left at a clean stop.

    Recovery would cut it off as the torn end of a crash.
    """
    for piece in walk(storage, segment_bytes, end, end + segment_bytes, CHECKS):
        if len(piece.rows):
            raise Incompatible(
                f"another broker has appended to this log since our last stop (from log position"
                f" {end} on): its records can't be taken over yet; let that broker go on, or"
                " restore the store as it was at our stop. Nothing has been changed",
                position=end,
            )
        return
