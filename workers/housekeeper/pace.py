"""How long the housekeeper rests after a step, so that nobody whom clients wait for waits for it.

Steps are short, and after each the processor is free for who was woken meanwhile. While messages
come, it takes a small share of one processor, and more the further it is behind: what it has not
done yet stays in memory (ADR 0023), and retention waits for it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from gantrymq.shm import layout

if TYPE_CHECKING:
    from gantrymq.shm.board import Board

#: Messages have stopped coming when none has come for so long.
QUIET_NS: Final = 20_000_000
#: Shares of a processor: while they come, with little left to do (a variable: the simulator's runs
#: are short) and at most; while none comes.
FIRST_SHARE = 1 / 16
QUIET_SHARE: Final = 0.75
MOST_SHARE: Final = 0.5
#: The share doubles with each so many bytes of the log that are still to be done.
STRIDE_BYTES: Final = 512 << 20
#: A rest is worth its two switches of a process.
REST_MIN_NS: Final = 50_000
REST_MAX_NS: Final = 100_000_000


class Pace:
    """Knows when the log grew last."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._appended = -1
        self._grown_ns = 0
        self._owed_ns = 0

    def rest_ns(self, now_ns: int, spent_ns: int, position: int) -> int:
        """After a step that took so long and has left all from a log position on to be done.

        0: go on; what is due adds up until it is worth a rest.
        """
        appended = self._board.word(layout.BOARD_APPENDED)
        if appended != self._appended:
            self._appended, self._grown_ns = appended, now_ns
        share = self._share(now_ns, appended - position)
        self._owed_ns += int(spent_ns * (1 / share - 1))
        if self._owed_ns < REST_MIN_NS:
            return 0
        rest, self._owed_ns = min(self._owed_ns, REST_MAX_NS), 0
        return rest

    def _share(self, now_ns: int, behind: int) -> float:
        if now_ns - self._grown_ns >= QUIET_NS:
            return QUIET_SHARE
        return min(MOST_SHARE, FIRST_SHARE * math.exp2(max(0, behind) / STRIDE_BYTES))
