"""What docs/clients.md says of signals amid calls."""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from gantrymq.clients.consumer import PullConsumer
from gantrymq.clients.control import look_at
from gantrymq.clients.producer import Producer
from gantrymq.shm import wire
from gantrymq.shm.codes import Role
from gantrymq.shm.layout import ARENA_WAIT_ARMED
from gantrymq.temporary import Broker
from tests.support.applications import PATIENCE_S, bodies_of, run
from tests.support.brokers import ServingBroker
from tests.support.watchdog import poll_until


def interrupt_when(condition: object, what: str) -> threading.Thread:
    """SIGINT to this process as soon as the condition holds."""

    def work() -> None:
        poll_until(condition, what)  # type: ignore[arg-type]
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_ctrl_c_ends_a_poll_that_waits(broker: Broker, unique_name: str) -> None:
    """The consumer is as good as before."""
    with (
        Producer(broker.home) as producer,
        PullConsumer("g-" + unique_name, [unique_name], home=broker.home) as consumer,
    ):
        assert consumer._attachment is not None
        arena = consumer._attachment.session.arena
        for number in range(3):
            thread = interrupt_when(lambda: arena[ARENA_WAIT_ARMED], "the poll sleeps")
            with pytest.raises(KeyboardInterrupt):
                consumer.poll()
            thread.join()
            producer.send(unique_name, b"%d" % number)
            (message,) = consumer.poll(timeout=PATIENCE_S)
            assert message.body == b"%d" % number


def test_ctrl_c_ends_a_send_that_waits(tmp_path: Path, unique_name: str) -> None:
    """The message was on its way already: it is stored, once; the producer goes on."""
    with ServingBroker(tmp_path).wait_until_ready() as broker, Producer(broker.home) as producer:
        producer.send(unique_name, b"before")
        writer = broker.pid_of(Role.WRITER)
        for _ in range(3):
            os.kill(writer, signal.SIGSTOP)
            try:
                thread = interrupt_when(lambda: producer._link._sleepers, "the send sleeps")
                with pytest.raises(KeyboardInterrupt):
                    producer.send(unique_name, b"interrupted")
                thread.join()
            finally:
                os.kill(writer, signal.SIGCONT)
            producer.send(unique_name, b"after")
        expected = Counter({b"before": 1, b"interrupted": 3, b"after": 3})
        assert Counter(bodies_of(broker.home, unique_name, 7)) == expected
        assert broker.stop()[0] == 0


STORM = """
import os, signal, sys, threading
from gantrymq import ConsumeFrom, Producer, PullConsumer
home, topic = sys.argv[1:]
armed, interrupts, number, returned, over = False, 0, 0, [], threading.Event()

def interrupt(_number, _frame):
    global armed
    if armed:  # only amid the calls, not amid what counts them
        armed = False
        raise KeyboardInterrupt

def storm():
    while not over.wait(0.002):
        os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, interrupt)
with Producer(home) as producer, PullConsumer(
    "g-" + topic, [topic], home=home, consume_from=ConsumeFrom.FIRST_OFFSET, auto_commit=False
) as consumer:
    thread = threading.Thread(target=storm)
    thread.start()
    while interrupts < 100:
        number += 1
        try:
            armed = True
            if number % 3:
                producer.send(topic, b"%d" % number)
            else:
                producer.send_oneway(topic, b"%d" % number)
            armed = False
            returned.append(number)
            armed = True
            consumer.poll(5, timeout=0.001)
            armed = False
        except KeyboardInterrupt:
            interrupts += 1
    over.set()
    thread.join()
    producer.send(topic, b"last")
    producer.flush()
print(*returned)
"""


def test_ctrl_c_at_any_moment_breaks_nothing(broker: Broker, unique_name: str) -> None:
    """A hundred interrupts amid sends and polls: what returned is there, nothing is there twice."""
    returned = run(STORM, broker.home, unique_name).split()
    found = Counter(bodies_of(broker.home, unique_name, len(returned) + 1))
    assert set(found.values()) == {1}
    assert {body.encode() for body in returned} <= found.keys()
    assert found[b"last"] == 1


def broken_off(call: Callable[[], object]) -> Iterator[int]:
    """Call it again and again, each time broken off one bytecode later, until it ends by itself."""
    for number in itertools.count(1):
        left = number

        def trace(frame: FrameType, event: str, _argument: object) -> Any:  # noqa: ANN401
            nonlocal left
            frame.f_trace_opcodes = True
            left -= event == "opcode"
            if not left:
                raise KeyboardInterrupt
            return trace

        sys.settrace(trace)
        try:
            call()
            return
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
        yield number


def test_ctrl_c_amid_a_request_takes_no_answer_from_the_next(
    broker: Broker, unique_name: str
) -> None:
    """Sent or not, answered or not: what is asked next gets an answer, and its own."""
    names = [f"{unique_name}-{n}" for n in range(2)]
    with look_at(broker.home) as control:
        control.channel.settimeout(PATIENCE_S)
        ask = partial(control.request, wire.OpenTopic(names[0]), wire.TopicOpened)
        number = 0
        for number in broken_off(ask):
            answer = control.request(wire.OpenTopic(names[number % 2]), wire.TopicOpened)
            assert answer.name == names[number % 2]
        assert number > 20


def test_ctrl_c_amid_a_sleep_leaves_the_turn_to_others(broker: Broker) -> None:
    """Whoever waits next looks at the bell itself, and finds it rung."""
    with Producer(broker.home) as producer:
        session = producer._link.session

        def has_heard() -> bool:
            session._sleep(1_000_000, session._turns)
            return not session._readable(0)

        number = 0
        for number in broken_off(lambda: session._sleep(1000, session._turns)):
            session.bell.ring()
            poll_until(has_heard, f"the bell was heard after {number} bytecodes")
        assert number > 20
