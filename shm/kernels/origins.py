"""Where records of the log come from: the parked record of a copy, the half of a commit copy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gantrymq.shm import machine
from gantrymq.shm.codes import Stop
from gantrymq.shm.jit import BYTES_RO, WORDS, i8, kernel
from gantrymq.shm.kernels import scan
from gantrymq.shm.layout import SYS_COMMIT, SYS_TRANSACTION

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Words = NDArray[np.int64]

DONE = int(Stop.DONE)
LIMIT = int(Stop.LIMIT)

# Words of `find_origins`.
FIND_AT = 0  # offset in the view; moved on
FIND_BASE = 1  # log position of the view's first byte
FIND_END_AT = 2  # offset to stop at
FIND_MOST = 3  # records of one call
FIND_COUNT = 4  # out: origins
FIND_OF = 5  # DERIVED, COMMITS or COPIES
_ROW_AT = 6  # scratch: a parsed record
FIND_WORDS = _ROW_AT + scan.ROW_WORDS

# What preparedTransactionOffset says of a record's origin: -1 - position (HO-92), or of the half
# that a commit copy comes from: its position (TX-15). COPIES: where what is derived lies itself.
DERIVED, COMMITS, COPIES = range(3)


_CHECKS = scan.CHECK_PLACE | scan.CHECK_TRAILER_IF_THERE


@kernel()
def _origin_of(row: Words, of: int, position: int) -> int:
    """Negative if the record is none of those that are looked for."""
    prepared: int = row[scan.PREPARED]
    if of == COPIES:
        return position if prepared < 0 else -1
    if of == DERIVED:
        return -1 - prepared
    return prepared if row[scan.SYS_FLAG] & SYS_TRANSACTION == SYS_COMMIT else -1


@kernel()
def _find_origins(memory: Bytes, form: Words, out: Words, room: int) -> int:
    row = machine.shift(form, _ROW_AT)
    form[FIND_COUNT] = 0
    for _ in range(form[FIND_MOST]):
        at = form[FIND_AT]
        if at >= form[FIND_END_AT]:
            return DONE
        if form[FIND_COUNT] == room:
            return LIMIT
        position = form[FIND_BASE] + at
        stop = scan.parse_record(memory, at, form[FIND_END_AT], position, scan.CHECK_PLACE, row)
        if stop != DONE:
            return stop
        origin = _origin_of(row, form[FIND_OF], position)
        if origin >= 0:
            if scan.parse_record(memory, at, form[FIND_END_AT], position, _CHECKS, row) != DONE:
                origin = -1 - position
            out[form[FIND_COUNT]] = origin
            form[FIND_COUNT] += 1
        form[FIND_AT] = at + row[scan.SIZE]
    return LIMIT


@kernel(i8, BYTES_RO, WORDS, WORDS)
def find_origins(memory: Bytes, form: Words, out: Words) -> int:
    """Positions that records of a segment's view come from (COPIES: their own), into `out`.

    Of a damaged one, which may say another origin than its own: -1 - its own position.
    Returns DONE (FIND_END_AT reached), LIMIT (call again), or why `parse_record` stopped.
    """
    return _find_origins(machine.raw(memory), machine.raw(form), machine.raw(out), out.size)
