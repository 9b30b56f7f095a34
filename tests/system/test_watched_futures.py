"""Futures that the producer's own thread decides: asyncio's, and all that have callbacks."""

from __future__ import annotations

import asyncio
import os
import queue
import select
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from gantrymq.clients.producer import Producer
from gantrymq.clients.receipts import ReceiptFuture
from gantrymq.clients.watched import Watched
from gantrymq.shm import layout
from gantrymq.shm.codes import Role
from gantrymq.shm.errors import Closed, QueueFull, Timeout
from gantrymq.temporary import Broker
from tests.support.applications import PATIENCE_S
from tests.support.brokers import ServingBroker
from tests.support.trials import mends
from tests.support.watchdog import poll_until


@pytest.fixture
def own() -> Iterator[Broker]:
    """Return a broker that may be held up."""
    with Broker.temporary() as broker:
        yield broker
        broker.process.send_signal(signal.SIGCONT)


@mends("H6")
def test_a_future_completes_however_long_the_store_takes(own: Broker) -> None:
    """Only a caller's time-out is over; the producer's bounds its own calls."""
    with Producer(own.home, timeout=0.02) as producer:
        producer.send("t", b"first", timeout=PATIENCE_S)
        own.process.send_signal(signal.SIGSTOP)
        told = threading.Event()
        future = producer.send_async("t", b"x")
        future.add_done_callback(lambda _: told.set())
        for _ in range(10):
            with pytest.raises(Timeout):
                future.result(0.02)
        assert not told.is_set()
        own.process.send_signal(signal.SIGCONT)
        assert told.wait(PATIENCE_S)
        assert future.result(0).queue_offset >= 0
        producer.flush(PATIENCE_S)


@mends("H6")
def test_a_future_completes_after_a_restart(own: Broker) -> None:
    """What is in the ring, or waits for one, is stored by the broker's next life."""

    async def send(producer: Producer) -> int:
        waiting = asyncio.wrap_future(producer.send_async("t", b"x"))
        await asyncio.sleep(0)
        for _ in range(10):
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(asyncio.shield(waiting), 0.02)
        await asyncio.to_thread(own.start)
        return (await waiting).queue_offset

    with Producer(own.home, timeout=PATIENCE_S) as producer:
        producer.send_async("t", b"first").result(PATIENCE_S)
        own.stop()
        assert asyncio.run(send(producer)) >= 0
        producer.flush(PATIENCE_S)


def _tell(told: queue.SimpleQueue[str], name: str, _future: object) -> None:
    told.put(name)


def _waits_for_disk(producer: Producer) -> bool:
    arena, at = producer._link.session.arena, layout.ARENA_DURABLE_WANTED
    return bool(arena[at : at + 8].any())


@mends("S78")
@pytest.mark.parametrize("apart", [False, True])
def test_a_future_that_waits_for_the_disk_delays_no_other(tmp_path: Path, apart: bool) -> None:
    """Each callback comes as soon as its own message is safe enough, in whatever order."""
    broker = ServingBroker(tmp_path / "home").wait_until_ready()
    flusher = broker.pid_of(Role.FLUSHER)
    with Producer(broker.home, timeout=PATIENCE_S) as producer:
        producer.send("t", b"first")
        told: queue.SimpleQueue[str] = queue.SimpleQueue()
        os.kill(flusher, signal.SIGSTOP)
        for name in ("durable", "written"):
            future = producer.send_async("t", b"x", durability=name)
            future.add_done_callback(partial(_tell, told, name))
            if apart and name == "durable":
                poll_until(lambda: _waits_for_disk(producer), "the first is written")
        assert told.get(timeout=PATIENCE_S) == "written"
        assert broker.pid_of(Role.FLUSHER) == flusher  # nobody has replaced it meanwhile
        os.kill(flusher, signal.SIGCONT)
        assert told.get(timeout=PATIENCE_S) == "durable"
        later = producer.send_async("t", b"x")
        later.add_done_callback(lambda _: told.put("later"))
        assert told.get(timeout=PATIENCE_S) == "later"
    broker.stop()


@mends("H6", "H7")
def test_a_raising_callback_does_not_end_the_watcher(own: Broker) -> None:
    def fail(_future: object) -> None:
        raise SystemExit("of a callback")

    with Producer(own.home) as producer:
        producer.send("t", b"first")
        own.process.send_signal(signal.SIGSTOP)
        told = threading.Event()
        futures = [producer.send_async("t", b"%d" % number) for number in range(3)]
        for future in futures:
            future.add_done_callback(fail)
        futures[-1].add_done_callback(lambda _: told.set())
        own.process.send_signal(signal.SIGCONT)
        assert told.wait(PATIENCE_S)
        assert all(future.result(0) for future in futures)


