"""Records that wait in a parking topic, as rows of a table, and which of them are done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gantrymq.shm.kernels import scan
from gantrymq.shm.lognames import segment_name
from gantrymq.shm.properties import parse_properties
from gantrymq.shm.storage import map_still

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from gantrymq.shm.storage import Storage

#: One parked record; `property_bytes` and `property_at` (from the record's start) lead to the rest.
PARKED: Final = np.dtype(
    [
        *(("position", "i8"), ("offset", "i8"), ("store_ms", "i8"), ("size", "i4")),
        *(("property_at", "i4"), ("property_bytes", "i4")),
    ]
)


@dataclass(slots=True)
class Parked:
    """Records of one queue of a parking topic, in order; `settled` says which are done."""

    records: NDArray[Any]
    settled: NDArray[np.bool_]

    @property
    def pending(self) -> NDArray[Any]:
        """Those that are not."""
        return np.asarray(self.records[~self.settled])

    @property
    def next_offset(self) -> int:
        """Queue offset of the first that is pending, else behind the last."""
        waiting = self.pending
        if len(waiting):
            return int(waiting["offset"][0])
        return int(self.records["offset"][-1]) + 1 if len(self.records) else 0

    @property
    def out_of_order(self) -> int:
        """How many are settled behind the first that is pending."""
        behind = self.records["offset"] >= self.next_offset
        return int((self.settled & behind).sum())


def rows_of(rows: NDArray[np.int64], base: int) -> NDArray[Any]:
    """Rows of PARKED from rows of the scan; `base`: of their segment."""
    records = np.empty(len(rows), PARKED)
    records["position"] = rows[:, scan.AT] + base
    records["offset"], records["store_ms"] = rows[:, scan.QUEUE_OFFSET], rows[:, scan.STORE_MS]
    records["size"] = rows[:, scan.SIZE]
    records["property_at"] = rows[:, scan.PROPERTIES_AT] - rows[:, scan.AT]
    records["property_bytes"] = rows[:, scan.PROPERTIES_SIZE]
    return records


def messages(
    storage: Storage, segment_bytes: int, records: NDArray[Any]
) -> Iterator[dict[str, str]]:
    """Properties of parked records, which are in order of their positions. Raises OSError."""
    base, view = -1, np.empty(0, np.uint8)
    for position, at, size in records[["position", "property_at", "property_bytes"]].tolist():
        if base < 0 or position >= base + segment_bytes:
            base = position // segment_bytes * segment_bytes
            view = map_still(storage, segment_name(base))
        start = position - base + at
        yield parse_properties(view[start : start + size].tobytes())
