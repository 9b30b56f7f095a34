"""Ordered push consumers in the simulator, and the oracle of what ordered means.

Of a queue one message is worked on at a time, and none before the one in front of it is done with.
A lease ends with its session, which its holder may not know yet: what is begun under a session that
is over is not held against others, but it too has to come in its turn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gantrymq.clients.push.consumeresult import ConsumeResult
from gantrymq.shm.record import Record
from gantrymq.shm.segment import open_log
from tests.support.simapps import Listener
from tests.support.simbooks import Books, span_of
from tests.support.simthreads import judged
from tests.support.storedlog import QueueName, require

if TYPE_CHECKING:
    from gantrymq.clients.message import ReceivedMessage
    from gantrymq.clients.push.consumer import PushConsumer
    from gantrymq.clients.push.options import PushOptions
    from gantrymq.shm.storage import Storage
    from tests.support.simdoor import DoorMachine

ORDERED: Final = "ordered"


@dataclass(frozen=True, slots=True)
class Call:
    """A listener at work on a message."""

    listener: OrderedListener
    consumer: PushConsumer
    session: int
    queue: QueueName
    offset: int
    body: bytes


class Orders:
    """The oracle of one group."""

    def __init__(self, machine: DoorMachine, books: Books) -> None:
        self._machine = machine
        self._books = books
        self._at_work: dict[QueueName, list[Call]] = {}
        #: By session and queue: the lowest offset that may be next.
        self._next: dict[tuple[int, QueueName], int] = {}
        #: By sending thread, topic and message group: number of the last that is done with.
        self._last: dict[tuple[str, str, str], int] = {}

    def begin(self, call: Call) -> None:
        """A listener is called."""
        others = [other for other in self._at_work.get(call.queue, []) if self._lives(other)]
        for other in others:
            both = self._holds(other) and self._holds(call)
            alone = other.consumer is not call.consumer and not both
            require(alone, "P5", f"two work on a queue at once: {other}, {call}")
        self._at_work[call.queue] = [*others, call]
        floor = self._next.get((call.session, call.queue), 0)
        require(call.offset >= floor, "P5", f"{call} comes, and {floor} was to be the next")
        self._next[call.session, call.queue] = call.offset
        self._require_turn(call)
        self._books.tally["in order"] += 1

    def end(self, call: Call, *, done: bool) -> None:
        """The listener returns; `done`: the next message may come."""
        self._at_work[call.queue].remove(call)
        if not done:
            return
        self._next[call.session, call.queue] = call.offset + 1
        letter = self._books.letters[call.body]
        group = letter.stamp.get("message_group", "")
        if group:
            lane = (letter.who, letter.topic, group)
            self._last[lane] = max(self._last.get(lane, 0), letter.number)

    @staticmethod
    def _lives(call: Call) -> bool:
        return call.listener.process.is_alive

    def _holds(self, call: Call) -> bool:
        return call.session in self._machine.sessions

    def _require_turn(self, call: Call) -> None:
        """The message in front of it is done with, and those of its message group are."""
        processed = self._books.processed[ORDERED]
        if call.body in processed:
            return  # it comes again
        before = self._in_front(call)
        if before is not None:
            require(before in processed, "P5", f"{call} comes before {before!r} is done with")
        letter = self._books.letters[call.body]
        group = letter.stamp.get("message_group", "")
        last = self._last.get((letter.who, letter.topic, group), 0)
        require(letter.number > last, "P5", f"{call} comes behind number {last} of its group")

    def _in_front(self, call: Call) -> bytes | None:
        """Body of the message in front of it in its queue; None if there is none (any more)."""
        if call.offset == 0:
            return None
        storage = self._machine.storage_for("oracle")
        unit_bytes = self._machine.configuration.settings.mapped_file_size_consume_queue
        try:
            begin, _end = span_of(storage, call.queue, call.offset - 1, unit_bytes)
        except FileNotFoundError:
            return None
        return _body_at(storage, begin)


def _body_at(storage: Storage, position: int) -> bytes | None:
    segment = open_log(storage).segment_at(position)
    item = segment.item_at(position) if segment is not None else None
    return item.body if isinstance(item, Record) else None


class OrderedListener(Listener):
    """One ordered PushConsumer of the group."""

    def __init__(self, name: str, machine: DoorMachine, books: Books, orders: Orders) -> None:
        self._orders = orders
        super().__init__(name, machine, books, ORDERED)

    def options(self) -> PushOptions:
        """In order."""
        return {**super().options(), "orderly": True}

    def listen(self, message: ReceivedMessage) -> ConsumeResult | None:
        """Process one message; some fail once, and block their queue for a while."""
        settings = self.machine.configuration.settings
        storage, body = self.machine.storage_for("oracle"), bytes(message.body)
        with judged():
            self.books.got(self.group, message, storage, settings.mapped_file_size_consume_queue)
            call = self._call_of(message, body)
            self._orders.begin(call)
        self.rest(0.002)
        fails = body not in self._failed and self.dice.random() < 0.05
        if not fails:
            self.books.done_with(self.group, body)
        self._orders.end(call, done=not fails)
        if not fails:
            return None
        self._failed.add(body)
        self.books.tally["ordered listeners fail"] += 1
        return message.retry_after(0.1) if self.dice.random() < 0.7 else ConsumeResult.FAILURE

    def _call_of(self, message: ReceivedMessage, body: bytes) -> Call:
        consumer = self.consumer
        assert consumer is not None, "it calls"
        dispatcher = consumer._dispatcher
        assert dispatcher is not None, "it was started"
        offset, queue = message.queue_offset, message.queue_id
        assert offset is not None, "it was delivered"
        assert queue is not None, "it was delivered"
        session = dispatcher.member.session.session
        return Call(self, consumer, session, (message.topic, queue), offset, body)
