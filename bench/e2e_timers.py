"""Delayed messages: how fast they are parked, how late they come, what pending ones cost."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Final

from bench.crew import BenchError, Crew, Outcome, Phase
from bench.harness import Bench
from bench.measure import Measurement, histogram, latency, percentiles
from bench.ours import Serving, broker, scratch, serving, stop_hard
from bench.sizes import warm_up

_NS: Final = 1e9
#: Parking what is due soon must be over before it is due: so many per second at least.
_PARKED_PER_S: Final = 50_000
_LEAD_S: Final = 2.0
_LEVEL_PER_SECOND: Final = 500


def park(bench: Bench) -> Measurement:
    """`send_oneway` with a delivery time, and without one, both until all is in the log."""
    from bench.timer_jobs import FarParks, PlainSends

    values = {}
    for metric, job in (("plain_rate", PlainSends), ("rate", FarParks)):
        with broker(bench) as server, Crew(bench.sizes.timeout_s) as crew:
            crew.start("producer", job, str(server.home))
            crew.run(Phase(warm_up(bench.sizes.messages)))
            outcome = crew.run(Phase(bench.sizes.messages))["producer"]
            values[metric] = outcome.count * _NS / (outcome.ended_ns - outcome.started_ns)
    return Measurement(values=values, count=bench.sizes.messages)


def due_per_second(bench: Bench) -> Measurement:
    """A schedule of so many per second, parked before it begins: lateness, and who came early."""
    return _due(bench, bench.sizes.due_messages, bench.sizes.due_per_second)


def due_together(bench: Bench) -> Measurement:
    """Many that are due at the same moment: `seconds` until the last of them is there."""
    return _due(bench, bench.sizes.due_together, 0)


def level_1(bench: Bench) -> Measurement:
    """Messages of the shortest delay level, sent on schedule: lateness."""
    from bench.timer_jobs import DuePolls, LevelSends

    count = bench.sizes.level_messages
    with broker(bench) as server, Crew(bench.sizes.timeout_s) as crew:
        crew.start("consumer", DuePolls, str(server.home))
        crew.start("producer", LevelSends, str(server.home))
        return _lateness(crew.run(Phase(count, _LEVEL_PER_SECOND)))


def pending(bench: Bench) -> Measurement:
    """Memory of the scheduler with many pending above none; then a kill of all and a start.

    `memory_mb` is proportional memory. `seconds`: from the start of the new broker until the
    consumer has a message that was due while it was down.
    """
    from bench.timer_jobs import FarParks, PlainSends

    count = bench.sizes.pending_messages
    with scratch(bench) as directory:
        with serving(directory, {}, bench.sizes.timeout_s) as server:
            with Crew(bench.sizes.timeout_s) as crew:
                crew.start("producer", PlainSends, str(server.home))
                crew.run(Phase(warm_up(count)))
            before_mb = _scheduler_mb(server)
            with Crew(bench.sizes.timeout_s) as crew:
                crew.start("producer", FarParks, str(server.home))
                crew.run(Phase(count))
            _wait_met(server, bench.sizes.timeout_s)
            after_mb = _scheduler_mb(server)
            due_ms = _park_one(server)
            stop_hard(server)
        while time.time_ns() // 1_000_000 <= due_ms:
            time.sleep(0.01)
        started = time.monotonic()
        with serving(directory, {}, bench.sizes.timeout_s) as server:
            _await_due(server)
            seconds = time.monotonic() - started
    return Measurement(values={"memory_mb": after_mb - before_mb, "seconds": seconds}, count=count)


def _due(bench: Bench, count: int, per_second: int) -> Measurement:
    from bench.timer_jobs import DuePolls, ScheduledParks

    lead_s = _LEAD_S + count / _PARKED_PER_S
    with broker(bench) as server, Crew(bench.sizes.timeout_s) as crew:
        crew.start("consumer", DuePolls, str(server.home))
        crew.start("producer", ScheduledParks, str(server.home), lead_s)
        return _lateness(crew.run(Phase(count, per_second)))


def _lateness(outcomes: dict[str, Outcome]) -> Measurement:
    consumer = outcomes["consumer"]
    early = consumer.marks[0]
    found = latency({**outcomes, "consumer": replace(consumer, marks=type(consumer.marks)("q"))},
                    "consumer", {})  # fmt: skip
    values = percentiles(histogram(consumer.latencies_ns))
    seconds = {"seconds": max(consumer.latencies_ns) / _NS, "early": early}
    return replace(found, values={**found.values, **values, **seconds})


def _scheduler_mb(server: Serving) -> float:
    """Proportional memory of the scheduler's process, in 10**6 bytes."""
    (pid,) = [pid for pid, role in server.roles().items() if "scheduler" in role]
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    (kib,) = [line.split()[1] for line in text.splitlines() if line.startswith("Pss:")]
    return int(kib) * 1024 / 1e6


def _wait_met(server: Serving, patience_s: float) -> None:
    """Wait until the scheduler has come to rest: its counter of work stands still."""
    from shm.codes import Role

    deadline, seen, since = time.monotonic() + patience_s, -1, time.monotonic()
    while time.monotonic() - since < 1.0:
        work = server.board().process(Role.SCHEDULER)["work"]
        if work != seen:
            seen, since = work, time.monotonic()
        if time.monotonic() > deadline:
            raise BenchError("the scheduler does not come to rest")
        time.sleep(0.1)


def _park_one(server: Serving) -> int:
    """Park a message that is due in half a second; when, in Unix ms."""
    from gantrymq import Producer

    due_ms = time.time_ns() // 1_000_000 + 500
    with Producer(home=str(server.home)) as producer:
        producer.send("due", b"while it is down", delivery_timestamp=due_ms, durability="durable")
    return due_ms


def _await_due(server: Serving) -> None:
    from gantrymq import ConsumeFrom, PullConsumer

    first = ConsumeFrom.FIRST_OFFSET
    with PullConsumer("due", ["due"], home=str(server.home), consume_from=first) as consumer:
        if not len(consumer.poll(timeout=60.0)):
            raise BenchError("what was due while the broker was down did not come")
