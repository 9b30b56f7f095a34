"""`gantrymq ingest`: the sealed segments of a store into Parquet, by a local Spark."""

from __future__ import annotations

import json as json_text
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO
from urllib.parse import unquote

import typer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_REFRESH_S = 0.25
_OPEN_FILES_MAX = 64  # per task; a task that meets more topics sorts the rest


@dataclass(frozen=True, slots=True)
class Summary:
    """What one run did; `ranges` are the tasks of about 64 MiB that the segments were cut into."""

    store: str
    out: str
    ranges: int
    rows: int
    rows_of_topic: dict[str, int]
    parquet_bytes: int
    seconds: float


def ingest(
    store: Annotated[Path, typer.Option(help="Root of the store: HOME/store.")],
    out: Annotated[Path, typer.Option(help="Folder for the Parquet files; must not exist.")],
    topic: Annotated[
        list[str] | None, typer.Option(help="Only this topic; may be given again.")
    ] = None,
    *,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the folder.")] = False,
    memory: Annotated[str, typer.Option(help="Heap of Spark's JVM.")] = "1g",
    json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Write the sealed segments of a store as Parquet, one folder per topic.

    The segment that is being written is left out. A damaged record ends the run with exit code 70.

    \b
    Example: gantrymq ingest --store ~/.local/state/gantrymq/store --out flights --topic flights
    Exit codes: 0 done; 2 an option is wrong; 70 a record is damaged; 74 an I/O error.
    """
    summary = ingest_store(store, out, topic or [], overwrite=overwrite, memory=memory)
    if json:
        print(json_text.dumps(asdict(summary)))
    else:
        speed = summary.rows / max(summary.seconds, 1e-9)
        print(
            f"{summary.rows} messages of {len(summary.rows_of_topic)} topics into {summary.out}"
            f" in {summary.seconds:.1f} s, {speed:,.0f}/s"
        )


def ingest_store(
    store: Path, out: Path, topics: list[str], *, overwrite: bool = False, memory: str = "1g"
) -> Summary:
    """Run the job in a Spark session of its own, or in the one that this process has.

    Raises SettingIllegal if there is no store or `out` exists, Corrupt for a damaged record,
    StoreFailed if a segment goes meanwhile.
    """
    from clients.spark.options import ReadOptions
    from clients.spark.scan import plan
    from gantrymq.spark import own_error
    from shm.errors import SettingIllegal

    options = {"store": str(store.resolve())}
    if topics:
        options["topic"] = ",".join(topics)
    if out.exists() and not overwrite:
        raise SettingIllegal(f"{out} exists: name another folder, or replace it by --overwrite")
    ranges = len(plan(ReadOptions.parse(options)))  # a wrong store ends here, without Spark
    started = time.monotonic()
    with _spark(memory) as spark, _progress(spark, sys.stderr):
        data = spark.read.format("gantrymq").options(**options).load()
        try:
            mode = "overwrite" if overwrite else "error"
            data.write.partitionBy("topic").mode(mode).parquet(str(out.resolve()))
        except Exception as failure:
            raise own_error(failure) or failure from failure
    seconds = time.monotonic() - started
    per_topic, size = _written(out)
    return Summary(str(store), str(out), ranges, sum(per_topic.values()), per_topic, size, seconds)


@contextmanager
def _spark(memory: str) -> Iterator[SparkSession]:
    """Spark for one run: a session that was there before stays."""
    from pyspark.sql import SparkSession

    from gantrymq.spark import session

    existing = SparkSession.getActiveSession() is not None
    # One open file per topic instead of a sort of all rows by topic.
    settings = {"spark.sql.maxConcurrentOutputFileWriters": str(_OPEN_FILES_MAX)}
    spark = session("gantrymq ingest", memory=memory, settings=settings)
    try:
        yield spark
    finally:
        if not existing:
            spark.stop()


def _written(out: Path) -> tuple[dict[str, int], int]:
    """Rows per topic and bytes of the files, from their footers."""
    from pyarrow import parquet

    rows: dict[str, int] = {}
    size = 0
    for file in sorted(out.glob("topic=*/*.parquet")):
        topic = unquote(file.parent.name.removeprefix("topic="))
        rows[topic] = rows.get(topic, 0) + parquet.read_metadata(file).num_rows
        size += file.stat().st_size
    return rows, size


@contextmanager
def _progress(spark: SparkSession, stream: TextIO) -> Iterator[None]:
    """Show finished tasks of the running job while the body runs, if the stream is a terminal."""
    if not stream.isatty():
        yield
        return
    done = threading.Event()
    painter = threading.Thread(target=_paint, args=(spark, stream, done), daemon=True)
    painter.start()
    try:
        yield
    finally:
        done.set()
        painter.join()


def _paint(spark: SparkSession, stream: TextIO, done: threading.Event) -> None:
    from rich.console import Console
    from rich.progress import Progress

    tracker = spark.sparkContext.statusTracker()
    with Progress(console=Console(file=stream), transient=True) as bar:
        task = bar.add_task("planning", total=None)
        while not done.wait(_REFRESH_S):
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
            known = [stage for stage in stages if stage is not None]
            if known:
                total = sum(stage.numTasks for stage in known)
                finished = sum(stage.numCompletedTasks for stage in known)
                bar.update(task, description="writing", total=total, completed=finished)
