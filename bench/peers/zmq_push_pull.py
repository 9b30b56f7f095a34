"""ZeroMQ PUSH/PULL over ipc by pyzmq: nothing is kept, one send and one receive per message."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from bench.bodies import make_bodies
from bench.crew import Crew, Outcome, Phase, Progress, Unavailable
from bench.harness import Bench
from bench.measure import Measurement, flow
from bench.sizes import BODIES, warm_up

try:
    import zmq
except ImportError:
    zmq = None  # type: ignore[assignment]


class Push:
    """Sends one body at a time."""

    def __init__(self, endpoint: str) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PUSH)
        self._socket.connect(endpoint)

    def run(self, phase: Phase) -> Outcome:
        send, bodies = self._socket.send, make_bodies()
        started = time.monotonic_ns()
        for _ in range(phase.count // BODIES):
            for body in bodies:
                send(body)
        return Outcome(started, time.monotonic_ns(), phase.count)

    def close(self) -> None:
        self._context.destroy()


class Pull:
    """Receives one body at a time and touches it."""

    def __init__(self, endpoint: str) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PULL)
        self._socket.bind(endpoint)

    def run(self, phase: Phase) -> Outcome:
        receive = self._socket.recv
        checksum = 0
        progress = Progress()
        started = time.monotonic_ns()
        for count in range(BODIES, phase.count + 1, BODIES):
            for _ in range(BODIES):
                body = receive()
                checksum += body[0] + body[-1]
            progress.mark(time.monotonic_ns(), count)
        ended = time.monotonic_ns()
        return Outcome(started, ended, phase.count, checksum, marks=progress.marks)

    def close(self) -> None:
        self._context.destroy()


def single_sends(bench: Bench) -> Measurement:
    """One producer process to one consumer process, pyzmq's defaults."""
    if zmq is None:
        raise Unavailable("pyzmq is not installed (pip install 'gantrymq[bench]')")
    with tempfile.TemporaryDirectory(prefix="zmq-") as directory:
        endpoint = f"ipc://{Path(directory) / 'pipe'}"
        with Crew(bench.sizes.timeout_s) as crew:
            crew.start("consumer", Pull, endpoint)
            crew.start("producer", Push, endpoint)
            crew.run(Phase(warm_up(bench.sizes.messages)))
            return flow(crew.run(Phase(bench.sizes.messages)), {})
