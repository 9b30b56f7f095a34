"""A signal handler that raises amid a client's call leaves a client that goes on.

Each call is interrupted at the n-th place where a signal may come, for one n after the other.
"""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest

from gantrymq.clients import recalls
from gantrymq.clients.batch import MessageBatch
from gantrymq.clients.consumer import PullConsumer
from gantrymq.clients.message import Message, MessageQueue, ReceivedMessage
from gantrymq.clients.producer import Producer
from gantrymq.clients.push.broadcast import OffsetFile
from gantrymq.clients.recalloutcome import RecallOutcome
from gantrymq.clients.session import NEVER_NS, Session, now_ns
from gantrymq.clients.transactions.resolution import TransactionResolution
from gantrymq.shm.errors import Closed
from gantrymq.temporary import Broker
from tests.support.clientlocks import locks_of
from tests.support.door import descriptors
from tests.support.interrupts import FINALIZED, LOCKING, Interrupt, interrupt_each
from tests.support.push import FIRST, PATIENCE_S
from tests.support.trials import mends
from tests.support.watchdog import poll_until

QUEUES: Final = 4


@pytest.fixture(autouse=True)
def finalized() -> Iterator[None]:
    """What was broken off is ended here, not amid another test."""
    yield
    gc.collect()


class Reader:
    """A consumer of a topic, which messages are sent to; all of them have to come to it."""

    def __init__(self, broker: Broker, topic: str, *, auto_commit: bool = True) -> None:
        self.home, self.topic = broker.home, topic
        self.auto_commit = auto_commit
        self.producer = Producer(home=broker.home)
        self.sent = 0  # in each queue
        self.seen: set[tuple[MessageQueue, int]] = set()
        self.send()
        self.consumer = self.join()
        self.require_all()

    def join(self) -> PullConsumer:
        return PullConsumer(
            "g-" + self.topic, [self.topic], home=self.home, consume_from=FIRST,
            auto_commit=self.auto_commit, timeout=PATIENCE_S,
        )  # fmt: skip

    def send(self) -> None:
        for queue in range(QUEUES):
            self.producer.send_batch([Message(self.topic, b"x", queue_id=queue)] * 2)
        self.sent += 2

    def send_seen(self) -> None:
        """Send, until the consumer can see it."""
        self.send()
        board = self.consumer._member.session.board
        numbers = list(self.consumer._member.assigned)
        poll_until(
            lambda: all(board.queue(n)["max_offset"] >= self.sent for n in numbers),
            "the queues have them",
        )

    def take(self, batch: MessageBatch) -> None:
        self.seen.update(zip(batch.queues, batch.queue_offsets.tolist(), strict=True))

    def poll(self, interrupt: Interrupt, timeout: float = 0) -> None:
        batch = None
        with interrupt:
            batch = self.consumer.poll(timeout=timeout)
        if batch is not None:
            self.take(batch)

    def require_all(self) -> None:
        """Whatever was sent comes, if it has not come."""
        wanted = {
            (MessageQueue(self.topic, queue), offset)
            for queue in range(QUEUES)
            for offset in range(self.sent)
        }

        def come() -> bool:
            self.take(self.consumer.poll(timeout=0.01))
            return wanted <= self.seen

        poll_until(come, "all messages came", PATIENCE_S)

    def close(self) -> None:
        self.consumer.close()
        self.producer.close()


@pytest.fixture(params=[True, False], ids=["auto_commit", "commit"])
def reader(request: pytest.FixtureRequest, broker: Broker, topic: str) -> Iterator[Reader]:
    reader = Reader(broker, topic, auto_commit=request.param)
    yield reader
    reader.close()


@mends("S41", "S81")
def test_polls(reader: Reader) -> None:
    def scene(interrupt: Interrupt) -> None:
        reader.send_seen()
        reader.poll(interrupt)
        reader.require_all()

    interrupt_each(scene)


@mends("S82")
@FINALIZED
@pytest.mark.parametrize("name", ["poll", "commit", "position", "pause", "close"])
def test_what_a_call_has_returned_does_not_come_again_for_a_later_one(
    reader: Reader, name: str
) -> None:
    """Neither here nor at who has the queues next, wherever that one is interrupted."""
    calls: dict[str, Callable[[], object]] = {
        "poll": lambda: reader.consumer.poll(timeout=0),
        "commit": lambda: reader.consumer.commit(),  # noqa: PLW0108 - it may be another one later
        "position": lambda: reader.consumer.position(MessageQueue(reader.topic, 0)),
        "pause": lambda: reader.consumer.pause([]),
        "close": lambda: reader.consumer.close(),  # noqa: PLW0108
    }

    def scene(interrupt: Interrupt) -> None:
        reader.send_seen()
        reader.require_all()
        with interrupt:
            calls[name]()
        if name == "close":
            reader.consumer.close()
            reader.consumer = reader.join()
            if not reader.auto_commit:
                return  # nobody has passed them
        again = reader.consumer.poll(timeout=0)
        assert not len(again), again.queue_offsets

    interrupt_each(scene)


