"""Each public call, broken off by a signal handler at one place after the other.

Nothing that it has opened stays open, and the same call can be made again.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from typing import NoReturn

import pytest

from gantrymq.clients.consumer import PullConsumer
from gantrymq.clients.producer import Producer
from gantrymq.clients.push.consumer import PushConsumer
from gantrymq.clients.push.dispatcher import Dispatcher
from gantrymq.clients.transactions import checkerlink
from gantrymq.clients.transactions.checkerlink import CheckerLink
from gantrymq.clients.transactions.transaction import Transaction
from gantrymq.shm.codes import Role
from gantrymq.shm.errors import (
    BrokerGone,
    Closed,
    Rejected,
    TransactionFailed,
    TransactionInDoubt,
    Unavailable,
)
from gantrymq.temporary import Broker
from tests.support.brokers import ServingBroker
from tests.support.callrecipes import GROWING, RECIPES, Scene, a_scene, listen
from tests.support.door import descriptors
from tests.support.interrupts import FINALIZED, Interrupt, interrupt_each
from tests.support.push import FIRST, PATIENCE_S
from tests.support.trials import mends
from tests.support.watchdog import poll_until
from tests.system.test_patience import hung

#: Functions that open files, and what they are called by.
OPENING = (
    r"_?open|(open|create)_file|appending|replace_whole|read_(trusted|board_file|ahead)|is_held"
    r"|socket_address|try_lock|OffsetFile|PosixStorage|PosixFile|Descriptor"
)
#: Functions behind whose ends somebody has what they have made.
MAKING = r"(Producer|PullConsumer|PushConsumer|Client)\.(__init__|__enter__|start)$"
#: How often two threads meet.
TURNS = 2_000
COMMITS = r"Commit|CheckerLink|Transaction|Pending|_first|_pass"


@pytest.fixture(name="scene", scope="module")
def scene_fixture(broker: Broker) -> Iterator[Scene]:
    with a_scene(broker, f"interrupted-{os.getpid()}") as scene:
        yield scene


@pytest.fixture(name="stopped", scope="module")
def stopped_fixture(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Producer]:
    """Return a producer whose broker stands still, and which waits as long as that takes."""
    home = tmp_path_factory.mktemp("stopped") / "home"
    with (
        ServingBroker(home, hung_agent_timeout=0) as broker,
        Producer(broker.wait_until_ready().home, timeout=math.inf) as producer,
    ):
        producer.send("t", b"first")
        with hung(broker.pid_of(Role.WRITER)):
            yield producer


@mends("S103")
@FINALIZED
@pytest.mark.parametrize("name", sorted(RECIPES | GROWING))
def test_a_call_leaves_nothing_open(
    scene: Scene, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What pytest keeps of the log has what was left open.
    monkeypatch.setattr(logging.getLogger("gantrymq"), "disabled", True)
    recipe = (RECIPES | GROWING)[name]
    call, given = recipe(scene)
    call(**given)

    def play(interrupt: Interrupt) -> None:
        before = descriptors()
        call, given = recipe(scene)
        with interrupt:
            call(**given)
        call, given = recipe(scene)
        call(**given)
        del call, given
        poll_until(lambda: descriptors() <= before, "all is given back", PATIENCE_S)

    interrupt_each(play, least=0)
    interrupt_each(play, OPENING, 2, least=0)
    interrupt_each(play, MAKING, 1, least=0)


@pytest.fixture
def producer(broker: Broker, topic: str) -> Iterator[Producer]:
    with Producer(broker.home, producer_group="p-" + topic, timeout=PATIENCE_S) as producer:
        yield producer


def _begun(producer: Producer, topic: str) -> Transaction:
    transaction = producer.begin_transaction()
    producer.send(topic, b"x", transaction=transaction)
    return transaction


def _require_none_is_left(producer: Producer) -> None:
    """Nor of futures that nobody has got, as their making was broken off."""
    assert producer._transactions is not None
    commits = producer._transactions._commits

    def are_decided() -> bool:
        commits.look()
        return not commits.pending()

    poll_until(are_decided, "all commits are decided", PATIENCE_S)


@mends("S104")
def test_commits_that_are_broken_off_are_decided_by_later_calls(
    producer: Producer, topic: str
) -> None:
    def play(interrupt: Interrupt) -> None:
        begun = [_begun(producer, topic) for _ in range(3)]
        with interrupt:
            futures = [transaction.commit_async() for transaction in begun]
            futures[1].result()
            futures[0].result()
        for transaction in begun:
            transaction.commit(timeout=PATIENCE_S)
            assert transaction.state == "committed"
        _require_none_is_left(producer)

    interrupt_each(play, COMMITS)


@mends("S104")
def test_handlers_commit_amid_commits(producer: Producer, topic: str) -> None:
    def commit() -> None:
        _begun(producer, topic).commit_async().result(timeout=PATIENCE_S)

    def play(interrupt: Interrupt) -> None:
        begun = [_begun(producer, topic) for _ in range(3)]
        with interrupt:
            for future in [transaction.commit_async() for transaction in begun]:
                future.result(timeout=PATIENCE_S)
        assert {transaction.state for transaction in begun} == {"committed"}
        _require_none_is_left(producer)

    interrupt_each(play, COMMITS, handler=commit)
    interrupt_each(play, r"ControlLane\.", 1, handler=commit)


@mends("S116")
def test_a_handler_asks_for_commits_amid_a_call_that_holds_the_link(
    producer: Producer, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread takes answers meanwhile: there is one lock, so no two in two orders."""
    begun = _begun(producer, topic)
    monkeypatch.setattr(begun, "settled_places", lambda: None)  # its half is still on its way
    future = begun.commit_async()
    commits, link = producer._transactions, producer._link
    assert commits is not None
    ended: list[str] = []

    def as_handlers_do() -> None:
        for _ in range(TURNS):
            with link.lock:
                future.done()
        ended.append("handler")

    def take() -> None:
        for _ in range(TURNS):
            commits._commits.look()
        ended.append("other")

    threads = [threading.Thread(target=one, daemon=True) for one in (as_handlers_do, take)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
    finally:
        sys.setswitchinterval(interval)
    assert len(ended) == 2, "both wait for each other"
    monkeypatch.undo()
    future.result(timeout=PATIENCE_S)


@mends("S105")
@FINALIZED
def test_a_stop_by_a_handler_amid_a_start_ends_what_is_started(
    broker: Broker, topic: str, producer: Producer
) -> None:
    producer.send(topic, b"x")
    made: list[PushConsumer] = []

    def stop() -> None:
        made[-1].stop()

    def play(interrupt: Interrupt) -> None:
        consumer = PushConsumer("g-" + topic, [topic], listen, home=broker.home, concurrency=2)
        made.append(consumer)
        with interrupt:
            consumer.start()
        consumer.stop(timeout=PATIENCE_S)
        assert not consumer.is_running
        assert not _listeners()

    interrupt_each(play, handler=stop)
    interrupt_each(play, r"PushConsumer\.", handler=stop, step=1)


def _listeners() -> list[str]:
    names = [thread.name for thread in threading.enumerate() if thread.is_alive()]
    return [name for name in names if name.startswith("gantrymq-listener")]


@mends("S156")
@FINALIZED
def test_a_start_that_nobody_has_got_leaves_no_threads(
    broker: Broker, topic: str, producer: Producer
) -> None:
    producer.send(topic, b"x")

    def play(interrupt: Interrupt) -> None:
        with interrupt, PushConsumer("g-" + topic, [topic], listen, home=broker.home):
            pass
        assert not _listeners()

    interrupt_each(play, r"PushConsumer\.(start|__enter__)$", 1)


@mends("S118")
@FINALIZED
@pytest.mark.parametrize("then", ["start", "stop"])
def test_a_start_that_is_broken_off_twice_is_undone_by_the_next_call(
    broker: Broker, topic: str, producer: Producer, then: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer.send(topic, b"x")

    def play(interrupt: Interrupt) -> None:
        consumer = PushConsumer("g-" + topic, [topic], listen, home=broker.home, concurrency=2)
        begin = consumer._start_threads

        def fail(dispatcher: Dispatcher) -> None:
            with monkeypatch.context() as patch:
                patch.setattr(Dispatcher, "start", lambda _: None)
                begin(dispatcher)
            raise ValueError("no more threads")

        monkeypatch.setattr(consumer, "_start_threads", fail)
        with suppress(ValueError), interrupt:
            consumer.start()
        monkeypatch.setattr(consumer, "_start_threads", begin)
        if then == "start":
            consumer.start()
        consumer.stop(timeout=PATIENCE_S)
        poll_until(lambda: not _listeners(), "its threads have ended", PATIENCE_S)

    interrupt_each(play, r"PushConsumer\._undo_start|Dispatcher\.|Handoff\.dismiss", 1)


@mends("S118")
def test_a_run_beside_a_start_that_fails_says_so(
    broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = PushConsumer("g-" + topic, [topic], listen, home=broker.home)
    amid, go_on = threading.Event(), threading.Event()

    def fail() -> NoReturn:
        amid.set()
        go_on.wait(PATIENCE_S)
        raise BrokerGone("no broker answers")

    monkeypatch.setattr(consumer, "_begin", fail)
    told: list[BaseException] = []

    def starts() -> None:
        with pytest.raises(BrokerGone):
            consumer.start()

    def runs() -> None:
        try:
            consumer.run()
        except (Closed, BrokerGone) as error:
            told.append(error)

    threads = [threading.Thread(target=one, daemon=True) for one in (starts, runs)]
    threads[0].start()
    assert amid.wait(PATIENCE_S)
    threads[1].start()
    go_on.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert told, "it waits for a start that has failed"


@mends("S106")
def test_a_poll_by_a_handler_amid_a_loop_hands_nothing_out_twice(
    broker: Broker, topic: str, producer: Producer
) -> None:
    with PullConsumer("g-" + topic, [topic], home=broker.home, consume_from=FIRST) as consumer:
        sent, got = 0, Counter[str]()

        def poll() -> None:
            if sent - got.total() < 2:
                return  # the loop would wait for what has come already
            with suppress(Rejected):  # amid the loop's own call
                batch = consumer.poll(1, timeout=0)
                got.update(message.message_id for message in batch)

        def play(interrupt: Interrupt) -> None:
            nonlocal sent
            producer.send_batch(topic, [b"x"] * 5)
            sent += 5
            with interrupt:
                for message in consumer:
                    got.update([message.message_id])
                    if got.total() >= sent:
                        break
            assert got.total() == sent == len(got), got.most_common(1)

        interrupt_each(play, r"PullConsumer\.|MessageBatch\.", handler=poll)


@mends("S107")
def test_who_waits_for_an_answer_notices_that_another_thread_has_lost_the_session(
    producer: Producer, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _begun(producer, topic).commit()
    assert producer._transactions is not None
    link: CheckerLink = producer._transactions._link
    session, lane = link.present()

    def lost(*_given: object) -> int:
        """Something has come, and another thread lets go of the session."""
        link._lane = None
        return -1

    monkeypatch.setattr(checkerlink, "await_told", lost)
    with pytest.raises(BrokerGone, match="another thread"):
        link._spin(session.arena, 1 << 40, lane)
    monkeypatch.undo()
    link._lane = lane
    with suppress(TransactionFailed):
        _begun(producer, topic).commit()


@mends("S132")
def test_a_send_that_was_broken_off_holds_up_no_other_commit(
    producer: Producer, topic: str
) -> None:
    """Its own commit is decided, too: no thread is amid it that could say what became of it."""

    def play(interrupt: Interrupt) -> None:
        broken, sound = producer.begin_transaction(), producer.begin_transaction()
        producer.send(topic, b"sound", transaction=sound)
        with interrupt:
            producer.send_async(topic, b"broken", transaction=broken)
        first, second = broken.commit_async(), sound.commit_async()
        told = threading.Event()
        second.add_done_callback(lambda _future: told.set())
        assert told.wait(PATIENCE_S)
        second.result(PATIENCE_S)
        if interrupt.was_hit:
            assert isinstance(first.exception(PATIENCE_S), TransactionFailed | TransactionInDoubt)
        else:
            first.result(PATIENCE_S)

    interrupt_each(play, r"Transaction\.(block|add)", 1)


@mends("S133")
@pytest.mark.parametrize("kind", [TimeoutError, OSError, ValueError, RuntimeError, LookupError])
@pytest.mark.parametrize("name", ["send", "result", "flush"])
def test_what_a_handler_raises_ends_a_wait_whatever_it_is(
    stopped: Producer, name: str, kind: type[Exception]
) -> None:
    waits: dict[str, Callable[[], object]] = {
        "send": lambda: stopped.send("t", b"x"),
        "result": lambda: stopped.send_async("t", b"x").result(),
        "flush": stopped.flush,
    }

    def fail(_number: int, _frame: object) -> None:
        raise kind("a handler's")

    before = signal.signal(signal.SIGALRM, fail)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        with pytest.raises(kind, match="a handler's"):
            waits[name]()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@mends("S141")
def test_who_asks_by_a_callback_waits_on_over_a_want_of_descriptors(
    stopped: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is in the ring may be stored yet: nobody is told that it is not."""
    link, tries, tried = stopped._link, count(), threading.Event()

    def fail(*_given: object, **_parts: object) -> NoReturn:
        if next(tries) > 1:
            tried.set()
        raise Unavailable("no descriptor is left")

    with monkeypatch.context() as patch:
        patch.setattr(link, "await_news", fail)
        future = stopped.send_async("t", b"x")
        future.add_done_callback(id)
        assert tried.wait(PATIENCE_S)
    assert not future.done()
