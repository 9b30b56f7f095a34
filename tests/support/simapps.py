"""Applications in the simulator: they call the public API as anybody does, in threads of their own.

What they are told they tell the books (simbooks.py).
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from gantrymq.clients.consumer import ConsumeFrom, PullConsumer
from gantrymq.clients.delays import due_of
from gantrymq.clients.message import Message, MessageQueue, ReceivedMessage, SendReceipt
from gantrymq.clients.producer import Producer
from gantrymq.clients.push.consumer import PushConsumer
from gantrymq.clients.push.consumeresult import ConsumeResult
from gantrymq.shm.errors import (
    BrokerGone,
    Closed,
    DiskFull,
    Evicted,
    GantryError,
    GroupIllegal,
    QueueFull,
    Rejected,
    StoreFailed,
    Timeout,
    Unavailable,
)
from tests.support import simthreads
from tests.support.recalling import Recallable
from tests.support.simbooks import REFUSED, UNKNOWN, Books
from tests.support.simthreads import Process, Thread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gantrymq.clients.assigned import Assigned
    from gantrymq.clients.push.options import PushOptions
    from gantrymq.clients.receipts import ReceiptFuture
    from gantrymq.clients.subscription import Subscription
    from tests.support.simdoor import DoorMachine

T = TypeVar("T")
#: Between two tries to attach.
_RETRY_S: Final = 0.005
#: After a failure of the store nobody asks again at once.
_FAILED_S: Final = 0.05
BATCH_MAX: Final = 4
#: Threads of a crowd, and how long each has something else to do: nobody else wakes who sleeps.
_CROWD: Final = 3
_CROWDS_REST_S: Final = 0.8
_SIZES: Final = (0, 10, 200, 1500)


def fate_of(error: GantryError) -> str:
    """What an error says of a message: it is not stored, or nobody knows."""
    if isinstance(error, Closed):
        return UNKNOWN
    return REFUSED if isinstance(error, DiskFull | QueueFull | Rejected) else UNKNOWN


class Application:
    """A process with one thread at first."""

    def __init__(self, name: str, machine: DoorMachine, books: Books) -> None:
        self.name = name
        self.machine = machine
        self.books = books
        self.dice = random.Random(machine.simulation.dice.getrandbits(64))
        self.process = Process(name, machine.simulation)
        self.stopping = False
        self.process.begin("main", self.main, self)

    def main(self) -> None:
        """What it does."""
        raise NotImplementedError

    def die(self) -> None:
        """SIGKILL: descriptors are closed by the kernel."""
        self.process.kill()

    @property
    def has_ended(self) -> bool:
        """Whether it has ended by itself."""
        return not self.process.threads

    def patiently(self, make: Callable[[], T]) -> T | None:
        """What is made once there is a broker; None if this is to stop."""
        while not self.stopping:
            try:
                return make()
            except (Unavailable, StoreFailed) as error:
                self.books.tally[f"not attached by {type(error).__name__}"] += 1
            simthreads.sleep(_RETRY_S)
        return None

    def rest(self, most_s: float) -> None:
        """The application has something else to do, perhaps."""
        if self.dice.random() < 0.3:
            simthreads.sleep(self.dice.random() * most_s)


class Sender(Application):
    """One producer, by one thread or two; or as a crowd: by several that rest for long."""

    def __init__(
        self, name: str, machine: DoorMachine, books: Books, count: int, *, is_crowd: bool = False
    ) -> None:
        self.left = count
        self._rest_s = _CROWDS_REST_S if is_crowd else 0.002
        self.topics = list(machine.topics)
        self._busy = 0
        self._futures = 0
        self._oneway: list[bytes] = []
        self._producer: Producer | None = None
        super().__init__(name, machine, books)
        self._lock: Any = simthreads.Lock()
        self._threads = _CROWD if is_crowd else self.dice.randint(1, 2)
        self._timeout_s = self.dice.choice([0.02, 1.0, 10.0, 10.0])

    @property
    def done(self) -> bool:
        """All sent, and told of."""
        return not (self.left > 0 or self._busy or self._futures)

    def send_more(self, count: int) -> None:
        """The application has more to send."""
        self.left += count

    def main(self) -> None:
        """Send by several threads."""
        self._producer = self.patiently(self._make)
        threads = [
            Thread(partial(self._run, f"{self.name}.{number}", number == 0), f"sender-{number}")
            for number in range(self._threads)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._producer is not None:
            self._end(self._producer)

    def _make(self) -> Producer:
        return Producer(self.machine.home, timeout=self._timeout_s)

    def _run(self, who: str, is_first: bool) -> None:
        while True:
            simthreads.wait(lambda: self.left > 0 or self.stopping)
            producer = self._producer
            if self.left <= 0 or producer is None:
                return
            self.left -= 1
            self._busy += 1
            try:
                self._one(producer, who, is_first)
            except StoreFailed:
                self._go_on_after_failure(producer)
            self._busy -= 1
            self.rest(self._rest_s)

    def _go_on_after_failure(self, old: Producer) -> None:
        """The store has failed: the same producer goes on with the next broker, or another one."""
        if self.dice.random() < 0.5:
            simthreads.sleep(_FAILED_S)
            return
        with self._lock:
            if self._producer is old:
                self._end(old)
                self._producer = self.patiently(self._make)

    def _end(self, producer: Producer) -> None:
        sent, self._oneway = self._oneway, []
        pending = list(sent)
        try:
            producer.close()
        except GantryError as error:
            self._all_ended(_taken(sent, pending), UNKNOWN, error)
        else:
            self._all_passed(_taken(sent, pending))

    # --------------------------------------------------------------------------------- ways to send

    def _one(self, producer: Producer, who: str, is_first: bool) -> None:
        drawn = self.dice.random()
        if drawn < 0.3:
            self._send(producer, who)
        elif drawn < 0.5:
            self._send_async(producer, who)
        elif drawn < 0.7:
            self._send_batch(producer, who)
        elif drawn < 0.85:
            self._send_later(producer, who)
        elif is_first:
            self._send_oneway(producer, who)
        else:
            self._send(producer, who)

    def _chosen(self) -> tuple[str, int]:
        return self.dice.choice(self.topics), self.dice.choice(_SIZES)

    def _send(self, producer: Producer, who: str) -> None:
        topic, size = self._chosen()
        durability = self.dice.choice([None, None, "durable", "written"])
        body = self.books.begin(who, topic, size)
        wished: Any = {"durability": durability} if durability else {}
        tag = {"tag": "a"} if self.dice.random() < 0.5 else {}
        wished |= self.books.stamp(body, grouped=True) or tag
        self._told([body], lambda: [producer.send(topic, body, **wished)])

    def _send_async(self, producer: Producer, who: str) -> None:
        topic, size = self._chosen()
        body = self.books.begin(who, topic, size)
        wished = self.books.stamp(body, grouped=True)
        futures: list[ReceiptFuture] = []

        def send() -> None:
            futures.append(producer.send_async(topic, body, **wished))

        self._told([body], send)
        if not futures:
            return
        self._futures += 1
        if self.dice.random() < 0.5:
            futures[0].add_done_callback(lambda future: self._decided(body, future))
            if self.dice.random() < 0.5:  # several threads may ask for it
                Thread(partial(self._look_at, futures[0]), "looks").start()
        else:
            Thread(partial(self._await, body, futures[0]), "awaits").start()

    def _look_at(self, future: ReceiptFuture) -> None:
        while not future.done():
            self.rest(0.002)
            if self.stopping:
                return

    def _await(self, body: bytes, future: ReceiptFuture) -> None:
        while True:
            try:
                receipt = future.result()
            except GantryError as error:
                if isinstance(error, Timeout | BrokerGone) and not future.done():
                    self.books.tally["asked again"] += 1
                    continue
                self.books.ended(body, fate_of(error), error)
            else:
                self.books.acknowledged(body, receipt)
            self._futures -= 1
            return

    def _decided(self, body: bytes, future: Any) -> None:  # noqa: ANN401 - a Future
        with simthreads.judged():  # callbacks may raise what they like
            self._futures -= 1
            error = future.exception(0)
            if error is None:
                self.books.acknowledged(body, future.result(0))
            else:
                self.books.ended(body, fate_of(error), error)

    def _send_batch(self, producer: Producer, who: str) -> None:
        topic, _size = self._chosen()
        batch = self.books.new_batch()
        count = self.dice.randint(2, BATCH_MAX)
        bodies = [self.books.begin(who, topic, 10 * n, batch=batch) for n in range(count)]
        at_once = self.dice.random() < 0.5
        if self.books.stamps:
            items = [Message(topic, body, **self.books.stamp(body)) for body in bodies]
            given: tuple[Any, ...] = (items,)
        else:
            given = topic, bodies
        if at_once:
            self._told(bodies, lambda: producer.send_batch(*given))
        else:
            self._told(bodies, lambda: producer.send_batch_async(*given).result())

    def _send_later(self, producer: Producer, who: str) -> None:
        topic, size = self._chosen()
        now_ms = self.machine.simulation.clock.wall_ms()
        wishes: list[dict[str, Any]] = [
            {"delay": 0.02}, {"delay": 0.4}, {"delay_level": 1},
            {"delivery_timestamp": now_ms + 300},
        ]  # fmt: skip
        wished = self.dice.choice(wishes)
        due = due_of(Message(topic, b"", **wished))
        body = self.books.begin(who, topic, size, (int(due.mode), due.value))
        wished |= self.books.stamp(body)
        receipts: list[SendReceipt] = []

        def send() -> list[SendReceipt]:
            receipts.append(producer.send(topic, body, **wished))
            return receipts

        self._told([body], send)
        if receipts and receipts[0].recall_handle and self.dice.random() < 0.6:
            self._recall(producer, topic, receipts[0])

    def _recall(self, producer: Producer, topic: str, receipt: SendReceipt) -> None:
        handle, unique = receipt.recall_handle, receipt.message_id
        assert handle is not None, "chosen by that"
        name = unique[:20].lower(), int(unique[20:], 16)
        position = self.books.letters_by_id[unique].position
        message = Recallable(name, topic, handle, position)
        recalls = self.books.recalls
        recalls.known.append(message)
        self.rest(0.5)
        try:
            outcome = producer.recall_message(topic, handle)
        except (Unavailable, StoreFailed, Closed) as error:
            self.books.tally[f"recalls end by {type(error).__name__}"] += 1
            return
        gone = self.books.may_be_gone(message) or bool(self.books.tally["no_space_for_index"])
        recalls.answered(message, outcome, gone=gone)

    def _send_oneway(self, producer: Producer, who: str) -> None:
        topic, size = self._chosen()
        body = self.books.begin(who, topic, size)
        sent = self._oneway  # of this producer: another thread may take the next one meanwhile
        try:
            producer.send_oneway(topic, body, **self.books.stamp(body, grouped=True))
        except GantryError as error:
            self.books.ended(body, fate_of(error), error)
            self._raise_failure(error)
        else:
            sent.append(body)
        if self.dice.random() < 0.4:
            self._flush(producer, sent)

    def _flush(self, producer: Producer, sent: list[bytes]) -> None:
        pending = list(sent)
        try:
            producer.flush()
        except GantryError as error:
            # Some were given up, or nothing is known yet.
            if isinstance(error, BrokerGone | Timeout) and "are not stored" not in str(error):
                return
            self._all_ended(_taken(sent, pending), UNKNOWN, error)
            self._raise_failure(error)
        else:
            self._all_passed(_taken(sent, pending))

    # --------------------------------------------------------------------------------- what is told

    def _told(self, bodies: list[bytes], call: Callable[[], Sequence[SendReceipt] | None]) -> None:
        try:
            receipts = call()
        except GantryError as error:
            self._all_ended(bodies, fate_of(error), error)
            self._raise_failure(error)
            return
        for body, receipt in zip(bodies, receipts or (), strict=False):
            self.books.acknowledged(body, receipt)

    def _all_passed(self, bodies: list[bytes]) -> None:
        for body in bodies:
            self.books.passed(body)

    def _all_ended(self, bodies: list[bytes], state: str, error: GantryError) -> None:
        for body in bodies:
            self.books.ended(body, state, error)

    def _raise_failure(self, error: GantryError) -> None:
        if isinstance(error, StoreFailed) and not isinstance(error, DiskFull):
            raise error


def _taken(sent: list[bytes], pending: list[bytes]) -> list[bytes]:
    """Those of `pending` of which no other thread's flush or close has told yet."""
    mine = [body for body in pending if body in sent]
    sent[:] = [body for body in sent if body not in mine]
    return mine


