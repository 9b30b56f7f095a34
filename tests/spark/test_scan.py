"""What a read plans and yields, without Spark: rows against RocketMQ's own dump, and damage."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from gantrymq.clients.spark import planning
from gantrymq.clients.spark import scan as spark_scan
from gantrymq.clients.spark.columns import COLUMNS
from gantrymq.clients.spark.options import BAD_TYPES, BODY_ERROR, COLUMN_TYPES, ReadOptions
from gantrymq.clients.spark.planning import plan
from gantrymq.clients.spark.scan import read
from gantrymq.shm.errors import Corrupt, SettingIllegal, StoreFailed
from gantrymq.shm.ranges import OPEN, Ranges, write_ranges
from gantrymq.shm.record import Record
from gantrymq.shm.storage import PosixStorage
from tests.support.golden import SETS, GoldenStore, dump_lines
from tests.support.sealed import segment_of, write_segment, write_sidecars
from tests.support.spark_rows import (
    comparable,
    everything,
    expected_row,
    expected_rows,
    rows_of,
    sealed_rows,
)
from tests.support.tree import ROOT
from tests.support.trials import mends

Golden = Callable[[str], GoldenStore]
SEGMENT_BYTES = 1 << 14
#: Flipped in sealed segments.
BITS = 10_000


@pytest.mark.parametrize("name", SETS)
def test_rows_equal_the_dump_of_a_real_rocketmq(golden: Golden, name: str) -> None:
    lines = dump_lines(name, "record")
    rows = everything(golden(name).store)
    expected = [(line, row) for line in lines for row in expected_rows(name, line)]
    assert len(rows) == len(expected) >= len(lines) > 0
    for row, (line, wanted) in zip(rows, expected, strict=True):
        assert comparable(row, line) == wanted


def test_sidecars_change_no_row(plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without = everything(plain)
    write_sidecars(plain)
    monkeypatch.setattr(planning, "RANGE_BYTES", 10_000)
    monkeypatch.setattr(spark_scan, "BATCH_RECORDS", 7)
    assert len(plan(ReadOptions(str(plain)))) > 50
    assert everything(plain) == without


def test_ranges_of_a_walked_store_have_each_record_once(
    plain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = everything(plain)
    monkeypatch.setattr(planning, "RANGE_BYTES", 10_000)
    assert everything(plain) == whole
    monkeypatch.setattr(planning, "_WALKED_SEGMENTS_MAX", 0)
    assert len(plan(ReadOptions(str(plain), include_active=False))) == 5
    assert everything(plain) == whole


def test_a_damaged_or_foreign_sidecar_is_passed_over(plain: Path) -> None:
    without = everything(plain)
    write_sidecars(plain)
    folder = plain / "gantry" / "segments"
    first, second, *_ = sorted(folder.iterdir())
    first.write_bytes(second.read_bytes())
    second.write_bytes(second.read_bytes()[:-1])
    assert everything(plain) == without


@pytest.mark.parametrize("active", [False, True])
def test_trailers_bind_in_what_we_wrote_only(tmp_path: Path, active: bool) -> None:
    """P13: without a sidecar, any bit of ours, elsewhere bits of bodies."""
    view, placed = segment_of(
        [Record(topic="t", body=b"%d" % n * 9, store_timestamp=9) for n in range(20)],
        SEGMENT_BYTES, sealed=not active,
    )  # fmt: skip
    middle = placed[10].physical_offset
    view[placed[3].physical_offset + 40] ^= 1  # bornTimestamp
    view[placed[13].physical_offset + 40] ^= 1
    write_segment(tmp_path, 0, view)
    (tmp_path / "gantry").mkdir()
    for spans, bad in (
        (((0, middle),), [3]),
        (((middle, OPEN),), [13]),
        (((0, OPEN),), [3, 13]),
        ((), []),
    ):
        write_ranges(PosixStorage(str(tmp_path)), Ranges(spans))
        rows = everything(tmp_path, badRecords="report")
        assert [n for n, row in enumerate(rows) if not row["crc_ok"]] == bad


@mends("D3")
def test_the_active_segment_is_read_unless_it_is_not_asked_for(plain: Path) -> None:
    last = int(max((plain / "commitlog").iterdir()).name)
    lines = dump_lines("plain", "record")
    sealed = [line["physicalOffset"] for line in lines if line["physicalOffset"] < last]
    assert len(sealed) < len(lines)
    assert [row["physical_offset"] for row in sealed_rows(plain)] == sealed
    assert len(rows_of(plain)) == len(lines)
    write_sidecars(plain, [last])
    assert len(sealed_rows(plain)) == len(lines)


def test_a_segment_made_ahead_is_not_the_active_one(plain: Path) -> None:
    before = rows_of(plain)
    last = max((plain / "commitlog").iterdir())
    size = last.stat().st_size
    (plain / "commitlog" / f"{int(last.name) + size:020d}").write_bytes(bytes(size))
    assert rows_of(plain) == before


@pytest.mark.parametrize("with_sidecars", [False, True])
def test_topics_and_times_select(plain: Path, with_sidecars: bool) -> None:
    if with_sidecars:
        write_sidecars(plain)
    lines = [expected_row(line) for line in dump_lines("plain", "record")]
    topics = sorted({line["topic"] for line in lines})[:2]
    times = sorted(line["store_timestamp"] for line in lines)
    start, end = times[len(times) // 4], times[len(times) // 2]
    rows = everything(plain, topic=", ".join(topics), startTime=str(start), endTime=str(end))
    wanted = [
        line["physical_offset"]
        for line in lines
        if line["topic"] in topics and start <= line["store_timestamp"] < end
    ]
    assert len(wanted) > 10
    assert [row["physical_offset"] for row in rows] == wanted


def test_system_topics_are_left_out_unless_asked_for(golden: Golden) -> None:
    store = golden("tx").store
    system = {"RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"}
    assert system & {row["topic"] for row in everything(store)}
    assert not system & {row["topic"] for row in rows_of(store, includeActive="true")}
    halves = rows_of(store, includeActive="true", topic="RMQ_SYS_TRANS_HALF_TOPIC")
    assert {dict(row["properties"])["TRAN_MSG"] for row in halves} == {"true"}


def test_columns_are_chosen_in_order(plain: Path) -> None:
    rows = rows_of(plain, columns="body, topic")
    assert all(list(row) == ["body", "topic"] for row in rows)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"topics": "a"}, "no option 'topics'"),
        ({"columns": "topic,nothing"}, "columns"),
        ({"columns": "topic,topic"}, "columns"),
        ({"badRecords": "drop"}, "fail or report"),
        ({"includeActive": "yes"}, "'includeActive' = 'yes'"),
        ({"startTime": "noon"}, "neither Unix ms nor ISO 8601"),
    ],
)
def test_wrong_options_are_named(options: dict[str, str], text: str) -> None:
    with pytest.raises(SettingIllegal, match=text):
        ReadOptions.parse({"store": "s", **options})


def test_a_missing_store_is_said() -> None:
    with pytest.raises(SettingIllegal, match="'store' is missing"):
        ReadOptions.parse({})
    with pytest.raises(SettingIllegal, match="no commitlog/"):
        plan(ReadOptions("nowhere"))


def test_times_may_be_iso_8601() -> None:
    options = {
        "store": "s",
        "startTime": "2013-01-01T00:00:00",
        "endTime": "2013-01-01T01:00+01:00",
    }
    parsed = ReadOptions.parse(options)
    assert parsed.start_ms == parsed.end_ms == 1_356_998_400_000


# ------------------------------------------------------------------------------------------- damage


@pytest.fixture
def sealed(tmp_path: Path) -> tuple[Path, list[Record]]:
    """A store with one sealed segment, its sidecar, and an active segment of one record."""
    records = [
        Record(topic="orders", body=bytes([n]) * (n % 40), properties=b"TAGS\x01a\x02k\x01v\x02")
        for n in range(60)
    ]
    at = {"store_timestamp": 1_700_000_000_000}
    records = [Record(**{**_fields(r), **at}) for r in records]
    view, placed = segment_of(records, SEGMENT_BYTES)
    write_segment(tmp_path, 0, view)
    active, _ = segment_of(records[:1], SEGMENT_BYTES, SEGMENT_BYTES, sealed=False)
    write_segment(tmp_path, SEGMENT_BYTES, active)
    write_sidecars(tmp_path)
    return tmp_path, placed


def _fields(record: Record) -> dict[str, Any]:
    return {name: getattr(record, name) for name in ("topic", "body", "properties")}


def flip(store: Path, position: int, bit: int) -> None:
    path = store / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[position] ^= 1 << bit
    path.write_bytes(data)


def test_every_flipped_bit_of_a_sealed_segment_is_found(
    sealed: tuple[Path, list[Record]], seed: int
) -> None:
    """P13 and F20, sampled: one row has crc_ok false, and it is the record that was hit."""
    store, placed = sealed
    sample = random.Random(seed)
    for _ in range(60):
        hit = sample.randrange(len(placed))
        within, bit = sample.randrange(placed[hit].total_size), sample.randrange(8)
        flip(store, placed[hit].physical_offset + within, bit)
        with pytest.raises(Corrupt) as caught:
            rows_of(store)
        assert caught.value.position == placed[hit].physical_offset
        rows = rows_of(store, badRecords="report")
        assert [n for n, row in enumerate(rows) if not row["crc_ok"]] == [hit]
        assert rows[hit]["physical_offset"] == placed[hit].physical_offset
        assert rows[hit]["topic"] == "orders"
        flip(store, placed[hit].physical_offset + within, bit)
    assert all(row["crc_ok"] for row in rows_of(store))


def test_ten_thousand_flipped_bits_are_found(sealed: tuple[Path, list[Record]], seed: int) -> None:
    """P13 and F20: one bit in each record, round after round; no row of them is called sound."""
    store, placed = sealed
    path, sample = store / "commitlog" / f"{0:020d}", random.Random(seed)
    sound, flipped = np.fromfile(path, np.uint8), 0
    while flipped < BITS:
        data = sound.copy()
        for record in placed:
            data[record.physical_offset + sample.randrange(record.total_size)] ^= (
                1 << sample.randrange(8)
            )
        data.tofile(path)
        rows = sealed_rows(store, badRecords="report")
        assert [row["crc_ok"] for row in rows] == [False] * len(placed)
        assert [row["physical_offset"] for row in rows] == [r.physical_offset for r in placed]
        flipped += len(placed)
    sound.tofile(path)


def test_without_a_sidecar_a_wrong_body_is_found(sealed: tuple[Path, list[Record]]) -> None:
    store, placed = sealed
    shutil.rmtree(store / "gantry")
    flip(store, placed[5].physical_offset + 88, 0)
    with pytest.raises(Corrupt, match="badRecords=report"):
        rows_of(store)
    rows = rows_of(store, badRecords="report")
    assert [n for n, row in enumerate(rows) if not row["crc_ok"]] == [5]


def test_a_torn_end_of_the_active_segment_is_left_out(sealed: tuple[Path, list[Record]]) -> None:
    """Of a broker that was killed: one that stopped has made all durable."""
    store, placed = sealed
    (store / "abort").touch()
    records = [Record(topic="orders", body=b"x" * 50, store_timestamp=1) for _ in range(3)]
    view, written = segment_of(records, SEGMENT_BYTES, SEGMENT_BYTES, sealed=False)
    for torn in range(written[2].physical_offset - SEGMENT_BYTES, len(view)):
        half = view.copy()
        half[torn:] = 0
        write_segment(store, SEGMENT_BYTES, half)
        rows = rows_of(store, includeActive="true", startOffset=str(SEGMENT_BYTES))
        is_whole = torn >= written[2].physical_offset - SEGMENT_BYTES + written[2].total_size
        assert len(rows) == (3 if is_whole else 2)
        if is_whole:
            break
    assert len(rows_of(store, includeActive="true")) == len(placed) + 3


def test_a_segment_that_went_since_the_plan_is_said(
    sealed: tuple[Path, list[Record]], caplog: pytest.LogCaptureFixture
) -> None:
    store, _ = sealed
    options = ReadOptions(str(store), include_active=False)
    (part,) = plan(options)
    (store / part.name).unlink()
    with pytest.raises(StoreFailed, match="positions 0 to its end was planned: retention"):
        list(read(part, options, pa.schema([])))
    assert list(read(part, replace(options, fail_on_data_loss=False), pa.schema([]))) == []
    assert "positions 0 to its end was planned: retention" in caplog.text


@pytest.mark.parametrize("with_sidecars", [True, False])
def test_a_segment_that_goes_while_it_is_read_is_said(
    sealed: tuple[Path, list[Record]], monkeypatch: pytest.MonkeyPatch, with_sidecars: bool
) -> None:
    """F21: what is mapped reads as zeroes then, which is neither damage nor the end."""
    if not with_sidecars:
        shutil.rmtree(sealed[0] / "gantry")
    monkeypatch.setattr(spark_scan, "BATCH_RECORDS", 1)
    store, records = sealed
    (part,) = plan(ReadOptions(str(store), include_active=False))
    for options in (ReadOptions(str(store)), ReadOptions(str(store), report_bad_records=True)):
        rows = spark_scan.read_rows(part, options)
        next(rows)
        expired = store / "expired"
        (store / part.name).rename(expired)
        file = PosixStorage(str(store)).open("expired", write=True)
        content = expired.read_bytes()
        file.punch(0, file.size())
        assert len(records) > 1
        with pytest.raises(StoreFailed, match="retention"):
            list(rows)
        file.write_at(content, 0)
        file.close()
        expired.rename(store / part.name)


def test_every_column_has_a_type_and_a_maker() -> None:
    assert {*COLUMN_TYPES, *BAD_TYPES, BODY_ERROR} == set(COLUMNS)


def test_reading_loads_no_numba() -> None:
    program = (
        "import sys; import gantrymq.clients.spark.source, gantrymq.spark; print(*sys.modules)"
    )
    command = [sys.executable, "-W", "ignore", "-c", program]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "gantrymq.clients.spark.scan" in shown.stdout.split()
    assert not {"numba", "llvmlite"} & set(shown.stdout.split())
