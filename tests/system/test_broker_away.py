"""Calls while the broker is away: each waits as long as its `timeout` says, by a clock of the test.

Time passes where a call pauses, and nowhere else; each thread has its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gantrymq.clients import session as session_module
from gantrymq.clients.consumer import PullConsumer
from gantrymq.clients.message import Message
from gantrymq.clients.producer import Producer
from gantrymq.clients.push.consumer import PushConsumer
from gantrymq.clients.queries.client import Client
from gantrymq.clients.receipts import ReceiptFuture
from gantrymq.clients.transactions.transaction import Transaction
from gantrymq.shm.errors import BrokerGone, Closed, Timeout, TransactionFailed, Unavailable
from gantrymq.temporary import Broker
from tests.support.applications import FIRST, PATIENCE_S
from tests.support.trials import mends
from tests.support.watchdog import poll_until

#: What a call may wait for beyond its timeout: the pause in which it runs out.
PAUSE_S = 0.06
#: Of a message that was never sent.
HANDLE = "djEgdCBiIDE3MDAwMDAwMDAwMDAgS0tLS0tLS0tLS0tLS0tLS0tLS0tLS0tLS0tLS0tLS0s="


class _Clock:
    """Stands in place of the module `time`: who sleeps is there at once, later."""

    CLOCK_BOOTTIME = time.CLOCK_BOOTTIME

    def __init__(self) -> None:
        self._of_thread = threading.local()

    @property
    def passed_s(self) -> float:
        """How long the thread that asks has slept."""
        return float(getattr(self._of_thread, "passed", 0.0))

    def sleep(self, seconds: float) -> None:
        """Let time pass, and other threads run."""
        self._of_thread.passed = self.passed_s + seconds
        time.sleep(0)

    def clock_gettime_ns(self, clock: int) -> int:
        """The machine's, and what has been slept."""
        assert clock == self.CLOCK_BOOTTIME
        return _BEGAN_NS + int(self.passed_s * 1e9)


_BEGAN_NS = time.clock_gettime_ns(time.CLOCK_BOOTTIME)


@pytest.fixture
def away() -> Iterator[tuple[Broker, Producer, PullConsumer]]:
    """Return a broker that is stopped after it had a producer and a consumer."""
    with (
        Broker.temporary() as broker,
        Producer(broker.home, producer_group="g") as producer,
        PullConsumer("pull", ["t"], home=broker.home, consume_from=FIRST) as consumer,
    ):
        producer.send("t", b"first")
        broker.stop()
        yield broker, producer, consumer
        broker.start()
        # What was sent one-way meanwhile goes up now, or was given up already: close() would tell.
        with contextlib.suppress(BrokerGone):
            producer.flush(PATIENCE_S)


@pytest.fixture
def clock(
    away: tuple[Broker, Producer, PullConsumer], monkeypatch: pytest.MonkeyPatch
) -> Iterator[_Clock]:
    """Return the clock that waits go by once the broker is away."""
    with monkeypatch.context() as patch:
        patch.setattr(session_module, "time", _Clock())
        yield session_module.time  # type: ignore[attr-defined, misc]


