"""A client of a process that has no descriptors left is told so, and leaves none open."""

from __future__ import annotations

import gc
import os
import resource
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count

import pytest

from gantrymq.clients.consumer import PullConsumer
from gantrymq.clients.message import ReceivedMessage
from gantrymq.clients.producer import Producer
from gantrymq.clients.transactions.checks import CheckAnswers
from gantrymq.clients.transactions.resolution import TransactionResolution
from gantrymq.shm import wire
from gantrymq.shm.errors import GantryError, Unavailable
from gantrymq.temporary import Broker
from tests.support.trials import mends
from tests.support.watchdog import PATIENCE_S, poll_until

RESTS = 3


@contextmanager
def room_for(descriptors: int) -> Iterator[None]:
    """So many can be opened; those that lie between others are taken meanwhile."""
    gc.collect()  # else a session that lacks descriptors finds some of what was closed before
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd")))
    taken = [os.open("/dev/null", os.O_RDONLY)]
    while taken[-1] < highest:
        taken.append(os.open("/dev/null", os.O_RDONLY))
    resource.setrlimit(resource.RLIMIT_NOFILE, (taken[-1] + 1 + descriptors, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for descriptor in taken:
            os.close(descriptor)


def _refusal(make: Callable[[], Producer | PullConsumer], rooms: Iterator[int]) -> object:
    """The error with the next larger room; None if it is enough."""
    with room_for(next(rooms)):
        try:
            make().close()
        except GantryError as error:
            return error
    return None


def _commit(_half: ReceivedMessage) -> TransactionResolution:
    return TransactionResolution.COMMIT


@mends("S98")
def test_checks_without_descriptors_are_not_answered_and_that_is_told_once(
    broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And they are answered once there are some."""
    rests: list[float] = []
    enough, told = threading.Event(), threading.Event()

    def rest(answers: CheckAnswers, seconds: float) -> None:
        rests.append(seconds)
        if len(rests) == RESTS:
            told.set()
            enough.wait(PATIENCE_S)

    monkeypatch.setattr(CheckAnswers, "_rest", rest)
    with Producer(home=broker.home, producer_group="p-" + topic) as producer:
        begun = producer._begun()
        with room_for(0):
            begun.answer_checks(_commit)
            assert told.wait(PATIENCE_S)
        enough.set()
        answers = begun._answers
        assert answers is not None
        poll_until(lambda: answers._link.enlisted > 0, "it is enlisted")
    assert rests[:RESTS] == [1.0, 2.0, 4.0]
    assert [record.message for record in caplog.records] == [
        "checks of transactions are not answered"
    ]


@mends("S108")
def test_sessions_one_after_another_need_the_descriptors_of_one(broker: Broker, topic: str) -> None:
    """Maps of those that were closed have some until the collector has been there."""
    with Producer(home=broker.home) as producer:
        producer.send(topic, b"so that all is loaded")
    del producer
    gc.collect()
    gc.disable()
    try:
        with room_for(20):
            for _ in range(20):
                with Producer(home=broker.home) as producer:
                    producer.send(topic, b"x")
    finally:
        gc.enable()


@mends("S112")
def test_an_agent_without_descriptors_says_so_of_the_news_that_it_loses() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        wire.send(ours, wire.Pass(1), (ours.fileno(), theirs.fileno()))
        with room_for(1):
            before = len(os.listdir("/proc/self/fd"))
            with pytest.raises(Unavailable, match="no free descriptors"):
                wire.receive(theirs)
            assert len(os.listdir("/proc/self/fd")) == before


@mends("S98")
@pytest.mark.parametrize("kind", ["producer", "consumer"])
def test_a_session_without_descriptors_says_so(broker: Broker, topic: str, kind: str) -> None:
    makers: dict[str, Callable[[], Producer | PullConsumer]] = {
        "producer": lambda: Producer(home=broker.home),
        "consumer": lambda: PullConsumer("g-" + topic, [topic], home=broker.home),
    }
    with Producer(home=broker.home) as producer:
        producer.send(topic, b"so that all is loaded")
    makers[kind]().close()
    before = len(os.listdir("/proc/self/fd"))
    refused = iter(partial(_refusal, makers[kind], rooms := count()), None)
    for error in refused:
        assert type(error) is Unavailable
        assert "ulimit -n" in str(error)
        gc.collect()
        assert len(os.listdir("/proc/self/fd")) <= before
    assert next(rooms) > 3
