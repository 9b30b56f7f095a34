"""A real local Spark reads stores of a real RocketMQ, and `gantrymq ingest` writes them."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from py4j.protocol import Py4JNetworkError

from gantrymq.cli import ingest as ingest_cli
from gantrymq.cli.ingest_show import Progress
from gantrymq.clients.spark.options import ReadOptions
from gantrymq.clients.spark.table.job import IngestOptions, run_here
from gantrymq.shm.errors import Corrupt, SettingIllegal, Unavailable
from gantrymq.spark import own_error
from tests.support.golden import GoldenStore, dump_lines
from tests.support.sealed import write_sidecars
from tests.support.spark_rows import comparable, expected_row
from tests.support.spark_rows import rows_of as log_rows
from tests.support.tables import listed, require_equal
from tests.support.terminal import Terminal
from tests.support.trials import mends
from tests.unit.test_ingest_readers import NUMBERS, make_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.filterwarnings("ignore")  # Spark's own, about versions and sockets
Golden = Callable[[str], GoldenStore]
SHOWN = ("topic", "queue_offset", "physical_offset", "body")


def frame(spark: SparkSession, store: Path, **options: str) -> DataFrame:
    reader = spark.read.format("gantrymq").option("store", str(store))
    return reader.options(**options).load()


def rows_of(data: DataFrame) -> list[dict[str, Any]]:
    rows = [row.asDict() for row in data.collect()]
    rows.sort(key=lambda row: row["physical_offset"])
    for row in rows:  # Spark hands out times without a zone, in the session's, which is UTC
        for name in ("born_timestamp", "store_timestamp"):
            row[name] = row[name] and row[name].astimezone()
    return rows


@pytest.mark.parametrize("name", ["plain", "crc"])
def test_rows_equal_the_dump_of_a_real_rocketmq(
    spark: SparkSession, golden: Golden, name: str
) -> None:
    data = frame(spark, golden(name).store, includeSystem="true", includeActive="true")
    lines = dump_lines(name, "record")
    rows = rows_of(data)
    assert len(rows) == len(lines)
    for row, line in zip(rows, lines, strict=True):
        assert comparable(row, line) == expected_row(line)


def test_a_query_selects_and_groups(spark: SparkSession, golden: Golden) -> None:
    store = golden("plain").store
    counted = frame(spark, store, includeActive="true").groupBy("topic").count().collect()
    found = {row["topic"]: row["count"] for row in counted}
    topics = [line["topic"] for line in dump_lines("plain", "record")]
    assert found == {topic: topics.count(topic) for topic in set(topics)}
    one = frame(spark, store, includeActive="true", topic=topics[0], columns="body,topic")
    assert one.columns == ["body", "topic"]
    assert one.count() == topics.count(topics[0])


def test_a_store_without_sealed_segments_is_an_empty_frame(
    spark: SparkSession, golden: Golden, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    (store / "commitlog").mkdir(parents=True)
    shutil.copy(golden("plain").store / "commitlog" / f"{0:020d}", store / "commitlog")
    assert frame(spark, store, includeActive="false").count() == 0
    assert frame(spark, store).count() == len(log_rows(store)) > 0


@pytest.fixture
def damaged(golden: Golden, tmp_path: Path) -> tuple[Path, int]:
    """A copy of `crc` with sidecars and one flipped bit, and the hit record's position."""
    store = Path(shutil.copytree(golden("crc").store, tmp_path / "store"))
    write_sidecars(store)
    position = int(dump_lines("crc", "record")[3]["physicalOffset"])
    first = store / "commitlog" / f"{0:020d}"
    data = bytearray(first.read_bytes())
    data[position + 20] ^= 4  # its queue offset
    first.write_bytes(data)
    return store, position


def test_damage_ends_the_job_or_is_reported(spark: SparkSession, damaged: tuple[Path, int]) -> None:
    store, position = damaged
    with pytest.raises(Exception, match="a checksum or a length") as caught:
        frame(spark, store, includeSystem="true").count()
    found = own_error(caught.value)
    assert isinstance(found, Corrupt)
    assert f"position {position}" in str(found)
    reported = frame(spark, store, includeSystem="true", badRecords="report")
    bad = reported.where("not crc_ok").collect()
    assert [row["physical_offset"] for row in bad] == [position]
    raw = (store / "commitlog" / f"{0:020d}").read_bytes()[position:][: bad[0]["bad_size"]]
    assert (bad[0]["bad_bytes"], bad[0]["queue_offset"], bad[0]["keys"]) == (raw, None, None)


@pytest.mark.parametrize("error", [ConnectionRefusedError(111, "refused"), Py4JNetworkError("x")])
def test_java_that_has_ended_is_named(error: Exception) -> None:
    """What py4j raises when nobody answers it."""
    found = own_error(error)
    assert isinstance(found, Unavailable)
    assert "Java process has ended" in str(found)


def test_a_wrong_option_is_named(spark: SparkSession, golden: Golden) -> None:
    with pytest.raises(Exception, match="no option 'topics'") as caught:
        frame(spark, golden("plain").store, topics="a").count()
    assert isinstance(own_error(caught.value), SettingIllegal)