ASKS: dict[str, Callable[[ReceiptFuture], object]] = {
    "result": lambda future: future.result(PATIENCE_S),
    "exception": lambda future: future.exception(PATIENCE_S),
    "done": lambda future: poll_until(future.done, "it is decided"),
}


@pytest.mark.parametrize("ask", ASKS)
def test_callbacks_run_in_the_thread_that_asks_if_that_comes_first(
    own: Broker, ask: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`SystemExit` of one comes out there, behind all others, and is no answer."""
    where: list[threading.Thread] = []

    def leave(_future: object) -> None:
        where.append(threading.current_thread())
        raise SystemExit("of a callback")

    with Producer(own.home) as producer:
        monkeypatch.setattr(Watched, "watch", lambda *_: None)  # the producer's own comes later
        future = producer.send_async("t", b"x")
        future.add_done_callback(leave)
        future.add_done_callback(lambda _: where.append(threading.current_thread()))
        with pytest.raises(SystemExit, match="of a callback"):
            ASKS[ask](future)
        assert where == [threading.current_thread()] * 2
        assert future.result(0).queue_offset >= 0


def test_callbacks_of_a_future_that_nobody_asks_run_in_the_producers_thread(own: Broker) -> None:
    with Producer(own.home) as producer:
        names: queue.SimpleQueue[str] = queue.SimpleQueue()
        future = producer.send_async("t", b"x")
        future.add_done_callback(lambda _: names.put(threading.current_thread().name))
        assert names.get(timeout=PATIENCE_S) == "gantrymq-receipts"


@mends("S70")
def test_a_callback_that_exits_does_not_end_the_thread_that_hands_over(own: Broker) -> None:
    def leave(_future: object) -> None:
        raise SystemExit("of a callback")

    with Producer(own.home, timeout=PATIENCE_S) as producer:
        producer.send("t", b"first")
        own.stop()
        given_up = producer.send_async("t", b"in vain", timeout=0.02)
        given_up.add_done_callback(leave)
        kept = producer.send_async("t", b"kept")
        poll_until(given_up.done, "its time is up")
        own.start()
        assert kept.result(PATIENCE_S).queue_offset >= 0
        assert producer.send("t", b"later").queue_offset >= 0


@mends("H6")
def test_a_closed_producers_futures_end(own: Broker) -> None:
    producer = Producer(own.home, timeout=0.02)
    producer.send("t", b"first", timeout=PATIENCE_S)
    own.process.send_signal(signal.SIGSTOP)
    told = threading.Event()
    future = producer.send_async("t", b"x")
    future.add_done_callback(lambda _: told.set())
    with pytest.raises(Timeout):
        producer.close()
    assert told.wait(PATIENCE_S)
    assert isinstance(future.exception(0), Closed)


def test_who_takes_completions_of_others_wakes_who_sleeps(own: Broker) -> None:
    """One that looked between the ring and the page has found its row in neither, and sleeps."""
    with Producer(own.home) as producer:
        producer.send("t", b"first")
        link = producer._link
        own.process.send_signal(signal.SIGSTOP)  # or the send itself may take the completion
        future = producer.send_async("t", b"x")
        own.process.send_signal(signal.SIGCONT)
        poll_until(lambda: link.lane.spin_completed(1), "its completion is in the ring")
        link.session.bell.clear()
        link._sleepers += 1
        try:
            link.look()
        finally:
            link._sleepers -= 1
        assert select.select([link.session.bell.fileno()], [], [], 0)[0]
        assert future.result(0).queue_offset >= 0


@mends("S73")
def test_sends_in_a_tight_loop_leave_behind_what_waited_for_the_broker(own: Broker) -> None:
    ends = threading.Event()

    def feed(producer: Producer) -> None:
        while not ends.is_set():
            with suppress(QueueFull):
                producer.send_oneway("t", b"x")

    with Producer(own.home, timeout=PATIENCE_S) as producer:
        producer.send("t", b"first")
        feeding = threading.Thread(target=feed, args=[producer])
        own.stop()
        feeding.start()
        try:
            poll_until(lambda: len(producer._link.backlog._sends) > 5000, "many wait")
            own.start()
            poll_until(lambda: not producer._link.backlog, "all are handed over")
        finally:
            ends.set()
            feeding.join()
