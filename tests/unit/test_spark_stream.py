"""Positions of a stream over a log, and filters as options; no Spark runs."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from gantrymq.clients.spark import planning
from gantrymq.clients.spark.options import OFFSET_MAX, ReadOptions
from gantrymq.clients.spark.planning import survey
from gantrymq.clients.spark.pushdown import narrowed
from gantrymq.clients.spark.scan import read_rows
from gantrymq.clients.spark.stream import first_offset, next_offset, parts_between
from gantrymq.shm.errors import Incompatible, SettingIllegal, StoreFailed
from tests.support.golden import unpack
from tests.support.spark_rows import rows_with, sealed_rows
from tests.support.streams import first_position, next_position
from tests.support.tables import SEGMENT_BYTES, GrowingStore
from tests.support.trials import mends


@pytest.fixture
def growing(store_dir: Path, monkeypatch: pytest.MonkeyPatch) -> GrowingStore:
    monkeypatch.setattr(planning, "RANGE_BYTES", 1 << 11)
    made = GrowingStore(store_dir)
    for _ in range(3):
        made.grow()
    return made


def options(store: Path, **words: str) -> ReadOptions:
    return ReadOptions.parse({"store": str(store), "includeActive": "false", **words})


def positions(chosen: ReadOptions, start: int, end: int) -> list[int]:
    return [
        int(position)
        for part in parts_between(chosen, {"position": start}, {"position": end})
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
    assert found == [row["physical_offset"] for row in sealed_rows(growing.root)]


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
        parts_between(options(growing.root), {"position": 100}, {"position": end})
    with caplog.at_level(logging.WARNING):
        found = positions(options(growing.root, failOnDataLoss="false"), 100, end)
    assert found == [row["physical_offset"] for row in sealed_rows(growing.root)]
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
    second = sealed_rows(growing.root)[1]["physical_offset"]
    for there in (SEGMENT_BYTES + 9, second):
        chosen = options(growing.root, startOffset=str(there))
        assert first_position(chosen) == second, "where a record begins"


@mends("D1")
def test_offsets_of_another_store_are_refused(growing: GrowingStore, tmp_path: Path) -> None:
    """Also where the other log is longer than what was read; planned batches as well as new ones.

    A checkpoint of an older version has positions alone, and goes on.
    """
    chosen = options(growing.root)
    with pytest.raises(Incompatible, match=f"ends at {growing.end + SEGMENT_BYTES}.*another store"):
        parts_between(chosen, {"position": 0}, {"position": 9 * SEGMENT_BYTES})
    begun = first_offset(chosen)
    start = next_offset(chosen, begun, None, (40, None))
    end = next_offset(chosen, start, None, (10, None))
    assert len(parts_between(chosen, start, end)) > 0
    assert json.loads(json.dumps(end)) == end, "Spark keeps it as JSON"
    other = GrowingStore(tmp_path / "other", salt=b"other")
    for _ in range(4):
        other.grow()
    foreign = options(other.root)
    refusal = "another record at position.*checkpointLocation of its own"
    for begin in (start, end):
        with pytest.raises(Incompatible, match=refusal):
            next_offset(foreign, begin, None, (None, None))
    for begin, last in ((start, end), (begun, end), ({"position": start["position"]}, end)):
        with pytest.raises(Incompatible, match=refusal):
            parts_between(foreign, begin, last)
    old = {"position": start["position"]}
    assert next_offset(chosen, old, None, (10, None)) == end


@mends("D1")
def test_a_record_that_retention_removed_is_not_missed(growing: GrowingStore) -> None:
    chosen = options(growing.root)
    start = next_offset(chosen, first_offset(chosen), SEGMENT_BYTES, (None, None))
    assert start["position"] == SEGMENT_BYTES
    growing.expire()
    end = next_offset(chosen, start, None, (None, None))
    assert end["position"] == growing.end
    assert len(parts_between(chosen, start, end)) > 0


def test_offsets_queues_and_keys_select(growing: GrowingStore) -> None:
    everything = sealed_rows(growing.root)
    first, last = everything[20]["physical_offset"], everything[50]["physical_offset"]
    assert (
        sealed_rows(growing.root, startOffset=str(first), endOffset=str(last)) == everything[20:50]
    )
    assert sealed_rows(growing.root, startOffset=str(first - 1)) == everything[20:]
    chosen = sealed_rows(growing.root, startQueueOffset="5", endQueueOffset="9")
    assert chosen == [row for row in everything if 5 <= row["queue_offset"] < 9] != []
    assert sealed_rows(growing.root, queue="0,5") == everything
    assert sealed_rows(growing.root, queue="1") == []
    assert sealed_rows(growing.root, key="nobody") == []
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


MOMENT = datetime(2023, 11, 15, tzinfo=UTC)
FIRSTS = (0, SEGMENT_BYTES)
QUEUE_OFFSET, POSITION = ("queue_offset",), ("physical_offset",)
TIME, KEYS = ("store_timestamp",), ("keys",)


@pytest.mark.parametrize(
    ("one", "holds"),
    [
        (EqualTo(QUEUE_OFFSET, 7), lambda row: row["queue_offset"] == 7),
        (GreaterThan(QUEUE_OFFSET, 20), lambda row: row["queue_offset"] > 20),
        (GreaterThanOrEqual(QUEUE_OFFSET, 20), lambda row: row["queue_offset"] >= 20),
        (LessThan(QUEUE_OFFSET, 2), lambda row: row["queue_offset"] < 2),
        (LessThanOrEqual(QUEUE_OFFSET, 2), lambda row: row["queue_offset"] <= 2),
        (In(QUEUE_OFFSET, (25, 3)), lambda row: row["queue_offset"] in (25, 3)),
        (In(POSITION, FIRSTS), lambda row: row["physical_offset"] in FIRSTS),
        (GreaterThanOrEqual(TIME, MOMENT), lambda row: row["store_timestamp"] >= MOMENT),
        (EqualTo(KEYS, ["k3", "even"]), lambda row: row["keys"] == ["k3", "even"]),
        (EqualTo(KEYS, ["k3"]), lambda row: row["keys"] == ["k3"]),
        (EqualTo(("topic",), "t/1"), lambda row: row["topic"] == "t/1"),
    ],
)  # fmt: skip
def test_a_filter_that_is_taken_loses_no_row(
    growing: GrowingStore, one: Filter, holds: Callable[[dict[str, Any]], bool]
) -> None:
    """Spark looks at all rows again; less is read than without it."""
    base = options(growing.root, endOffset=str(2 * SEGMENT_BYTES))
    everything, fewer = rows_with(base), rows_with(narrowed(base, [one]))
    assert [row for row in fewer if holds(row)] == [row for row in everything if holds(row)]
    assert len(fewer) < len(everything)


def test_a_filter_that_says_nothing_of_bounds_changes_none(growing: GrowingStore) -> None:
    base = options(growing.root)
    for one in (In(QUEUE_OFFSET, (1, None)), EqualTo(KEYS, []), In(KEYS, (["k3"],))):
        assert narrowed(base, [one]) == base


def test_messages_of_inner_batches_count_by_themselves(tmp_path: Path) -> None:
    """Offsets, keys and filters of the members, not of the record around them."""
    store = unpack("batch", tmp_path).store
    words = {"includeActive": "true"}
    everything = sealed_rows(store, **words)
    inner = [row for row in everything if row["sys_flag"] & 0xC0 == 0xC0]
    one = inner[1]
    assert one["physical_offset"] == inner[0]["physical_offset"]
    offset = one["queue_offset"]
    found = sealed_rows(
        store, startQueueOffset=str(offset), endQueueOffset=str(offset + 1), **words
    )
    assert found == [row for row in everything if row["queue_offset"] == offset]
    assert one in found
    assert inner[0] not in found
    identity = f"UNIQ_KEY = '{one['message_id']}'"
    assert sealed_rows(store, filter=identity, **words) == [one]