@mends("S41")
def test_polls_that_wait(reader: Reader) -> None:
    def scene(interrupt: Interrupt) -> None:
        reader.poll(interrupt, timeout=0.001)
        reader.send()
        reader.require_all()

    interrupt_each(scene)


@mends("S41")
@FINALIZED
def test_loops(reader: Reader) -> None:
    def scene(interrupt: Interrupt) -> None:
        got: list[ReceivedMessage] = []
        reader.send_seen()
        with interrupt:
            for message in reader.consumer:
                got.append(message)
                if len(reader.seen) + len(got) == QUEUES * reader.sent:
                    break
        reader.seen |= {
            (MessageQueue(reader.topic, message.queue_id), message.queue_offset) for message in got
        }
        reader.require_all()

    interrupt_each(scene)


@mends("S41")
def test_polls_amid_rebalances(reader: Reader) -> None:
    """Queues are asked for, and granted again once the other member has gone."""

    def scene(interrupt: Interrupt) -> None:
        other = reader.join()
        poll_until(reader.consumer._member.is_notified, "queues are asked for", PATIENCE_S)
        reader.send()
        reader.poll(interrupt)
        poll_until(shares, "the queues are shared", PATIENCE_S)
        other.close(commit=False)
        reader.require_all()

    def shares() -> bool:
        reader.take(reader.consumer.poll(timeout=0.01))
        if not reader.auto_commit:
            reader.consumer.commit()
        return len(reader.consumer.assignment()) < QUEUES

    interrupt_each(scene)


@mends("S41")
@pytest.mark.parametrize("call", ["commit", "seek", "pause", "resume", "assign", "position"])
def test_other_calls(reader: Reader, call: str) -> None:
    def scene(interrupt: Interrupt) -> None:
        reader.send_seen()
        queue = MessageQueue(reader.topic, 1)
        before = reader.consumer.position(queue)
        calls: dict[str, tuple[object, ...]] = {
            "seek": (queue, before - 1), "pause": ([queue],), "resume": ([queue],),
            "assign": (None,), "position": (queue,),
        }  # fmt: skip
        with interrupt:
            getattr(reader.consumer, call)(*calls.get(call, ()))
        reader.consumer.resume(reader.consumer.assignment())
        reader.require_all()

    interrupt_each(scene)


@mends("S41")
def test_first_polls(reader: Reader) -> None:
    """Of a member whose queues are new to it."""

    def scene(interrupt: Interrupt) -> None:
        reader.consumer.close()
        reader.send()
        reader.consumer = reader.join()
        reader.poll(interrupt)
        reader.require_all()

    interrupt_each(scene)


@mends("S41")
@FINALIZED
def test_closes(reader: Reader) -> None:
    """What was handed out to nobody comes to the next member; a second `close` ends it."""

    def scene(interrupt: Interrupt) -> None:
        reader.send_seen()
        reader.poll(Interrupt(60))
        with interrupt:
            reader.consumer.close()
        reader.consumer.close()
        assert reader.consumer._attachment is None
        reader.consumer = reader.join()
        reader.require_all()

    interrupt_each(scene)


@mends("S41")
@FINALIZED
def test_joins(reader: Reader) -> None:
    """A member that nobody has got does not keep its queues."""

    def scene(interrupt: Interrupt) -> None:
        reader.consumer.close()
        with interrupt:
            reader.consumer = reader.join()
        if interrupt.was_hit:
            reader.consumer = reader.join()
        reader.send()
        reader.require_all()

    interrupt_each(scene)


class Sender:
    """A producer of a topic: what is on its way is answered, whatever ends a call of it."""

    def __init__(self, broker: Broker, topic: str) -> None:
        self.topic = topic
        self.producer = Producer(home=broker.home, producer_group="p-" + topic, timeout=PATIENCE_S)
        self.producer.send(topic, b"x")

    def require_going_on(self) -> None:
        """This thread's and another one's sends are answered."""
        ended: list[object] = []

        def send() -> None:
            self.producer.flush()
            ended.append(self.producer.send(self.topic, b"x"))

        send()
        thread = threading.Thread(target=send, daemon=True)
        thread.start()
        thread.join(PATIENCE_S)
        assert len(ended) == 2


@pytest.fixture
def sender(broker: Broker, topic: str) -> Iterator[Sender]:
    sender = Sender(broker, topic)
    yield sender
    sender.producer.close()


def _in_transaction(sender: Sender) -> None:
    with sender.producer.transaction() as transaction:
        sender.producer.send(sender.topic, b"x", transaction=transaction)


