"""What an agent has done so far, for `status`: words of its process slot on the board."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shm import layout

if TYPE_CHECKING:
    from shm.board import Board
    from shm.codes import Role

_OFFSETS = tuple(
    layout.PROCESS.offset(name)
    for name in ("heartbeat", "busy", "work", "refused", "bytes", "faults")
)


_DUE_EVERY_NS = 250_000_000


@dataclass(slots=True)
class Counters:
    """Numbers that only grow.

    `cycles` are duty cycles, `busy` those that found work, `faults` sessions cut off. From `due_ns`
    on an agent without work publishes too: its heartbeat says that it lives.
    """

    cycles: int = 0
    busy: int = 0
    records: int = 0
    refused: int = 0
    bytes: int = 0
    faults: int = 0
    due_ns: int = 0

    def publish(self, board: Board, role: Role, now_ns: int = 0) -> None:
        """Write all of them; readers may see some of this call and some of the one before."""
        self.due_ns = now_ns + _DUE_EVERY_NS
        at = board.process_at(role)
        values = (self.cycles, self.busy, self.records, self.refused, self.bytes, self.faults)
        for offset, value in zip(_OFFSETS, values, strict=True):
            board.set_word(at + offset, value)
