"""The oracle of transactions: what their producers decided and heard, and what the log says.

P7: a half's message is in its topic once if its producer's own work was done, else never; what is
decided of a transaction is decided of all its halves. P10: each
half ends decided or is given up; nobody's answer is forgotten; no check counts that nobody heard.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gantrymq.shm import transactionwire as wire
from gantrymq.shm.transactionwire import COMMITTED, GIVEN_UP, ROLLED_BACK
from tests.support.storedlog import broken, require
from tests.support.txnrecords import Kind

if TYPE_CHECKING:
    from tests.support.storedlog import Stored

DECIDED = (COMMITTED, ROLLED_BACK, GIVEN_UP)
CHECKS_MAX = 3
#: Of the simulated machine, whose `file_reserved_time` is an hour.
TRANSACTION_SETTINGS = {
    "transaction_timeout_s": 1,
    "transaction_check_interval_s": 1,
    "transaction_check_max": CHECKS_MAX,
}
RESERVED_MS = 3_600_000


@dataclass(slots=True)
class Transaction:
    """What its producer, and the database of its group, know."""

    tx: str
    group: str
    producer: str
    lives: Callable[[], bool] = field(repr=False)  # whether its producer may decide yet
    safe: set[int] = field(default_factory=set)  # positions of halves for durable topics
    local: bool | None = None  # whether the local work was done
    wavers: bool = False  # its producer has asked for the contrary as well
    unsure: bool = False  # whoever is asked about it does not know
    told: dict[int, str] = field(default_factory=dict)  # by a half's position: the first answer
    #: Where the log ended when a half of it went with its segment; 0: others were open then.
    cut_at: int = 1 << 62
    fickle: bool = False  # whoever is asked about it says something else each time
    hands: set[str] = field(default_factory=set)  # what operators wanted of it


class Transactions:
    """All of a run."""

    def __init__(self, tally: Counter[str]) -> None:
        self.all: dict[str, Transaction] = {}
        self.served: set[str] = set()  # groups of which a producer has ever answered checks
        self.asked: set[int] = set()  # positions that an operator wanted to settle
        self.settled: dict[int, str] = {}  # by an operator: a half's position, and what it was told
        self.is_told = False  # somebody, of what has to be on the disk
        self.was_full = False  # the disk: checks may have found no room for their notes
        self._tally = tally
        self._halves: dict[int, Stored] = {}
        self._low = 0
        self._gone: set[int] = set()  # positions of halves that a full disk took while open

    # ------------------------------------------------------------------------- what clients report

    def answered(self, known: Transaction, request: wire.End, answer: wire.Ended) -> bool:
        """An END was answered; False if it is to be asked again."""
        self._tally[f"END {answer.error or answer.outcome}"] += 1
        if answer.error == wire.DISK_FULL:
            return False
        places = [position for position, _offset in request.halves]
        if answer.error in (wire.UNKNOWN, wire.NOT_A_HALF):
            unsure = self._tally["power cuts"] and not known.safe.issuperset(places)
            may = min(places) < self._low or unsure
            require(bool(may), "P10", f"{known} is told {answer}, and its halves are there")
            return True
        require(answer.error in ("", wire.DECIDED), "P7", f"{known} is told {answer}")
        require(answer.outcome in DECIDED, "P7", f"{known} is told {answer}")
        wanted = COMMITTED if request.commit else ROLLED_BACK
        right = (answer.outcome == wanted) is (not answer.error)
        require(right, "P7", f"{known} asked for {wanted} and is told {answer}")
        for position in places if len(places) == 1 or not answer.error else ():
            told = known.told.setdefault(position, answer.outcome)
            require(told == answer.outcome, "P10", f"{known} is told {answer} of {position}")
        said = set(known.told.values()) - {GIVEN_UP}
        may = max(known.told, default=0) >= known.cut_at
        require(len(said) < 2 or may, "P7", f"{known} has two decisions")
        self.is_told = self.is_told or not known.safe.isdisjoint(places)
        return True

    def settle(self, position: int, action: str) -> None:
        """An operator is about to settle a half that is in doubt: whatever its producer says."""
        self.asked.add(position)
        half = self._halves.get(position)
        for known in self.all.values() if half is None else [self._transaction(half)]:
            known.wavers = True
            known.hands.add(action)

    def was_settled(self, position: int, action: str, answer: wire.Settled) -> None:
        """An operator was answered, durably."""
        self._tally[f"settled: {answer.error or answer.outcome}"] += 1
        if not answer.error and action != wire.RECHECK:
            self.settled[position] = answer.outcome
        self.is_told = self.is_told or not answer.error

    def power_cut(self) -> None:
        """Of topics that are not durable an answer may be forgotten."""
        self._tally["power cuts"] += 1
        for known in self.all.values():
            known.told = {at: told for at, told in known.told.items() if at in known.safe}

    # --------------------------------------------------------------------------- what the log says

    def check(self, log: list[Stored], low: int) -> None:
        """Of all that is in the log, or was."""
        self._low = low
        found = [record for record in log if record.doubted]
        self._halves = {r.position: r for r in found if r.doubted and r.doubted.is_half}
        self._tally["halves appended again"] += sum(h.origin >= 0 for h in self._halves.values())
        copies = self._copies(found)
        parked = self._parked(found)
        self._check_ops(found)
        self._check_counts(found)
        self._check_settled(copies)
        for position, half in self._halves.items():
            first, told = self.first(position), self._transaction(half).told.get(position, "")
            by_hand = self.settled.get(position, "")
            is_copied, is_parked = first in copies, first in parked
            if by_hand and told == GIVEN_UP:
                told = by_hand
            if is_copied and is_parked and not self._may_be_both(first):
                broken("P7", f"{half} was given up and committed")
            if told == COMMITTED and not is_copied:
                broken("P10", f"{half} was told to be committed, and there is no copy")
            if is_copied and told not in ("", COMMITTED):
                broken("P7", f"{half} was told to be {told}, and there is {copies[first]}")
            if told == GIVEN_UP and not is_parked:
                broken("P10", f"{half} was told to be given up, and is not")

    def _check_settled(self, copies: dict[int, Stored]) -> None:
        for position, outcome in self.settled.items():
            if outcome == COMMITTED and self.first(position) not in copies:
                broken("P10", f"an operator has committed what is at {position}: there is no copy")

    def _may_be_both(self, first: int) -> bool:
        """Whether an operator may have committed what was given up, or had it checked again."""
        return any(self.first(position) == first for position in self.asked)

    def _transaction(self, half: Stored) -> Transaction:
        known = self.all.get(half.doubted.tx if half.doubted else "")
        if known is None:
            broken("P6", f"nobody has begun the transaction of {half}")
        return known

    def first(self, position: int) -> int:
        """The half that was sent, for one that was appended again."""
        while (half := self._halves.get(position)) is not None and half.origin >= 0:
            position = half.origin
        return position

    def _copies(self, found: list[Stored]) -> dict[int, Stored]:
        """Commit copies by the first position of their half: one each, the right one, wanted."""
        copies: dict[int, Stored] = {}
        for record in found:
            if record.doubted is None or record.doubted.kind is not Kind.COMMIT:
                continue
            if record.attempt:
                continue  # of a message that was consumed, and has failed
            half = self._halves.get(self.first(record.doubted.half))
            if half is None or half.doubted is None:
                broken("P7", f"{record} was never a half")
            known = self._transaction(half)
            if known.local is not True and not known.wavers:
                broken("P7", f"{record} is committed, and the local work of {known} was not done")
            before = copies.setdefault(half.position, record)
            if before is not record:
                broken("P7", f"{half} is committed by {before} and by {record}")
            name = (record.producer, record.seq, record.body, record.topic, record.queue)
            if name != (half.producer, half.seq, half.body, *half.doubted.real):
                broken("P7", f"{record} is not the message of {half}")
        self._tally["commit copies"] += len(copies)
        return copies

    def _parked(self, found: list[Stored]) -> dict[int, Stored]:
        """What was given up, by the first position of the half: after its checks, or too old."""
        counts: Counter[int] = Counter()
        parked: dict[int, Stored] = {}
        for record in found:
            assert record.doubted is not None, "chosen by that"
            for offset, checks in record.doubted.checks.items():
                counts[offset] = max(counts[offset], checks)
            if record.doubted.kind is not Kind.GIVEN_UP:
                continue
            half = self._halves.get(record.origin)
            if half is None:
                broken("P10", f"{record} was never a half")
            first = self._halves[self.first(record.origin)]
            kin = self._kin_of(half)
            old = record.store_ms - min(one.store_ms for one in kin) > RESERVED_MS
            most = max(counts[one.offset] for one in kin)
            if most < CHECKS_MAX and not (old or self.was_full):
                broken("P10", f"{half} is given up after {counts[half.offset]} checks: {record}")
            self._tally["parked again"] += first.position in parked
            parked[first.position] = record
        self._tally["given up"] += len(parked)
        return parked

    def _kin_of(self, half: Stored) -> list[Stored]:
        """All halves of the same transaction: one that has had its checks, or its time, ends it."""
        tx = half.doubted.tx if half.doubted else ""
        return [one for one in self._halves.values() if one.doubted and one.doubted.tx == tx]

    def _check_ops(self, found: list[Stored]) -> None:
        offsets = {half.offset for half in self._halves.values()}
        named = Counter(self.named(found))
        for offset, count in named.items():
            require(offset in offsets, "P6", f"op records name {offset}, which is no half")
            require(count == 1, "P7", f"op records name {offset} {count} times")

    @staticmethod
    def named(found: Iterable[Stored]) -> list[int]:
        """Half queue offsets that op records name."""
        return [offset for r in found if r.doubted for offset in r.doubted.named]

    def _check_counts(self, found: list[Stored]) -> None:
        by_offset = {half.offset: half for half in self._halves.values()}
        for record in found:
            for offset in record.doubted.checks if record.doubted else ():
                half = by_offset.get(offset)
                if half is None or half.doubted is None:
                    broken("P6", f"{record} counts checks of {offset}, which is no half")
                if half.doubted.group not in self.served:
                    broken("P10", f"{record} counts checks of {half}, which nobody heard")

    def going(self, going: list[Stored], log: list[Stored], durable: int, forced: bool) -> None:
        """Retention removes these: what waits may be among them on a full disk alone (P10)."""
        sure = [record for record in log if record.end <= durable]
        named, newest = set(self.named(sure)), self.newest(sure)
        self._low = max(self._low, *(record.end for record in going), 0)
        waiting = {half.doubted.tx for half in self.undecided(log) if half.doubted}
        for record in going:
            if record.doubted is None:
                continue
            if record.doubted.is_half:
                known = self._transaction(record)
                known.cut_at = min(known.cut_at, 0 if known.tx in waiting else log[-1].end)
            is_open = record.doubted.is_half and record.offset not in named
            is_parked = newest.get(record.origin) == record.position
            if is_open or (is_parked and record.origin not in self.asked):
                require(forced, "P10", f"{record} waits, and its segment goes")
                self._gone.add(record.position)
        self._tally["halves lost waiting"] = len(self._gone)

    @staticmethod
    def newest(log: Iterable[Stored]) -> dict[int, int]:
        """Where the newest copy is of what was given up, by the half's position."""
        found = [r for r in log if r.doubted and r.doubted.kind is Kind.GIVEN_UP]
        return {record.origin: record.position for record in found}

    def undecided(self, log: list[Stored]) -> list[Stored]:
        """Halves that no op record names."""
        named = set(self.named(log))
        halves = [r for r in log if r.doubted and r.doubted.is_half]
        return [h for h in halves if h.offset not in named and h.position not in self._gone]

    def check_all_ended(self, log: list[Stored], listed: set[int]) -> None:
        """In the end each half is decided, as its producer has, or `listed` as given up (P10)."""
        left = self.undecided(log)
        require(not left, "P10", f"nobody decides {left}")
        copies = self._copies([record for record in log if record.doubted])
        newest = self.newest(log)
        parked = {half for half, place in newest.items() if place not in self._gone}
        parked -= self.settled.keys()
        maybe = self.asked - self.settled.keys()  # an answer that nobody has heard
        require(parked - maybe <= listed <= parked, "P10", f"given up are {parked}, not {listed}")
        firsts = {self.first(position) for position in {*newest, *self._gone}}
        for half in self._halves.values():
            known = self._transaction(half)
            if half.origin >= 0 or half.position in firsts or known.wavers:
                continue
            if known.local and half.position not in copies:
                broken("P7", f"the local work of {known} was done, and {half} is not committed")
        self._check_whole(set(copies), {self.first(half) for half in listed})

    def _check_whole(self, copied: set[int], listed: set[int]) -> None:
        """All halves of a transaction are committed or none is, but for those lost on a full disk.

        And but for those that came when retention had removed what was decided before.
        Operators who contradict each other may leave some of what was given up as it is.
        """
        lost = {self.first(position) for position in self._gone}
        whole: dict[str, set[int]] = {}
        for half in self._halves.values():
            if half.origin < 0 and half.position not in lost and half.doubted:
                whole.setdefault(half.doubted.tx, set()).add(half.position)
        for tx, halves in whole.items():
            known = self.all[tx]
            self._tally["transactions of several"] += len(halves) > 1
            if max(halves) >= known.cut_at:
                self._tally["transactions not judged as a whole"] += 1
                continue
            delivered, waiting = halves & copied, halves & listed
            may_be_left = len(known.hands) > 1
            if delivered and delivered != (halves - waiting if may_be_left else halves):
                broken("P7", f"{known} is committed in part: {delivered} of {halves}")
            if waiting and waiting != halves and not may_be_left:
                broken("P7", f"{known} is given up in part: {waiting} of {halves}")