#: Every public call with a timeout: what it is of, and what else it takes. `new` is a topic that
#: the producer does not know.
WAITS: dict[str, Callable[[Any, Any, float], object]] = {
    "Producer.send": lambda p, _c, s: p.send("new", b"x", timeout=s),
    "Producer.send, known": lambda p, _c, s: p.send("t", b"x", keys=["k"], timeout=s),
    "Producer.send, durable": lambda p, _c, s: p.send("t", b"x", durability="durable", timeout=s),
    "Producer.send, of a transaction": lambda p, _c, s: p.send(
        "new", b"x", transaction=p.transaction(), timeout=s
    ),
    "Producer.send_batch": lambda p, _c, s: p.send_batch("new", [b"x"], timeout=s),
    "Producer.flush": lambda p, _c, s: (p.send_oneway("t", b"x"), p.flush(timeout=s)),
    "Producer.recall_message": lambda p, _c, s: p.recall_message("t", "no handle", timeout=s),
    "PullConsumer.poll": lambda _p, c, s: c.poll(timeout=s),
    "ReceiptFuture.result": lambda p, _c, s: p.send_async("t", b"x").result(s),
    "ReceiptFuture.exception": lambda p, _c, s: p.send_async("t", b"x").exception(s),
    "ReceiptFuture.result, late": lambda p, _c, s: p.send_async("new", b"x").result(s),
    "BatchFuture.result": lambda p, _c, s: p.send_batch_async("t", [b"x"]).result(s),
    "Transaction.rollback": lambda p, _c, s: p.transaction().rollback(s),
    "Transaction.commit": lambda p, _c, s: p.transaction().commit(s),
}
#: These do not wait: what they hand over comes to its end in a future, or at `flush`.
SOON: dict[str, Callable[[Any], Any]] = {
    "Producer.send_async": lambda p: p.send_async("new", b"x", timeout=1.5),
    "Producer.send_async, known": lambda p: p.send_async("t", b"x", keys=["k"], timeout=1.5),
    "Producer.send_async, of a transaction": lambda p: p.send_async(
        "new", b"x", timeout=1.5, transaction=p.transaction()
    ),
    "Producer.send_async, known, of a transaction": lambda p: p.send_async(
        "t", b"x", keys=["k"], timeout=1.5, transaction=p.transaction()
    ),
    "Producer.send_oneway": lambda p: p.send_oneway("new", b"x"),
    "Producer.send_batch_async": lambda p: p.send_batch_async("new", [b"x"], timeout=1.5),
}


@mends("A2")
def test_every_public_call_with_a_timeout_is_tried() -> None:
    tried = {name.partition(",")[0] for name in [*WAITS, *SOON]}
    kinds = (Producer, PullConsumer, PushConsumer, Client, Transaction, ReceiptFuture)
    public = {
        f"{kind.__name__}.{name}"
        for kind in kinds
        for name, method in inspect.getmembers(kind, callable)
        if not name.startswith("_") and "timeout" in inspect.signature(method).parameters
    }
    assert public - {"PushConsumer.stop", "PushConsumer.close"} <= tried


@mends("A2")
@pytest.mark.parametrize("name", WAITS)
def test_a_call_waits_as_long_as_it_was_told(
    away: tuple[Broker, Producer, PullConsumer], clock: _Clock, name: str
) -> None:
    _broker, producer, consumer = away
    before = clock.passed_s
    with contextlib.suppress(Unavailable, ValueError):
        WAITS[name](producer, consumer, 1.5)
    assert clock.passed_s - before <= 1.5 + PAUSE_S


@mends("A2")
@pytest.mark.parametrize("name", SOON)
def test_what_does_not_wait_comes_back_at_once(
    away: tuple[Broker, Producer, PullConsumer], clock: _Clock, name: str
) -> None:
    """And tells its end, as long as it was given, in a future or at the next flush."""
    _broker, producer, _consumer = away
    before = clock.passed_s
    future = SOON[name](producer)
    assert clock.passed_s == before
    with pytest.raises(BrokerGone):
        future.result(PATIENCE_S) if future is not None else producer.flush(PATIENCE_S)
    if future is not None:
        assert future.done()


@mends("A2")
def test_a_loop_goes_on_while_the_broker_is_away_and_all_is_stored_in_order(
    away: tuple[Broker, Producer, PullConsumer],
) -> None:
    broker, producer, consumer = away
    order: list[str] = []

    async def send(number: int) -> int:
        receipt = await asyncio.wrap_future(
            producer.send_async("new", b"%d" % number, queue_id=0, timeout=PATIENCE_S)
        )
        return receipt.queue_offset

    async def run() -> list[int]:
        waiting = [asyncio.ensure_future(send(number)) for number in range(5)]
        for _ in range(3):
            await asyncio.sleep(0)
            order.append("the loop goes on")
        await asyncio.to_thread(broker.start)
        return await asyncio.gather(*waiting)

    assert asyncio.run(run()) == [0, 1, 2, 3, 4]
    assert len(order) == 3
    assert producer.send("new", Message("new", b"").body, queue_id=0).queue_offset == 5
    assert bytes(consumer.poll(timeout=PATIENCE_S).bodies[0]) == b"first"


