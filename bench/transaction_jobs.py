"""What producers do with transactions: one at a time, many in flight, left open."""

from __future__ import annotations

import os
import time
from array import array
from collections import deque
from typing import Any, Final

from bench.bodies import make_bodies
from bench.crew import Outcome, Phase
from bench.our_jobs import TAG
from bench.sizes import BODIES
from gantrymq import Producer, TransactionResolution

IN_FLIGHT: Final = 64
GROUP: Final = "bench"
WRITTEN: Final = "transactions"
SAFE: Final = "safe"  # a topic of level durable
_SILENT_S: Final = 60.0


class OneByOne:
    """Half, nothing to do locally, commit; or, `plain`, sync sends."""

    def __init__(self, home: str, plain: bool) -> None:
        self._producer = Producer(home=home, producer_group=GROUP)
        self._bodies, self._plain = make_bodies(), plain

    def run(self, phase: Phase) -> Outcome:
        producer, bodies = self._producer, self._bodies
        started = time.monotonic_ns()
        for index in range(phase.count):
            body = bodies[index % BODIES]
            if self._plain:
                producer.send(WRITTEN, body, tag=TAG)
                continue
            with producer.transaction() as transaction:
                producer.send(WRITTEN, body, tag=TAG, transaction=transaction)
        return Outcome(started, time.monotonic_ns(), phase.count)

    def close(self) -> None:
        self._producer.close()


class InFlight(OneByOne):
    """The same with 64 that are not settled, in a topic of level durable."""

    def run(self, phase: Phase) -> Outcome:
        producer, bodies = self._producer, self._bodies
        window: deque[Any] = deque()
        started = time.monotonic_ns()
        for index in range(phase.count + IN_FLIGHT):
            if index >= IN_FLIGHT:
                window.popleft().result(_SILENT_S)
            if index >= phase.count:
                continue
            body = bodies[index % BODIES]
            if self._plain:
                window.append(producer.send_async(SAFE, body, tag=TAG, durability="durable"))
                continue
            transaction = producer.begin_transaction()
            producer.send_async(SAFE, body, tag=TAG, transaction=transaction)
            window.append(transaction.commit_async())
        return Outcome(started, time.monotonic_ns(), phase.count)


class LeftOpen:
    """Halves of a producer that never ends them."""

    def __init__(self, home: str) -> None:
        self._producer = Producer(home=home, producer_group=GROUP)

    def run(self, phase: Phase) -> Outcome:
        producer, bodies = self._producer, make_bodies()
        started = time.monotonic_ns()
        for index in range(phase.count):
            transaction = producer.begin_transaction()
            producer.send_async(WRITTEN, bodies[index % BODIES], tag=TAG, transaction=transaction)
        producer.flush(_SILENT_S)
        return Outcome(started, time.monotonic_ns(), phase.count)

    def close(self) -> None:
        os._exit(0)  # it must not roll them back


class NeverSure:
    """Leaves one transaction open, and answers each check with UNKNOWN until `count` have come."""

    def __init__(self, home: str) -> None:
        self._asked = array("q")
        self._producer = Producer(home=home, producer_group=GROUP, transaction_checker=self._answer)

    def _answer(self, _message: object) -> TransactionResolution:
        self._asked.append(time.monotonic_ns())
        return TransactionResolution.UNKNOWN

    def run(self, phase: Phase) -> Outcome:
        started = time.monotonic_ns()
        self._producer.send(WRITTEN, bytes(1024), transaction=self._producer.begin_transaction())
        while len(self._asked) < phase.count:
            time.sleep(0.05)
        return Outcome(started, time.monotonic_ns(), phase.count)

    def close(self) -> None:
        os._exit(0)
