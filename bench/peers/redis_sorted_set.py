"""A delay queue on a Redis sorted set, as a Python user would build it: ZADD, and a poller.

The score is the time in milliseconds, the member a message. The poller takes what is due by one
call (ZRANGEBYSCORE and ZREM in a script, so that two pollers never take the same), and sleeps for a
millisecond when nothing is. Nothing is durable, and what was taken is gone if the poller dies.
"""

from __future__ import annotations

import time
from array import array
from typing import Final

from bench.bodies import due_of, make_bodies, timed_body
from bench.crew import BenchError, Crew, Outcome, Phase
from bench.harness import Bench
from bench.measure import Measurement, histogram, percentiles
from bench.peers.redis_server import running
from bench.sizes import PIPELINE_COMMANDS, warm_up

_SET: Final = "delayed"
_MS: Final = 1_000_000
_FAR_MS: Final = 24 * 3_600_000
_LEAD_S: Final = 2.0
_PARKED_PER_S: Final = 30_000
_SILENT_S: Final = 60.0
_TAKE: Final = """
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1], 'LIMIT', 0, ARGV[2])
if #due > 0 then redis.call('ZREMRANGEBYRANK', KEYS[1], 0, #due - 1) end
return due
"""


class Zadds:
    """ZADD in pipelines, a day ahead; members are made different by a number."""

    def __init__(self, socket: str) -> None:
        import redis

        self._client = redis.Redis(unix_socket_path=socket)
        self._sent = 0

    def run(self, phase: Phase) -> Outcome:
        bodies, first = make_bodies(), time.time_ns() // _MS + _FAR_MS
        started = time.monotonic_ns()
        for _ in range(phase.count // PIPELINE_COMMANDS):
            pipeline = self._client.pipeline(transaction=False)
            for _ in range(PIPELINE_COMMANDS):
                self._sent += 1
                member = self._sent.to_bytes(8, "big") + bodies[self._sent % len(bodies)]
                pipeline.zadd(_SET, {member: first + self._sent})
            pipeline.execute()
        return Outcome(started, time.monotonic_ns(), phase.count)

    def close(self) -> None:
        self._client.close()


class ScheduledZadds(Zadds):
    """Adds a schedule that begins later; bodies begin with the time at which they are due."""

    def run(self, phase: Phase) -> Outcome:
        lead_ms = int((_LEAD_S + phase.count / _PARKED_PER_S) * 1000)
        first_ms = time.time_ns() // _MS + lead_ms
        started = time.monotonic_ns()
        pipeline = self._client.pipeline(transaction=False)
        for index in range(phase.count):
            due_ms = first_ms + (index * 1000 // phase.per_second if phase.per_second else 0)
            pipeline.zadd(_SET, {timed_body(due_ms * _MS) + index.to_bytes(4, "big"): due_ms})
            if len(pipeline) == PIPELINE_COMMANDS:
                pipeline.execute()
        pipeline.execute()
        if time.time_ns() // _MS >= first_ms:
            raise BenchError("ZADD took longer than the lead: give it more")
        return Outcome(started, time.monotonic_ns(), phase.count)


class Poller:
    """Takes what is due."""

    def __init__(self, socket: str) -> None:
        import redis

        self._client = redis.Redis(unix_socket_path=socket)
        self._take = self._client.register_script(_TAKE)

    def run(self, phase: Phase) -> Outcome:
        latencies = array("q")
        started = heard = time.monotonic_ns()
        while len(latencies) < phase.count:
            now_ms = time.time_ns() // _MS
            members = self._take(keys=[_SET], args=[now_ms, PIPELINE_COMMANDS])
            now_ns = time.time_ns()
            latencies.extend(now_ns - due_of(member) for member in members)
            if members:
                heard = time.monotonic_ns()
            else:
                time.sleep(0.001)
                if heard + _SILENT_S * 1e9 < time.monotonic_ns():
                    raise BenchError(f"nothing came for {_SILENT_S:.0f} s")
        return Outcome(started, time.monotonic_ns(), len(latencies), latencies_ns=latencies)

    def close(self) -> None:
        self._client.close()


def park(bench: Bench) -> Measurement:
    """ZADD in pipelines of 1000."""
    with running(bench) as server, Crew(bench.sizes.timeout_s) as crew:
        crew.start("producer", Zadds, server.socket)
        crew.run(Phase(warm_up(bench.sizes.redis_messages)))
        outcome = crew.run(Phase(bench.sizes.redis_messages))["producer"]
    seconds = (outcome.ended_ns - outcome.started_ns) / 1e9
    return Measurement(values={"rate": outcome.count / seconds}, count=outcome.count)


def due_per_second(bench: Bench) -> Measurement:
    """The schedule of `bench.e2e_timers.due_per_second`."""
    return _due(bench, bench.sizes.due_messages, bench.sizes.due_per_second)


def due_together(bench: Bench) -> Measurement:
    """The moment of `bench.e2e_timers.due_together`."""
    return _due(bench, bench.sizes.due_together, 0)


def _due(bench: Bench, count: int, per_second: int) -> Measurement:
    with running(bench) as server, Crew(bench.sizes.timeout_s) as crew:
        crew.start("consumer", Poller, server.socket)
        crew.start("producer", ScheduledZadds, server.socket)
        found = crew.run(Phase(count, per_second))["consumer"]
    values = percentiles(histogram(found.latencies_ns))
    values["seconds"] = max(found.latencies_ns) / 1e9
    return Measurement(values=values, count=found.count)
