"""What producers do with transactions: one at a time, many in flight, left open."""

from __future__ import annotations

import os
import time
from array import array
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
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
#: So often plain sends and transactions are in turn.
TURNS: Final = 5


class OneByOne:
    """Plain sync sends; in turns with these: half, nothing to do locally, commit.

    In turns, since a machine that others use as well is not equally fast from one second to the
    next; long ones, for three processes that wait for each other take a while to settle.
    """

    def __init__(self, home: str) -> None:
        self._producer = Producer(home=home, producer_group=GROUP)
        self._bodies = make_bodies()

    def run(self, phase: Phase) -> Outcome:
        started = time.monotonic_ns()
        plain_ns = 0
        for turn in range(TURNS):
            count = phase.count * (turn + 1) // TURNS - phase.count * turn // TURNS
            begun = time.monotonic_ns()
            self._send(count)
            plain_ns += time.monotonic_ns() - begun
            self._transact(count)
        return Outcome(started, time.monotonic_ns(), phase.count, beside_ns=plain_ns)

    def _send(self, count: int) -> None:
        producer, bodies = self._producer, self._bodies
        for index in range(count):
            producer.send(WRITTEN, bodies[index % BODIES], tag=TAG)

    def _transact(self, count: int) -> None:
        producer, bodies = self._producer, self._bodies
        for index in range(count):
            with producer.transaction() as transaction:
                producer.send(WRITTEN, bodies[index % BODIES], tag=TAG, transaction=transaction)

    def close(self) -> None:
        self._producer.close()


class InFlight(OneByOne):
    """The same with 64 that are not settled, in a topic of level durable."""

    def _send(self, count: int) -> None:
        producer, bodies = self._producer, self._bodies
        self._keep_in_flight(
            count,
            lambda index: producer.send_async(
                SAFE, bodies[index % BODIES], tag=TAG, durability="durable"
            ),
        )

    def _transact(self, count: int) -> None:
        producer, bodies = self._producer, self._bodies

        def begin(index: int) -> Future[None]:
            transaction = producer.begin_transaction()
            producer.send_async(SAFE, bodies[index % BODIES], tag=TAG, transaction=transaction)
            return transaction.commit_async()

        self._keep_in_flight(count, begin)

    def _keep_in_flight(self, count: int, begin: Callable[[int], Future[Any]]) -> None:
        window: deque[Future[Any]] = deque()
        for index in range(count):
            if index >= IN_FLIGHT:
                window.popleft().result(_SILENT_S)
            window.append(begin(index))
        for future in window:
            future.result(_SILENT_S)


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
