"""Halves that wait are appended again before their segments go, each with its origin.

First the record, with all its properties; once that is in the log, an op record that names the old
offset. Who dies in between leaves two records of one UNIQ_KEY: a start names the older one
(workers/transactions/restart.py). Until the op record is in the log nobody decides either of them.
What was given up is parked again: the newest copy of a half counts, and an op record has named it.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

import numpy as np

from gantrymq.shm import layout
from gantrymq.shm.properties import GIVEN_UP_TOPIC
from gantrymq.workers.transactions import records as transactionnotes
from gantrymq.workers.transactions.decision import MOVED, Decision

if TYPE_CHECKING:
    from gantrymq.shm.board import Board
    from gantrymq.workers.transactions.decisions import Decisions
    from gantrymq.workers.transactions.endings import Endings
    from gantrymq.workers.transactions.givenup import GivenUp
    from gantrymq.workers.transactions.halves import Halves

#: Halves that are on their way at one time.
MOVES_MAX: Final = 64
#: What failed is tried again after.
RETRY_NS: Final = 1_000_000_000


class HalfMove:
    """Does what retention asks for by the board's word `timers_wanted`."""

    def __init__(
        self,
        board: Board,
        halves: Halves,
        decisions: Decisions,
        endings: Endings,
        given_up: GivenUp,
    ) -> None:
        self._board = board
        self._halves = halves
        self._decisions = decisions
        self._endings = endings
        self._given_up = given_up
        self._floor = 0  # no open half lies below
        self._below = 0
        self._until = (0, 0)  # units of half and give-up queue that have to be read first
        self._flying = 0
        self._parking: set[int] = set()  # of those that were given up
        self._retry_ns = 0
        self._failed: dict[int, int] = {}  # halves that cannot be put: when they are tried again

    def step(self, now_ns: int, now_ms: int) -> int:
        """Go on a little; how many halves were put."""
        wanted = self._board.word(layout.BOARD_TIMERS_WANTED)
        if wanted <= self._floor:
            return 0
        if wanted > self._below:
            parked = self._halves.written(GIVEN_UP_TOPIC)
            self._below, self._until = wanted, (self._halves.written(), parked)
        read = self._halves.next >= self._until[0] and self._given_up.next >= self._until[1]
        if self._flying or self._parking or now_ns < self._retry_ns or not read:
            return 0
        rows = self._halves.table.rows
        end = int(np.searchsorted(rows["position"], self._below))
        left = rows[:end][rows["live"][:end] != 0]
        halves = [(int(row["position"]), int(row["offset"])) for row in left]
        ours = self._ready([half[0] for half in halves], now_ns)
        chosen = [half for half in halves if half[0] in ours]
        if chosen:
            return sum(self._append(half, now_ns, now_ms) for half in chosen)
        return self._park(now_ns, now_ms, len(left))

    def _ready(self, positions: list[int], now_ns: int) -> set[int]:
        """Some that are not on their way, and have not failed just now."""
        is_flying, failed = self._endings.is_flying, self._failed.get
        ready = (at for at in positions if failed(at, 0) <= now_ns and not is_flying(at))
        chosen = set(islice(ready, MOVES_MAX))
        if not chosen:
            self._retry_ns = now_ns + RETRY_NS
        return chosen

    def _append(self, half: tuple[int, int], now_ns: int, now_ms: int) -> int:
        copy = self._decisions.half_again(half[0])
        if copy is None and self._halves.forget_damaged(half):
            return 0
        copies = [copy] if copy else []
        decision = Decision(MOVED, [half], [], copies=copies, named=False, tells=0)
        if not copies or not self._endings.decide(decision, now_ms):
            self._failed[half[0]] = now_ns + RETRY_NS
            return 0
        self._flying += 1
        return 1

    def _park(self, now_ns: int, now_ms: int, stuck: int) -> int:
        """Those that were given up; how many were put. `stuck`: open halves that cannot be."""
        left = self._given_up.below(self._below)
        if not left and not stuck:
            self._floor, self._below = self._below, 0
            self._failed.clear()
            return 0
        put = 0
        for half in self._ready(left, now_ns):
            decision = self._given_up.park_again(half)
            if decision is None and self._given_up.forget_damaged(half):
                continue
            if decision is not None and self._endings.decide(decision, now_ms):
                self._parking.add(half)
                put += 1
            else:
                self._failed[half] = now_ns + RETRY_NS
        return put

    def parked(self, decision: Decision, now_ns: int) -> bool:
        """Heed another copy of a half that was given up, or its error; whether it is one."""
        half = decision.halves[0][0]
        if half not in self._parking:
            return False
        self._parking.discard(half)
        if decision.error or decision.place is None:
            self._failed[half] = now_ns + RETRY_NS
        else:
            self._given_up.parked_again(half, decision.place)
        return True

    def goes_on(self, decision: Decision, now_ns: int, now_ms: int) -> bool:
        """Heed what is in the log now; whether the op record follows."""
        if decision.named or decision.op_named:  # of this life, or of a start
            self._flying -= bool(decision.place)
            return False
        (half,) = decision.halves
        if decision.error or decision.place is None:
            self._flying -= 1
            self._failed[half[0]] = now_ns + RETRY_NS
            return False
        checks = self._halves.moved(half, decision.place)
        copies = []
        if checks:
            counts = {decision.place[1]: checks}
            copies = [transactionnotes.checked(self._decisions.slots, counts, now_ms)]
        done = Decision(MOVED, [half], decision.asked, copies=copies, place=decision.place)
        self._decisions.owe(done, decision.end)
        self._endings.keep(decision.place, done)
        self._endings.decide(done, now_ms)
        return True
