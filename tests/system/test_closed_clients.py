"""What is closed says so in every call; what is of one process, or one thread, says that, too."""

from __future__ import annotations

import copy
import math
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from gantrymq.clients.consumer import PullConsumer
from gantrymq.clients.message import MessageQueue
from gantrymq.clients.producer import Producer
from gantrymq.clients.push.consumer import PushConsumer
from gantrymq.clients.queries.client import Client
from gantrymq.clients.receipts import ReceiptFuture
from gantrymq.clients.transactions import desk
from gantrymq.shm import layout
from gantrymq.shm.codes import Role
from gantrymq.shm.errors import (
    BrokerGone,
    Closed,
    Evicted,
    GantryError,
    MessageIllegal,
    Rejected,
    TransactionFailed,
    Unavailable,
)
from gantrymq.shm.kernels.words import store_word
from gantrymq.temporary import Broker
from tests.support.applications import FIRST, PATIENCE_S
from tests.support.brokers import ServingBroker
from tests.support.trials import mends
from tests.support.watchdog import poll_until
from tests.system.test_broker_away import WAITS
from tests.system.test_patience import Beside, hung

QUEUE = MessageQueue("t", 0)
#: Every public method of what can be closed, with what it may be called with.
CALLS: dict[type, dict[str, tuple[Any, ...]]] = {
    Producer: {
        "send": ("t", b"x"), "send_async": ("t", b"x"), "send_oneway": ("t", b"x"),
        "send_batch": ("t", [b"x"]), "send_batch_async": ("t", [b"x"]), "flush": (),
        "transaction": (), "begin_transaction": (), "recall_message": ("t", "handle"),
        "__enter__": (),
    },
    PullConsumer: {
        "poll": (1, 0), "commit": (), "assignment": (), "assign": (None,), "position": (QUEUE,),
        "seek": (QUEUE, 0), "pause": ([QUEUE],), "resume": ([QUEUE],), "fileno": (),
        "__enter__": (), "__iter__": (),
    },
    PushConsumer: {"start": (), "run": (), "assignment": (), "__enter__": ()},
    Client: {
        "query": ("t",), "get": ("0",), "queues": ("t",), "min_offset": (QUEUE,),
        "max_offset": (QUEUE,), "search_offset": (QUEUE, 0), "__enter__": (),
    },
}  # fmt: skip
#: These end it, or only say what was.
ENDS = {"close", "stop", "lost_commits", "lost_acks", "is_running"}


@pytest.fixture
def own() -> Iterator[Broker]:
    """Return a broker that may be stopped."""
    with Broker.temporary() as broker:
        yield broker


def _made(kind: type, broker: Broker, name: str) -> Any:  # noqa: ANN401
    if kind is PullConsumer:
        return PullConsumer("g-" + name, [name], home=broker.home, consume_from=FIRST)
    if kind is PushConsumer:
        consumer = PushConsumer("g-" + name, [name], lambda _: None, home=broker.home)
        consumer.start()
        return consumer
    if kind is Producer:
        return Producer(broker.home, producer_group="g-" + name)
    return Client(broker.home)


@mends("A12.6")
@pytest.mark.parametrize("kind", CALLS)
def test_every_public_method_is_tried(kind: type) -> None:
    public = {name for name in dir(kind) if not name.startswith("_")}
    entered = {name for name in ("__enter__", "__iter__") if hasattr(kind, name)}
    assert public - ENDS | entered == CALLS[kind].keys()


@mends("A12.6")
@pytest.mark.parametrize(("kind", "name"), [(k, n) for k, calls in CALLS.items() for n in calls])
def test_what_is_closed_says_so(broker: Broker, topic: str, kind: type, name: str) -> None:
    thing = _made(kind, broker, topic)
    thing.close()
    thing.close()

    def call() -> None:
        result = getattr(thing, name)(*CALLS[kind][name])
        if name == "__iter__":
            next(result)

    with pytest.raises(Closed, match=r"this (producer|consumer|client) (is|was)"):
        call()


