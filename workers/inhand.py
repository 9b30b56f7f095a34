"""Which request an agent is carrying out, on the board: its successor knows what has ended it.

A request that is in hand when its agent dies of itself is suspected. After two such deaths the
successor does not carry it out: it refuses it, and the session is cut off. So a request that ends
its agent by a defect of ours ends one session, and not the broker.

Writer and `groups` work for many sessions by one call, and write what they asked by another: of a
death there nobody is suspected. Their successor is careful for as long as deaths count as quick: it
serves one session at a time to the end, with that session in hand.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from gantrymq.shm import layout

if TYPE_CHECKING:
    from gantrymq.shm.board import Board
    from gantrymq.shm.codes import Role
    from gantrymq.workers.session import SessionTable

#: Deaths amid one request, and amid different ones of a session, that are enough.
DEATHS_MAX: Final = 2
DEATHS_OF_SESSION_MAX: Final = 3
_SUSPECTS: Final = struct.Struct("<9I")
_LOW: Final = 0xFFFFFFFF
#: In place of a session: the agent was at work, for nobody in particular.
ANYBODY: Final = 1 << 32
#: How long a successor is careful: an agent that has lived longer is replaced without end.
CAREFUL_NS: Final = 15_000_000_000

#: Session, serial, deaths.
Suspect = tuple[int, int, int]


class InHand:
    """The words of one agent. Made at its start, when it looks what its predecessor left there."""

    def __init__(self, board: Board, role: Role) -> None:
        at = board.process_at(role)
        self._name = role.name.lower()
        self._at = at + layout.PROCESS_SUSPECTS
        self._memory = board.memory
        words = board.memory[at : at + layout.PROCESS_BYTES].cast("q")
        first = layout.PROCESS_HAND_SERIAL // 8
        self._words = words[first : first + 2]  # serial, session
        self._suspects = self._read()
        serial, session = self._words
        #: Whether the predecessor died of itself.
        self.is_successor = session != 0
        if session and session != ANYBODY:
            self._suspect(session & _LOW, serial & _LOW)
        self._idle = self._words[1] = 0
        self._careful_until_ns = 0

    def _read(self) -> list[Suspect]:
        numbers = _SUSPECTS.unpack_from(self._memory, self._at)
        rows = zip(numbers[0::3], numbers[1::3], numbers[2::3], strict=True)
        return [row for row in rows if row[0]]

    def _suspect(self, session: int, serial: int) -> None:
        """A request was in hand when an agent died."""
        known = [one for one in self._suspects if one[:2] == (session, serial)]
        others = [one for one in self._suspects if one[:2] != (session, serial)]
        deaths = known[0][2] + 1 if known else 1
        self._suspects = [(session, serial, deaths), *others][:3]
        numbers = [number for one in self._suspects for number in one]
        _SUSPECTS.pack_into(self._memory, self._at, *numbers, *[0] * (9 - len(numbers)))

    def take(self, session: int, serial: int = 0) -> None:
        """A request is about to be carried out; 0: whatever a session asks next."""
        words = self._words
        words[0], words[1] = serial, session

    def drop(self) -> None:
        """Nothing is in hand."""
        self._words[1] = self._idle

    def watch_all(self) -> None:
        """From now on a death is noted also while nothing is in hand."""
        self._idle = self._words[1] = ANYBODY

    def is_careful(self, now_ns: int) -> bool:
        """Whether one session at a time is to be served: the predecessor died of somebody."""
        if not self.is_successor:
            return False
        self._careful_until_ns = self._careful_until_ns or now_ns + CAREFUL_NS
        self.is_successor = now_ns < self._careful_until_ns
        return self.is_successor

    def is_poison(self, session: int, serial: int) -> bool:
        """Whether a request has ended its agent too often."""
        return bool(self._suspects) and any(
            one[:2] == (session & _LOW, serial & _LOW) and one[2] >= DEATHS_MAX
            for one in self._suspects
        )

    def is_condemned(self, session: int) -> bool:
        """Whether a session's requests have ended agents too often, whichever they were."""
        if self.is_poison(session, 0):
            return True
        deaths = [one[2] for one in self._suspects if one[0] == session & _LOW]
        return sum(deaths) >= DEATHS_OF_SESSION_MAX

    def set_aside(self, table: SessionTable, session: int, serial: int, what: str) -> str:
        """Say in the log that a request is not carried out; why, for whoever asked."""
        table.note(
            "error", "request_set_aside", session=session, serial=serial, request=what,
            deaths=max((one[2] for one in self._suspects if one[0] == session & _LOW), default=0),
        )  # fmt: skip
        return (
            f"{what} of this session has ended {self._name} again and again: it is set aside, and"
            " the session is ended. Report it with the broker's log, and do not repeat it"
        )


def forget_hand(board: Board, role: Role) -> None:
    """An agent was killed: whatever it had in hand is not why."""
    board.set_word(board.process_at(role) + layout.PROCESS_HAND_SESSION, 0)
