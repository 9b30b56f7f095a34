"""From outcomes to one measurement: rates, percentiles, processor seconds, what arrived."""

from __future__ import annotations

import ctypes
import time
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import psutil
from hdrh.histogram import HdrHistogram

from bench.bodies import checksum_of
from bench.crew import BenchError, Outcome, Phase

NS_PER_S: Final = 1_000_000_000
_LATENCY_MAX_NS: Final = 600 * NS_PER_S
_DIGITS: Final = 3
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


def percentiles(latencies_ns: array[int]) -> dict[str, float]:
    """Return `p50_us`, `p99_us` and `max_us` of raw latencies."""
    histogram = HdrHistogram(1, _LATENCY_MAX_NS, _DIGITS)
    for latency in latencies_ns:
        histogram.record_value(max(latency, 1))
    return {
        "p50_us": histogram.get_value_at_percentile(50) / 1000,
        "p99_us": histogram.get_value_at_percentile(99) / 1000,
        "max_us": histogram.get_max_value() / 1000,
    }


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
    return Measurement(
        values=percentiles(outcome.latencies_ns) | {"rate": outcome.count / seconds},
        cpu_s_per_million=per_million(cpu_s, outcome.count),
        count=outcome.count,
        checksum=outcome.checksum,
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
    """Processor seconds of servers (a process and its descendants) between start and `spent`."""

    def __init__(self, root_pid: int, name: str) -> None:
        self._root = psutil.Process(root_pid)
        self._name = name
        self._before = self._read()

    def spent(self) -> dict[str, float]:
        """Return processor seconds since construction, by process."""
        after = self._read()
        return {name: seconds - self._before.get(name, 0.0) for name, seconds in after.items()}

    def _read(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for process in [self._root, *self._root.children(recursive=True)]:
            times = process.cpu_times()
            child = process.pid != self._root.pid
            label = f"{self._name}/{process.name()}" if child else self._name
            if label in found:
                label = f"{label}-{process.pid}"
            found[label] = times.user + times.system
        return found
