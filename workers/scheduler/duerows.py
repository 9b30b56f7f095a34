"""Rows of parked records that are due, as they are handed from their queues to the delivery."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from gantrymq.shm.kernels.parked import DUE_MS, DUE_POSITION, DUE_SIZE, DUE_WORDS

#: DUE_WORDS columns of shm.kernels.parked.
Rows = NDArray[np.int64]
NOTHING: Final[Rows] = np.zeros((0, DUE_WORDS), np.int64)
#: A row's DUE_MS of which nobody knows when it should have come; else ms of CLOCK_BOOTTIME.
NOT_TIMED: Final = -(1 << 62)


def due_rows(positions: NDArray[np.int64], sizes: NDArray[np.int64]) -> Rows:
    """Rows of parked records, to be handed in; who knows when they were due says so in DUE_MS."""
    rows = np.zeros((len(positions), DUE_WORDS), np.int64)
    rows[:, DUE_POSITION] = positions
    rows[:, DUE_SIZE] = sizes
    rows[:, DUE_MS] = NOT_TIMED
    return rows
