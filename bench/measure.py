"""From outcomes to one measurement: rates, percentiles, processor seconds, what arrived."""

from __future__ import annotations

import ctypes
import math
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import psutil
from hdrh.histogram import HdrHistogram

from bench.bodies import checksum_of
from bench.crew import BenchError, Outcome, Phase

NS_PER_S: Final = 1_000_000_000
_LATENCY_MAX_NS: Final = 600 * NS_PER_S
_DIGITS: Final = 3
_CURVE_STEPS: Final = 4
_BINS: Final = 60
_SPIN_NS: Final = 150_000
_PR_SET_TIMERSLACK: Final = 29


@dataclass(frozen=True)
class Measurement:
    """One contestant in one round.

    `values` by metric: `rate` in messages (or records) per second, `p50_us`/`p99_us` in
    microseconds, `mb_s` in 10**6 bytes per second, `seconds`. `cpu_s_per_million`: processor
    seconds per million messages of each process. `checksum`: of what was consumed, else 0.
    """

    values: Mapping[str, float]
    cpu_s_per_million: Mapping[str, float] = field(default_factory=dict)
    count: int = 0
    checksum: int = 0
    note: str = ""
    curve: Sequence[tuple[float, float]] = ()
    """Latency by percentile: (percent, microseconds), up to the slowest."""
    timeline: Sequence[tuple[float, float]] = ()
    """Throughput: (seconds since the producer's first send, messages per second)."""


def histogram(latencies_ns: array[int]) -> HdrHistogram:
    """Return the HDR histogram of raw latencies."""
    found = HdrHistogram(1, _LATENCY_MAX_NS, _DIGITS)
    for latency in latencies_ns:
        found.record_value(max(latency, 1))
    return found


def percentiles(found: HdrHistogram) -> dict[str, float]:
    """Return `p50_us`, `p99_us` and `max_us`."""
    return {
        "p50_us": found.get_value_at_percentile(50) / 1000,
        "p99_us": found.get_value_at_percentile(99) / 1000,
        "max_us": found.get_max_value() / 1000,
    }


def curve(found: HdrHistogram) -> list[tuple[float, float]]:
    """Return (percent, microseconds): four points each time the share of slower ones halves."""
    steps = math.floor(_CURVE_STEPS * math.log2(max(found.get_total_count(), 1)))
    percents = [100 * (1 - 0.5 ** (step / _CURVE_STEPS)) for step in range(steps + 1)]
    if not found.get_total_count():
        return []
    values = found.get_percentile_to_value_dict(percents)
    return [(percent, values[percent] / 1000) for percent in percents]


def timeline(started_ns: int, ended_ns: int, marks: array[int]) -> list[tuple[float, float]]:
    """Return throughput over time from the consumer's marks, in at most _BINS steps."""
    width_ns = max((ended_ns - started_ns) // _BINS, 1)
    points = []
    since_ns, before = started_ns, 0
    for now_ns, count in zip(marks[::2], marks[1::2], strict=True):
        if now_ns - since_ns >= width_ns:
            middle_s = ((since_ns + now_ns) / 2 - started_ns) / NS_PER_S
            points.append((middle_s, (count - before) * NS_PER_S / (now_ns - since_ns)))
            since_ns, before = now_ns, count
    return points


def per_million(cpu_s: Mapping[str, float], count: int) -> dict[str, float]:
    """Return processor seconds per million messages."""
    return {role: seconds * 1e6 / count for role, seconds in cpu_s.items()}


def flow(outcomes: Mapping[str, Outcome], servers_cpu_s: Mapping[str, float]) -> Measurement:
    """Return the end to end rate: from the producer's first send to the consumer's last message."""
    producer, consumer = outcomes["producer"], outcomes["consumer"]
    _check_consumed(producer.count, checksum_of(producer.count), consumer)
    seconds = (consumer.ended_ns - producer.started_ns) / NS_PER_S
    cpu_s = {role: outcome.cpu_s for role, outcome in outcomes.items()} | dict(servers_cpu_s)
    return Measurement(
        values={"rate": producer.count / seconds},
        cpu_s_per_million=per_million(cpu_s, producer.count),
        count=consumer.count,
        checksum=consumer.checksum,
        timeline=timeline(producer.started_ns, consumer.ended_ns, consumer.marks),
    )


def latency(
    outcomes: Mapping[str, Outcome], timed: str, servers_cpu_s: Mapping[str, float]
) -> Measurement:
    """Return the percentiles that the worker `timed` recorded, and its rate."""
    outcome = outcomes[timed]
    if timed == "consumer":
        sent = outcomes["producer"]
        _check_consumed(sent.count, sent.checksum, outcome)
    if len(outcome.latencies_ns) != outcome.count:
        raise BenchError(f"{len(outcome.latencies_ns)} latencies for {outcome.count} messages")
    cpu_s = {role: each.cpu_s for role, each in outcomes.items()} | dict(servers_cpu_s)
    seconds = (outcome.ended_ns - outcome.started_ns) / NS_PER_S
    found = histogram(outcome.latencies_ns)
    return Measurement(
        values=percentiles(found) | {"rate": outcome.count / seconds},
        cpu_s_per_million=per_million(cpu_s, outcome.count),
        count=outcome.count,
        checksum=outcome.checksum,
        curve=curve(found),
    )


def _check_consumed(count: int, checksum: int, consumer: Outcome) -> None:
    if (consumer.count, consumer.checksum) != (count, checksum):
        raise BenchError(
            f"sent {count} messages with checksum {checksum}, "
            f"consumed {consumer.count} with {consumer.checksum}"
        )


def paced(phase: Phase) -> Iterator[int]:
    """Yield each intended send time (ns of CLOCK_MONOTONIC) when it has come: an open loop.

    The schedule never slips: who is late sends at once, and the lateness counts as latency. The
    last 150 us are spun, so that waking the sender up is not part of what is measured.
    """
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
    interval_ns = NS_PER_S // phase.per_second
    due_ns = time.monotonic_ns() + interval_ns
    for _ in range(phase.count):
        left_ns = due_ns - time.monotonic_ns()
        if left_ns > _SPIN_NS:
            time.sleep((left_ns - _SPIN_NS) / NS_PER_S)
        while time.monotonic_ns() < due_ns:
            pass
        yield due_ns
        due_ns += interval_ns


class CpuMeter:
    """Processor seconds of servers (a process and its descendants) between start and `spent`.

    `roles` tells what a process of theirs is called; the others go by the name of their program.
    """

    def __init__(
        self, root_pid: int, name: str, roles: Callable[[], Mapping[int, str]] = dict
    ) -> None:
        self._root = psutil.Process(root_pid)
        self._name = name
        self._roles = roles
        self._before = self._read()

    def spent(self) -> dict[str, float]:
        """Return processor seconds since construction, by process."""
        after = self._read()
        return {name: seconds - self._before.get(name, 0.0) for name, seconds in after.items()}

    def _read(self) -> dict[str, float]:
        roles = self._roles()
        found: dict[str, float] = {}
        for process in [self._root, *self._root.children(recursive=True)]:
            times = process.cpu_times()
            child = process.pid != self._root.pid
            role = roles.get(process.pid, process.name() if child else "")
            label = f"{self._name}/{role}" if role else self._name
            found[label] = found.get(label, 0.0) + times.user + times.system
        return found
