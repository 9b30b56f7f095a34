"""Spark's column `body`: compressed bodies and inner batches that are damaged inside."""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gantrymq.clients.spark import bodies
from gantrymq.clients.spark.options import ReadOptions
from gantrymq.clients.spark.planning import plan
from gantrymq.clients.spark.scan import read_plain
from gantrymq.shm.errors import Corrupt
from gantrymq.shm.properties import encode_properties
from gantrymq.shm.record import Record
from tests.support.queue_files import random_record
from tests.support.sealed import segment_of, write_segment, write_sidecars
from tests.support.spark_rows import everything
from tests.support.trials import mends
from tests.unit.test_stored_body import LZ4, PACKED, PLAIN, ZLIB, ZSTD, member

SEGMENT_BYTES = 1 << 19
Store = Callable[..., list[Record]]


def record(offset: int, body: bytes, sys_flag: int) -> Record:
    made = random_record(random.Random(offset), offset)
    return replace(
        made, body=body, body_crc=zlib.crc32(body) & 0x7FFFFFFF, sys_flag=sys_flag,
        born_host=b"\x7f\0\0\1\0\0\1\2", store_host=b"\x7f\0\0\1\0\0\1\2",
    )  # fmt: skip


@pytest.fixture(params=[False, True], ids=["walked", "sidecar"])
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """Return a function: records -> the same with their places, as the store's sealed segment."""

    def write(*records: Record) -> list[Record]:
        view, placed = segment_of(records, SEGMENT_BYTES)
        write_segment(tmp_path, 0, view)
        write_segment(tmp_path, SEGMENT_BYTES, view[:0])
        if request.param:
            write_sidecars(tmp_path, [0])
        return placed

    return write


def batch_of(count: int) -> bytes:
    return b"".join(
        member(b"m%d" % n, encode_properties({"UNIQ_KEY": f"id{n}", "TAGS": f"t{n}"}))
        for n in range(count)
    )


def mixed() -> list[Record]:
    return [
        record(0, b"plain", 0),
        record(1, PACKED[LZ4], LZ4),
        record(2, batch_of(3), 0xC0),
        record(5, PACKED[ZSTD], ZSTD),
        record(6, b"", 0xC0),
        record(6, PACKED[ZLIB], ZLIB),
        record(7, b"last", 0),
    ]


def test_bodies_are_unpacked_and_batches_split(stored: Store, tmp_path: Path) -> None:
    placed = stored(*mixed())
    rows = everything(tmp_path)
    members = [b"m0", b"m1", b"m2"]
    assert [row["body"] for row in rows] == [b"plain", PLAIN, *members, PLAIN, PLAIN, b"last"]
    assert [row["queue_offset"] for row in rows] == [0, 1, 2, 3, 4, 5, 6, 7]
    assert [row["tag"] for row in rows[2:5]] == ["t0", "t1", "t2"]
    assert [row["message_id"] for row in rows[2:5]] == ["id0", "id1", "id2"]
    assert {row["physical_offset"] for row in rows[2:5]} == {placed[2].physical_offset}
    assert all(row["crc_ok"] for row in rows)


@pytest.mark.parametrize(
    ("broken", "what"),
    [
        (record(1, PACKED[ZSTD][:-4], ZSTD), "body cannot be unpacked: no ZSTD data: it ends ear"),
        (record(1, batch_of(3)[:-1], 0xC0), "inner batch is damaged: the member at byte"),
    ],
    ids=["body", "batch"],
)
def test_damage_inside_ends_the_read_or_is_reported(
    stored: Store, tmp_path: Path, broken: Record, what: str
) -> None:
    placed = stored(record(0, b"before", 0), broken, record(2, PACKED[LZ4], LZ4))
    position = placed[1].physical_offset
    with pytest.raises(Corrupt, match=f"{what}.*position {position}"):
        everything(tmp_path)
    rows = everything(tmp_path, badRecords="report")
    assert [row["crc_ok"] for row in rows] == [True, False, True]
    assert [row["body"] for row in (rows[0], rows[2])] == [b"before", PLAIN]
    raw = (tmp_path / "commitlog" / f"{0:020d}").read_bytes()[position:][: placed[1].total_size]
    bad = rows[1]
    assert (bad["body"], bad["bad_bytes"], bad["bad_size"]) == (None, raw, len(raw))
    assert bad["queue_offset"] == 1, "the record itself is sound"
    assert re.search(what, bad["bad_reason"])


def test_a_read_without_bodies_unpacks_none(stored: Store, tmp_path: Path) -> None:
    stored(record(0, b"no zlib data", ZLIB))
    assert everything(tmp_path, columns="queue_offset") == [{"queue_offset": 0}]


@mends("D2")
@pytest.mark.parametrize("most", [1, 2 * len(PLAIN), 3 * len(PLAIN) - 1])
def test_more_than_a_column_holds_comes_in_parts(
    stored: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """Some KiB of compressed bodies may unpack to gigabytes; a single one has its own limit."""
    stored(*mixed())
    whole = everything(tmp_path)
    monkeypatch.setattr(bodies, "PART_BYTES_MAX", most)
    assert everything(tmp_path) == whole
    read = ReadOptions.parse({"store": str(tmp_path), "includeActive": "true"})
    (part,) = plan(read)
    assert len(list(read_plain(part, read, bodies=True))) == {1: 3}.get(most, 2)
