"""The oracle of the simulator: what was promised, in plain Python, and whether the log keeps it.

It knows only what clients did and saw, and reads the store's files by itself (reliability.md, P1 to
P6, P10 to P12).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from gantrymq.shm.codes import Status
from gantrymq.shm.properties import HALF_TOPIC, SCHEDULE_TOPIC
from gantrymq.shm.record import Record
from gantrymq.shm.storage import Storage
from tests.support.delivering import check_copies
from tests.support.parked import parking_place
from tests.support.recalling import Recallable, Recalls, is_recall
from tests.support.simbatches import check_batch_units
from tests.support.simtime import Moments
from tests.support.storedlog import (
    QueueName,
    Stored,
    broken,
    read_log,
    require,
    require_side_by_side,
)
from tests.support.txnoracle import Transactions

#: By these names the log tells of messages that will never be delivered.
SCHEDULER = "the scheduler"
AGENTS = (SCHEDULER, "the txn-checker")
ACCEPTED = (Status.OK, Status.DUPLICATE, Status.UNKNOWN_POSITION)


class End(Enum):
    """What the machine went through since the log was last looked at."""

    STOP = "clean stop"
    KILL = "kill"
    POWER = "power cut"


@dataclass(frozen=True, slots=True)
class Intent:
    """A message that a producer has begun to send."""

    topic: str
    body: bytes
    queue: int = -1
    batch: int = 0  # number of its batch, 0 = alone
    due: tuple[int, int] = (0, 0)  # codes.ParkMode and value, with which it is put


@dataclass(frozen=True, slots=True)
class Receipt:
    """What a producer was answered."""

    status: Status
    queue: int
    offset: int
    position: int
    end: int


@dataclass(slots=True)
class Sender:
    """One producer's own memory of what it did."""

    intents: dict[int, Intent] = field(default_factory=dict)
    receipts: dict[int, Receipt] = field(default_factory=dict)
    lost: set[int] = field(default_factory=set)  # written, acknowledged as such, then a power cut
    torn: set[int] = field(default_factory=set)  # batches that a power cut has left in part
    alive: bool = True