def test_a_stream_has_each_message_once_and_goes_on(
    spark: SparkSession, golden: Golden, tmp_path: Path
) -> None:
    """Two runs of one checkpoint; between them a segment is sealed."""
    store = Path(shutil.copytree(golden("plain").store, tmp_path / "store"))
    last = max((store / "commitlog").iterdir())
    aside = last.rename(tmp_path / last.name)
    for segments in (4, 5):
        stream = spark.readStream.format("gantrymq").options(
            store=str(store),
            maxRowsPerTrigger="400",
            columns="topic,queue_id,queue_offset",
            includeActive="false",
        )
        writer = stream.load().writeStream.format("parquet").trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(tmp_path / "at")).start(
            str(tmp_path / "rows")
        )
        assert query.awaitTermination(60)
        offset = json.loads(query.recentProgress[-1]["sources"][0]["endOffset"])
        assert offset["position"] == segments << 18
        assert offset["record"] < offset["position"], "what stands before it is kept, too"
        if segments == 4:
            sizes = [batch["numInputRows"] for batch in query.recentProgress]
            assert len([size for size in sizes if 0 < size <= 400]) == len(sizes) > 1
            aside.rename(last)
    written = spark.read.parquet(str(tmp_path / "rows")).collect()
    words = {"columns": "topic,queue_id,queue_offset", "includeActive": "false"}
    rows = log_rows(store, **words)
    assert sorted(tuple(row) for row in written) == sorted(tuple(row.values()) for row in rows)


def test_sparks_filters_are_taken(spark: SparkSession, golden: Golden) -> None:
    store = golden("plain").store
    rows = log_rows(store)
    middle = rows[len(rows) // 2]
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        data = frame(spark, store, pushFilters="true", bodyFormat="utf8", columns=",".join(SHOWN))
        chosen = data.where(data.topic == middle["topic"]).where(
            data.physical_offset >= middle["physical_offset"]
        )
        chosen = chosen.where(data.queue_offset.between(middle["queue_offset"], 1 << 40))
        found = [tuple(row) for row in chosen.collect()]
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    expected = [
        (
            row["topic"],
            row["queue_offset"],
            row["physical_offset"],
            row["body"].decode(errors="replace"),
        )
        for row in rows
        if row["topic"] == middle["topic"]
        and row["physical_offset"] >= middle["physical_offset"]
        and row["queue_offset"] >= middle["queue_offset"]
    ]
    assert sorted(found) == sorted(expected)


def run_ingest(capsys: pytest.CaptureFixture[str], *words: str | Path) -> list[dict[str, Any]]:
    """Run the command in this process, which has a session; its lines of JSON."""
    from gantrymq.cli.app import app

    app(["ingest", "--json", "--spark", *map(str, words)], standalone_mode=False)
    said = capsys.readouterr()
    assert said.err == "", "progress is for terminals"
    return [json.loads(line) for line in said.out.splitlines()]


def test_ingest_writes_parquet(
    golden: Golden, tmp_path: Path, capsys: pytest.CaptureFixture[str], spark: SparkSession
) -> None:
    store, out = golden("plain").store, tmp_path / "table"
    _, *commits, end = run_ingest(capsys, "--store", store, "--out", out)
    found = require_equal(out, store, includeActive="true")
    assert {step["event"] for step in commits} == {"commit"}
    assert sum(step["rows"] for step in commits) == found.count
    assert sum(step["segments"] for step in commits) == 6
    assert (end["table_rows"], end["position"]) == (found.count, commits[-1]["position"])
    written = rows_of(spark.read.parquet(str(out / "data")).drop("date", "folder"))
    expected = [row | {"properties": dict(row["properties"])} for row in log_rows(store)]
    assert written == expected
    begin, end = run_ingest(capsys, "--store", store, "--out", out)
    assert (begin["event"], end["event"], end["rows"]) == ("begin", "end", 0)


@mends("D4")
def test_topics_of_a_table_are_strings(spark: SparkSession, tmp_path: Path) -> None:
    """Though all of them look like numbers."""
    data = make_table(tmp_path, NUMBERS)
    found = spark.read.parquet(str(data)).select("topic")
    assert found.schema["topic"].dataType.simpleString() == "string"
    assert {row["topic"] for row in found.collect()} == set(NUMBERS)


@mends("D6")
def test_a_table_of_the_catalog(spark: SparkSession, golden: Golden, unique_name: str) -> None:
    """Its OPTIONS hold for each query, which may say more; properties of other kinds are passed."""
    store, name = golden("plain").store, re.sub(r"\W", "_", unique_name)
    text = "TAGS IS NULL OR TAGS <> 'a'"
    words = f"OPTIONS (store '{store}', filter \"{text}\") TBLPROPERTIES (a 1)"
    spark.sql(f"CREATE TABLE {name} USING gantrymq {words} COMMENT 'orders'")
    try:
        shown = rows_of(spark.table(name))
        assert shown == rows_of(frame(spark, store))
        fewer = spark.sql(f"SELECT * FROM {name} WITH (`endOffset` = '3000')")
        assert 0 < fewer.count() < len(shown)
    finally:
        spark.sql(f"DROP TABLE {name}")


@pytest.mark.usefixtures("spark")
def test_ingest_of_a_damaged_store_is_refused(
    damaged: tuple[Path, int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, position = damaged
    with pytest.raises(Corrupt, match=f"position {position}"):
        run_ingest(capsys, "--store", store, "--out", tmp_path / "table")
    assert listed(tmp_path / "table") == []


def test_ingest_shows_its_progress_on_a_terminal(
    golden: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    read = ReadOptions(str(golden("plain").store), include_active=False)
    printed = io.StringIO()
    with Terminal() as terminal, os.fdopen(os.dup(terminal.slave), "w") as screen:
        with Progress(printed, screen, as_json=False) as progress:
            options = IngestOptions(read, str(tmp_path / "table"), "t")
            ingest_cli.run_ingest(options, run_here, progress, threading.Event())
        shown = terminal.read()
    assert re.search(r"looking at the log|segments", shown)
    assert "649 messages" in printed.getvalue()
