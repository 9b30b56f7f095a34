"""Places of deleted topics on the board are used again, once nobody can mean the old topic by them.

A topic without a record in the log leaves in steps: no attached session has opened it; it is marked
as leaving, so that no agent finds it for a copy any more; each process of agents has heard that,
and of the end of every session that had opened it; the writer has taken all that agents had put
before; and there is still no record. A topic that had messages keeps its place until a start finds
none of them in the log.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from gantrymq.brokerd.metadata import LEAVING_MAX
from gantrymq.shm import layout, wire
from gantrymq.shm.arena import map_arena

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from gantrymq.brokerd.children import Crew
    from gantrymq.brokerd.metadata import Metadata
    from gantrymq.brokerd.sessions import Sessions

#: How often it is looked for topics that may leave; sooner where as many wait as leave at a time.
LOOK_NS: Final = 500_000_000


class Vacancies:
    """Lets deleted topics leave, some at a time; the supervisor drives it."""

    def __init__(
        self, metadata: Metadata, sessions: Sessions, tell_all: Callable[[wire.Frame], None]
    ) -> None:
        self._metadata = metadata
        self._sessions = sessions
        self._tell_all = tell_all
        self._number = 0
        self._names: list[str] = []  # that leave
        self._unheard: set[int] = set()  # pids of crews that have not passed
        self._tails: list[int] | None = None  # of agents' rings, once all crews have
        self._own: list[tuple[NDArray[np.uint8], int]] = []
        self._next_ns = 0
        self._kept = 0  # topics that sessions had open at the last look: these do not hurry it

    def look(self, crews: Sequence[Crew], now_ns: int) -> None:
        """Take the next step, if one can be taken."""
        if self._names:
            self._go_on(crews)
        elif (waiting := len(self._metadata.departing)) and (
            now_ns >= self._next_ns or waiting - self._kept >= LEAVING_MAX
        ):
            self._next_ns = now_ns + LOOK_NS
            self._begin(crews)

    def passed(self, pid: int, number: int) -> None:
        """A crew has heard all that it was told up to that number, and finished its cycle."""
        if number == self._number:
            self._unheard.discard(pid)

    def _begin(self, crews: Sequence[Crew]) -> None:
        opened = self._sessions.opened()
        self._kept = self._metadata.kept_open(opened)
        self._names = self._metadata.begin_leaving(opened)
        if self._names:
            self._number += 1
            # One that is started later has heard of nothing else.
            self._unheard = {crew.pid for crew in crews}
            self._tell_all(wire.Pass(self._number))

    def _go_on(self, crews: Sequence[Crew]) -> None:
        if self._unheard.intersection(crew.pid for crew in crews):
            return
        if self._tails is None:
            self._tails = self._words(layout.LANE_UP_TAIL)
        heads = self._words(layout.LANE_UP_HEAD)
        if any(head < tail for head, tail in zip(heads, self._tails, strict=True)):
            return
        self._metadata.leave(self._names)
        self._names, self._tails = [], None

    def _words(self, field: int) -> list[int]:
        """A word of the lane of each agent's own session."""
        from gantrymq.shm.kernels.words import load_word  # a start says first that it compiles

        if not self._own:
            self._own = [
                (map_arena(own.arena_descriptor, own.plan.size), own.plan.writer.control)
                for own in self._sessions.own()
            ]
        return [int(load_word(arena, control + field)) for arena, control in self._own]
