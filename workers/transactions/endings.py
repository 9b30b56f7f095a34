"""ENDs: what somebody asks is decided once, and told to all who ask (the first decision stands)."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from gantrymq.shm import transactionwire as wire
from gantrymq.shm.transactionwire import COMMITTED, DECIDED, NOT_A_HALF, ROLLED_BACK, UNKNOWN, Ended
from gantrymq.workers.transactions.decision import MOVED, Decision
from gantrymq.workers.transactions.desk import cost_of
from gantrymq.workers.transactions.kin import DECIDING
from gantrymq.workers.transactions.staging import LATER

if TYPE_CHECKING:
    from gantrymq.workers.transactions.decision import Asked, Half
    from gantrymq.workers.transactions.decisions import Decisions
    from gantrymq.workers.transactions.desk import Desk
    from gantrymq.workers.transactions.ends import Ends
    from gantrymq.workers.transactions.halves import Halves
    from gantrymq.workers.transactions.kin import Kin
    from gantrymq.workers.transactions.pastdecisions import PastDecisions

TEXTS: Final = {
    NOT_A_HALF: "what it names is no half message of this transaction",
    wire.FOREIGN_GROUP: "the half message belongs to another producer group",
    UNKNOWN: "no half message is known there: it may have been decided and removed long ago",
    wire.UNSTORABLE: "the message cannot be stored: its topic is gone, or it is too large by now",
    wire.DISK_FULL: "the disk is full: nothing was decided, try again",
}
#: What ENDs that wait may cost in one step, in which they are asked again.
AGAIN_MAX: Final = 64


class Endings:
    """Handles END requests and the answers to them."""

    def __init__(
        self, halves: Halves, decisions: Decisions, past: PastDecisions, desk: Desk, kin: Kin
    ) -> None:
        self._halves = halves
        self.kin = kin
        self._decisions = decisions
        self._past = past
        self._desk = desk
        self._flying: dict[int, Decision] = {}  # by the position of a half
        #: What did not fit into the ring: it comes first once there is room.
        self.held: deque[tuple[Decision, str, str]] = deque()
        self.refused = 0
        self._again: list[tuple[int, wire.End]] = []  # these name a half that was appended again
        self.along = 0  # halves that were looked at so far though no END has named them

    def end(self, session: int, request: wire.End, now_ms: int) -> None:
        """Take an END; it is answered when its decision is in the log, or refused."""
        if not 0 < len(request.halves) <= wire.HALVES_MAX:
            self._refuse(session, request, "", NOT_A_HALF)
            return
        wanted = COMMITTED if request.commit else ROLLED_BACK
        todo: dict[Half, None] = {}  # each once
        seen = ""
        for half in request.halves:
            position, offset = self._halves.newest_half(half)
            outcome = self._halves.outcome_at(position)
            if outcome is not None:  # what contradicts counts: an operator may have settled one
                seen = seen if seen not in ("", wanted) else outcome
            elif self._waits_for(session, request, position, offset):
                return
            else:
                todo[position, offset] = None
        if seen and seen != wanted:
            self._refuse(session, request, seen, DECIDED)
        elif todo:
            self._end_all(session, request, list(todo), now_ms)
        else:
            self._desk.tell(session, Ended(request.serial, seen))

    def _end_all(self, session: int, request: wire.End, halves: list[Half], now_ms: int) -> None:
        """Decide halves and all else that is open of their transaction, as it was before if so."""
        tx = request.tx or self.kin.transaction(halves[0])
        wanted = COMMITTED if request.commit else ROLLED_BACK
        said = self.kin.outcome(tx)
        if said and said != wanted:
            self._refuse(session, request, said, DECIDED)
            return
        rest = [] if said is not None else self.kin.others(tx, halves, request.group)
        self.along += len(rest)
        is_unsure = said is None and self.kin.waits(halves)
        if said == DECIDING or is_unsure or any(half[0] in self._flying for half in rest):
            self._again.append((session, request))
            return
        asked: list[Asked] = [(session, request.serial, request)]
        decision = Decision(wanted, [*halves, *rest], asked, own=True, tx=tx)
        if not self._stage(decision, request.group, request.tx, now_ms):
            self._fail(session, request, decision.error)

    def _waits_for(self, session: int, request: wire.End, position: int, offset: int) -> bool:
        """Whether a half is being decided for somebody, or was before what is remembered."""
        flying = self._flying.get(position)
        if flying is not None:
            flying.of(position).asked.append((session, request.serial, request))
            return True
        if self._halves.is_open(offset):
            return False
        self._past.ask(session, request, position, offset)
        return True

    def _stage(self, decision: Decision, group: str, tx: str, now_ms: int) -> bool:
        """Put a decision, or keep it until there is room; False if it has an error."""
        error = LATER if self.held else self._decisions.stage(decision, group, tx, now_ms)
        if error and error is not LATER:
            decision.error = error
            self.forget(decision)
            self.kin.failed(decision.tx)
            self._decisions.disown(decision)
            return False
        self.kin.begin(decision.tx)
        self._flying.update(dict.fromkeys(decision.positions, decision))
        for _position, offset in decision.halves:
            self._halves.take(offset)
        if error:
            self.held.append((decision, group, tx))
        return True

    def go_on(self, now_ms: int) -> list[Decision]:
        """Put what did not fit; what has an error by now."""
        hand = self._desk.hand
        for session, request in self._next_again():
            hand.take(session, request.serial)
            self.end(session, request, now_ms)
        failed: list[Decision] = []
        waiting, self.held = self.held, deque()
        while waiting and not self.held:
            decision, group, tx = waiting.popleft()
            if decision.asked:
                hand.take(*decision.asked[0][:2])
            if not self._stage(decision, group, tx, now_ms):
                failed.append(decision)
        hand.drop()
        self.held.extend(waiting)
        return failed

    def _next_again(self) -> list[tuple[int, wire.End]]:
        """The first of those that wait: so many as one step has time for."""
        count = cost = 0
        while count < len(self._again) and cost < AGAIN_MAX:
            cost += cost_of(self._again[count][1])
            count += 1
        taken, self._again = self._again[:count], self._again[count:]
        return taken

    def decide(self, decision: Decision, now_ms: int) -> bool:
        """A decision that no END asks for; False if its halves cannot be read or stored."""
        return self._stage(decision, "", "", now_ms)

    @property
    def waits(self) -> bool:
        """Whether requests are here that are not on their way."""
        return bool(self.held or self._again)

    def is_flying(self, position: int) -> bool:
        """Whether a half is being decided."""
        return position in self._flying

    def is_moving(self, position: int) -> bool:
        """Whether a half is on its way, and stays undecided."""
        return self._flying[position].outcome == MOVED

    def deciding(self) -> list[int]:
        """Positions of all halves that are being decided."""
        return [position for position, one in self._flying.items() if one.outcome != MOVED]

    def forget(self, decision: Decision) -> None:
        """It is no longer on its way."""
        land = self._flying.pop
        for position in decision.positions:
            land(position, None)

    def _hand_on(self, decision: Decision) -> None:
        """A half was appended again: who asked meanwhile is answered by what stands for it now."""
        if not decision.error:
            self._halves.decided(decision)
        self.ask_again(decision.asked)

    def ask_again(self, asked: list[Asked]) -> None:
        """Take ENDs once more in the next step."""
        self._again += [
            (session, request)
            for session, _serial, request in asked
            if isinstance(request, wire.End)
        ]

    def keep(self, half: Half, decision: Decision) -> None:
        """Whoever asks for a half is to wait for this decision."""
        self._flying[half[0]] = decision
        self._halves.take(half[1])

    def fly(self, position: int, decision: Decision) -> None:
        """A half is on its way."""
        self._flying[position] = decision

    def fly_together(self, ends: Ends) -> None:
        """Halves of ENDs that went up together are on their way."""
        self._flying.update({position: ends for position, _offset in ends.halves})

    def settled(self, decision: Decision) -> None:
        """A decision is in the log, or nothing of it is: tell all who asked."""
        if decision.place is not None:
            self._flying.pop(decision.place[0], None)
        self.forget(decision)
        if decision.outcome == MOVED:
            self._hand_on(decision)
            return
        if not decision.error:
            self._halves.decided(decision)
            self.kin.decided(decision.tx, decision.outcome)
        elif decision.begun_at < 0:
            self.kin.failed(decision.tx)
        else:  # some of it is in the log
            self.kin.decided(decision.tx, decision.outcome)
        for number, (session, serial, request) in enumerate(decision.asked):
            if not isinstance(request, wire.End):
                continue
            # An error is that of who asked for the decision; another may name group or wish better.
            is_own = number == 0 and decision.own
            if is_own if decision.error else self._decides_all(decision, request):
                self._answer(session, serial, request, decision)
            else:  # it waited for a part of what it names
                self._again.append((session, request))

    def _decides_all(self, decision: Decision, request: wire.End) -> bool:
        """Whether a decision is that of each half that a request names."""
        if len(request.halves) == 1 and not decision.left_out:
            return decision.given_up < 0  # of a settlement the next look tells
        decided = {position for position, _offset in decision.halves}
        return decided.issuperset(self._halves.newest(position) for position, _ in request.halves)

    def _answer(self, session: int, serial: int, request: wire.End, decision: Decision) -> None:
        if decision.error:
            self._fail(session, request, decision.error)
        elif decision.outcome != (COMMITTED if request.commit else ROLLED_BACK):
            self._refuse(session, request, decision.outcome, DECIDED)
        else:
            self._desk.tell(session, Ended(serial, decision.outcome))

    def refuse_unknown(self, session: int, request: wire.End) -> None:
        """Nothing was found of a half."""
        self._fail(session, request, UNKNOWN)

    def lost(self) -> list[tuple[int, object]]:
        """The writer was replaced: who asked for what has not gone up, to be heard again."""
        asked = [one for decision, _group, _tx in self.held for one in decision.asked]
        self.held.clear()
        again, self._again = self._again, []
        return [(session, request) for session, _serial, request in asked] + [*again]

    def _fail(self, session: int, request: wire.End, error: str) -> None:
        """Refuse for an error; others of its halves may be decided, which is said as well."""
        positions = [self._halves.newest(position) for position, _ in request.halves]
        outcomes = map(self._halves.outcome_at, positions)
        self._refuse(session, request, next((it for it in outcomes if it), ""), error)

    def _refuse(self, session: int, request: wire.End, outcome: str, error: str) -> None:
        self.refused += 1
        text = TEXTS.get(error) or f"the transaction is {outcome.replace('_', ' ')} already"
        self._desk.tell(session, Ended(request.serial, outcome, error, text))
