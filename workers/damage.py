"""Records that an agent needs and cannot read: the broker's log names each of them once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gantrymq.workers.session import SessionTable

#: Positions that are remembered as named; beyond these, some may be named again.
NAMED_MAX: Final = 1024


class Damage:
    """What one agent has met. What is left out because of it is never left out in silence."""

    def __init__(self, table: SessionTable) -> None:
        self._table = table
        self._named: set[int] = set()

    def name(self, position: int) -> None:
        """Tell that the record at a log position cannot be read."""
        if position in self._named:
            return
        if len(self._named) >= NAMED_MAX:
            self._named.clear()
        self._named.add(position)
        self._table.note("error", "record_damaged", position=position)
