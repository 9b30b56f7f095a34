"""The settings of the tests' Spark, and an archive of the classes that it loads.

Half of what Java uses until a first query has run goes into loading and linking classes, the same
ones at each start. `make setup` keeps them beside the packages, as the JVM maps them (class data
sharing); without that file, or with one of other jars, which Java passes over, Spark starts slowly.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyspark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_JAVA: Final = "spark.driver.extraJavaOptions"
SETTINGS: Final = {
    "spark.sql.shuffle.partitions": "2",
    # Small data: most of the time would go into compiling, by Java and by Spark, what runs a few
    # times only, and into verifying the classes of Spark.
    _JAVA: "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    " -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote -XX:CompileThresholdScaling=3"
    " -Xlog:cds=off -Xlog:cds+dynamic=off",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}


def start(folder: Path = Path(sys.prefix)) -> SparkSession:
    """Start the tests' Spark with the archive of `folder`, if it is there."""
    path = archive(folder)
    return _start(f"-XX:SharedArchiveFile={path}" if path.exists() else "")


def _start(option: str) -> SparkSession:
    from gantrymq.spark import session

    settings = SETTINGS | {_JAVA: f"{SETTINGS[_JAVA]} {option}"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Spark's own, about other packages' versions
        return session("tests", master="local[2,2]", memory="512m", settings=settings)


def end(spark: SparkSession) -> None:
    """Stop it and wait for its Java, so that what it and its workers used is counted."""
    from pyspark import SparkContext

    spark.stop()
    gateway = SparkContext._gateway
    assert gateway is not None, "it is made with the first session"
    gateway.shutdown()
    gateway.proc.stdin.close()  # it ends with whoever has started it
    gateway.proc.wait()


def archive(folder: Path) -> Path:
    """Where the archive for this Java, this Spark and these options is, or would be."""
    home = Path(os.environ.get("JAVA_HOME", "/nonexistent"))
    release = home / "release"
    java = release.read_bytes() if release.exists() else str(home).encode()
    made_by = (java, pyspark.__version__, str(SETTINGS))
    digest = hashlib.sha256(repr(made_by).encode()).hexdigest()[:16]
    return folder / f"spark-classes-{digest}.jsa"


def make(folder: Path) -> None:
    """Run some of what tests run, and keep the classes that it took, unless that is there."""
    path = archive(folder)
    if path.exists():
        return
    for old in folder.glob("spark-classes-*"):
        old.unlink()
    print("setup: keeping Spark's classes for later starts (half a minute)", file=sys.stderr)
    made = path.with_suffix(f".{os.getpid()}")
    spark = _start(f"-XX:ArchiveClassesAtExit={made}")
    with tempfile.TemporaryDirectory() as scratch:
        try:
            _use(spark, Path(scratch))
        finally:
            end(spark)
    made.rename(path)


def _use(spark: SparkSession, folder: Path) -> None:
    from tests.support.golden import unpack

    store = str(unpack("plain", folder / "golden").store)
    rows = spark.read.format("gantrymq").option("store", store).load()
    rows.createOrReplaceTempView("log")
    spark.sql(
        "SELECT l.topic, count(*) AS n, max(l.store_timestamp) AS s, first(t.q) AS q"
        " FROM log AS l JOIN (SELECT topic, max(queue_id) AS q FROM log GROUP BY topic) AS t"
        " ON l.topic = t.topic WHERE length(l.body) > 0 GROUP BY l.topic ORDER BY n"
    ).collect()
    stream = spark.readStream.format("gantrymq").option("store", store).load()
    kept = stream.selectExpr("topic", "to_json(struct(queue_id)) AS j").writeStream
    query = (
        kept.format("parquet").option("checkpointLocation", str(folder / "at"))
        .trigger(availableNow=True).start(str(folder / "rows"))
    )  # fmt: skip
    query.awaitTermination()
    spark.read.parquet(str(folder / "rows")).distinct().count()


if __name__ == "__main__":
    make(Path(sys.prefix))