@mends("A12.8")
@pytest.mark.parametrize("kind", CALLS)
@pytest.mark.parametrize("act", [pickle.dumps, copy.copy, copy.deepcopy])
def test_what_is_of_one_process_is_not_pickled(
    broker: Broker, topic: str, kind: type, act: Callable[[object], object]
) -> None:
    thing = _made(kind, broker, topic)
    try:
        with pytest.raises(TypeError, match=f"make a {kind.__name__} there"):
            act(thing)
    finally:
        thing.close()


@mends("A12.8")
def test_futures_and_transactions_are_not_pickled_but_receipts_are(
    broker: Broker, topic: str
) -> None:
    with Producer(broker.home, producer_group="g-" + topic) as producer:
        future, batch = producer.send_async(topic, b"x"), producer.send_batch_async(topic, [b"y"])
        for thing in (future, batch, producer.transaction(), broker):
            with pytest.raises(TypeError, match="belongs to the process"):
                pickle.dumps(thing)
        receipts = batch.result(PATIENCE_S)
        assert pickle.loads(pickle.dumps(receipts)) == tuple(receipts)
        assert pickle.loads(pickle.dumps(future.result(PATIENCE_S))) == future.result(0)


# ------------------------------------------------------------------------------------ one-way sends


@mends("A12.5")
def test_a_refused_one_way_send_is_told_with_its_topic(broker: Broker, topic: str) -> None:
    other = topic + "-other"
    producer = Producer(broker.home)
    producer.send(topic, b"there")
    producer.send_oneway(topic, b"x", queue_id=99)
    with pytest.raises(MessageIllegal) as one:
        producer.flush(PATIENCE_S)
    assert f"topic {topic} has no such queue, 99" in str(one.value)
    assert one.value.topic == topic
    producer.flush(PATIENCE_S)  # it is told once
    for number in range(3):
        producer.send_oneway(other, b"x", queue_id=77)
        producer.send_oneway(topic, b"x", queue_id=number % 2 + 50)
    with pytest.raises(MessageIllegal) as many:
        producer.close()
    text = str(many.value)
    assert "6 messages sent one-way are not stored" in text
    assert f"topic {other} has no such queue, 77 (3 of them)" in text
    assert f"topic {topic} has no such queue, 50 (2 of them)" in text
    with pytest.raises(Closed):
        producer.send_oneway(topic, b"x")


# ---------------------------------------------------------------------------- one thread at a time


@mends("A12.7")
def test_a_pull_consumer_in_use_says_what_the_rule_is(broker: Broker, topic: str) -> None:
    """A second thread's call is refused, and the first one's goes on."""
    found: list[bytes] = []
    with PullConsumer("g-" + topic, [topic], home=broker.home, consume_from=FIRST) as consumer:

        def take() -> None:
            found.extend(bytes(body) for body in consumer.poll(timeout=PATIENCE_S).bodies)

        taking = threading.Thread(target=take)
        taking.start()
        poll_until(lambda: bool(consumer._alone.holder), "the other thread polls")
        calls = {**CALLS[PullConsumer], "position": (MessageQueue(topic, 0),)}
        for name in calls.keys() - {"__enter__", "__iter__", "assignment"}:
            with pytest.raises(Rejected, match="one thread at a time"):
                getattr(consumer, name)(*calls[name])
        with pytest.raises(Rejected, match="one thread at a time"):
            next(iter(consumer))
        with Producer(broker.home) as producer:
            producer.send(topic, b"x")
        taking.join(PATIENCE_S)
    assert found == [b"x"]


@mends("A12.7")
def test_another_thread_may_close_a_consumer_that_polls(broker: Broker, topic: str) -> None:
    consumer = PullConsumer("g-" + topic, [topic], home=broker.home)
    ended: list[BaseException] = []

    def take() -> None:
        try:
            consumer.poll()
        except GantryError as error:
            ended.append(error)

    taking = threading.Thread(target=take)
    taking.start()
    poll_until(lambda: bool(consumer._alone.holder), "the other thread polls")
    consumer.close()
    taking.join(PATIENCE_S)
    assert [type(error) for error in ended] == [Closed]


