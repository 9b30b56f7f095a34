"""Calls that never wait, over the broker's end and start: they find the one that is there."""

from __future__ import annotations

import select
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from gantrymq.clients.consumer import PullConsumer
from gantrymq.clients.message import Message
from gantrymq.clients.producer import Producer
from gantrymq.shm.errors import BrokerGone
from gantrymq.shm.kernels import fastput
from gantrymq.temporary import Broker
from tests.support.applications import FIRST, PATIENCE_S, bodies_of
from tests.support.trials import mends
from tests.support.watchdog import poll_until

SENDS: dict[str, Callable[[Producer, bytes], object]] = {
    "oneway": lambda p, body: p.send_oneway("t", body),
    "oneway, the Python way": lambda p, body: p.send_oneway("t", body, keys=["k"]),
    "async": lambda p, body: p.send_async("t", body),
    "batch": lambda p, body: p.send_batch_async("t", [body]),
    "batch, the Python way": lambda p, body: p.send_batch_async(iter([Message("t", body)])),
}
#: Sends when nobody has told that the broker is gone, falls silent, and ends without `close`.
SILENT = """
import sys
from gantrymq import Producer
producer = Producer(sys.argv[1])
def send(body):
    producer.send_oneway("t", body, **({"keys": ["k"]} if sys.argv[2] == "python" else {}))
send(b"first")
producer.flush()
print("there", flush=True)
sys.stdin.readline()
producer._link.session.look_due = 1 << 62
if producer._link.fast is not None:
    producer._link.fast.note_look()
for number in range(3):
    send(b"%d" % number)
print("sent", flush=True)
sys.stdin.readline()
"""


def kill(broker: Broker) -> None:
    """As a crash ends it."""
    broker.process.kill()
    broker.process.wait()


def let_time_pass(producer: Producer) -> None:
    """It has looked at the connection longer ago than it trusts in."""
    link = producer._link
    link.session.look_due = 0
    if link.fast is not None:
        link.fast.state[fastput.LOOKED] = 0


@pytest.fixture
def broker() -> Iterator[Broker]:
    """Return a broker of the test's own."""
    with Broker.temporary() as broker:
        yield broker


@mends("S39")
@pytest.mark.parametrize("end", [Broker.stop, kill])
@pytest.mark.parametrize("how", SENDS)
def test_what_is_sent_without_waiting_after_a_restart_is_stored(
    broker: Broker, how: str, end: Callable[[Broker], None]
) -> None:
    """Nobody flushes, and nobody asks for a receipt."""
    with Producer(broker.home) as producer:
        for number in range(2):
            SENDS[how](producer, b"before %d" % number)
        producer.flush()
        end(broker)
        broker.start()
        let_time_pass(producer)
        SENDS[how](producer, b"after")
        assert sorted(bodies_of(broker.home, "t", 3)) == [b"after", b"before 0", b"before 1"]


@mends("S39")
@pytest.mark.parametrize("way", ["native", "python"])
def test_the_interpreters_end_hands_over_what_a_killed_broker_has_left(
    broker: Broker, way: str
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SILENT, str(broker.home), way],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as child:  # fmt: skip
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == "there\n"
        kill(broker)
        child.stdin.write("the broker is killed\n")
        child.stdin.flush()
        assert child.stdout.readline() == "sent\n"
        broker.start()
        assert child.communicate("the broker is back\n", timeout=PATIENCE_S) == ("", "")
    assert child.returncode == 0
    assert sorted(bodies_of(broker.home, "t", 4)) == [b"0", b"1", b"2", b"first"]


@mends("S39")
def test_who_selects_hears_of_the_brokers_end(broker: Broker) -> None:
    """And then of what comes from the next one."""
    with PullConsumer("g", ["t"], home=broker.home, consume_from=FIRST) as consumer:
        assert not len(consumer.poll(timeout=0))
        number = consumer.fileno()
        assert not select.select([number], [], [], 0)[0]
        kill(broker)
        assert select.select([number], [], [], PATIENCE_S)[0]
        with pytest.raises(BrokerGone):
            consumer.poll(timeout=0)
        broker.start()
        with Producer(broker.home) as producer:
            producer.send("t", b"after")
        while not len(batch := consumer.poll(timeout=0)):
            assert select.select([number], [], [], PATIENCE_S)[0]
        assert bytes(batch[0].body) == b"after"


@mends("S63")
def test_who_selects_sleeps_on_the_same_descriptor_over_restarts(broker: Broker) -> None:
    """Also where a waiting poll has attached anew, returned nothing and raised nothing."""
    with PullConsumer("g", ["t"], home=broker.home, consume_from=FIRST) as consumer:
        assert not len(consumer.poll(timeout=0))
        number = consumer.fileno()
        for body in (b"one", b"two"):
            before = consumer._attachment
            kill(broker)
            broker.start()
            while consumer._attachment is before:
                assert not len(consumer.poll(timeout=0.2))
            poll_until(
                lambda: (
                    not len(consumer.poll(timeout=0)) and not select.select([number], [], [], 0)[0]
                ),
                "nothing is there",
            )
            with Producer(broker.home) as producer:
                producer.send("t", body)
            assert select.select([number], [], [], PATIENCE_S)[0]
            assert [bytes(found) for found in consumer.poll(timeout=PATIENCE_S).bodies] == [body]
            assert not len(consumer.poll(timeout=0))
            assert consumer.fileno() == number


@mends("S39")
def test_a_poll_that_never_waits_finds_the_broker_after_a_kill(broker: Broker) -> None:
    with PullConsumer("g", ["t"], home=broker.home, consume_from=FIRST) as consumer:
        assert not len(consumer.poll(timeout=0))
        kill(broker)
        broker.start()
        with Producer(broker.home) as producer:
            producer.send("t", b"after")

        def take() -> list[bytes]:
            try:
                return [bytes(body) for body in consumer.poll(timeout=0).bodies]
            except BrokerGone:
                return []

        assert poll_until(take, "the message of the broker's next life comes") == [b"after"]
