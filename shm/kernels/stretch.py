"""Rows that name records of the log: words of a call, and what the view at hand shows of them.

A view is of one segment. Of that, only the stretch that one side wrote is read at a time: what a
record has to be depends on who wrote it (shm.ranges).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gantrymq.shm.jit import kernel
from gantrymq.shm.kernels import scan

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Words = NDArray[np.int64]

# The first words of a call's `form`.
NEXT = 0  # row to go on with; moved on
COUNT = 1  # rows
BASE = 2  # log position of the view's first byte
STRETCH_FROM = 3  # one side wrote the log positions [from, end)
STRETCH_END = 4
OURS = 5  # 1: we did
STRETCH_WORDS = 6

_CHECKS_OWN = scan.CHECK_PLACE | scan.CHECK_TRAILER
_CHECKS_FOREIGN = scan.CHECK_PLACE | scan.CHECK_BODY


@kernel()
def is_shown(form: Words, limit: int, position: int) -> int:
    """1 if a log position is in the view, whose length is `limit`, and in the stretch."""
    if position < form[STRETCH_FROM] or position >= form[STRETCH_END]:
        return 0
    place = position - form[BASE]
    return 1 if 0 <= place < limit else 0


@kernel()
def parse_shown(log: Bytes, limit: int, form: Words, position: int, row: Words) -> int:
    """`parse_record` of a position that is shown, with the checks that fit who wrote it."""
    checks = _CHECKS_OWN if form[OURS] else _CHECKS_FOREIGN
    stop: int = scan.parse_record(log, position - form[BASE], limit, position, checks, row)
    return stop
