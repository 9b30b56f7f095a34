"""`multiprocessing.Queue` between two processes: a pipe, a lock and pickle; nothing is kept."""

from __future__ import annotations

import multiprocessing
import time
from typing import TYPE_CHECKING

from bench.bodies import make_bodies
from bench.crew import Crew, Outcome, Phase, Progress
from bench.harness import Bench
from bench.measure import Measurement, flow
from bench.sizes import BODIES, warm_up

if TYPE_CHECKING:
    from multiprocessing.queues import Queue


class Put:
    """Puts one body at a time; the queue's feeder thread writes them to the pipe."""

    def __init__(self, queue: Queue[bytes]) -> None:
        self._queue = queue

    def run(self, phase: Phase) -> Outcome:
        put, bodies = self._queue.put, make_bodies()
        started = time.monotonic_ns()
        for _ in range(phase.count // BODIES):
            for body in bodies:
                put(body)
        return Outcome(started, time.monotonic_ns(), phase.count)

    def close(self) -> None:
        self._queue.close()


class Get:
    """Gets one body at a time and touches it."""

    def __init__(self, queue: Queue[bytes]) -> None:
        self._queue = queue

    def run(self, phase: Phase) -> Outcome:
        get = self._queue.get
        checksum = 0
        progress = Progress()
        started = time.monotonic_ns()
        for count in range(BODIES, phase.count + 1, BODIES):
            for _ in range(BODIES):
                body = get()
                checksum += body[0] + body[-1]
            progress.mark(time.monotonic_ns(), count)
        ended = time.monotonic_ns()
        return Outcome(started, ended, phase.count, checksum, marks=progress.marks)

    def close(self) -> None:
        self._queue.close()


def single_puts(bench: Bench) -> Measurement:
    """One producer process to one consumer process, unbounded, as it comes."""
    queue: Queue[bytes] = multiprocessing.get_context("spawn").Queue()
    try:
        with Crew(bench.sizes.timeout_s) as crew:
            crew.start("consumer", Get, queue)
            crew.start("producer", Put, queue)
            crew.run(Phase(warm_up(bench.sizes.redis_messages)))
            return flow(crew.run(Phase(bench.sizes.redis_messages)), {})
    finally:
        queue.close()
