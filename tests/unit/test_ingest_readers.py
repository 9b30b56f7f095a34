"""Readers of Parquet see the topic as it was sent, and no file that is none of theirs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import dataset, parquet

from gantrymq.cli.ingest import Target, by_spark
from gantrymq.clients.spark.options import ReadOptions
from gantrymq.clients.spark.table.job import Ingest, IngestOptions
from gantrymq.shm.errors import SettingIllegal
from gantrymq.shm.record import Record
from tests.support.sealed import segment_of, write_segment, write_sidecars
from tests.support.trials import mends

SEGMENT_BYTES = 1 << 16
NUMBERS = ("007", "42", "1e3")
TIMES = ("2026-01-01", "2026-01-01T00")
WORDS = ("null", "true", "orders", "%RETRY%g", "|" * 90)

ALL = (*NUMBERS, *TIMES, *WORDS)


def make_table(root: Path, topics: tuple[str, ...]) -> Path:
    """A table of two messages of each topic; what readers are given."""
    records = [
        Record(topic=topic, body=b"x", queue_offset=number, store_timestamp=1_700_000_000_000)
        for number in range(2)
        for topic in topics
    ]
    view, _ = segment_of(records, SEGMENT_BYTES)
    write_segment(root / "store", 0, view)
    write_sidecars(root / "store", [0])
    read = ReadOptions.parse({"store": str(root / "store")})
    with Ingest(IngestOptions(read, str(root / "table"), "t")) as job:
        while job.step() is not None:
            pass
    return root / "table" / "data"


@pytest.fixture(params=[NUMBERS, TIMES, ALL], ids=["numbers", "times", "all"])
def topics(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """Names that parse as something else, among themselves and among others."""
    names: tuple[str, ...] = request.param
    return names


@mends("D4")
def test_a_topic_is_a_string_for_every_reader(tmp_path: Path, topics: tuple[str, ...]) -> None:
    data = make_table(tmp_path, topics)
    wanted = Counter(dict.fromkeys(topics, 2))
    found = dataset.dataset(data, partitioning="hive").to_table()
    assert found.schema.field("topic").type == pa.string()
    assert Counter(found["topic"].to_pylist()) == wanted
    assert Counter(parquet.read_table(data)["topic"].to_pylist()) == wanted
    frame = pd.read_parquet(data)
    assert pd.api.types.is_string_dtype(frame["topic"])
    assert Counter(frame["topic"]) == wanted
    one = dataset.dataset(data, partitioning="hive").to_table(
        filter=dataset.field("topic") == topics[0]
    )
    assert len(one) == 2


@mends("D4")
def test_no_folders_name_parses_as_a_number_or_a_time(
    tmp_path: Path, topics: tuple[str, ...]
) -> None:
    """The date alone is meant to."""
    data = make_table(tmp_path, topics)
    found = dataset.dataset(data, partitioning="hive").schema
    assert found.field("folder").type == pa.string()
    for path in data.iterdir():
        key, _, value = path.name.partition("=")
        assert (key, value[:6]) == ("folder", "topic-")


@mends("D4")
def test_all_that_readers_are_given_is_parquet(tmp_path: Path) -> None:
    """Polars looks into each file of a folder that it is given, whatever its name."""
    data = make_table(tmp_path, WORDS)
    assert {path.name for path in data.parent.iterdir()} == {"_gantry", "data"}
    files = [path for path in data.rglob("*") if path.is_file()]
    assert len(files) == len(WORDS)
    for path in files:
        assert path.suffix == ".parquet"
        kind = parquet.ParquetFile(path).metadata.row_group(0)
        at = parquet.ParquetFile(path).schema_arrow.names.index("topic")
        assert "RLE_DICTIONARY" in kind.column(at).encodings, "few bytes for the same name"


@mends("D7")
def test_an_ingest_on_one_machine_starts_no_jvm(tmp_path: Path) -> None:
    """Nor loads PySpark, and needs none."""
    assert not by_spark(Target(out=tmp_path))
    assert by_spark(Target(out=tmp_path, master="local[2]"))
    assert by_spark(Target(out=tmp_path, spark=True))
    assert not by_spark(Target(out=tmp_path, spark=False))
    with pytest.raises(SettingIllegal, match="--master"):
        by_spark(Target(out=tmp_path, spark=False, master="local[2]"))
    data = make_table(tmp_path, ("orders",))
    (tmp_path / "no" / "pyspark").mkdir(parents=True)
    (tmp_path / "no" / "pyspark" / "__init__.py").write_text("raise ImportError('not here')")
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "no"), "JAVA_HOME": "/nonexistent"}
    words = ["--store", str(tmp_path / "store"), "--out", str(tmp_path / "other")]
    line = [sys.executable, "-m", "gantrymq", "ingest", *words]
    ran = subprocess.run(line, env=environment, capture_output=True, check=False)
    assert ran.returncode == 0, ran
    assert pd.read_parquet(tmp_path / "other" / "data").equals(pd.read_parquet(data))
