"""The lines of Spark: rows per second of a log, of the same rows elsewhere, and of an ingest."""

from __future__ import annotations

from bench.harness import Bound, Line, at_most, ratio_at_least, value
from bench.sizes import Sizes


def spark(sizes: Sizes) -> list[Line]:
    """Reads by a local Spark of two cores; an ingest in the same, and beside a broker."""
    return [
        *_reads("spark-100", f"{sizes.spark_bytes / 2**20:,.0f} MiB of log, 100 B"),
        *_reads("spark-1k", f"{sizes.spark_bytes / 2**20:,.0f} MiB of log, 1 KiB"),
        Line(
            "spark-follow",
            "`ingest --continuous`: from stored to visible in the table, most",
            value("late", "s", "spark-follow", "late_s"),
            None,
            goal=Bound("ours", "<=", 10),
        ),
        Line(
            "spark-beside",
            "sends lost by a running `ingest --continuous`, nice 10",
            value("lost", "%", "spark-beside", "lost_percent"),
            None,
            *at_most(40, 10),
        ),
    ]


def _reads(name: str, what: str) -> list[Line]:
    """Bounds are those of 100 bytes."""
    small = name == "spark-100"
    rate = value("Spark", "/s", name, "rate")
    plain = value("pyarrow alone, two processes", "/s", name, "plain")
    parquet = value("Spark reading these from Parquet", "/s", name, "parquet")
    read = f"Spark, {what}: topic, offsets, times, tag, body, checked, to a no-op sink"

    def at_least(figure: float) -> Bound | None:
        return Bound("ours", ">=", figure) if small else None

    return [
        Line(name, read, rate, None, at_least(0.5e6), at_least(1.5e6)),
        Line(name, read, rate, plain, None, ratio_at_least(0.5)),
        Line(name, read, rate, parquet, None, ratio_at_least(0.5)),
        Line(
            name,
            f"Spark, {what}: all columns, to a no-op sink",
            value("all columns", "/s", name, "all"),
            None,
            None,
            at_least(0.5e6),
        ),
        Line(
            name,
            f"`ingest`, {what}: all columns, to Parquet",
            value("ingest", "/s", name, "ingest"),
            None,
            at_least(0.25e6),
            at_least(0.7e6),
        ),
    ]
