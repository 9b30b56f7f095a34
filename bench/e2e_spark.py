"""Spark over a log: rows per second of reads, of the same rows elsewhere, and of an ingest.

A local Spark of two cores, in this process, whose Python workers are warm: each read is made once
before it is timed. Only sealed segments are read, so each row is checked by its blocks' CRCs.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench.crew import BenchError, Crew, Phase, Unavailable
from bench.harness import Bench
from bench.measure import NS_PER_S, Measurement
from bench.ours import Serving, make_topic, scratch, serving
from bench.sizes import BODIES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Topic, offsets, times, tag, body.
COLUMNS: Final = (
    "topic,queue_id,queue_offset,physical_offset,born_timestamp,store_timestamp,tag,body"
)
CORES: Final = 2
_SEGMENTS: Final = 8
_QUEUES: Final = 4
_RECORD_EXTRA: Final = 130
"""About what a record takes in the log beside its body; it only plans the fill."""
_LOOK_S: Final = 0.05


def reads(bench: Bench, body_bytes: int) -> Measurement:
    """Rows per second of a log: by Spark, by pyarrow alone, and of the same rows as Parquet."""
    from gantrymq.clients.spark.options import COLUMN_TYPES

    with scratch(bench) as directory:
        store = str(sealed_log(bench, directory, body_bytes) / "store")
        count, plain = _plain(bench, store)
        with _spark() as spark:
            frame = _frame(spark, store, COLUMNS)
            if (found := frame.count()) != count:
                raise BenchError(f"Spark has {found} rows, the log {count}")
            _noop(frame)
            values = {"plain": plain, "rate": count / _seconds(lambda: _noop(frame))}
            every = _frame(spark, store, ",".join(COLUMN_TYPES))
            _noop(every)
            values["all"] = count / _seconds(lambda: _noop(every))
            table = str(directory / "rows.parquet")
            frame.write.parquet(table)
            rows = spark.read.parquet(table)
            _noop(rows)
            values["parquet"] = count / _seconds(lambda: _noop(rows))
            values["ingest"] = count / _seconds(lambda: _ingest(store, directory, count))
    return Measurement(values=values, count=count)


def sealed_log(bench: Bench, directory: Path, body_bytes: int) -> Path:
    """The home of a stopped broker, its log filled and, but for the last segment, sealed."""
    from bench.spark_jobs import SizedSends

    size = bench.sizes.spark_bytes
    count = size // (body_bytes + _RECORD_EXTRA) // BODIES * BODIES
    settings = {"mapped_file_size_commit_log": size // _SEGMENTS}
    with serving(directory, settings, bench.sizes.timeout_s) as server:
        make_topic(server, _QUEUES)
        with Crew(bench.sizes.timeout_s) as crew:
            crew.start("producer", SizedSends, str(server.home), body_bytes)
            crew.run(Phase(count))
        _wait_sealed(server, time.monotonic() + bench.sizes.timeout_s)
    return server.home


def _wait_sealed(server: Serving, deadline: float) -> None:
    from gantrymq.shm import layout, sidecar

    store = server.home / "store"
    while True:
        log = [path.name for path in (store / "commitlog").iterdir() if path.name.isdecimal()]
        folder = store / sidecar.DIRECTORY
        done = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
        appended = server.board().word(layout.BOARD_APPENDED)
        used = [name for name in log if int(name) < appended]
        if len(done & set(used)) >= len(used) - 1 > 0:
            return
        if time.monotonic() > deadline:
            raise BenchError(f"{len(done)} of {len(used)} segments were sealed")
        time.sleep(_LOOK_S)


def _plain(bench: Bench, store: str) -> tuple[int, float]:
    """Rows of the log, and rows per second of as many processes as Spark has cores."""
    from bench.spark_jobs import PlainPass

    with Crew(bench.sizes.timeout_s) as crew:
        for part in range(CORES):
            crew.start(f"pass-{part}", PlainPass, store, COLUMNS, part, CORES)
        crew.run(Phase(0))
        outcomes = crew.run(Phase(0)).values()
    count = sum(outcome.count for outcome in outcomes)
    ended = max(outcome.ended_ns for outcome in outcomes)
    return count, count * NS_PER_S / (ended - min(outcome.started_ns for outcome in outcomes))


@contextmanager
def _spark() -> Iterator[SparkSession]:
    try:
        from gantrymq.spark import session
    except ImportError as error:
        raise Unavailable(f"{error}: the extra `spark` is not installed") from None
    from gantrymq.shm.errors import SettingIllegal

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Spark's own, about versions
        try:
            spark = session("bench", master=f"local[{CORES}]", memory="1g")
        except SettingIllegal as error:
            raise Unavailable(str(error)) from None
        try:
            yield spark
        finally:
            spark.stop()


def _frame(spark: SparkSession, store: str, columns: str) -> DataFrame:
    return spark.read.format("gantrymq").options(store=store, columns=columns).load()


def _noop(frame: DataFrame) -> None:
    """Every row to a sink that drops it."""
    frame.write.format("noop").mode("overwrite").save()


def _seconds(work: Callable[[], None]) -> float:
    started = time.monotonic()
    work()
    return time.monotonic() - started


def _ingest(store: str, directory: Path, count: int) -> None:
    """What `gantrymq ingest` does, in the session that runs: all columns, and durable at the end.

    Raises BenchError if the table lacks rows.
    """
    from gantrymq.cli.ingest import SparkRunner
    from gantrymq.clients.spark.options import ReadOptions
    from gantrymq.clients.spark.table.job import Ingest, IngestOptions

    options = IngestOptions(ReadOptions.parse({"store": store}), str(directory / "table"), "bench")
    with Ingest(options, SparkRunner(f"local[{CORES}]", "1g")) as job:
        while job.step() is not None:
            pass
        if job.manifest.rows != count:
            raise BenchError(f"the table has {job.manifest.rows} rows, the log {count}")