class Reader(Application):
    """One PullConsumer of a group."""

    def __init__(self, name: str, machine: DoorMachine, books: Books, group: str) -> None:
        self.group = group
        self.topics = list(machine.topics)
        super().__init__(name, machine, books)
        self._by_hand = self.dice.random() < 0.4  # it commits itself
        self._most = self.dice.choice([1, 3, 100])
        self._loops = self.dice.random() < 0.3  # instead of polls

    def subscription(self) -> Subscription:
        """What it is to get."""
        return self.topics

    def main(self) -> None:
        """Read, process; again if the session is lost for good."""
        while not self.stopping:
            consumer = self.patiently(self._make)
            if consumer is not None:
                self._serve(consumer)

    def _make(self) -> PullConsumer:
        return PullConsumer(
            self.group, self.subscription(), home=self.machine.home, auto_commit=not self._by_hand,
            consume_from=ConsumeFrom.FIRST_OFFSET, timeout=0.2,
        )  # fmt: skip

    def _serve(self, consumer: PullConsumer) -> None:
        if self._loops:  # for ever: only another thread ends that
            Thread(partial(self._close_in_time, consumer), "closes").start()
        while not self.stopping:
            self._turn(consumer)
        self._close(consumer)

    def _close_in_time(self, consumer: PullConsumer) -> None:
        simthreads.wait(lambda: self.stopping)
        self._close(consumer)

    def _close(self, consumer: PullConsumer) -> None:
        try:
            consumer.close()
        except (Unavailable, StoreFailed) as error:
            self.books.tally[f"not closed by {type(error).__name__}"] += 1

    def _loop(self, consumer: PullConsumer) -> None:
        try:
            for message in consumer:
                self.take(message)
                if self._by_hand:
                    consumer.commit()
                if self.dice.random() < 0.1:
                    return  # another loop goes on behind it
        except Closed:
            assert self.stopping, "nobody else closes it"
            self.books.tally["loops ended by close"] += 1

    def _poll(self, consumer: PullConsumer) -> None:
        batch = consumer.poll(self._most)
        for message in batch:
            self.take(message)
        if self._by_hand and len(batch):
            consumer.commit()
        if self.dice.random() < 0.1:
            self._choose(consumer)

    def _choose(self, consumer: PullConsumer) -> None:
        """Go on where it is, and without a queue for a while."""
        held = consumer.assignment()
        if not held:
            return
        queue = self.dice.choice(held)
        try:
            consumer.seek(queue, consumer.position(queue))
            consumer.pause([queue])
            paused = consumer._find(queue)
        except GroupIllegal:
            return  # it was given to another member meanwhile
        try:
            self._poll_without(consumer, paused)
        finally:
            with contextlib.suppress(GroupIllegal):  # it was given to another member meanwhile
                consumer.resume([queue])
        self.books.tally["pauses"] += 1

    def _poll_without(self, consumer: PullConsumer, paused: Assigned) -> None:
        for message in consumer.poll(self._most, timeout=0.01):
            if paused in consumer._member.assigned.values():
                assert MessageQueue(message.topic, message.queue_id) != paused.queue, "it pauses"
            self.take(message)
        if self._by_hand:
            consumer.commit()

    def _turn(self, consumer: PullConsumer) -> None:
        try:
            if self._loops:
                self._loop(consumer)
            else:
                self._poll(consumer)
        except (BrokerGone, Evicted, Timeout, DiskFull) as error:
            self.books.tally[f"polls end by {type(error).__name__}"] += 1
            simthreads.sleep(_RETRY_S)
        except StoreFailed as error:
            self.books.tally[f"polls end by {type(error).__name__}"] += 1
            simthreads.sleep(_FAILED_S)

    def take(self, message: ReceivedMessage) -> None:
        """Process one message."""
        settings = self.machine.configuration.settings
        storage = self.machine.storage_for("oracle")
        self.books.got(self.group, message, storage, settings.mapped_file_size_consume_queue)
        self.rest(0.002)
        self.books.done_with(self.group, bytes(message.body))


