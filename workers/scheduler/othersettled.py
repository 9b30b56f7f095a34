"""Parked records that another broker has settled: none of these is delivered by us."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gantrymq.shm.imported import Imported, read_imported

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gantrymq.shm.storage import Storage


class OtherSettled:
    """`gantry/imported.json`, a bit for each record of a parking queue.

    Raises Corrupt, OSError: what is not known must not be delivered.
    """

    def __init__(self, storage: Storage) -> None:
        self.imported = read_imported(storage) or Imported(0)
        self._bits: dict[tuple[str, int], NDArray[np.bool_]] = {}

    def among(self, topic: str, queue_id: int, first: int, count: int) -> NDArray[np.bool_]:
        """Which of the records at queue offsets [first, first + count) are settled."""
        start, length, bits = self.imported.bits(topic, queue_id)
        offsets = np.arange(first, first + count)
        found: NDArray[np.bool_] = offsets < start
        if first + count <= start or first >= start + length:
            return found
        key = (topic, queue_id)
        if key not in self._bits:
            packed = np.frombuffer(bits, np.uint8)
            unpacked = np.unpackbits(packed, count=length, bitorder="little")
            self._bits[key] = unpacked.astype(np.bool_)
        inside = (offsets >= start) & (offsets < start + length)
        found[inside] = self._bits[key][offsets[inside] - start]
        return found
