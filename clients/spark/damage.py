"""Bytes of a log that are no sound record, as rows: where they are, how many, why, and themselves.

Nothing that damage may have changed is shown as if it were true. Nothing here imports numba or
Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Of more bytes than this there are several rows, one behind the other.
ROW_BYTES_MAX: Final = 4 << 20
#: Bytes of one batch, but for a single row.
_BATCH_BYTES_MAX: Final = 16 << 20

RECORD_WRONG: Final = "a checksum or a length of the record is wrong"


class Stretch(NamedTuple):
    """`size` bytes of a segment from byte `at` on, and what is wrong with them.

    `topic` is known where something else than these bytes tells it, else "". A file that was cut
    has fewer of them than `size`.
    """

    at: int
    size: int
    reason: str
    topic: str = ""


@dataclass(frozen=True)
class Damage:
    """Stretches of one segment, in the log's order; `base` is the position of the view's start."""

    view: NDArray[np.uint8]
    base: int
    stretches: tuple[Stretch, ...]

    def __len__(self) -> int:
        return len(self.stretches)

    def batches(self) -> Iterator[Damage]:
        """The same in rows of at most ROW_BYTES_MAX bytes, some of them at a time."""
        kept: list[Stretch] = []
        total = 0
        for row in self._rows():
            if kept and total + row.size > _BATCH_BYTES_MAX:
                yield Damage(self.view, self.base, tuple(kept))
                kept, total = [], 0
            kept.append(row)
            total += row.size
        if kept:
            yield Damage(self.view, self.base, tuple(kept))

    def _rows(self) -> Iterable[Stretch]:
        for whole in self.stretches:
            end = whole.at + whole.size
            there = max(min(end, len(self.view)), whole.at + 1)
            for at in range(whole.at, there, ROW_BYTES_MAX):
                behind = at + ROW_BYTES_MAX
                yield whole._replace(at=at, size=(end if behind >= there else behind) - at)

    def batch(self, schema: Any) -> Any:  # noqa: ANN401 - pa.Schema, pa.RecordBatch
        """One row per stretch; the columns that the schema names, null but for what is sure."""
        known = {
            "topic": lambda: pa.array([row.topic or None for row in self.stretches], pa.string()),
            "physical_offset": lambda: pa.array([self.base + row.at for row in self.stretches]),
            "crc_ok": lambda: pa.array([False] * len(self)),
            "bad_reason": lambda: pa.array([row.reason for row in self.stretches]),
            "bad_size": lambda: pa.array([row.size for row in self.stretches], pa.int64()),
            "bad_bytes": lambda: pa.array([self._bytes(row) for row in self.stretches]),
        }
        arrays = [
            known[field.name]() if field.name in known else pa.nulls(len(self), field.type)
            for field in schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _bytes(self, row: Stretch) -> bytes:
        return self.view[row.at : row.at + row.size].tobytes()
