"""A producer's first large send needs another session: if that fails, the next call goes on.

The writer reads the latest ring of a producer, also one that this process never got to know of.
"""

from __future__ import annotations

import errno
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, Final

import pytest

from gantrymq.clients import session as sessions
from gantrymq.clients.consumer import PullConsumer
from gantrymq.clients.producer import Producer
from gantrymq.clients.writerlink import WriterLink
from gantrymq.shm.errors import BrokerGone, Unavailable
from gantrymq.temporary import Broker
from tests.support.callrecipes import LARGE
from tests.support.interrupts import FINALIZED, STEP, Interrupt, interrupt_each
from tests.support.push import FIRST, PATIENCE_S
from tests.support.trials import mends
from tests.system.test_without_descriptors import room_for

#: More descriptors than a session has.
ROOMS: Final = 12
#: Where a session takes another one's place.
REPLACING: Final = (
    r"Session\.(__init__|_connect|_greet|_say|_ask)|ControlChannel\.(ask|_exchange)|receive_owned"
    r"|WriterLink\.(_enlarge|_attach|_go_on|_open_session|_replace|_try_to|_unlocked|_wait_for)"
    r"|WriterLane\.(__init__|refill|unsettled|_unsettled)|FastPut\.(attach|detach)|Routes\.attach"
)


class Sent:
    """Numbered messages of a topic: what was answered is there, and nothing is twice."""

    def __init__(self, broker: Broker, topic: str) -> None:
        self.home, self.topic = broker.home, topic
        self.answered: set[int] = set()
        self._numbers = count()

    def send(self, producer: Producer) -> int:
        number = next(self._numbers)
        producer.send(self.topic, str(number).encode())
        self.answered.add(number)
        return number

    def send_soon(self, producer: Producer) -> Callable[[], None]:
        number = next(self._numbers)
        future = producer.send_async(self.topic, str(number).encode())

        def settle() -> None:
            future.result(PATIENCE_S)
            self.answered.add(number)

        return settle

    def large(self) -> bytes:
        return str(next(self._numbers)).encode().ljust(len(LARGE), b" ")

    def require_going_on(self, producer: Producer) -> None:
        """Sends of any kind are answered, of this thread and of another."""
        settle = self.send_soon(producer)
        producer.send_oneway(self.topic, str(number := next(self._numbers)).encode())
        self.send(producer)
        thread = threading.Thread(target=self.send, args=(producer,), daemon=True)
        thread.start()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
        settle()
        producer.flush()
        self.answered.add(number)

    def require_once(self) -> None:
        found: Counter[int] = Counter()
        with PullConsumer(
            "g-" + self.topic, [self.topic], home=self.home, consume_from=FIRST
        ) as consumer:
            while batch := consumer.poll(
                timeout=PATIENCE_S if not self.answered <= set(found) else 0
            ):
                found.update(int(bytes(message.body)) for message in batch)
        assert self.answered <= set(found)
        assert found.total() == len(found), found.most_common(3)


@pytest.fixture
def sent(broker: Broker, topic: str) -> Iterator[Sent]:
    sent = Sent(broker, topic)
    yield sent
    sent.require_once()


@pytest.fixture
def producer(broker: Broker) -> Iterator[Producer]:
    with Producer(broker.home, timeout=PATIENCE_S) as producer:
        yield producer


def _flushed(producer: Producer, topic: str, body: bytes) -> None:
    producer.send_oneway(topic, body)
    producer.flush()


CALLS: dict[str, Callable[[Producer, str, bytes], object]] = {
    "send": lambda producer, topic, body: producer.send(topic, body),
    "send_async": lambda producer, topic, body: producer.send_async(topic, body).result(PATIENCE_S),
    "send_batch": lambda producer, topic, body: producer.send_batch(topic, [body]),
    "send_oneway": _flushed,
}


@mends("S141")
@FINALIZED
@pytest.mark.parametrize("call", CALLS)
def test_a_first_large_send_that_is_broken_off(broker: Broker, sent: Sent, call: str) -> None:
    def play(interrupt: Interrupt) -> None:
        with Producer(broker.home, timeout=PATIENCE_S) as producer:
            sent.send(producer)
            settle = sent.send_soon(producer)
            with interrupt:
                CALLS[call](producer, sent.topic, sent.large())
            settle()
            sent.require_going_on(producer)

    interrupt_each(play)
    interrupt_each(play, REPLACING, max(1, STEP // 3))


@mends("S141")
def test_without_descriptors(broker: Broker, sent: Sent) -> None:
    """From those that do for nothing to those that do for all."""
    refused = 0
    for room in range(ROOMS):
        with Producer(broker.home, timeout=PATIENCE_S) as producer:
            sent.send(producer)
            settle = sent.send_soon(producer)
            with room_for(room):
                try:
                    producer.send(sent.topic, sent.large())
                except Unavailable:
                    refused += 1
            settle()
            sent.require_going_on(producer)
    assert refused > 3, "too little is refused"


@mends("S141")
def test_without_memory(producer: Producer, sent: Sent, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_given: object) -> Any:  # noqa: ANN401
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    sent.send(producer)
    settle = sent.send_soon(producer)
    monkeypatch.setattr(sessions, "map_arena", fail)
    with pytest.raises(Unavailable, match="no memory is left"):
        producer.send(sent.topic, sent.large())
    with pytest.raises(Unavailable, match="no memory is left"):
        producer.send(sent.topic, sent.large())
    monkeypatch.undo()
    settle()
    sent.require_going_on(producer)
    producer.send(sent.topic, sent.large())


@mends("S141")
def test_a_ring_that_has_grown_stays_so(
    producer: Producer, sent: Sent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if what made it grow was broken off then: what waits in it fits into the next one."""

    class Over(BaseException):
        pass

    grow = WriterLink._replace_session

    def break_off(link: WriterLink, *given: Any) -> None:  # noqa: ANN401
        grow(link, *given)
        raise Over

    sent.send(producer)
    monkeypatch.setattr(WriterLink, "_replace_session", break_off)
    with pytest.raises(Over):
        producer.send(sent.topic, sent.large())
    monkeypatch.undo()
    link = producer._link
    grown = link.lane.plan.up_bytes
    with link.lock:
        link._attach_again(link.deadline(None))
    assert link.lane.plan.up_bytes == grown
    sent.require_going_on(producer)


def test_who_is_refused_a_larger_ring_goes_on_with_the_one_that_there_is() -> None:
    """The writer has heard nothing of another: nobody needs room for a session."""
    with (
        Broker.temporary(sessions_max=1) as broker,
        Producer(broker.home, timeout=PATIENCE_S) as producer,
    ):
        producer.send("t", b"x")
        before = producer._link.session
        with pytest.raises(Unavailable, match="sessions_max"):
            producer.send("t", LARGE)
        producer.send("t", b"x")
        assert producer._link.session is before


@mends("S141")
@FINALIZED
def test_attaching_again_that_is_broken_off(producer: Producer, sent: Sent) -> None:
    """As behind a broker's restart: what is in the ring is on its way with no further call."""
    link = producer._link

    def play(interrupt: Interrupt) -> None:
        sent.send(producer)
        settle = sent.send_soon(producer)
        link.session._why_over = BrokerGone("it was started again")
        link.is_away = True
        with interrupt, link.lock:
            link._attach_again(link.deadline(None))
        settle()
        with link.lock:
            link.living(link.deadline(None))
        assert not link.is_away, "sends that do not wait would take the slow way"

    interrupt_each(play, REPLACING, 1)
