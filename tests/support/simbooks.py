"""The oracle of real clients in the simulator: what applications did, were told, and have got.

Applications know their messages by their bodies, each of which is unique. What the log has to say
of them is judged by tests.support.model, as for the clients that are models.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gantrymq.shm import layout
from gantrymq.shm.messageid import parse_offset_message_id
from gantrymq.shm.queuenames import queue_directory
from tests.support.model import End, Intent, Model
from tests.support.simstamps import SIEVES, stamp_of
from tests.support.storedlog import (
    QueueName,
    Stored,
    broken,
    read_log,
    require,
    require_side_by_side,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from gantrymq.clients.message import ReceivedMessage, SendReceipt
    from gantrymq.shm.board import Board
    from gantrymq.shm.storage import Storage
    from tests.support.model import Sender
    from tests.support.txnoracle import Transaction

BEGUN, STORED, REFUSED, UNKNOWN = "begun", "stored", "refused", "unknown"


@dataclass(slots=True)
class Letter:
    """A message of an application."""

    body: bytes
    topic: str
    who: str  # the thread that sends it
    number: int  # of that thread's, in the order in which they are handed over
    due: tuple[int, int]
    batch: int
    state: str = BEGUN
    is_durable: bool = False  # it was told so
    position: int = -1  # as it was told
    place: tuple[int, int] = (-1, -1)  # queue and offset, likewise
    unique: str = ""
    is_lost: bool = False  # by a power cut
    stamp: dict[str, Any] = field(default_factory=dict)  # what it was sent with besides


class Books(Model):
    """A model whose messages are known by their bodies."""

    def __init__(self, safe_topics: frozenset[str]) -> None:
        super().__init__(safe_topics)
        self.letters: dict[bytes, Letter] = {}
        self.letters_by_id: dict[str, Letter] = {}
        self.transactions_of: dict[bytes, Transaction] = {}
        self._undecided = False
        self.stamps = False  # whether messages are sent with a tag and properties
        #: Of groups that do not want all messages: whether they want one sent with such a stamp.
        self.wants: dict[str, Callable[[str, dict[str, Any]], bool]] = {}
        self.processed: dict[str, Counter[bytes]] = defaultdict(Counter)
        self.finished: dict[str, set[bytes]] = defaultdict(set)  # and the group was told so
        self._numbers: Counter[str] = Counter()
        self._batches = 0
        self._after = End.STOP
        self._torn: set[int] = set()
        self._visible_end = (0, -1)
        self._visible: set[bytes] = set()
        self._visible_to: dict[str, set[bytes]] = {}  # of groups that do not want all
        self._story = hashlib.sha256()

    @property
    def digest(self) -> str:
        """What applications have done and got so far, in their order, in a few digits."""
        return self._story.hexdigest()[:16]

    def tell(self, *words: object) -> None:
        """Something happened to an application."""
        self._story.update(repr(words).encode())

    # ------------------------------------------------------------------------------------- senders

    def begin(
        self, who: str, topic: str, size: int, due: tuple[int, int] = (0, 0), batch: int = 0
    ) -> bytes:
        """The body of a new message, which is about to be sent."""
        self._numbers[who] += 1
        number = self._numbers[who]
        body = f"{who}:{number}:".encode().ljust(size, b".")
        self.letters[body] = Letter(body, topic, who, number, due, batch)
        self.tell("begin", body, topic)
        return body

    def stamp(self, body: bytes, *, grouped: bool = False) -> dict[str, Any]:
        """What a message is to be sent with besides; `grouped`: a message group as well."""
        if not self.stamps:
            return {}
        letter = self.letters[body]
        letter.stamp = stamp_of(letter.number, grouped=grouped)
        return dict(letter.stamp)

    def is_wanted(self, group: str, body: bytes) -> bool:
        """Whether the group's filter lets a message through, as the oracle reads it."""
        wants, letter = self.wants.get(group), self.letters.get(body)
        return wants is None or letter is None or wants(letter.topic, letter.stamp)

    def is_true(self, expression: str, record: Stored) -> bool:
        """As the applications know their messages, and the oracle the filters."""
        letter = self.letters.get(record.body)
        sieves = [sieve for sieve in SIEVES if sieve.expression.text == expression]
        return letter is not None and any(sieve.lets_through(letter.stamp) for sieve in sieves)

    def new_batch(self) -> int:
        """Number of a batch."""
        self._batches += 1
        return self._batches

    def acknowledged(self, body: bytes, receipt: SendReceipt) -> None:
        """A receipt has come."""
        letter = self.letters[body]
        require(letter.state == BEGUN, "P6", f"{body!r} was {letter.state}, and has a receipt")
        letter.state = STORED
        letter.unique = receipt.message_id
        self.letters_by_id[letter.unique] = letter
        letter.is_durable = receipt.durability == "durable"
        if receipt.offset_msg_id:
            letter.position = parse_offset_message_id(receipt.offset_msg_id)[1]
            letter.place = receipt.message_queue.queue_id, receipt.queue_offset
            if letter.is_durable:
                early = letter.position >= self.durable
                require(
                    not early, "P1", f"{body!r} is durable at {letter.position}, says a receipt"
                )
        self.tally["receipts"] += 1
        self.tell("receipt", body, letter.position, letter.place)

    def places_of(self, known: Transaction) -> list[int]:
        """Log positions of a transaction's halves, as its producer was told."""
        bodies = [body for body, other in self.transactions_of.items() if other is known]
        return [place for body in bodies if (place := self.letters[body].position) >= 0]

    def passed(self, body: bytes) -> None:
        """A one-way message: the flush behind it has ended well."""
        letter = self.letters[body]
        if letter.state == BEGUN:
            letter.state = STORED
            self.tally["flushed"] += 1

    def ended(self, body: bytes, state: str, error: BaseException) -> None:
        """It was refused, or nobody knows."""
        letter = self.letters[body]
        require(letter.state == BEGUN, "P6", f"{body!r} was {letter.state}, and fails: {error!r}")
        letter.state = state
        self.tally[f"{state} by {type(error).__name__}"] += 1
        self.tell(state, body, type(error).__name__)

    # ----------------------------------------------------------------------------------- consumers

    def got(self, group: str, message: ReceivedMessage, storage: Storage, unit_bytes: int) -> None:
        """A message was handed to an application."""
        body = bytes(message.body)
        require(body in self.letters, "P6", f"{group} is given {body!r}, which nobody has sent")
        require(
            body not in self.finished[group], "P5", f"{group} has finished {body!r}: given again"
        )
        if not self.is_wanted(group, body):
            broken("FL-4", f"{group} is given {self.letters[body]}, which its filter keeps away")
        self.tell("got", group, body, message.queue_offset)
        self.tally["handed out"] += 1
        if message.topic not in self.safe_topics or message.delivery_attempt > 1:
            return
        name = (message.topic, message.queue_id)
        _begin, end = span_of(storage, name, message.queue_offset, unit_bytes)
        require(end <= self.durable, "P4", f"{group} is given {body!r} before it is durable")

    def done_with(self, group: str, body: bytes) -> None:
        """The application has done what was to be done."""
        self.processed[group][body] += 1
        self.tell("done", group, body)

    def all_processed(
        self, groups: tuple[str, ...], topics: set[str], storage: Storage, board: Board
    ) -> bool:
        """Whether each group has processed all that is visible now."""
        end, low = board.word(layout.BOARD_APPENDED), board.word(layout.BOARD_LOW)
        if self._visible_end != (board.epoch, end):
            self._visible_end = (board.epoch, end)
            log = read_log(storage, end, low, whole=False)
            self._visible = {record.body for record in log if record.topic in topics}
            self._visible_to.clear()
            self._undecided = bool(self.transactions.undecided(log))
        if self._undecided:
            return False
        return all(self.processed[group].keys() >= self._what_sees(group) for group in groups)

    def _what_sees(self, group: str) -> set[bytes]:
        if group not in self.wants:
            return self._visible
        if group not in self._visible_to:
            seen = {body for body in self._visible if self.is_wanted(group, body)}
            self._visible_to[group] = seen
        return self._visible_to[group]

    def check_all_processed(self, group: str, topics: set[str], low: int, end: int) -> None:
        """Each message between log positions has been processed by the group in the end (P10).

        `low` was the board's: what was to go is in the log again if its broker died before.
        """
        for record in self.log:
            name = (record.topic, record.queue, record.offset)
            if record.topic not in topics or name in self.let_go:
                continue
            if not low <= record.position < end:
                continue
            if not self.is_wanted(group, record.body):
                continue
            count = self.processed[group][record.body]
            require(count > 0, "P10", f"{group} never processed {record.body!r}: {record}")

    def check_once(self, group: str) -> None:
        """Where nobody has died, and nothing has failed, nothing comes twice."""
        again = [body for body, count in self.processed[group].items() if count > 1]
        require(not again, "P5", f"{group} has processed twice: {again}")

    # ------------------------------------------------------------------------------------- the log

    def check_store(self, storage: Storage, appended: int, after: End, low: int = 0) -> None:
        """As for the models; and by bodies."""
        self._after = after
        super().check_store(storage, appended, after, low)

    def power_cut(self) -> None:
        """What was consumed may come again."""
        super().power_cut()
        self.finished.clear()

    def _check_identity(self, records: list[Stored]) -> None:
        found: dict[bytes, Stored] = {}
        for record in records:
            letter = self.letters.get(record.body)
            if letter is None:
                broken("P6", f"nobody sent {record}")
            other = found.setdefault(record.body, record)
            require(
                other is record, "P6", f"{record.body!r} is in the log twice: {other}, {record}"
            )
            intent = Intent(letter.topic, letter.body, due=letter.due)
            self.senders[record.producer].intents[record.seq] = intent
        super()._check_identity(records)
        self._check_letters(found)
        self._check_batch(found)
        self._check_senders(found)

    def _check_letters(self, found: dict[bytes, Stored]) -> None:
        for letter in self.letters.values():
            record = found.get(letter.body)
            if letter.state == REFUSED:
                require(record is None, "P6", f"{letter} was refused: {record}")
            if letter.state != STORED or letter.is_lost:
                continue
            if record is None:
                letter.is_lost = self._after is End.POWER and (
                    not letter.is_durable and not 0 <= letter.position < self.durable
                )
                require(letter.is_lost, "P1", f"{letter} is gone after a {self._after.value}")
                if letter.unique:
                    self.senders[letter.unique[:20].lower()].lost.add(int(letter.unique[20:], 16))
            elif letter.unique:
                unique = f"{record.producer.upper()}{record.seq:012X}"
                require(letter.unique == unique, "P6", f"{letter} is {unique}: {record}")
                place = (record.real[1], record.offset)
                told = letter.position in (-1, record.position) and letter.place in (
                    (-1, -1),
                    place,
                )
                require(told, "P5", f"{letter} is elsewhere: {record}")

    def _check_batch(self, found: dict[bytes, Stored]) -> None:
        """A batch is there whole, side by side in one queue, or not at all."""
        batches: dict[int, list[Letter]] = defaultdict(list)
        for letter in self.letters.values():
            if letter.batch:
                batches[letter.batch].append(letter)
        for batch, letters in batches.items():
            members = [found[letter.body] for letter in letters if letter.body in found]
            if len(members) < len(letters) and self._after is End.POWER:
                self._torn.add(batch)
            whole = len(members) in (0, len(letters)) or batch in self._torn
            require(whole, "P6", f"of batch {letters} only {members} are there")
            require_side_by_side("a batch", members)
            self.tally["batches"] += len(members) == len(letters)

    def _check_senders(self, found: dict[bytes, Stored]) -> None:
        """Of each thread the messages are in the log in the order of its calls (P5)."""
        last: dict[str, Letter] = {}
        for body in sorted(found, key=lambda body: found[body].position):
            letter = self.letters[body]
            before = last.get(letter.who)
            if before is not None and before.number > letter.number:
                broken("P5", f"{letter} is behind {before}")
            last[letter.who] = letter

    def _check_prefix(
        self, producer: str, sender: Sender, found: dict[tuple[str, int], Stored]
    ) -> None:
        """Its numbers are known to the client alone."""


def span_of(storage: Storage, name: QueueName, offset: int, unit_bytes: int) -> tuple[int, int]:
    """Where the record of a queue's message begins and ends in the log.

    (0, 0) if the reader has yet to make that unit again: a start makes holes of units and removes
    files, and the message may have been handed out before.
    """
    at = offset * layout.CQ_UNIT_BYTES
    base = at // unit_bytes * unit_bytes
    path = f"{queue_directory(storage, *name)}/{base:020d}"
    if not storage.exists(path):
        return 0, 0
    unit = layout.CQ_UNIT.unpack(storage.open(path).view(), at - base)
    begin = int(unit["physical_offset"])
    return begin, begin + int(unit["size"])
