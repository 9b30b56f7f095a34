"""Which files of a commit log a read of Spark or `gantrymq ingest` looks at."""

from __future__ import annotations

import logging
from functools import cache
from typing import TYPE_CHECKING, Final

import numpy as np

from gantrymq.clients.spark.options import ReadOptions
from gantrymq.shm import layout
from gantrymq.shm.errors import Corrupt
from gantrymq.shm.lognames import DIRECTORY as COMMIT_LOG
from gantrymq.shm.record_columns import read_records
from gantrymq.shm.segment import Segment, lengths_of, open_files
from gantrymq.shm.storage import PosixStorage

if TYPE_CHECKING:
    from numpy.typing import NDArray

_log = logging.getLogger(__name__)

#: How often a segment may go between the look at the directory and its opening.
_LOOKS_MAX: Final = 5
#: So many zeroes are the log's end.
LOOK_BYTES: Final = 1 << 20


def used_segments(storage: PosixStorage, options: ReadOptions) -> tuple[list[Segment], list[int]]:
    """Files that hold something, and the length that each must have.

    Raises Corrupt for a file that is no segment, unless bad records are to be reported.
    """

    def foreign(path: str) -> None:
        if not options.report_bad_records:
            text = f"{path} does not belong there: move it away (badRecords=report passes over it)"
            raise Corrupt(text, path=path)
        _tell_foreign(options.store, path)

    for looks in range(_LOOKS_MAX, 0, -1):
        try:
            files = open_files(storage, COMMIT_LOG, foreign, live=True)
            used = [Segment(*file) for file in files]
            break
        except FileNotFoundError:  # retention has just moved it away
            if looks == 1:
                raise
    lengths = lengths_of(used)
    while used and not used[-1].view[:LOOK_BYTES].any():  # made ahead, not used yet
        used.pop()
    return used, lengths[: len(used)]


@cache
def _tell_foreign(store: str, path: str) -> None:
    """Once for each file: who follows a log looks at it again and again."""
    _log.warning(f"{path} of {store} does not belong there: passed over")


def times_behind(segments: list[Segment]) -> list[int | None]:
    """Of each segment the first time behind it; None for the last. Some hold a filler only."""
    found: list[int | None] = [None] * len(segments)
    for number in range(len(segments) - 1, 0, -1):
        found[number - 1] = first_ms(segments[number].view) or found[number]
    return found


def first_ms(view: NDArray[np.uint8]) -> int | None:
    """The storeTimestamp of a segment's first record; None if there is none."""
    if len(view) < layout.RECORD_BYTES_MIN:
        return None
    columns = read_records(view, np.zeros(1, np.int64), np.full(1, len(view)), 0)
    return int(columns.store_timestamp[0]) or None
