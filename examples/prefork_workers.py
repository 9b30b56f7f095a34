"""A server that forks workers before it takes work, as gunicorn does; workers share one group.

Shows: what is opened before the fork stays the parent's, so each worker opens a producer and a
consumer of its own after it; queues of one group are shared among workers; SIGTERM ends them.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

from gantrymq import Broker, Closed, ConsumeFrom, Message, Producer, PullConsumer

WORKERS, JOBS, FIRST = 3, 300, ConsumeFrom.FIRST_OFFSET


def work(home: Path, inherited: Producer) -> None:
    """One worker's life: squares for numbers, until SIGTERM."""
    with contextlib.suppress(Closed):
        inherited.send("results", b"")  # the parent's: closed in this process
    stopping = False

    def stop(_number: int, _frame: object) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGTERM, stop)
    with (
        Producer(home) as producer,
        PullConsumer("workers", ["jobs"], home=home, consume_from=FIRST) as consumer,
    ):
        while not stopping:
            batch = consumer.poll(50, timeout=0.2)
            squares = [Message("results", b"%d" % int(bytes(body)) ** 2) for body in batch.bodies]
            producer.send_batch(squares)
            consumer.commit()  # only now: a worker that dies leaves its jobs to the others


def fork(home: Path, producer: Producer) -> int:
    """Start a worker; returns its process id."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            work(home, producer)
            code = 0
        finally:
            os._exit(code)
    return pid


with Broker.temporary() as broker, Producer(broker.home) as producer:
    pids = [fork(broker.home, producer) for _ in range(WORKERS)]
    producer.send_batch([Message("jobs", b"%d" % n, queue_id=0) for n in range(JOBS // 2)])
    producer.send_batch([Message("jobs", b"%d" % n, queue_id=1) for n in range(JOBS // 2, JOBS)])
    with PullConsumer("sum", ["results"], home=broker.home, consume_from=FIRST) as consumer:
        found: list[int] = []
        while len(found) < JOBS:
            found += [int(bytes(body)) for body in consumer.poll(timeout=10).bodies]
    for pid in pids:
        os.kill(pid, signal.SIGTERM)
    codes = [os.waitpid(pid, 0)[1] for pid in pids]
    print(len(found), "jobs,", sum(found), "in all, workers ended with", *codes)