CALLS: dict[str, Callable[[Sender], object]] = {
    "send": lambda s: s.producer.send(s.topic, b"x"),
    "send_keyed": lambda s: s.producer.send(s.topic, b"x", keys=["k"]),
    "send_batch": lambda s: s.producer.send_batch(s.topic, [b"x"] * 3),
    "send_async": lambda s: s.producer.send_async(s.topic, b"x", keys=["k"]),
    "send_oneway": lambda s: s.producer.send_oneway(s.topic, b"x", keys=["k"]),
    "flush": lambda s: s.producer.flush(),
    "transaction": _in_transaction,
}


#: The first transaction attaches a session of its own.
ATTACHING: Final = ("transaction",)


@mends("S41")
@pytest.mark.parametrize(
    "call", [pytest.param(call, marks=[FINALIZED] * (call in ATTACHING)) for call in CALLS]
)
def test_sends(sender: Sender, call: str) -> None:
    def scene(interrupt: Interrupt) -> None:
        future = sender.producer.send_async(sender.topic, b"x")
        with interrupt:
            CALLS[call](sender)
        sender.require_going_on()
        assert future.result(timeout=PATIENCE_S).queue_offset >= 0

    interrupt_each(scene)


@mends("S41")
@FINALIZED
def test_closes_of_producers(broker: Broker, topic: str) -> None:
    def scene(interrupt: Interrupt) -> None:
        producer = Producer(home=broker.home)
        producer.send_oneway(topic, b"x")
        with interrupt:
            producer.close()
        producer.close()
        assert not producer._link.is_open

    interrupt_each(scene)


def _recall_first(producer: Producer, topic: str, handle: str) -> None:
    assert producer.recall_message(topic, handle) is RecallOutcome.CANCELLED


def _enlist_first(producer: Producer, topic: str, _handle: str) -> None:
    with producer.transaction() as transaction:
        producer.send(topic, b"x", transaction=transaction)


@mends("S89")
@FINALIZED
@pytest.mark.parametrize("call", [_recall_first, _enlist_first])
def test_first_calls_that_need_another_session(
    broker: Broker,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
    call: Callable[[Producer, str, str], None],
) -> None:
    """They can be called again, and nothing that was opened for them is left open."""
    # What pytest keeps of the log has the transactions that were left open.
    monkeypatch.setattr(logging.getLogger("gantrymq"), "disabled", True)
    with Producer(home=broker.home) as sender:
        handle = sender.send(topic, b"x", delay=3600).recall_handle
        assert handle is not None
        _recall_first(sender, topic, handle)

    def scene(interrupt: Interrupt) -> None:
        before = descriptors()
        with Producer(home=broker.home, producer_group="p-" + topic) as producer:
            with interrupt:
                call(producer, topic, handle)
            call(producer, topic, handle)
        del producer
        assert descriptors() <= before

    interrupt_each(scene)


def _commit(_half: ReceivedMessage) -> TransactionResolution:
    return TransactionResolution.COMMIT


@mends("S94")
@FINALIZED
@pytest.mark.parametrize("end", ["made", "closed", "dropped"])
def test_no_thread_outlives_a_producer_that_answers_checks(
    broker: Broker, topic: str, end: str
) -> None:
    """Whether its making or its end is broken off, or nobody has closed it."""

    def made() -> Producer:
        return Producer(home=broker.home, producer_group="p-" + topic, transaction_checker=_commit)

    def is_over(before: int) -> bool:
        are_left = descriptors() > before
        names = {thread.name for thread in threading.enumerate() if thread.is_alive()}
        return not are_left and "gantrymq-transaction-checker" not in names

    def scene(interrupt: Interrupt) -> None:
        before = descriptors()
        producer = made() if end == "closed" else None
        with interrupt:
            if producer is None:
                producer = made()
            else:
                producer.close()
        if producer is not None and end != "dropped":
            producer.close()
        del producer
        poll_until(lambda: is_over(before), "its thread and its sessions have ended")

    # A finalizer has nobody to try it again.
    interrupt_each(scene, r"OwnThread|CheckAnswers|Transactions|Producer\.|Thread\.")
    interrupt_each(scene, r"(?!Descriptor\.__del__)")


@mends("S90")
@FINALIZED
def test_attaching_leaves_no_descriptor_open(broker: Broker) -> None:
    """Also where the handler raises as those of the answer have come."""

    def scene(interrupt: Interrupt) -> None:
        before = descriptors()
        with interrupt:
            Producer(home=broker.home)
        assert descriptors() <= before

    interrupt_each(
        scene, r"ControlChannel\.|Session\.(__init__|_greet|_ask)|receive_owned|Descriptor"
    )
    interrupt_each(scene)


