"""Records that an agent needs and cannot read: the broker's log names each of them once.

Of very many it names the first and says that there are more: an agent may meet them at each step,
and at each request of a client, and what it has named it has to keep in mind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gantrymq.workers.session import SessionTable

#: So many records are named in an agent's life.
NAMED_MAX: Final = 1024


class Damage:
    """What one agent has met. What is left out because of it is never left out in silence."""

    def __init__(self, table: SessionTable) -> None:
        self._table = table
        self._named: set[int] = set()
        self._has_told_of_more = False

    def name(self, position: int) -> None:
        """Tell that the record at a log position cannot be read."""
        if position in self._named or self._has_told_of_more:
            return
        if len(self._named) < NAMED_MAX:
            self._named.add(position)
            self._table.note("error", "record_damaged", position=position)
        else:
            self._has_told_of_more = True
            self._table.note("error", "more_records_damaged", named=NAMED_MAX)
