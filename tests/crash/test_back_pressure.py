"""A writer that stands still, and clients that do not read their answers (P5, P6, P12, F13)."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from gantrymq.clients.home import store_of
from gantrymq.clients.message import Message
from gantrymq.clients.producer import Producer
from gantrymq.clients.receipts import ReceiptFuture
from gantrymq.shm import layout, limits
from gantrymq.shm.codes import Role
from gantrymq.shm.errors import MessageIllegal, QueueFull, Timeout
from gantrymq.temporary import Broker
from tests.support.adversary import Hand
from tests.support.agents import AGENTS, pid_of, restarts_of, wait_until_shown
from tests.support.loads import Load
from tests.support.stores import require_once, require_sound
from tests.support.watchdog import PATIENCE_S, poll_until

#: Seconds in the suite; `make soak` has a minute.
STALL_S = float(os.environ.get("GANTRYMQ_TEST_STILL_S", "1"))
BODY = b"." * 4000


def fill(send: Callable[[bytes], object], name: str) -> list[bytes]:
    """Send until the ring is full; what went in."""
    sent: list[bytes] = []
    for number in range(1000):
        body = f"{name}-{number}".encode() + BODY
        try:
            send(body)
        except QueueFull:
            return sent
        sent.append(body)
    raise AssertionError("a ring of 1 MiB took 4 MB")


def test_a_full_ring_pushes_back_and_goes_on(start_broker: Callable[..., Broker]) -> None:
    """QueueFull after the timeout, of every kind of send; what raised it is not stored."""
    broker = start_broker()
    producer = Producer(broker.home, timeout=0.05)
    producer.send("orders", b"first", timeout=PATIENCE_S)
    writer = pid_of(broker.home, Role.WRITER)
    os.kill(writer, signal.SIGSTOP)
    sent = fill(lambda body: producer.send_oneway("orders", body), "oneway")
    assert len(sent) > 200
    futures: list[ReceiptFuture] = []
    while True:
        body = b"small-%d" % len(futures)
        try:
            futures.append(producer.send_async("orders", body))
        except QueueFull:
            break
        sent.append(body)
    with pytest.raises(QueueFull):
        producer.send("orders", BODY)
    with pytest.raises(QueueFull):
        producer.send_batch([Message("orders", BODY) for _ in range(10)])
    with pytest.raises(QueueFull):
        producer.send_batch_async("orders", [BODY] * 10)
    with pytest.raises(Timeout):
        producer.flush()
    os.kill(writer, signal.SIGCONT)
    sent += [b"last"]
    futures.append(producer.send_async("orders", b"last", timeout=PATIENCE_S))
    assert all(future.result(PATIENCE_S).queue_offset >= 0 for future in futures)
    producer.close()
    wait_until_shown(broker.home)
    broker.stop()
    require_once([b"first", *sent], require_sound(store_of(broker.home)))


def test_a_broker_that_stands_still_loses_and_doubles_nothing(
    start_broker: Callable[..., Broker],
) -> None:
    """F13: all of its processes; clients run into their timeouts and go on when it does."""
    broker = start_broker()
    pids = [broker.process.pid, *(pid_of(broker.home, role) for role in AGENTS)]
    with Load(broker.home, "still") as load:
        load.round()
        load.finish()
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        sent = []
        for number in range(20):
            sent.append(b"amid-%d" % number)
            with pytest.raises(Timeout):
                load.producer.send("orders", sent[-1], timeout=STALL_S / 20)
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        load.round()
        load.finish()
        wait_until_shown(broker.home)
    assert set(restarts_of(broker.home).values()) == {0}
    broker.stop()
    require_once([*load.bodies, *sent], require_sound(store_of(broker.home)))


def test_answers_that_nobody_reads_stop_their_owner_alone(
    start_broker: Callable[..., Broker],
) -> None:
    """A full down ring holds its session's entries back, and once it is read they are taken."""
    broker = start_broker()
    count = limits.WRITER_DOWN_BYTES // layout.COMPLETION_BYTES + 100
    with Load(broker.home) as load:
        hand = Hand(broker.home)
        hand.put(*(hand.entry(b"%d" % number) for number in range(count)))
        control = hand.plan.control
        room = hand.plan.down_bytes - 2 * layout.COMPLETION_BYTES
        poll_until(lambda: hand.word(control + layout.LANE_DOWN_TAIL) >= room, "it is full")
        assert not hand.taken
        load.round()
        load.finish()
        assert not hand.taken
        hand.set_word(control + layout.LANE_DOWN_HEAD, hand.word(control + layout.LANE_DOWN_TAIL))
        hand.session.writer_bell.ring()
        poll_until(lambda: hand.taken, "the rest is taken")
        assert not hand.evicted
        hand.close()
        wait_until_shown(broker.home)
    assert set(restarts_of(broker.home).values()) == {0}
    broker.stop()
    records = require_sound(store_of(broker.home))
    load.require_kept(records)
    ours = [item for item in records if item.producer == hand.producer.hex().upper()]
    require_once([b"%d" % number for number in range(count)], ours)


def test_a_batch_larger_than_its_answers_may_be_is_refused(
    start_broker: Callable[..., Broker],
) -> None:
    """It could never be answered whole; the producer goes on."""
    broker = start_broker()
    with Producer(broker.home, timeout=PATIENCE_S) as producer:
        with pytest.raises(MessageIllegal, match="batch"):
            producer.send_batch([Message("orders", b"")] * 20_000)
        receipts = producer.send_batch([Message("orders", b"")] * 300)
        assert len(receipts) == 300
