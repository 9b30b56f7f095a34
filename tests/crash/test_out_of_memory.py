"""F19: a message that makes its consumers run out of memory is counted each time."""

from __future__ import annotations

import os
import resource
import signal
from functools import partial

from gantrymq import Broker, ConsumeFrom, Producer, PullConsumer
from tests.support.adversary import Victim
from tests.support.watchdog import poll_until

PATIENCE_S = 30.0
DEATHS = 3
ROOM_BYTES = 64 << 20


def limit_memory() -> None:
    """What this process has now and a little more."""
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[0])
    resource.setrlimit(
        resource.RLIMIT_AS, (pages * resource.getpagesize() + ROOM_BYTES, resource.RLIM_INFINITY)
    )


def test_each_death_for_want_of_memory_counts_as_an_attempt() -> None:
    """Killed with the batch in hand, as by the kernel: none is lost, none counts as done."""
    with Broker.temporary() as broker:
        with Producer(broker.home) as producer:
            for number in range(8):
                producer.send("heavy", b"%d" % number, queue_id=0)

        def work(life: int) -> None:
            first = ConsumeFrom.FIRST_OFFSET
            with PullConsumer("g", ["heavy"], home=broker.home, consume_from=first) as consumer:
                batch = poll_until(lambda: consumer.poll(timeout=PATIENCE_S), "messages")
                assert set(batch.delivery_attempts.tolist()) == {life + 1}
                limit_memory()
                hoard = []
                try:
                    while True:
                        hoard.append(bytearray(1 << 20))
                except MemoryError:
                    os.kill(os.getpid(), signal.SIGKILL)

        for life in range(DEATHS):
            assert Victim(partial(work, life)).end() == -signal.SIGKILL
        with PullConsumer("g", ["heavy"], home=broker.home) as consumer:
            batch = poll_until(lambda: consumer.poll(timeout=PATIENCE_S), "messages")
            assert [bytes(part) for part in batch.bodies] == [b"%d" % n for n in range(8)]
            assert set(batch.delivery_attempts.tolist()) == {DEATHS + 1}
            consumer.commit()
        with PullConsumer("g", ["heavy"], home=broker.home) as consumer:
            assert len(consumer.poll(timeout=0)) == 0
