"""Columns of many records against the plain parser, record by record."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gantrymq.shm import record_columns
from gantrymq.shm.record import Check, Invalid, Record, parse_record
from gantrymq.shm.record_columns import (
    RecordColumns,
    check_bodies,
    check_trailers,
    number_topics,
    read_records,
)
from gantrymq.shm.sidecar import walk
from tests.support.sealed import segment_of

SEGMENT_BYTES = 1 << 16
BASE = 7 * SEGMENT_BYTES

hosts = st.sampled_from([4, 16]).flatmap(lambda n: st.binary(min_size=n + 4, max_size=n + 4))
i4 = st.integers(-(1 << 31), (1 << 31) - 1)
i8 = st.integers(-(1 << 63), (1 << 63) - 1)
records = st.builds(
    Record,
    topic=st.text("ab%_é", min_size=1, max_size=150),
    body=st.binary(max_size=200),
    properties=st.sampled_from([b"", b"TAGS\x01a\x02", b"k\x01v", b"\x02" * 40]),
    queue_id=i4,
    queue_offset=i8,
    sys_flag=st.sampled_from([0, 1, 4, 8, 12]),
    born_timestamp=i8,
    born_host=hosts,
    store_timestamp=i8,
    store_host=hosts,
    reconsume_times=i4,
)


def columns_of(
    found: list[Record],
) -> tuple[np.ndarray[tuple[int], np.dtype[np.uint8]], RecordColumns, list[Record]]:
    view, placed = segment_of(found, SEGMENT_BYTES, BASE)
    bounds = walk(view, BASE)
    return view, read_records(view, bounds[:-1], np.diff(bounds), BASE), placed


@settings(max_examples=25, deadline=None)
@given(st.lists(records, max_size=20))
def test_columns_equal_the_parsers_fields(found: list[Record]) -> None:
    view, columns, placed = columns_of(found)
    numbers, names = number_topics(view, columns)
    trailer, holds = check_trailers(view, columns)
    assert len(columns) == len(placed)
    assert columns.intact.all()
    assert check_bodies(view, columns).all()
    assert trailer.all()
    assert holds.all()
    for number, record in enumerate(placed):
        parsed = parse_record(view.data, record.physical_offset - BASE, SEGMENT_BYTES)
        assert isinstance(parsed, Record)
        for name in (
            *("queue_id", "queue_offset", "physical_offset", "sys_flag", "body_crc"),
            *("born_timestamp", "store_timestamp", "reconsume_times"),
        ):
            assert getattr(columns, name)[number] == getattr(parsed, name)
        body_at, count = columns.body_at[number], columns.body_bytes[number]
        assert view[body_at : body_at + count].tobytes() == parsed.body
        at, count = columns.properties_at[number], columns.properties_bytes[number]
        assert view[at : at + count].tobytes() == parsed.properties
        host_at = columns.store_host_at[number]
        assert view[host_at : host_at + len(parsed.store_host)].tobytes() == parsed.store_host
        assert names[numbers[number]] == parsed.topic


@settings(max_examples=60, deadline=None)
@given(st.lists(records, min_size=1, max_size=4), st.data())
def test_what_the_parser_refuses_is_not_intact(found: list[Record], data: st.DataObject) -> None:
    """Any changed byte: no access outside the record, and the parser's verdict, SF-22 and SF-87."""
    view, _, placed = columns_of(found)
    bounds = walk(view, BASE)
    at = data.draw(st.integers(0, int(bounds[-1]) - 1))
    view[at] ^= data.draw(st.integers(1, 255))
    columns = read_records(view, bounds[:-1], np.diff(bounds), BASE)
    _, holds = check_trailers(view, columns)
    for number, record in enumerate(placed):
        start = int(bounds[number])
        verdict = parse_record(
            view.data, start, int(bounds[number + 1]), Check(trailer=True), record.physical_offset
        )
        assert bool(columns.intact[number] & holds[number]) == isinstance(verdict, Record)
        assert isinstance(verdict, Invalid) == (start <= at < bounds[number + 1])


def test_no_records_are_no_columns() -> None:
    view, columns, _ = columns_of([])
    assert len(columns) == 0
    assert number_topics(view, columns)[1] == []
    assert check_trailers(view, columns)[0].tolist() == []


def _many_topics() -> list[Record]:
    return [Record(topic=f"topic-{number % 37:0{1 + number % 19}d}") for number in range(300)]


@pytest.mark.parametrize("topics", [_many_topics, lambda: [Record(topic="t" * 127)]])
def test_topics_are_numbered(topics: Callable[[], list[Record]]) -> None:
    view, columns, placed = columns_of(topics())
    numbers, names = number_topics(view, columns)
    assert [names[n] for n in numbers] == [r.topic for r in placed]
    assert len(set(names)) == len(names)


def test_topics_with_one_digest_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_columns, "_ODD", np.uint64(0))
    view, columns, placed = columns_of(_many_topics())
    numbers, names = number_topics(view, columns)
    assert [names[n] for n in numbers] == [r.topic for r in placed]
    assert len(set(names)) == len(names)


def test_a_wrong_body_is_found() -> None:
    view, columns, _ = columns_of([Record(topic="t", body=b"abc"), Record(topic="t", body=b"def")])
    view[columns.body_at[1]] ^= 1
    assert check_bodies(view, columns).tolist() == [True, False]
