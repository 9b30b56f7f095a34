"""ENDs in their common form, from the request to the answer (shm/kernels/ends.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gantrymq.shm.bell import give_way
from gantrymq.shm.kernels import ends as kernels
from gantrymq.shm.lookout import Lookout
from gantrymq.shm.transactionwire import Ended
from gantrymq.workers.transactions.halves import OUTCOMES

if TYPE_CHECKING:
    from gantrymq.workers.transactions.decisions import Decisions
    from gantrymq.workers.transactions.desk import Desk, Peer
    from gantrymq.workers.transactions.endings import Endings
    from gantrymq.workers.transactions.ends import Ends
    from gantrymq.workers.transactions.halves import Halves


class CommonEnds:
    """ENDs in their common form, from the request to the answer."""

    def __init__(self, halves: Halves, decisions: Decisions, endings: Endings, desk: Desk) -> None:
        self._hand = desk.hand
        self._halves = halves
        self._decisions = decisions
        self._endings = endings
        self._desk = desk
        self._lookout = Lookout()
        #: Whether the last `attend` has left requests of another form in sessions' rings.
        self.has_left_some = False

    def attend(self, now_ms: int, rounds: int) -> int:
        """Take what sessions ask, and publish it; how many. Of a lone one look out for more."""
        desk = self._desk
        desk.begin()
        self.has_left_some = True
        if not self._decisions.is_clean or self._endings.held:
            return 0
        self._decisions.mixed = False
        lone = desk.lone if rounds else desk.only_asking
        served = 0 if lone is None else self._serve(lone, now_ms, rounds)
        served += self._take(now_ms)
        self.has_left_some = self._decisions.mixed
        return served

    def _serve(self, peer: Peer, now_ms: int, rounds: int) -> int:
        """Publish what a lone session asks, each END by itself; how many."""
        seen = peer.lane.seen
        lookout = self._lookout
        lookout.begin()
        self._desk.watch_all(peer, lookout)
        self._hand.take(peer.session.session)
        served = self._decisions.serve(peer, self._halves, now_ms, lookout, rounds)
        self._hand.drop()
        if peer.lane.seen != seen:
            self._desk.heard(peer)
        if served is None:
            return 0
        self._endings.fly_together(served)
        return len(served.halves)

    def _take(self, now_ms: int) -> int:
        """Take what sessions ask, and publish it by one op record; how many."""
        halves, decisions = self._halves, self._decisions
        count = decisions.in_hand
        for peer in self._desk.asking():
            number = peer.session.session
            self._hand.take(number)
            taken = decisions.stage_ends(
                peer.lane, number, halves.next, halves.taken, halves.taken_end
            )
            if taken > count:
                self._desk.heard(peer)
            count = taken
        self._hand.drop()
        if not count:
            return 0
        if decisions.mixed:  # others follow: one op record is to name them all
            for part in decisions.take_up(decisions.ends_durable()).parts():
                decisions.batch.add(part)
                self._endings.fly(part.halves[0][0], part)
            return count
        ends = decisions.go_up(now_ms)
        self._endings.fly_together(ends)
        return count

    def settled(self, ends: Ends) -> None:
        """They are in the log: tell all who asked, but those whom the writer has told."""
        count = len(ends.halves)
        for session in set(ends.column(kernels.SESSION)):
            told = self._desk.tell_ends(session, ends.words, count)
            for row in ends.rows[told:] if told < count else ():
                if row[kernels.SESSION] == session:
                    outcome = OUTCOMES[row[kernels.IS_COMMIT]]
                    self._desk.tell(session, Ended(row[kernels.SERIAL], outcome))
        if count == 1:
            give_way()  # who waits for it may be on our own processor
        self._endings.forget(ends)
        self._halves.decide_ends(ends)
        self._endings.ask_again(ends.asked)
