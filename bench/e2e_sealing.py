"""What sealing takes from messages on their way: the same broker with its housekeeper halted."""

from __future__ import annotations

import os
import signal
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from bench.crew import BenchError, Crew, Phase
from bench.harness import Bench
from bench.measure import Measurement, histogram, percentiles
from bench.ours import TOPIC, Serving, make_topic, scratch, serving
from bench.sizes import PACED_PER_SECOND

#: Halted and not halted in turn, so that a drift of the machine counts for both.
_TURNS: Final = 3
_LOAD: Final = "load"


def beside_load(bench: Bench) -> Measurement:
    """Paced messages beside a producer and a consumer at full speed: `sealing_*`, `halted_*`."""
    seconds = bench.sizes.sealing_s
    both = Phase(int(seconds * PACED_PER_SECOND), PACED_PER_SECOND, seconds)
    return _measure(bench, [both])


def after_load(bench: Bench) -> Measurement:
    """Paced messages alone, while the segments of a load before them are sealed, or wait."""
    seconds = bench.sizes.sealing_s
    load, pace = Phase(0, PACED_PER_SECOND, seconds), Phase(int(seconds * PACED_PER_SECOND), 1000)
    return _measure(bench, [load, pace])


def _measure(bench: Bench, phases: list[Phase]) -> Measurement:
    """The last phase is what counts; during those before it nothing is sealed."""
    found = {True: array("q"), False: array("q")}
    sealed = {True: 0, False: 0}
    settings = {"mapped_file_size_commit_log": bench.sizes.sealing_segment_bytes}
    with (
        scratch(bench) as directory,
        serving(directory, settings, bench.sizes.timeout_s) as server,
        Crew(bench.sizes.timeout_s) as crew,
    ):
        for topic in (TOPIC, _LOAD):
            make_topic(server, 4, topic)
        _start(crew, str(server.home))
        crew.run(Phase(PACED_PER_SECOND // 10, PACED_PER_SECOND, bench.sizes.sealing_s / 10))
        for turn in range(2 * _TURNS):
            is_halted = turn % 2 == 0
            with _halted(server):
                for phase in phases[:-1]:
                    crew.run(phase)
                before = _sealed(server)
                if is_halted:
                    found[True] += crew.run(phases[-1])["consumer"].latencies_ns
                    sealed[True] += _sealed(server) - before
            if not is_halted:
                found[False] += crew.run(phases[-1])["consumer"].latencies_ns
                sealed[False] += _sealed(server) - before
    if sealed[True] or not sealed[False]:
        raise BenchError(f"segments sealed while halted: {sealed[True]}, else: {sealed[False]}")
    values = {
        f"{name}_{key}": figure
        for name, is_halted in (("sealing", False), ("halted", True))
        for key, figure in percentiles(histogram(found[is_halted])).items()
    }
    return Measurement(values=values, count=len(found[False]), note=f"{sealed[False]} sealed")


def _start(crew: Crew, home: str) -> None:
    from bench.our_jobs import PacedPolls, PacedSends
    from bench.sealing_jobs import LoadPolls, LoadSends

    crew.start("consumer", PacedPolls, home, "paced")
    crew.start("producer", PacedSends, home)
    crew.start("drain", LoadPolls, home, _LOAD)
    crew.start("load", LoadSends, home, _LOAD)


@contextmanager
def _halted(server: Serving) -> Iterator[None]:
    """The housekeeper does nothing within."""
    pid = next(pid for pid, roles in server.roles().items() if roles == "housekeeper")
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def _sealed(server: Serving) -> int:
    folder = server.home / "store" / "gantry" / "segments"
    return sum(path.name.isdigit() for path in folder.iterdir()) if folder.exists() else 0