def test_a_transaction_goes_on_while_the_broker_is_away(
    away: tuple[Broker, Producer, PullConsumer],
) -> None:
    """What it sends without waiting is stored when the broker is back, and committed with it."""
    broker, producer, consumer = away
    transaction = producer.transaction()
    halves = [
        producer.send_async(topic, body, transaction=transaction, timeout=PATIENCE_S)
        for topic, body in (("t", b"1"), ("new", b"2"), ("t", b"3"))
    ]
    assert not any(half.done() for half in halves)
    broker.start()
    transaction.commit(PATIENCE_S)
    assert all(half.result(0).queue_offset >= 0 for half in halves)
    bodies: list[bytes] = []
    while len(bodies) < 3:
        bodies += [bytes(message.body) for message in consumer.poll(1, PATIENCE_S)]
    assert sorted(bodies) == [b"1", b"3", b"first"]


def test_a_transaction_whose_half_came_to_nothing_is_not_committed(
    away: tuple[Broker, Producer, PullConsumer],
) -> None:
    broker, producer, _consumer = away
    transaction = producer.transaction()
    lost = producer.send_async("t", b"1", transaction=transaction, timeout=0.01)
    poll_until(lost.done, "the message is given up")
    assert isinstance(lost.exception(0), BrokerGone)
    broker.start()
    with pytest.raises(TransactionFailed):
        transaction.commit(PATIENCE_S)


@pytest.fixture
def hung() -> Iterator[Broker]:
    """Return a broker that answers nothing, and whose socket takes connections."""
    with Broker.temporary() as broker:
        with Producer(broker.home) as producer:
            producer.send("t", b"first")
        broker.process.send_signal(signal.SIGSTOP)
        yield broker
        broker.process.send_signal(signal.SIGCONT)


def test_attaching_to_a_broker_that_hangs_waits_as_long_as_it_was_told(hung: Broker) -> None:
    """The error says what the wait was bounded by."""
    with pytest.raises(Timeout, match=r"did not answer in (0\.[1-3] s|time):"):
        Producer(hung.home, timeout=0.3)


def test_a_topic_is_opened_within_the_calls_own_timeout(own: Broker) -> None:
    with (
        Producer(own.home) as producer,
        PullConsumer("g", ["t"], home=own.home) as consumer,
    ):
        consumer.poll(timeout=0)
        producer.send("t", b"x")
        own.process.send_signal(signal.SIGSTOP)
        with pytest.raises(Timeout, match=r"did not answer in (0\.[1-2] s|time):"):
            producer.send("another", b"x", timeout=0.2)
        with pytest.raises(Timeout, match=r"did not answer in (0\.[1-2] s|time):"):
            producer.recall_message("t", HANDLE, timeout=0.2)
        own.process.send_signal(signal.SIGCONT)
        producer.send("another", b"x", timeout=PATIENCE_S)


@mends("S291")
def test_the_descriptor_stays_while_there_is_no_broker(own: Broker) -> None:
    """An event loop that lets go of it asks for it once more."""
    with PullConsumer("g", ["t"], home=own.home) as consumer:
        descriptor = consumer.fileno()
        own.process.kill()
        own.process.wait()
        assert consumer.fileno() == descriptor
        with pytest.raises(BrokerGone):
            consumer.poll(timeout=0)
        assert consumer.fileno() == descriptor
    with pytest.raises(Closed):
        consumer.fileno()


@pytest.fixture
def own() -> Iterator[Broker]:
    """Return a broker that may be held up."""
    with Broker.temporary() as broker:
        yield broker
        broker.process.send_signal(signal.SIGCONT)