class Model:
    """Everything that happened, and the promises about it."""

    def __init__(self, safe_topics: frozenset[str] = frozenset()) -> None:
        """`safe_topics` are those of level durable."""
        self.safe_topics = safe_topics
        self.senders: dict[str, Sender] = defaultdict(Sender)
        self.durable = 0  # the highest position that was ever published as durable
        self.held: dict[tuple[str, QueueName], int] = {}  # (group, queue) -> live session
        self.committed: dict[tuple[str, QueueName], int] = {}  # acknowledged by groups
        self.left: dict[tuple[str, QueueName], int] = {}  # words of sessions that have ended
        self.consumed: dict[tuple[str, QueueName], dict[int, bytes]] = defaultdict(dict)
        self.log: list[Stored] = []
        self.expired: list[Stored] = []  # what retention has removed, or is about to
        self.let_go: set[tuple[str, int, int]] = set()  # of these, what no group had to read
        self.never_due: set[int] = set()  # positions of those that went before their time
        self.may_force = False  # the disk is so full that segments go unread
        self.vandals: set[str] = set()  # producers of whose messages nothing is known
        self.tally: Counter[str] = Counter()  # what has happened, to see that it does
        self.moments = Moments()
        self.recalls = Recalls(self.tally)
        self.transactions = Transactions(self.tally)

    # ------------------------------------------------------------------------- what clients report

    def sent(self, producer: str, seq: int, intent: Intent) -> None:
        """Before the entry is put."""
        self.senders[producer].intents[seq] = intent

    def answered(self, producer: str, seq: int, receipt: Receipt) -> None:
        """A completion was taken."""
        sender = self.senders[producer]
        require(
            seq in sender.intents, "P6", f"{producer} was answered seq {seq} that it never sent"
        )
        require(seq not in sender.receipts, "P6", f"{producer} was answered seq {seq} twice")
        sender.receipts[seq] = receipt
        self.tally[receipt.status.name] += 1

    def forget_receipts(self, producer: str, seqs: Iterable[int]) -> None:
        """These answers have not reached their producer after all."""
        for seq in seqs:
            del self.senders[producer].receipts[seq]

    def is_true(self, expression: str, record: Stored) -> bool:
        """Whether a filter is TRUE of a record: models have `simbits.EXPRESSION` alone."""
        del expression
        return record.seq & 0xF in (0x2, 0x9)

    def consumer_read(self, group: str, queue: QueueName, offset: int, record: Record) -> None:
        """A message was handed to an application."""
        end = record.physical_offset + record.total_size
        seen_early = queue[0] in self.safe_topics and end > self.durable
        require(not seen_early, "P4", f"{group} reads {queue} at {offset} before it is durable")
        floor = self.committed.get((group, queue), 0)
        require(
            offset >= floor, "P5", f"{group} reads {queue} at {offset} again, committed is {floor}"
        )
        self.consumed[group, queue][offset] = record.body

    def granted(self, group: str, queue: QueueName, session: int, offset: int) -> None:
        """A session believes from now on that it owns a queue, to go on with at an offset."""
        left = self.left.pop((group, queue), 0)
        what = f"{queue} of {group} goes on at {offset}, its last holder's words said {left}"
        require(offset >= left, "P5", what)
        self.tally["words kept"] += left > 0
        other = self.held.get((group, queue), session)
        require(other == session, "P5", f"{queue} of {group} is leased to {other} and {session}")
        self.held[group, queue] = session

    def gave_back(self, group: str, queue: QueueName, session: int) -> None:
        """A session has finished with a queue."""
        if self.held.get((group, queue)) == session:
            del self.held[group, queue]

    def left_behind(self, group: str, queue: QueueName, committed: int) -> None:
        """A session ended while the broker was there, which keeps its words for `groups`."""
        self.left[group, queue] = committed

    def broker_over(self) -> None:
        """What is not in the ledger yet is gone with it."""
        self.left.clear()

    def session_over(self, session: int) -> None:
        """A session has ended, with all that it owned."""
        self.held = {key: owner for key, owner in self.held.items() if owner != session}

    # --------------------------------------------------------------------------- what the log says

    def expire(
        self,
        storage: Storage,
        span: tuple[int, int],
        held: dict[tuple[str, QueueName], int],
        told: Counter[tuple[str, str]] | None,
    ) -> None:
        """Records below `low` are going; `held`: offsets of all groups, by what `groups` knows.

        None of them may be unread by a group that has an offset in its queue, nor wait for its
        time, but what `told` counts by group or scheduler and topic, and only on a full disk.
        None: `groups` has just died. `span`: `low`, and the log's end.
        """
        low, end = span
        begin = self.expired[-1].end if self.expired else 0
        first = min(int(name) for name in storage.list("commitlog"))
        lost: Counter[tuple[str, str]] = Counter()
        records = read_log(storage, end, first, whole=False)
        going = [record for record in records if begin <= record.position < low]
        for record in going:
            self.expired.append(record)
            self._note_expired(record, held, lost)
        waiting = self._note_waiting(going, records)
        every = [*self.expired, *records]
        self.transactions.going(going, every, self.durable, self.may_force)
        if told is not None:
            may = self.may_force or not lost + waiting
            require(may, "P10", f"retention removes below {low} what is needed: {lost}, {waiting}")
            named = Counter({name: told.pop(name) for name in set(told) if name[0] in AGENTS})
            require(lost == told, "P10", f"below {low} go unread {lost}, and it tells of {told}")
            require(waiting <= named, "P10", f"below {low} wait {waiting}, and it tells of {named}")
        self.tally["messages lost unread"] += lost.total()
        self.tally["messages lost waiting"] += waiting.total()

    def _note_waiting(self, going: list[Stored], records: list[Stored]) -> Counter[tuple[str, str]]:
        """Parked ones without a durable copy; some may be on their way, and come all the same."""
        every = (*self.expired, *records)
        copied = {record.origin for record in every if record.end <= self.durable}
        waiting: Counter[tuple[str, str]] = Counter()
        for record in going:
            known = record.producer not in self.vandals and record.destination is not None
            if known and not is_recall(record) and record.position not in copied:
                self.never_due.add(record.position)
                waiting[SCHEDULER, record.topic] += 1
        return waiting

    def _note_expired(
        self,
        record: Stored,
        held: dict[tuple[str, QueueName], int],
        lost: Counter[tuple[str, str]],
    ) -> None:
        name = (record.topic, record.queue)
        offsets = {group: offset for (group, key), offset in held.items() if key == name}
        losers = [group for group, offset in offsets.items() if record.offset >= offset]
        if losers or not offsets:
            self.let_go.add((*name, record.offset))
        for group in losers:
            lost[group, record.topic] += 1

    def skipped(self, group: str, queue: QueueName, first: int, last: int) -> None:
        """A consumer found [first, last) of a queue gone and goes on behind it."""
        self.tally["gaps"] += 1
        for offset in range(first, last):
            gone = (*queue, offset) in self.let_go
            require(gone, "P10", f"{group} needs {queue} at {offset}, which is not there")

    def check_store(self, storage: Storage, appended: int, after: End, low: int = 0) -> None:
        """Compare the log below `appended` with what was promised; forget what a power cut took.

        What retention has removed below `low` is remembered.
        """
        self.expired = [record for record in self.expired if record.position < low]
        self.log = self.expired + read_log(storage, appended, low)
        check_batch_units(storage, self.log, low)
        self.moments.recovered(appended)
        copies = [r for r in self.log if r.origin >= 0 and not r.doubted and not is_recall(r)]
        sent = [record for record in self.log if record.is_sent]
        found = {(record.producer, record.seq): record for record in sent}
        self._check_identity(sent)
        check_copies(self, copies)
        self._check_order()
        for producer, sender in self.senders.items():
            self._check_prefix(producer, sender, found)
            self._check_receipts(producer, sender, found, after)
            self._check_batches(producer, sender, found, after)
        self._check_consumed(after)
        if after is End.POWER:
            self.recalls.power_cut(self.safe_topics)
            self.transactions.power_cut()
        self.recalls.check(self.log)
        self.transactions.check(self.log, low)

    def may_be_gone(self, message: Recallable) -> bool:
        """Whether a message that was parked may have left the log."""
        producer, seq = message.name
        low = self.expired[-1].end if self.expired else 0
        return message.position < low or seq in self.senders[producer].lost

    def _check_identity(self, records: list[Stored]) -> None:
        seen: set[tuple[str, int]] = set()
        for record in records:
            name = (record.producer, record.seq)
            require(
                name not in seen, "P6", f"{name} is in the log twice, again at {record.position}"
            )
            seen.add(name)
            if record.producer in self.vandals:
                continue
            intent = self.senders[record.producer].intents.get(record.seq)
            require(intent is not None, "P6", f"nobody sent {name}")
            assert intent is not None
            topic, queue = record.destination or record.real
            if (intent.topic, intent.body) != (topic, record.body):
                broken("P6", f"{name} is not what was sent: {record}")
            if intent.queue not in (-1, queue):
                broken("P6", f"{name} was sent to queue {intent.queue}: {record}")
            parked = parking_place(intent.due)
            may_be_due = parked not in (SCHEDULE_TOPIC, HALF_TOPIC)
            if record.topic not in (parked, intent.topic if may_be_due else parked):
                broken("P6", f"{name} was to wait in {parked}: {record}")
            self.tally["parked"] += record.destination is not None

    def _check_order(self) -> None:
        expected: dict[QueueName, int] = defaultdict(int)
        last_seq: dict[str, int] = defaultdict(int)
        for record in self.log:
            name = (record.topic, record.queue)
            dense = record.offset == expected[name]
            require(dense, "P5", f"{name} goes on with {record.offset}, not {expected[name]}")
            expected[name] += 1
            if not record.is_sent:
                continue
            rises = record.seq > last_seq[record.producer]
            require(
                rises, "P5", f"{record.producer}: {record.seq} behind {last_seq[record.producer]}"
            )
            last_seq[record.producer] = record.seq

    def _check_prefix(
        self, producer: str, sender: Sender, found: dict[tuple[str, int], Stored]
    ) -> None:
        """Nothing is left out before the last one that is there, but what was refused or lost."""
        last = max((seq for name, seq in found if name == producer), default=0)
        for seq in range(1, last):
            receipt = sender.receipts.get(seq)
            refused = receipt is not None and receipt.status not in ACCEPTED
            there = (producer, seq) in found
            require(not (there and refused), "P6", f"{producer} {seq} was refused and is there")
            require(
                there or refused or seq in sender.lost,
                "P5",
                f"{producer} {seq} missing below {last}",
            )

    def _check_receipts(
        self, producer: str, sender: Sender, found: dict[tuple[str, int], Stored], after: End
    ) -> None:
        for seq, receipt in sender.receipts.items():
            if receipt.status not in ACCEPTED or seq in sender.lost:
                continue
            record = found.get((producer, seq))
            if record is None:
                may = after is End.POWER and (receipt.end < 0 or receipt.end > self.durable)
                promise = "P1" if receipt.end <= self.durable else "P2"
                if not may:
                    broken(promise, f"{producer} {seq} is gone after a {after.value}: {receipt}")
                sender.lost.add(seq)
            elif receipt.status is not Status.UNKNOWN_POSITION:
                stored = (record.real[1], record.offset, record.position, record.end)
                told = (receipt.queue, receipt.offset, receipt.position, receipt.end)
                require(stored == told, "P5", f"{producer} {seq} was told {told}, is at {stored}")

    def _check_batches(
        self, producer: str, sender: Sender, found: dict[tuple[str, int], Stored], after: End
    ) -> None:
        """A batch is there whole, side by side in one queue, or not at all (SF-21, ADR 0006)."""
        batches: dict[int, list[int]] = defaultdict(list)
        for seq, intent in sender.intents.items():
            if intent.batch:
                batches[intent.batch].append(seq)
        for batch, seqs in batches.items():
            who = f"batch {seqs} of {producer}"
            members = [found[producer, seq] for seq in seqs if (producer, seq) in found]
            answers = {s.status in ACCEPTED for q in seqs if (s := sender.receipts.get(q))}
            require(len(answers) < 2, "P6", f"{who} is answered in parts")
            if len(members) < len(seqs) and after is End.POWER:
                sender.torn.add(batch)
                prefix = [record.seq for record in members] == seqs[: len(members)]
                require(prefix, "P6", f"of {who} there is no prefix")
            whole = len(members) in (0, len(seqs)) or batch in sender.torn
            require(whole, "P6", f"of {who} only {len(members)} are there")
            require_side_by_side(who, members)
            self.tally["batches"] += len(members) == len(seqs)

    def _check_consumed(self, after: End) -> None:
        bodies = {(r.topic, r.queue, r.offset): r.body for r in self.log}
        for (group, name), read in self.consumed.items():
            for offset in sorted(read):
                body = bodies.get((*name, offset))
                may = after is End.POWER and name[0] not in self.safe_topics
                if may and body != read[offset]:
                    del read[offset]  # seen at level written, then lost
                    continue
                promise = "P4" if after is End.POWER else "P6"
                what = f"{group} read at {offset} of {name} {read[offset]!r}, the log has {body!r}"
                require(body == read[offset], promise, what)

    def check_all_consumed(self, group: str, topics: set[str], end: int = 1 << 62) -> None:
        """In the end, every record of the topics before `end` has been read by the group (P10).

        But for those of vandals, who go on while everybody else has gone.
        """
        for record in self.log:
            if record.position >= end:
                continue
            if record.topic in topics and record.producer not in self.vandals:
                read = self.consumed[group, (record.topic, record.queue)]
                if (record.topic, record.queue, record.offset) in self.let_go:
                    continue
                require(record.offset in read, "P10", f"{group} never read {record}")

    def power_cut(self) -> None:
        """The ledger may have lost its last second: what was committed may be consumed again."""
        self.committed.clear()
        self.held.clear()
        self.recalls.power_cut(self.safe_topics)
