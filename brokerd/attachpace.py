"""How fast one process may open sessions: each of them is work for all agents.

A few at once, as an application does at its start; then one after the other with a pause between,
in which others' requests have their turn. Who is faster waits, and is not refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gantrymq.brokerd.access import Peer

#: So many at once, and after that one each so often: agents spend some 2 ms on one, all together.
BURST: Final = 64
PERIOD_NS: Final = 5_000_000
#: Processes that are remembered before those are forgotten that may do as they like again.
_KNOWN: Final = 1_024


class AttachPace:
    """Knows when each process has its next turn."""

    def __init__(self) -> None:
        self._busy_until: dict[Peer, int] = {}  # by process; its turns up to now

    def turn_ns(self, peer: Peer, now_ns: int) -> int:
        """When the next session of a process may be opened: now, or later."""
        return max(now_ns, self._busy_until.get(peer, 0) - (BURST - 1) * PERIOD_NS)

    def take(self, peer: Peer, now_ns: int) -> None:
        """The next session of a process is opened when its turn is."""
        if len(self._busy_until) >= _KNOWN:
            known = self._busy_until.items()
            self._busy_until = {process: until for process, until in known if until > now_ns}
        self._busy_until[peer] = max(self._busy_until.get(peer, 0), now_ns) + PERIOD_NS
