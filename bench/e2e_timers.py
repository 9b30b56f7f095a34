"""Delayed messages: how fast they are parked, how late they come, what pending ones cost."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Final

from bench.crew import BenchError, Crew, JobFactory, Outcome, Phase
from bench.harness import Bench
from bench.measure import Measurement, histogram, latency, percentiles
from bench.ours import Serving, broker, scratch, serving, stop_hard
from bench.sizes import warm_up
from gantrymq.clients.home import store_of

_NS: Final = 1e9
#: Parking what is due soon must be over before it is due: so many per second at least.
_PARKED_PER_S: Final = 50_000
_LEAD_S: Final = 2.0
_LEVEL_PER_SECOND: Final = 500
#: An agent that does nothing for so long is at rest.
_REST_S: Final = 2.0


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
    """Memory of the scheduler with many pending above none; then a kill of all and two starts.

    `memory_mb` is proportional memory, taken at rest. `seconds`: from the start of a broker until
    the consumer has a message that was due while it was down. `rebuild_rate`: the second start
    finds neither note nor buckets; all records are read again before what is due goes out.
    """
    from bench.timer_jobs import FarParks, PlainSends

    count, patience_s = bench.sizes.pending_messages, bench.sizes.timeout_s
    with scratch(bench) as directory:
        with serving(directory, {}, patience_s) as server:
            _work(bench, server, PlainSends, warm_up(count))
            _wait_counted(bench, server, 0)
            before_mb = _scheduler_mb(server)
            _work(bench, server, FarParks, count)
            _wait_counted(bench, server, count)
            after_mb = _scheduler_mb(server)
            due_ms = _park_one(server)
            stop_hard(server)
        seconds = _start_until_due(directory, due_ms, patience_s)
        home = directory / "home"
        _forget_timers(home)
        whole_s = _start_until_due(directory, 0, patience_s)
    values = {"memory_mb": after_mb - before_mb, "seconds": seconds}
    rebuild_rate = count / whole_s  # the start of the broker included
    return Measurement(values={**values, "rebuild_rate": rebuild_rate}, count=count)


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


def _work(bench: Bench, server: Serving, job: JobFactory, count: int) -> None:
    with Crew(bench.sizes.timeout_s) as crew:
        crew.start("producer", job, str(server.home))
        crew.run(Phase(count))


def _wait_counted(bench: Bench, server: Serving, count: int) -> None:
    """Wait until the scheduler has so many timers in its note, and has come to rest."""
    from gantrymq.shm.codes import Role

    note = store_of(server.home) / "gantry" / "schedule.json"
    deadline, seen, since = time.monotonic() + bench.sizes.timeout_s, -1, time.monotonic()
    rest_s = min(_REST_S, bench.sizes.idle_s)
    counted = False
    while not counted or time.monotonic() - since < rest_s:
        work = server.board().process(Role.SCHEDULER)["work"]
        if work != seen:
            seen, since = work, time.monotonic()
        counted = not count or (
            note.exists() and json.loads(note.read_bytes())["timers_next"] >= count
        )
        if time.monotonic() > deadline:
            raise BenchError("the scheduler does not come to rest")
        time.sleep(0.1)


def _park_one(server: Serving, ahead_ms: int = 500) -> int:
    """Park a message that is due soon; when, in Unix ms."""
    from gantrymq import Producer

    due_ms = time.time_ns() // 1_000_000 + ahead_ms
    with Producer(home=str(server.home)) as producer:
        producer.send("due", b"while it is down", delivery_timestamp=due_ms, durability="durable")
    return due_ms


def _start_until_due(directory: Path, due_ms: int, patience_s: float) -> float:
    """Seconds from a start to a message that is due; ends with a kill."""
    from gantrymq import ConsumeFrom, PullConsumer

    while time.time_ns() // 1_000_000 <= due_ms:
        time.sleep(0.01)
    started = time.monotonic()
    with serving(directory, {}, patience_s) as server:
        group = f"due-{due_ms}"
        home, first = str(server.home), ConsumeFrom.FIRST_OFFSET
        with PullConsumer(group, ["due"], home=home, consume_from=first) as consumer:
            if not due_ms:  # behind all that waits: it comes when these have been read
                _park_one(server, 20)
            wanted = 1 if due_ms else 2
            came = 0
            while came < wanted:
                batch = consumer.poll(timeout=60.0)
                if not len(batch):
                    raise BenchError("what was due did not come")
                came += len(batch)
        seconds = time.monotonic() - started
        stop_hard(server)
    return seconds


def _forget_timers(home: Path) -> None:
    """Delete what the scheduler has derived."""
    gantry = store_of(home) / "gantry"
    (gantry / "schedule.json").unlink(missing_ok=True)
    shutil.rmtree(gantry / "timers", ignore_errors=True)
