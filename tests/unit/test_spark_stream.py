"""Positions of a stream over a log, and filters as options; no Spark runs."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from pyspark.sql.datasource import EqualTo, GreaterThan, In, IsNotNull, LessThan

from clients.spark import planning
from clients.spark.options import OFFSET_MAX, ReadOptions
from clients.spark.planning import survey
from clients.spark.pushdown import narrowed
from clients.spark.scan import read_rows
from clients.spark.stream import first_position, next_position, parts_between
from shm.errors import Incompatible, SettingIllegal, StoreFailed
from tests.support.spark_rows import rows_of
from tests.support.tables import SEGMENT_BYTES, GrowingStore


@pytest.fixture
def growing(store_dir: Path, monkeypatch: pytest.MonkeyPatch) -> GrowingStore:
    monkeypatch.setattr(planning, "RANGE_BYTES", 1 << 11)
    made = GrowingStore(store_dir)
    for _ in range(3):
        made.grow()
    return made


def options(store: Path, **words: str) -> ReadOptions:
    return ReadOptions.parse({"store": str(store), **words})


def positions(chosen: ReadOptions, start: int, end: int) -> list[int]:
    return [
        int(position)
        for part in parts_between(chosen, start, end)
        for rows in read_rows(part, chosen)
        for position in rows.records.physical_offset
    ]


@pytest.mark.parametrize("sidecars", [True, False])
@pytest.mark.parametrize(
    ("rows", "size", "each"), [(7, None, 7), (None, 1000, None), (40, 3000, None), (1, None, 1)]
)
def test_micro_batches_have_each_record_once_within_their_limits(
    growing: GrowingStore, sidecars: bool, rows: int | None, size: int | None, each: int | None
) -> None:
    if not sidecars:
        for path in (growing.root / "gantry" / "segments").iterdir():
            path.unlink()
    chosen = options(growing.root)
    at, found = first_position(chosen), []
    while (end := next_position(chosen, at, None, (rows, size))) > at:
        batch = positions(chosen, at, end)
        assert 0 < len(batch) <= (rows or 1000)
        assert size is None or batch[-1] - at < size, "the last one begins within"
        assert each is None or len(batch) == each or end == growing.end
        found += batch
        at = end
    assert at == growing.end
    assert found == [row["physical_offset"] for row in rows_of(growing.root)]


def test_a_record_beyond_the_limit_is_passed_alone(growing: GrowingStore) -> None:
    chosen = options(growing.root)
    end = next_position(chosen, 0, None, (None, 1))
    assert len(positions(chosen, 0, end)) == 1


def test_rows_of_other_topics_do_not_count(growing: GrowingStore) -> None:
    chosen = options(growing.root, topic="orders")
    end = next_position(chosen, 0, None, (10, None))
    assert len(positions(chosen, 0, end)) == 10
    assert end >= SEGMENT_BYTES * 2 // 3


def test_what_comes_behind_the_target_waits(growing: GrowingStore) -> None:
    chosen = options(growing.root)
    target = next_position(chosen, 0, None, (None, None))
    growing.grow()
    assert next_position(chosen, 0, target, (None, None)) == target == 3 * SEGMENT_BYTES
    assert next_position(chosen, target, target, (5, None)) == target


def test_a_lost_part_is_an_error_or_logged(
    growing: GrowingStore, caplog: pytest.LogCaptureFixture
) -> None:
    """F21, for streams."""
    growing.expire()
    end = growing.end
    with pytest.raises(StoreFailed, match=f"positions 100 to {SEGMENT_BYTES}.*failOnDataLoss"):
        parts_between(options(growing.root), 100, end)
    with caplog.at_level(logging.WARNING):
        found = positions(options(growing.root, failOnDataLoss="false"), 100, end)
    assert found == [row["physical_offset"] for row in rows_of(growing.root)]
    assert "has lost positions" in caplog.text
    assert first_position(options(growing.root)) == SEGMENT_BYTES
    assert survey(options(growing.root), 0).gaps(0, end) == [(0, SEGMENT_BYTES)]


def test_a_start_that_is_gone_is_an_error_or_logged(
    growing: GrowingStore, caplog: pytest.LogCaptureFixture
) -> None:
    growing.expire()
    with pytest.raises(StoreFailed, match=f"positions 7 to {SEGMENT_BYTES}.*failOnDataLoss"):
        first_position(options(growing.root, startOffset="7"))
    assert first_position(options(growing.root, startOffset="0")) == SEGMENT_BYTES
    assert "lost" not in caplog.text
    chosen = options(growing.root, startOffset="7", failOnDataLoss="false")
    assert first_position(chosen) == SEGMENT_BYTES
    assert f"has lost positions 7 to {SEGMENT_BYTES}" in caplog.text
    second = rows_of(growing.root)[1]["physical_offset"]
    for there in (SEGMENT_BYTES + 9, second):
        chosen = options(growing.root, startOffset=str(there))
        assert first_position(chosen) == second, "where a record begins"


def test_offsets_of_another_store_are_refused(growing: GrowingStore) -> None:
    with pytest.raises(Incompatible, match="another store"):
        parts_between(options(growing.root), 0, 9 * SEGMENT_BYTES)


def test_offsets_queues_and_keys_select(growing: GrowingStore) -> None:
    everything = rows_of(growing.root)
    first, last = everything[20]["physical_offset"], everything[50]["physical_offset"]
    assert rows_of(growing.root, startOffset=str(first), endOffset=str(last)) == everything[20:50]
    assert rows_of(growing.root, startOffset=str(first - 1)) == everything[20:]
    assert rows_of(growing.root, queue="0,5") == everything
    assert rows_of(growing.root, queue="1") == []
    assert rows_of(growing.root, key="nobody") == []
    with pytest.raises(SettingIllegal, match="queue ids"):
        options(growing.root, queue="a")


def test_filters_become_options(growing: GrowingStore) -> None:
    base = options(growing.root)
    assert narrowed(base, [EqualTo(("topic",), "orders")]).topics == {"orders"}
    assert narrowed(base, [In(("queue_id",), (1, 2))]).queues == {1, 2}
    assert narrowed(base, [EqualTo(("topic",), "TBW102")]) == base, "it stays a system topic"
    found = narrowed(
        base, [GreaterThan(("physical_offset",), 10), LessThan(("physical_offset",), 99)]
    )
    assert (found.start_offset, found.end_offset) == (10, 100)
    assert narrowed(base, [IsNotNull(("topic",)), EqualTo(("tag",), "a")]) == base
    assert base.end_offset == OFFSET_MAX