@mends("S90", "S251")
@FINALIZED
def test_a_broadcasting_consumer_that_is_not_made_keeps_nobody_out(
    broker: Broker, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file of offsets is free again, whatever the handler has broken off."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    def scene(interrupt: Interrupt) -> None:
        offsets = None
        with interrupt:
            offsets = OffsetFile(broker.home, "g-" + topic, "one")
        del offsets
        OffsetFile(broker.home, "g-" + topic, "one").close()

    interrupt_each(scene, step=1)


@mends("S91")
@pytest.mark.parametrize("at", ["Session", "ControlLane"])
def test_a_close_amid_a_recall_leaves_no_session(
    broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """By a signal handler, or by another thread, as the recall opens its session."""
    with Producer(home=broker.home) as producer:
        handle = producer.send(topic, b"x", delay=3600).recall_handle
        assert handle is not None
        made = getattr(recalls, at)
        opened: list[Session] = []

        def make(*given: Any, **parts: Any) -> Any:  # noqa: ANN401
            it = made(*given, **parts)
            opened.extend([it] if at == "Session" else [])
            producer.close()
            return it

        monkeypatch.setattr(recalls, at, make)
        with pytest.raises(Closed, match="amid a recall"):
            producer.recall_message(topic, handle)
        assert producer._recaller._way is None
        assert not any(session.is_open for session in opened)
        with pytest.raises(Closed):
            producer.recall_message(topic, handle)


# ------------------------------------------------------------------------------------------- locks


def require_free(*things: object) -> None:
    """Another thread may have each lock that these have."""
    held: list[str] = []

    def look() -> None:
        held[:] = [name for name, locks in locks_of(*things).items() if not all(map(_try, locks))]

    def are_free() -> bool:
        thread = threading.Thread(target=look)
        thread.start()
        thread.join(PATIENCE_S)
        return not held

    poll_until(are_free, "nobody holds a lock of it")


def _try(lock: Any) -> bool:  # noqa: ANN401 - a Lock, or an RLock
    if lock.acquire(blocking=False):
        lock.release()
        return True
    return False


def _interrupt_each_locking(scene: Callable[[Interrupt], None]) -> None:
    """At each place where a lock is taken or let go, and at those of Python's own code for that."""
    interrupt_each(scene, LOCKING, step=1)


@mends("S64")
@FINALIZED
def test_requests_leave_no_lock(broker: Broker) -> None:
    numbers = count()
    with Producer(home=broker.home, producer_group="p") as producer:
        handle = producer.send("t", b"x", delay=3600).recall_handle
        assert handle is not None

        def scene(interrupt: Interrupt) -> None:
            with interrupt:
                producer.send(f"new-{next(numbers)}", b"x")
                producer.recall_message("t", handle)
                with producer.transaction() as transaction:
                    producer.send("t", b"x", transaction=transaction)
            require_free(producer)

        _interrupt_each_locking(scene)


@mends("S64")
def test_waits_beside_another_thread_leave_no_lock(sender: Sender) -> None:
    session = sender.producer._link.session
    is_over: list[bool] = []
    wait = partial(session.wait, NEVER_NS, lambda: bool(is_over))
    thread = threading.Thread(target=wait, daemon=True)
    thread.start()

    def scene(interrupt: Interrupt) -> None:
        poll_until(lambda: session._another_polls, "the other thread sleeps")
        with interrupt:
            session.wait(now_ns() + 1_000_000, lambda: False)
        require_free(sender.producer)

    try:
        _interrupt_each_locking(scene)
    finally:
        is_over.append(True)
        session.bell.ring()
        thread.join(PATIENCE_S)


@mends("S64")
def test_waits_leave_no_lock(sender: Sender) -> None:
    session = sender.producer._link.session

    def scene(interrupt: Interrupt) -> None:
        with interrupt:
            session.wait(now_ns() + 1_000_000, lambda: False)
        assert not session._poller, "another thread would take it for asleep"
        require_free(sender.producer)

    _interrupt_each_locking(scene)


@mends("S64")
def test_receipts_leave_no_lock(sender: Sender) -> None:
    def scene(interrupt: Interrupt) -> None:
        future = sender.producer.send_async(sender.topic, b"x")
        assert future._condition  # somebody may wait for it outside
        with interrupt:
            future.result()
        require_free(future, sender.producer)

    _interrupt_each_locking(scene)


@mends("S64")
@FINALIZED
def test_sends_to_a_broker_that_is_away_end_by_what_the_handler_raised() -> None:
    with Broker.temporary() as broker:
        producer = Producer(home=broker.home)
        producer.send("t", b"x")
        broker.process.kill()
        broker.process.wait()

        for number in range(40):  # it tries again and again: more than one try has
            interrupt = Interrupt(number, LOCKING)
            with interrupt:
                producer.send("t", b"x", timeout=PATIENCE_S)
            assert interrupt.was_hit
            require_free(producer)
        producer._link.end()
