"""Redis Streams by redis-py over a Unix socket: XADD, and a consumer group that acknowledges."""

from __future__ import annotations

import time
from array import array
from typing import TYPE_CHECKING, Any, Final

from bench.bodies import due_of, make_bodies, timed_body
from bench.crew import BenchError, Crew, Outcome, Phase, Progress
from bench.harness import Bench
from bench.measure import Measurement, flow, latency, paced
from bench.peers.redis_server import Server, running
from bench.sizes import PACED_PER_SECOND, PIPELINE_COMMANDS, warm_up

if TYPE_CHECKING:
    import redis

_STREAM: Final = "t"
_GROUP: Final = "g"
_BLOCK_MS: Final = 1000
_SILENT_S: Final = 30.0


def _connect(socket: str) -> redis.Redis:
    import redis

    return redis.Redis(unix_socket_path=socket)


class _Client:
    """What the jobs share: a connection."""

    def __init__(self, socket: str) -> None:
        self._client = _connect(socket)

    def close(self) -> None:
        self._client.close()


class PipelinedXadd(_Client):
    """Adds PIPELINE_COMMANDS messages per round trip."""

    def run(self, phase: Phase) -> Outcome:
        bodies = make_bodies()
        started = time.monotonic_ns()
        for _ in range(phase.count // PIPELINE_COMMANDS):
            pipeline = self._client.pipeline(transaction=False)
            for _ in range(PIPELINE_COMMANDS // len(bodies)):
                for body in bodies:
                    pipeline.xadd(_STREAM, {"tag": "x", "body": body})
            pipeline.execute()
        return Outcome(started, time.monotonic_ns(), phase.count)


class SingleXadd(_Client):
    """Adds one message at a time; the call is what is timed."""

    def run(self, phase: Phase) -> Outcome:
        bodies = make_bodies()
        latencies = array("q")
        started = time.monotonic_ns()
        for index in range(phase.count):
            before = time.monotonic_ns()
            self._client.xadd(_STREAM, {"tag": "x", "body": bodies[index % len(bodies)]})
            latencies.append(time.monotonic_ns() - before)
        return Outcome(started, time.monotonic_ns(), phase.count, latencies_ns=latencies)


class PacedXadd(_Client):
    """Adds messages on schedule; each body begins with its intended time."""

    def run(self, phase: Phase) -> Outcome:
        checksum = 0
        started = time.monotonic_ns()
        for due_ns in paced(phase):
            self._client.xadd(_STREAM, {"tag": "x", "body": timed_body(due_ns)})
            checksum += due_ns
        return Outcome(started, time.monotonic_ns(), phase.count, checksum)


class GroupReader(_Client):
    """Reads as a consumer group and acknowledges each batch; touches every body."""

    def __init__(self, socket: str) -> None:
        super().__init__(socket)
        self._client.xgroup_create(_STREAM, _GROUP, id="0", mkstream=True)

    def run(self, phase: Phase) -> Outcome:
        latencies = array("q")
        count = checksum = 0
        progress = Progress()
        started = time.monotonic_ns()
        while count < phase.count:
            entries = self._read()
            for _, fields in entries:
                checksum += self._look(fields[b"body"], latencies)
            self._client.xack(_STREAM, _GROUP, *[entry[0] for entry in entries])
            count += len(entries)
            progress.mark(time.monotonic_ns(), count)
        ended = time.monotonic_ns()
        return Outcome(started, ended, count, checksum, latencies, marks=progress.marks)

    def _look(self, body: bytes, latencies: array[int]) -> int:
        """Return what one body adds to the checksum."""
        return body[0] + body[-1]

    def _read(self) -> list[Any]:
        """Return a batch of (id, fields)."""
        deadline = time.monotonic() + _SILENT_S
        while time.monotonic() < deadline:
            reply: Any = self._client.xreadgroup(
                _GROUP, "c", {_STREAM: ">"}, count=PIPELINE_COMMANDS, block=_BLOCK_MS
            )
            if reply:
                [[_, entries]] = reply.items() if isinstance(reply, dict) else reply
                return list(entries)
        raise BenchError(f"nothing came for {_SILENT_S:.0f} s")


class PacedGroupReader(GroupReader):
    """The same, and takes the time since each message was due."""

    def _look(self, body: bytes, latencies: array[int]) -> int:
        due_ns = due_of(body)
        latencies.append(time.monotonic_ns() - due_ns)
        return due_ns


def pipelined(bench: Bench) -> Measurement:
    """Pipelines of 1000 XADD, end to end with acknowledgement."""
    with running(bench) as server, Crew(bench.sizes.timeout_s) as crew:
        crew.start("consumer", GroupReader, server.socket)
        crew.start("producer", PipelinedXadd, server.socket)
        crew.run(Phase(warm_up(bench.sizes.redis_messages)))
        meter = server.meter()
        return flow(crew.run(Phase(bench.sizes.redis_messages)), meter.spent())


def xadd_one_by_one(bench: Bench) -> Measurement:
    """XADD, each waiting for its reply."""
    with running(bench) as server, Crew(bench.sizes.timeout_s) as crew:
        crew.start("producer", SingleXadd, server.socket)
        return _timed(bench.sizes.sync_sends, 0, "producer", server, crew)


def paced_end_to_end(bench: Bench) -> Measurement:
    """XADD at a fixed rate to XREADGROUP BLOCK, from the intended time."""
    with running(bench) as server, Crew(bench.sizes.timeout_s) as crew:
        crew.start("consumer", PacedGroupReader, server.socket)
        crew.start("producer", PacedXadd, server.socket)
        return _timed(bench.sizes.paced_messages, PACED_PER_SECOND, "consumer", server, crew)


def _timed(count: int, per_second: int, timed: str, server: Server, crew: Crew) -> Measurement:
    crew.run(Phase(count // 10, per_second))
    meter = server.meter()
    outcomes = crew.run(Phase(count, per_second))
    return latency(outcomes, timed, meter.spent())