@mends("A12.7")
def test_threads_that_use_a_consumer_as_they_like_lose_nothing(broker: Broker, topic: str) -> None:
    """Each call works or is refused: nothing else is raised, and each message comes once."""
    with Producer(broker.home) as producer:
        producer.send_batch(topic, [b"%d" % number for number in range(400)])
    found: list[bytes] = []
    other: list[BaseException] = []
    with PullConsumer("g-" + topic, [topic], home=broker.home, consume_from=FIRST) as consumer:

        def take() -> None:
            while len(found) < 400 and not other:
                try:
                    found.extend(bytes(m.body) for m in consumer.poll(3, timeout=0.01))
                except Rejected:
                    continue
                except BaseException as error:
                    other.append(error)

        threads = [threading.Thread(target=take) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
    assert other == []
    assert sorted(map(int, found)) == list(range(400))


@mends("S71")
@pytest.mark.parametrize("name", [name for name in WAITS if name.startswith("Producer.send")])
def test_whoever_closes_a_producer_ends_sends_that_wait_for_the_broker(
    own: Broker, name: str
) -> None:
    producer = Producer(own.home, timeout=PATIENCE_S, producer_group="g")
    producer.send("t", b"first")
    producer._link.timeout = 0.02  # that `close` waits no longer
    own.stop()
    sending = Beside(lambda: WAITS[name](producer, None, math.inf))
    poll_until(lambda: producer._link.is_away, "it waits for the broker")
    with suppress(Unavailable):
        producer.close()
    assert isinstance(sending.require_told(), Closed | TransactionFailed)


@mends("S72")
def test_closing_drops_nothing_for_a_commit_without_an_answer(
    own: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its halves and all other sends wait for the broker, which is away for longer."""
    monkeypatch.setattr(desk, "_CLOSE_S", 0.02)
    producer = Producer(own.home, timeout=PATIENCE_S, producer_group="g")
    producer.send("t", b"first")
    own.stop()
    producer.send_oneway("t", b"oneway")
    tx = producer.begin_transaction()
    producer.send_async("t", b"half", transaction=tx)
    tx.commit_async()
    closing = Beside(producer.close)
    poll_until(lambda: producer._link.is_away, "it has looked for the broker in vain")
    own.start()
    assert closing.require_told() is None
    with Client(own.home) as client:
        assert sum(client.max_offset(queue) for queue in client.queues("t")) >= 2


@mends("S72")
def test_closing_rolls_back_what_is_open_beside_a_commit_without_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(desk, "_CLOSE_S", 0.02)
    with ServingBroker(tmp_path / "home", hung_agent_timeout=0) as broker:
        broker.wait_until_ready()
        producer = Producer(broker.home, timeout=PATIENCE_S, producer_group="g")
        on_its_way, left_open = producer.begin_transaction(), producer.begin_transaction()
        for tx in (on_its_way, left_open):
            producer.send("t", b"half", transaction=tx)
        with hung(broker.pid_of(Role.TXN_CHECKER)):
            on_its_way.commit_async()
            producer.close()
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2
    assert f"the commit of {on_its_way!r} on its way" in told[0]
    assert f"{left_open.transaction_id}" in told[1]


def _send_some(producer: Producer) -> ReceiptFuture:
    for _ in range(4):
        producer.send_oneway("t", b"oneway")
    return producer.send_async("t", b"async")


def _fail() -> None:
    raise KeyError("of the application")


def _leave(producer: Producer) -> None:
    with pytest.raises(KeyError, match="of the application"), producer:
        _fail()


def _close_in_vain(producer: Producer) -> None:
    producer._link.timeout = 0.02  # that `close` waits no longer
    with pytest.raises(Unavailable):
        producer.close()


def _told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == "gantrymq"]


@mends("S84")
@pytest.mark.parametrize("end", [_leave, _close_in_vain])
def test_what_waited_for_a_broker_is_told_by_the_end_that_drops_it(
    own: Broker, end: Callable[[Producer], None], caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Whatever the thread that would hand it over finds meanwhile."""
    producer = Producer(own.home, timeout=PATIENCE_S)
    producer.send("t", b"first")
    own.stop()
    with pytest.raises(BrokerGone):
        producer.send("t", b"it notices", timeout=0)
    future = _send_some(producer)
    link, tried = producer._link, threading.Event()
    attempt = link.backlog._try

    def note(send: Any) -> object:  # noqa: ANN401
        found = attempt(send)
        if not link.is_open:
            tried.set()
        return found

    monkeypatch.setattr(link.backlog, "_try", note)
    monkeypatch.setattr(link, "_tell_left", lambda: tried.wait(PATIENCE_S))
    end(producer)
    assert _told(caplog) == [
        "the producer is closed with 5 sends that waited for the broker: they are not stored"
    ]
    with pytest.raises(Closed, match="was closed before it handed this over: it is not stored"):
        future.result(0)


@mends("S84")
@pytest.mark.parametrize("end", [_leave, _close_in_vain])
def test_what_no_broker_has_taken_is_told_by_the_end_that_leaves_it(
    tmp_path: Path, end: Callable[[Producer], None], caplog: pytest.LogCaptureFixture
) -> None:
    with ServingBroker(tmp_path / "home", hung_agent_timeout=0) as broker:
        broker.wait_until_ready()
        producer = Producer(broker.home, timeout=PATIENCE_S)
        producer.send("t", b"first")
        os.kill(broker.pid_of(Role.WRITER), signal.SIGSTOP)
        future = _send_some(producer)
        watched = _send_some(producer)
        watched.add_done_callback(lambda _: None)
        broker.kill_all()
    end(producer)
    told = _told(caplog)
    assert len(told) == 1
    assert "is closed with 10 messages on their way: they may not be stored" in told[0]
    for asked in (future, watched):
        with pytest.raises(Closed, match="closed, the broker away: the message may not be stored"):
            asked.result(PATIENCE_S)


@mends("S84")
def test_a_with_that_an_exception_leaves_tells_what_was_refused(
    broker: Broker, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    producer = Producer(broker.home)
    producer.send(topic, b"there")
    producer.send_oneway(topic, b"x", queue_id=99)
    lane = producer._link.lane
    poll_until(lambda: lane.taken() == lane.put_end, "it is refused")
    _leave(producer)
    assert len(told := _told(caplog)) == 1
    assert "the producer is closed, and 1 messages sent one-way are not stored" in told[0]
    assert f"topic {topic} has no such queue, 99" in told[0]


@mends("S84")
def test_a_with_that_an_exception_leaves_loses_nothing_that_a_broker_takes(
    own: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    producer = Producer(own.home)
    producer.send("t", b"first")
    _send_some(producer)
    _leave(producer)
    with Client(own.home) as client:
        poll_until(
            lambda: sum(client.max_offset(queue) for queue in client.queues("t")) == 6, "all"
        )
    assert _told(caplog) == []


@mends("S74")
def test_a_producer_that_is_cut_off_says_what_to_do(own: Broker) -> None:
    with Producer(own.home, timeout=PATIENCE_S) as producer:
        producer.send("t", b"first")
        link = producer._link
        tail = link.lane.plan.control + layout.LANE_UP_TAIL
        store_word(link.session.arena, tail, link.lane.put_end + 7)  # not aligned
        link.session.writer_bell.ring()
        poll_until(lambda: link.session.arena[layout.ARENA_EVICTED], "it is cut off")
        for _ in range(2):
            with pytest.raises(Evicted, match="close it and make another one"):
                producer.send("t", b"x")
    with Producer(own.home) as another:
        assert another.send("t", b"x").message_id
