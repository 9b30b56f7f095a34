"""A simulated producer of transactions: halves, its own work, ENDs, and answers to checks.

As clients do it, step by step: any of it may be the last that its process does. What its work came
to is in a database that outlives it (Transaction.local).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from gantrymq.shm import layout
from gantrymq.shm import transactionwire as wire
from gantrymq.shm.codes import AgentState, EntryFlag, ParkMode, Role, Status
from gantrymq.shm.controllane import ControlLane, End
from gantrymq.shm.kernels import frames
from gantrymq.shm.kernels.words import load_word
from gantrymq.shm.properties import GANTRY_TX, encode_properties
from tests.support.model import Intent, Receipt
from tests.support.simclients import NEVER_NS
from tests.support.simmachine import SimMachine
from tests.support.simproducer import Sent, SimProducer
from tests.support.storedlog import broken, read_log, require
from tests.support.txnoracle import Transaction

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gantrymq.workers.session import Session

GROUP = "pay"
#: Nobody answers checks of this one before all is calm.
ORPHANS = "orphans"
HALVES_MAX = 6
#: One transaction of so many is answered for at random, each time that anybody asks.
FICKLE_EACH = 5
#: So long one of these waits for another message at most.
PAUSE_MS_MAX = 4000
#: One transaction of so many has halves that do not all fit into a short ring.
LARGE_EACH = 10
#: As clients do: a checker that was replaced has forgotten what it was asked, and who enlisted.
REPEAT_NS = 500_000_000
ENLIST_NS = 1_000_000_000
_HALF = (int(ParkMode.HALF), 0)
_TOLD_SLOTS = [layout.ARENA_TOLD + 8 * slot for slot in range(layout.TOLD_MASK + 1)]


@dataclass(slots=True)
class _Going:
    """A transaction of this process that is not ended yet."""

    known: Transaction
    waits: set[int]  # seqs of halves without a receipt
    places: list[tuple[int, int]] = field(default_factory=list)
    failed: bool = False
    end: int = 0  # behind the last half that has to be durable
    decides: bool = True  # it will end it by itself
    later_ns: int = 0  # another message of it follows then


@dataclass(slots=True)
class _Asked:
    """An END on its way."""

    known: Transaction
    request: wire.End
    by_check: bool
    next_ns: int = 0


class SimTransactor(SimProducer):
    """Most of what it sends are transactions. `left` counts them."""

    transactions = True

    def __init__(
        self, name: str, machine: SimMachine, count: int, group: str = GROUP, *, begins: bool = True
    ) -> None:
        super().__init__(name, machine, 0)
        self.group = group
        self.begins = begins
        self.leaves = False  # all that it begins to checks
        self.send_more(count)
        self._going: deque[_Going] = deque()
        self._blocks: dict[int, NDArray[np.uint8]] = {}  # by seq of a half
        self._ended: deque[tuple[Transaction, wire.End]] = deque(maxlen=6)
        self._asked: dict[int, _Asked] = {}
        self._outbox: deque[wire.AnyRequest] = deque()
        self._serial = 0
        self._enlist_ns = 0
        self._lane: ControlLane | None = None
        self._worked = False

    def send_more(self, count: int) -> None:
        """Some transactions instead of so many messages."""
        super().send_more((count + 3) // 4 if self.begins else 0)

    @property
    def done(self) -> bool:
        """All sent, answered and decided."""
        return super().done and not (self._going or self._asked or self._outbox)

    # --------------------------------------------------------------------------------- as an actor

    def ready_at(self, now_ns: int) -> int:
        """It also wakes by itself: to ask again, or to enlist."""
        when = super().ready_at(now_ns)
        if self.stopped or self.session is None or when <= now_ns:
            return when
        times = [asked.next_ns for asked in self._asked.values()]
        times += [going.later_ns for going in self._going if going.later_ns]
        return max(now_ns, min(self._enlist_ns, *times, now_ns + NEVER_NS))

    def attached(self, session: Session) -> None:
        """Ask again what has no answer."""
        super().attached(session)
        self._lane = ControlLane(session.arena, session.plan.transactions, End.CLIENT)
        self._enlist_ns = 0
        for asked in self._asked.values():
            asked.next_ns = 0

    def go_on(self, session: Session, now_ns: int) -> None:
        """Hear, decide, ask; then as every producer."""
        self._worked = self._hear()
        if now_ns >= self._enlist_ns:
            self._enlist(now_ns)
        self._move_on(now_ns)
        self._speak(now_ns)
        super().go_on(session, now_ns)

    def _may_sleep(self, session: Session) -> bool:
        lane = self._lane
        assert lane is not None, "attached"
        busy = (
            self._worked
            or self._outbox
            or any(not (going.waits or going.later_ns) for going in self._going)
        )
        if busy or not lane.arm(AgentState.ARMED):
            return False
        return not self._told() and super()._may_sleep(session)

    # --------------------------------------------------------------------------------- transactions

    def _intend(self) -> None:
        """A transaction, or now and then what has to do with none."""
        if self.dice.random() < 0.3:
            super()._intend()
            return
        self.left -= 1
        known = self._begin()
        decides = self.dice.random() < 0.85 and not self.leaves
        going = _Going(known, set(), decides=decides)
        if known.fickle and self.dice.random() < 0.7:
            pause_ms = self.dice.randint(100, PAUSE_MS_MAX)
            going.later_ns = self.machine.simulation.clock.monotonic_ns() + pause_ms * 1_000_000
        large = int(known.tx, 16) % LARGE_EACH == 0
        for number in range(1, (HALVES_MAX if large else self.dice.randint(1, 3)) + 1):
            self._intend_half(known, number, least=1500 if large else 0)
            going.waits.add(self._seq)
        self._going.append(going)

    def _begin(self) -> Transaction:
        tx = f"{self.dice.getrandbits(128):032x}"
        group = ORPHANS if self.dice.random() < 0.1 else GROUP
        known = Transaction(tx, group, self.producer.hex(), lambda: self._lives(tx))
        known.unsure = self.dice.random() < 0.1
        known.fickle = known.wavers = int(tx, 16) % FICKLE_EACH == 0
        self.model.transactions.all[tx] = known
        return known

    def _lives(self, tx: str) -> bool:
        alive = self.machine.simulation.actors.get(self.name) is self
        return alive and any(going.known.tx == tx for going in self._going)

    def _intend_half(self, known: Transaction, number: int, least: int) -> None:
        self._seq += 1
        topic = self.dice.choice(self.topics or list(self.machine.topics))
        flags = EntryFlag.RECEIPT
        if topic in self.model.safe_topics:
            flags |= EntryFlag.DURABLE
        dots = b"." * max(least, self.dice.choice([0, 10, 200, 1500]))
        intent = Intent(
            topic, f"{self.producer.hex()}:{self._seq}:".encode() + dots,
            self.dice.choice([-1, 0]), due=_HALF,
        )  # fmt: skip
        self.model.sent(self.producer.hex(), self._seq, intent)
        named = {"TRAN_MSG": "true", "PGROUP": known.group, GANTRY_TX: f"{known.tx},{number}"}
        self._blocks[self._seq] = np.frombuffer(encode_properties(named), np.uint8)
        sent = Sent(self._seq, intent, int(flags), self.machine.simulation.clock.wall_ms())
        self._unanswered.append(sent)
        self._unput.append([sent])

    def _extra(self, seq: int) -> NDArray[np.uint8]:
        block = self._blocks.get(seq)
        return super()._extra(seq) if block is None else block

    def _answered(self, row: NDArray[np.int64]) -> None:
        super()._answered(row)
        seq = int(row[frames.OUT_SEQ])
        if self._blocks.pop(seq, None) is not None:
            receipt = self.model.senders[self.producer.hex()].receipts[seq]
            self._note_half(seq, receipt)

    def _note_half(self, seq: int, receipt: Receipt) -> None:
        going = next(one for one in self._going if seq in one.waits)
        going.waits.discard(seq)
        if receipt.status in (Status.OK, Status.DUPLICATE) and receipt.position >= 0:
            going.places.append((receipt.position, receipt.offset))
            if self.model.senders[self.producer.hex()].intents[seq].topic in self.model.safe_topics:
                going.known.safe.add(receipt.position)
                going.end = max(going.end, receipt.end)
        else:
            going.failed = True

    def _move_on(self, now_ns: int) -> None:
        """Do one's own work for what is stored, and say so; or never say it."""
        board = self.machine.board
        for going in [one for one in self._going if one.later_ns]:
            self._send_late(going, now_ns)
        for going in [one for one in self._going if not (one.waits or one.later_ns)]:
            durable = board.word(layout.BOARD_DURABLE) if board is not None else 0
            if self.dice.random() < 0.5 or durable < going.end:
                continue
            self._worked = True
            known = going.known
            if known.local is None:
                known.local = not going.failed and self.dice.random() < 0.7
                continue  # it may die before it says so
            self._going.remove(going)
            if going.places and going.decides:
                self._ask(known, going.places, commit=known.local)
        if self._ended and self.dice.random() < 0.05:
            self._ask_again(*self.dice.choice(self._ended))

    def _send_late(self, going: _Going, now_ns: int) -> None:
        """Another message of a transaction that somebody may have decided, as its producer may."""
        if now_ns < going.later_ns or going.waits or going.failed:
            going.later_ns *= not going.failed
            return
        self._worked, going.later_ns, known = True, 0, going.known
        self._intend_half(known, len(going.places) + 1, least=0)
        going.waits.add(self._seq)
        if self.dice.random() < 0.3:
            self._ask(known, list(going.places), commit=False)

    # ---------------------------------------------------------------------------- with the checker

    def _ask(
        self, known: Transaction, places: list[tuple[int, int]], *, commit: bool,
        by_check: bool = False,
    ) -> None:  # fmt: skip
        self._serial += 1
        alone = not self._asked
        request = wire.End(
            self._serial, known.group, known.tx, commit, places, by_check, alone=alone
        )
        self._asked[self._serial] = _Asked(known, request, by_check)

    def _ask_again(self, known: Transaction, request: wire.End) -> None:
        """An END that comes late, twice, or says the contrary of what was said before."""
        commit = request.commit
        if self.dice.random() < 0.3:
            commit = not commit
            known.wavers = True
        self._ask(known, request.halves, commit=commit)

    def _enlist(self, now_ns: int) -> None:
        self._enlist_ns = now_ns + ENLIST_NS
        self._serial += 1
        self._outbox.append(wire.Enlist(self._serial, self.group))

    def _speak(self, now_ns: int) -> None:
        lane = self._lane
        assert lane is not None, "attached"
        for asked in self._asked.values():
            if asked.next_ns <= now_ns:
                asked.next_ns = now_ns + REPEAT_NS
                self._outbox.append(asked.request)
        while self._outbox and lane.put(wire.encode(self._outbox[0])):
            request = self._outbox.popleft()
            self._worked = True
            if isinstance(request, wire.Enlist):
                self.model.transactions.served.add(request.group)
            if lane.wants_bell:
                self.machine.bell(Role.TXN_CHECKER).ring()

    def _hear(self) -> bool:
        lane, heard = self._lane, self._hear_told()
        assert lane is not None, "attached"
        while (body := lane.take()) is not None:
            heard = True
            if lane.wants_bell:
                self.machine.bell(Role.TXN_CHECKER).ring()
            notice = wire.decode_notice(body)
            if isinstance(notice, wire.Check):
                self._answer(notice)
            elif isinstance(notice, wire.Ended):
                self._note_end(notice)
        return heard

    def _told(self) -> list[int]:
        """What the writer has told before the checker does: serials."""
        session = self.session
        assert session is not None, "attached"
        slots = [load_word(session.arena, at) for at in _TOLD_SLOTS]
        return [serial for serial in self._asked if slots[serial & layout.TOLD_MASK] == serial]

    def _hear_told(self) -> bool:
        told, board = self._told(), self.machine.board
        if told and board is not None:
            low, end = board.word(layout.BOARD_LOW), board.word(layout.BOARD_APPENDED)
            log = read_log(self.machine.storage_for("oracle"), end, low, whole=False)
            left = {half.position for half in self.model.transactions.undecided(log)}
        for serial in told:
            self.model.tally["told by the writer"] += 1
            places = {position for position, _offset in self._asked[serial].request.halves}
            require(not places & left, "P10", f"{self.name} is told of {places}: undecided")
            commit = self._asked[serial].request.commit
            self._note_end(wire.Ended(serial, wire.COMMITTED if commit else wire.ROLLED_BACK))
        return bool(told)

    def _note_end(self, answer: wire.Ended) -> None:
        asked = self._asked.get(answer.serial)
        if asked is None:
            return  # it was answered before
        request, known = asked.request, asked.known
        if self.model.transactions.answered(known, request, answer):
            del self._asked[answer.serial]
            self._ended.append((known, request))

    def _answer(self, check: wire.Check) -> None:
        """What the database says of a transaction; one that its producer lost was never done."""
        known = self.model.transactions.all.get(check.tx)
        if known is None or known.group != self.group:
            broken("P6", f"{self.name} of {self.group} is asked about {check}: {known}")
        self.model.tally["checks heard"] += 1
        if self.dice.random() < 0.2:
            return  # it is asked again
        if not known.fickle and (known.unsure or (known.local is None and known.lives())):
            self._serial += 1
            self._outbox.append(wire.Unknown(self._serial, self.group, check.position))
            return
        half = (check.position, check.queue_offset)
        if known.fickle:
            self._ask(known, [half], commit=self.dice.random() < 0.5, by_check=True)
            return
        known.local = bool(known.local)
        self._ask(known, [half], commit=known.local, by_check=True)
