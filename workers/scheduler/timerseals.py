"""Entries of timers as bucket files have them: each with a seal that tells whether it is whole.

The seal is in the upper 16 bits of `ms`, which no time needs. A power cut leaves zeroes, or half an
entry, where a sector is missing, and a disk may rot: neither is a timer. Zeroes are not whole, so
what is taken out of a file is overwritten with entries of no record, which are. Nor is an entry
whole in a file of another time: every timer is filed by its time, whatever the clock says, so there
it can only be of another file, which was copied over this one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from gantrymq.shm.layout import RECORD_BYTES_MIN
from gantrymq.shm.limits import DELIVER_MS_MAX
from gantrymq.workers.scheduler.timerpool import ENTRY, SIZE_MASK

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gantrymq.workers.scheduler.timerpool import Entries

_SHIFT: Final = np.uint64(48)
#: The last time that an entry can have.
MS_MAX: Final = (1 << 48) - 1
assert MS_MAX >= DELIVER_MS_MAX
_TIME: Final = np.uint64(MS_MAX)
_HALF: Final = np.uint64(32)
#: Odd numbers with bits like noise: one for each word of an entry, one to mix them.
_FACTORS: Final = tuple(
    map(np.uint64, (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9))
)
_MIX: Final = np.uint64(0xD6E8FEB86659FD93)


def sealed(entries: Entries) -> Entries:
    """The same as a file is to have them."""
    found = entries.copy()
    words = found.view(np.uint64).reshape(-1, 3)
    words[:, 0] |= _seals(words) << _SHIFT
    return found


def unsealed(stored: Entries, span: tuple[int, int]) -> tuple[Entries, NDArray[np.bool_]]:
    """What a file has, and which of it is whole; nothing else of what is not may be believed.

    `span`: its entries are later than the first ms, and not later than the second.
    """
    found = stored.copy()
    words = found.view(np.uint64).reshape(-1, 3)
    seals = words[:, 0] >> _SHIFT
    words[:, 0] &= _TIME
    is_here = (found["ms"] > span[0]) & (found["ms"] <= span[1])
    return found, (seals == _seals(words)) & (is_here | ~are_of_records(found))


def of_nothing(count: int) -> Entries:
    """So many entries of no record, as a file is to have them."""
    return sealed(np.zeros(count, ENTRY))


def are_of_records(entries: Entries) -> NDArray[np.bool_]:
    """Which of whole entries are not of nothing."""
    return np.asarray(entries["size"] & SIZE_MASK >= RECORD_BYTES_MIN)


def _seals(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """16 bits of each row's three words."""
    mixed = words[:, 0] * _FACTORS[0] + words[:, 1] * _FACTORS[1] + words[:, 2] * _FACTORS[2]
    mixed += _MIX
    mixed ^= mixed >> _HALF
    mixed *= _MIX
    return np.asarray(mixed >> _SHIFT)
