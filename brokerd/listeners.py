"""Sessions that ask for decisions: the writer tells them when these are in the log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import numpy as np

from gantrymq.shm.kernels import frames

if TYPE_CHECKING:
    from gantrymq.workers.session import Session

_ROOM_FIRST: Final = 16


class Listeners:
    """Holds their arenas, and tells the kernels by the words of a batch where they are."""

    def __init__(self, batch: memoryview[int]) -> None:
        self._batch = batch
        self._sessions: list[Session] = []
        self._table = np.zeros(_ROOM_FIRST * frames.LISTENER_WORDS, np.int64)
        self._show()

    def __iter__(self) -> Iterator[Session]:
        return iter(self._sessions)

    def add(self, session: Session) -> None:
        """Tell one more."""
        self._sessions.append(session)
        self._show()

    def remove(self, session: int) -> None:
        """Tell it no more; it may have been none of them."""
        kept = [one for one in self._sessions if one.session != session]
        if len(kept) < len(self._sessions):
            self._sessions = kept
            self._show()

    def sleepers(self) -> Iterator[Session]:
        """Those to be rung, once each."""
        asleep = self._table[frames.LISTENER_ASLEEP :: frames.LISTENER_WORDS]
        for number in np.flatnonzero(asleep).tolist():
            asleep[number] = 0
            yield self._sessions[number]

    def _show(self) -> None:
        count = len(self._sessions)
        while count * frames.LISTENER_WORDS > self._table.size:
            self._table = np.zeros(2 * self._table.size, np.int64)
        self._table[:] = 0
        for number, session in enumerate(self._sessions):
            at = number * frames.LISTENER_WORDS
            self._table[at + frames.LISTENER_SESSION] = session.session
            self._table[at + frames.LISTENER_ARENA] = session.arena.ctypes.data
        self._batch[frames.LISTENERS] = count
        self._batch[frames.LISTENERS_AT] = self._table.ctypes.data
