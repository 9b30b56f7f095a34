"""Open transactions: halves that nobody has decided (HO-41, HO-82 3.)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from brokerd.handover.links import properties_of
from shm import layout
from shm.kernels import scan
from shm.properties import GIVEN_UP_TOPIC, HALF_TOPIC, OP_TOPIC

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from brokerd.logscan import Piece


@dataclass(frozen=True, slots=True)
class Half:
    """A half record."""

    key: str
    position: int
    offset: int
    topic: str


@dataclass(slots=True)
class Halves:
    """What the log says of transactions; halves of one UNIQ_KEY are put-backs of the same."""

    halves: dict[str, list[Half]] = field(default_factory=dict)
    named: set[int] = field(default_factory=set)  # half offsets that op messages name
    committed: set[int] = field(default_factory=set)  # positions that commit records name
    given_up: set[str] = field(default_factory=set)

    def learn(self, piece: Piece, topics: NDArray[np.uint16], names: list[str]) -> None:
        """Take in the records of a piece."""
        rows = piece.rows
        commits = (rows[:, scan.SYS_FLAG] & layout.SYS_TRANSACTION) == layout.SYS_COMMIT
        self.committed.update(rows[commits, scan.PREPARED].tolist())
        for number, name in enumerate(names):
            if name == HALF_TOPIC:
                self._learn_halves(piece, rows[topics == number])
            elif name == OP_TOPIC:
                self._learn_ops(piece, rows[topics == number])
            elif name == GIVEN_UP_TOPIC:
                found = properties_of(piece, rows[topics == number])
                self.given_up.update(properties.get("UNIQ_KEY", "") for properties in found)

    def open(self) -> list[Half]:
        """The newest half of each transaction that nobody has decided, in order of the log."""
        undecided = [
            chain[-1]
            for key, chain in self.halves.items()
            if key not in self.given_up
            and not any(h.offset in self.named or h.position in self.committed for h in chain)
        ]
        return sorted(undecided, key=lambda half: half.position)

    def _learn_halves(self, piece: Piece, rows: NDArray[np.int64]) -> None:
        for row, properties in zip(rows, properties_of(piece, rows), strict=True):
            position = piece.base + int(row[scan.AT])
            key = properties.get("UNIQ_KEY", f"@{position}")
            half = Half(
                key, position, int(row[scan.QUEUE_OFFSET]), properties.get("REAL_TOPIC", "")
            )
            self.halves.setdefault(key, []).append(half)

    def _learn_ops(self, piece: Piece, rows: NDArray[np.int64]) -> None:
        """The body of an op message names queue offsets of halves: `8,11,`."""
        for at, size in rows[:, [scan.BODY_AT, scan.BODY_SIZE]].tolist():
            text = piece.view[at : at + size].tobytes().decode("ascii", "replace")
            self.named.update(int(word) for word in text.split(",") if word.isdecimal())
