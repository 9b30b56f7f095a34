"""Records in the log whose producers may not have been told: what the writer answers them from.

A writer that dies between append and completion leaves some, and so does a session that ends with
entries in its ring. They are kept until their producer goes on with a new seq, and no longer than
until so many bytes more have been appended: `settled` on the board, from where on a new writer
looks for them, stays below the oldest.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gantrymq.shm.kernels import frames

#: A producer that has not come back by then is told that the position is no longer known. It also
#: bounds what a new writer scans, and the rows in memory.
UNANSWERED_BYTES_MAX: Final = 64 << 20
_NEVER: Final = (1 << 63) - 1


@dataclass(slots=True)
class _Records:
    """One producer's: rows of frames.STORED_WORDS in order of seq, and what they say of others."""

    known_from: int  # a seq from here on that has no row was never stored
    tables: list[NDArray[np.int64]] = field(default_factory=list)

    @property
    def lowest(self) -> int:
        return int(self.tables[0][frames.STORED_POSITION])


class Unanswered:
    """Rows by producer, within the bound."""

    def __init__(self) -> None:
        self._records: dict[bytes, _Records] = {}
        self._floor = _NEVER

    def keep(self, producer: bytes, known_from: int, table: NDArray[np.int64]) -> None:
        """Add records in the log's order, behind those that are kept already.

        `known_from`: the seq behind the last that the log has before them; it counts the first
        time.
        """
        records = self._records.setdefault(producer, _Records(known_from))
        records.tables.append(table)
        self._floor = min(self._floor, records.lowest)

    def of(self, producer: bytes) -> tuple[int, NDArray[np.int64]]:
        """`known_from` (0: of no seq without a row) and a producer's rows by seq, as one array."""
        records = self._records.get(producer)
        if records is None:
            return 0, np.zeros(0, np.int64)
        table = np.concatenate(records.tables).reshape(-1, frames.STORED_WORDS)
        order = np.argsort(table[:, frames.STORED_SEQ], kind="stable")
        return records.known_from, np.ascontiguousarray(table[order]).reshape(-1)

    def forget(self, producer: bytes) -> None:
        """The producer has gone on: it was told, or does not ask."""
        if self._records.pop(producer, None) is not None:
            self._find_floor()

    def __bool__(self) -> bool:
        """Whether any are kept."""
        return bool(self._records)

    def settled(self, appended: int) -> int:
        """From where on a new writer has to look, when the log ends at `appended`."""
        if self._floor < appended - UNANSWERED_BYTES_MAX:
            # Half of it at once, or each batch would drop another one.
            keep_from = appended - UNANSWERED_BYTES_MAX // 2
            for producer, records in list(self._records.items()):
                if records.lowest < keep_from:
                    del self._records[producer]
            self._find_floor()
        return min(appended, self._floor)

    def _find_floor(self) -> None:
        self._floor = min((r.lowest for r in self._records.values()), default=_NEVER)