class Listener(Application):
    """One PushConsumer of a group."""

    def __init__(self, name: str, machine: DoorMachine, books: Books, group: str) -> None:
        self.group = group
        self.topics = list(machine.topics)
        super().__init__(name, machine, books)
        self._concurrency = self.dice.randint(1, 3)
        self._failed: set[bytes] = set()
        self.consumer: PushConsumer | None = None

    def subscription(self) -> Subscription:
        """What it is to get."""
        return self.topics

    def options(self) -> PushOptions:
        """How."""
        return {"concurrency": self._concurrency, "consume_from": ConsumeFrom.FIRST_OFFSET}

    def main(self) -> None:
        """Consume until stopped; again if the consumer ends by itself."""
        while not self.stopping:
            consumer = self.patiently(self._make)
            if consumer is None:
                return
            self._serve(consumer)

    def _serve(self, consumer: PushConsumer) -> None:
        simthreads.wait(lambda: self.stopping or not consumer.is_running)
        try:
            consumer.stop()
        except (Unavailable, StoreFailed) as error:
            self.books.tally[f"listeners end by {type(error).__name__}"] += 1

    def _make(self) -> PushConsumer:
        consumer = PushConsumer(
            self.group, self.subscription(), self.listen, home=self.machine.home, **self.options()
        )  # fmt: skip
        self.consumer = consumer
        consumer.start()
        return consumer

    def listen(self, message: ReceivedMessage) -> ConsumeResult | None:
        """Process one message; some fail once."""
        settings = self.machine.configuration.settings
        storage, body = self.machine.storage_for("oracle"), bytes(message.body)
        with simthreads.judged():  # a listener may raise what it likes
            self.books.got(self.group, message, storage, settings.mapped_file_size_consume_queue)
        self.rest(0.002)
        if body not in self._failed and self.dice.random() < 0.05:
            self._failed.add(body)
            self.books.tally["listeners fail"] += 1
            return message.retry_after(0.1)
        self.books.done_with(self.group, body)
        return None
