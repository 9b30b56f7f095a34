"""`gantrymq ingest`: keeps a table of Parquet files equal to the log of a store."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gantrymq.cli.options import grouped

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from gantrymq.cli.ingest_show import Progress
    from gantrymq.clients.spark.table.job import Ingest, IngestOptions, Run

HELP = """Keep a table of Parquet files equal to the log: each message once, whatever is killed.

Files are OUT/data/folder=topic-T/date=YYYY-MM-DD/*.parquet, written aside and renamed; any reader
of Parquet sees each message of OUT/data once. OUT/_gantry/manifest.json names them and the position
that the next run goes on from. All that is durable is read, also of the segment being written.
Retention leaves what the table does not have yet (--name is its pin).

\b
Example: gantrymq ingest --store ~/.local/state/gantrymq/store --out flights --topic flights
Example: gantrymq ingest --store ./stopped --out table --json
Example: gantrymq ingest --store ./stopped --out paid --filter "TAGS = 'paid'"
Exit codes: 0 done, or stopped by SIGTERM; 2 an option is wrong, a topic is not there, or the store
is not the table's; 70 a record is damaged, or a part
of the log is gone; 74 an I/O error; 75 another ingest writes the table.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What is read."""

    store: Annotated[Path, typer.Option(help="Root of the store: HOME/store.")]
    topic: Annotated[
        list[str] | None, typer.Option(help="Only this topic; may be given again.")
    ] = None
    allow_missing: Annotated[
        bool, typer.Option("--allow-missing", help="Also a --topic that is not there yet.")
    ] = False
    filter: Annotated[
        str, typer.Option(help="Only messages whose properties fit: SQL92, as subscriptions have.")
    ] = ""
    columns: Annotated[
        str | None, typer.Option(help="Only these, with commas; more may be added by a later run.")
    ] = None
    active: Annotated[
        bool,
        typer.Option(
            "--active/--no-active", help="Also what is durable of the segment being written."
        ),
    ] = True
    bad_records: Annotated[
        str, typer.Option(help="fail, or report: damaged ones are rows with crc_ok false.")
    ] = "fail"
    on_data_loss: Annotated[
        str, typer.Option(help="fail, or report: go on behind what is gone, and note the gap.")
    ] = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where to, and how."""

    out: Annotated[Path, typer.Option(help="Folder of the table; made if it is not there.")]
    name: Annotated[
        str | None, typer.Option(help="Name of the pin in the store; else that of the folder.")
    ] = None
    until_ratio: Annotated[
        int, typer.Option(min=1, max=100, help="Percent of the disk above which the pin yields.")
    ] = 100
    continuous: Annotated[
        bool,
        typer.Option(
            "--continuous",
            help="Go on until SIGTERM or SIGINT; a line a minute, but on a terminal.",
        ),
    ] = False
    merge: Annotated[
        bool,
        typer.Option(help="Make one of many small files; queries that run meanwhile may fail."),
    ] = True
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between looks at the log.")] = 5.0
    spark: Annotated[
        bool | None,
        typer.Option(
            help="Run tasks by Spark, or in this process alone; else as --master is given or not."
        ),
    ] = None
    master: Annotated[
        str | None,
        typer.Option(help="Spark's master (local[*], or a cluster's: store and table are shared)."),
    ] = None
    memory: Annotated[str, typer.Option(help="Heap of Spark's JVM.")] = "1g"
    json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print each step, the summary, and once a quiet minute, a line of JSON."
        ),
    ] = False


@grouped
def ingest(source: Source, target: Target) -> None:
    """Run the job."""
    from gantrymq.clients.spark.needs import explained

    packages = ("pyspark", "pyarrow") if by_spark(target) else ("pyarrow",)
    with stopping() as stop, explained(*packages):  # signals are heard before all that takes long
        _ingest(source, target, stop)


def _ingest(source: Source, target: Target, stop: threading.Event) -> None:
    from gantrymq.cli.ingest_show import Progress

    options = options_of(source, target)
    every_s = target.every if target.continuous else None
    with (
        Progress(
            sys.stdout, sys.stderr, as_json=target.json, follows=target.continuous
        ) as progress,
        tasks_run(target) as run,
    ):
        run_ingest(options, run, progress, stop, every_s, merge=target.merge)


def options_of(source: Source, target: Target) -> IngestOptions:
    """Options of the job. Raises SettingIllegal."""
    from gantrymq.clients.spark.options import ReadOptions
    from gantrymq.clients.spark.table.job import IngestOptions
    from gantrymq.shm.errors import SettingIllegal

    words = {"store": str(source.store.resolve()), "topic": ",".join(source.topic or ())}
    words |= {"badRecords": source.bad_records, "includeActive": str(source.active)}
    words["filter"] = source.filter
    words["allowMissing"] = str(source.allow_missing)
    if source.columns is not None:
        words["columns"] = source.columns
    if source.on_data_loss not in ("fail", "report"):
        raise SettingIllegal(f"--on-data-loss {source.on_data_loss} is not fail or report")
    out = target.out.resolve()
    return IngestOptions(
        ReadOptions.parse(words),
        str(out),
        target.name or out.name,
        target.until_ratio,
        source.on_data_loss == "report",
    )


def run_ingest(
    options: IngestOptions,
    run: Run,
    progress: Progress,
    stop: threading.Event,
    every_s: float | None = None,
    *,
    merge: bool = True,
) -> None:
    """Step until the table has all, or with a pause of `every_s` for ever; `stop` ends both.

    With `merge` small files are merged, also those that earlier runs have left. A step that has
    begun is finished. Raises what Ingest does.
    """
    from gantrymq.clients.spark.table.job import Ingest

    with Ingest(options, run) as job:
        progress.begin(job.manifest)
        while not stop.is_set():
            stepped = _step(job, progress)
            if (merge and _merge(job, progress)) or stepped:
                continue
            progress.look(job.manifest, 0)
            if every_s is None or stop.wait(every_s):
                break
        progress.end(job.manifest, job.left_out(), active=options.read.include_active)


def _step(job: Ingest, progress: Progress) -> bool:
    """One step; False if the table has all."""
    done = job.step()
    if done is None:
        return False
    progress.step(done)
    progress.look(job.manifest, done.lag_bytes)
    return True


def _merge(job: Ingest, progress: Progress) -> bool:
    """One compaction; False if there are not many small files."""
    merged = job.compact()
    if merged is None:
        return False
    progress.step(merged)
    return True


@contextmanager
def tasks_run(target: Target) -> Iterator[Run]:
    """Who runs tasks: Spark, which starts with the first of them, or this process."""
    from gantrymq.clients.spark.table.job import run_here

    if not by_spark(target):
        yield run_here
        return
    runner = SparkRunner(target.master or "local[*]", target.memory)
    try:
        yield runner
    finally:
        runner.close()


def by_spark(target: Target) -> bool:
    """Whether Spark runs the tasks: on one machine a JVM costs more than it brings.

    Raises SettingIllegal.
    """
    if target.spark is False and target.master is not None:
        from gantrymq.shm.errors import SettingIllegal

        raise SettingIllegal("--master names Spark's master: leave it or --no-spark out")
    return target.master is not None if target.spark is None else target.spark


class SparkRunner:
    """Tasks as jobs of a session: one of its own, or the one that this process has."""

    def __init__(self, master: str, memory: str) -> None:
        self._master = master
        self._memory = memory
        self._spark: SparkSession | None = None
        self._is_own = False

    def __call__(self, function: Callable[[Any], Any], tasks: Sequence[Any]) -> list[Any]:
        """Run all of them. Raises the error of ours that one of them has met, or Spark's."""
        from gantrymq.spark import own_error

        spark = self._spark or self._start()
        try:
            rdd = spark.sparkContext.parallelize(tasks, len(tasks))
            return list(rdd.map(function).collect())
        except Exception as failure:
            raise own_error(failure) or failure from failure

    def _start(self) -> SparkSession:
        from pyspark.sql import SparkSession

        from gantrymq.spark import session

        self._is_own = SparkSession.getActiveSession() is None
        before = signal.getsignal(signal.SIGINT)
        self._spark = session("gantrymq ingest", master=self._master, memory=self._memory)
        if threading.get_ident() == threading.main_thread().ident:
            signal.signal(signal.SIGINT, before)  # Spark takes it and would end the step
        return self._spark

    def close(self) -> None:
        """End the session if it is this one's own."""
        from gantrymq.spark import has_no_java

        if self._spark is None or not self._is_own:
            return
        try:
            self._spark.stop()
        except Exception as failure:
            if not has_no_java(failure):  # else it has ended by itself, which was said before
                raise


@contextmanager
def stopping() -> Iterator[threading.Event]:
    """An event that SIGTERM and SIGINT set; outside of the main thread signals stay as they are."""
    from gantrymq.clients.signals import heard

    stop = threading.Event()
    with heard(stop.set):
        yield stop
