"""`gantrymq ingest --continuous` beside a broker: how late rows are, and what it takes from sends.

It runs as the unit for systemd has it: a process of its own, with nice 10.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench.crew import BenchError, Crew, Phase
from bench.harness import Bench
from bench.measure import NS_PER_S, Measurement
from bench.ours import Serving, scratch, serving, stop
from bench.sizes import PIPELINE_COMMANDS, warm_up

if TYPE_CHECKING:
    from gantrymq.clients.spark.table.manifest import Manifest

_PER_SECOND: Final = 1_000
_LOOK_S: Final = 0.02
_COMMAND: Final = (
    "nice", "-n", "10", sys.executable, "-m", "gantrymq", "ingest", "--spark", "--continuous",
)  # fmt: skip
#: Without an end: it looks again as soon as it is done.
_AT_ONCE: Final = ("--every", "0.1")


def follow(bench: Bench) -> Measurement:
    """Messages on schedule: `late_s`, from the oldest message of a step until its file is there."""
    from bench.spark_jobs import TrickleSends

    count = int(bench.sizes.spark_follow_s * _PER_SECOND)
    with _serving(bench) as (directory, server), Crew(bench.sizes.timeout_s) as crew:
        crew.start("producer", TrickleSends, str(server.home))
        crew.run(Phase(_PER_SECOND, _PER_SECOND))
        with _ingesting(server, directory / "table") as table:
            known = _until(bench, table, _PER_SECOND)
            with ThreadPoolExecutor(1) as threads:
                sends = threads.submit(crew.run, Phase(count, _PER_SECOND))
                late = _lateness(bench, table, known, count)
                sends.result()
    return Measurement(values={"late_s": max(late), "steps": float(len(late))}, count=count)


def _lateness(bench: Bench, table: Path, known: Manifest, count: int) -> list[float]:
    """Seconds of each step until `count` more rows are there: how old was its oldest message."""
    late = []
    deadline = time.monotonic() + bench.sizes.timeout_s + bench.sizes.spark_follow_s
    wanted = known.rows + count
    while known.rows < wanted:
        found, now_s = _manifest(table), time.time()
        if found is not None and found.rows > known.rows:
            late.append(now_s - _oldest_s(table, found, known))
            known = found
        if time.monotonic() > deadline:
            raise BenchError(f"the table has {known.rows} rows, not {wanted}")
        time.sleep(_LOOK_S)
    return late


def beside(bench: Bench) -> Measurement:
    """Messages sent per second until all is in the log: `alone`, and `beside` a running ingest."""
    from bench.timer_jobs import PlainSends

    count = bench.sizes.messages
    with _serving(bench) as (directory, server), Crew(bench.sizes.timeout_s) as crew:
        crew.start("producer", PlainSends, str(server.home))

        def rate() -> float:
            outcome = crew.run(Phase(count))["producer"]
            return outcome.count * NS_PER_S / (outcome.ended_ns - outcome.started_ns)

        crew.run(Phase(warm_up(count)))
        alone = rate()
        sent = warm_up(count) + count
        with _ingesting(server, directory / "table", *_AT_ONCE) as table:
            _until(bench, table, sent)
            crew.run(Phase(PIPELINE_COMMANDS))
            before = _until(bench, table, sent + PIPELINE_COMMANDS)
            found = rate()
            taken = _until(bench, table, before.rows + 1).rows - before.rows
    values = {"alone": alone, "beside": found, "lost_percent": 100 * (1 - found / alone)}
    return Measurement(values=values, count=count, note=f"{taken} rows were in the table already")


@contextmanager
def _serving(bench: Bench) -> Iterator[tuple[Path, Serving]]:
    timeout_s = bench.sizes.timeout_s
    with scratch(bench) as directory, serving(directory, {}, timeout_s) as server:
        yield directory, server


@contextmanager
def _ingesting(server: Serving, table: Path, *more: str) -> Iterator[Path]:
    """Run the command until the end of the block, which it must reach; give the table's folder."""
    words = ("--store", str(server.home / "store"), "--out", str(table), "--active", *more)
    log_path = table.with_suffix(".log")
    with log_path.open("wb") as log:
        process = subprocess.Popen([*_COMMAND, *words], stdout=log, stderr=log)
    try:
        yield table
        if process.poll() is not None:
            said = log_path.read_text(errors="replace")[-2000:]
            raise BenchError(f"ingest ended with exit code {process.returncode}:\n{said}")
    finally:
        stop(process, "ingest")


def _manifest(table: Path) -> Manifest | None:
    from gantrymq.clients.spark.table.manifest import load_manifest
    from gantrymq.shm.storage import PosixStorage

    return load_manifest(PosixStorage(str(table)))


def _until(bench: Bench, table: Path, rows: int) -> Manifest:
    """The table once it has so many rows."""
    deadline = time.monotonic() + bench.sizes.timeout_s
    while (found := _manifest(table)) is None or found.rows < rows:
        if time.monotonic() > deadline:
            raise BenchError(f"the table has {found.rows if found else 0} rows, not {rows}")
        time.sleep(_LOOK_S)
    return found


def _oldest_s(table: Path, found: Manifest, known: Manifest) -> float:
    """The first store time, in Unix seconds, of what came behind the known table's position."""
    from pyarrow import parquet

    column = "store_timestamp"
    times = [
        parquet.read_table(table / file.path, columns=[column], partitioning=None)[column]
        for file in found.files
        if file.start >= known.position
    ]
    return float(min(each.to_numpy().min().astype("int64") for each in times)) / 1e6
