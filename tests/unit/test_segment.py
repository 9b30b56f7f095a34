"""A directory of segment files is one log."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gantrymq.shm import layout
from gantrymq.shm.errors import Incompatible
from gantrymq.shm.record import (
    STRUCTURE,
    Fault,
    Filler,
    Invalid,
    Record,
    encode_filler,
    encode_record,
)
from gantrymq.shm.segment import LogView, columns, open_log
from gantrymq.shm.storage import PosixStorage

SEGMENT_BYTES = 512


def record_at(position: int, body: bytes) -> bytes:
    return encode_record(Record(topic="t", body=body, physical_offset=position, queue_id=3))


def write_log(root: Path, bodies: list[int], base: int = 0) -> list[int]:
    """Write records with bodies of these sizes as SF-20 says; returns their positions."""
    directory = root / "commitlog"
    directory.mkdir(exist_ok=True)
    positions: list[int] = []
    data = b""
    for size in bodies:
        record = record_at(base + len(data), b"b" * size)
        left = SEGMENT_BYTES - len(data) % SEGMENT_BYTES
        if len(record) + layout.FILLER.size > left:
            data += encode_filler(left).ljust(left, b"?")
            record = record_at(base + len(data), b"b" * size)
        positions.append(base + len(data))
        data += record
    for at in range(0, len(data), SEGMENT_BYTES):
        part = data[at : at + SEGMENT_BYTES].ljust(SEGMENT_BYTES, b"\0")
        (directory / f"{base + at:020d}").write_bytes(part)
    return positions


def opened(root: Path, segment_bytes: int | None = None) -> LogView:
    return open_log(PosixStorage(str(root)), segment_bytes=segment_bytes)


def test_records_and_fillers_come_in_order(store_dir: Path) -> None:
    """SF-9, SF-20; the log does not start at 0 (SF-102)."""
    positions = write_log(store_dir, [100, 100, 100, 300, 7], base=1024)
    log = opened(store_dir)
    items = list(log.scan(log.min_position))
    assert [at for at, item in items if isinstance(item, Record)] == positions
    assert [type(item) for _, item in items] == [
        *(Record, Record, Filler),
        *(Record, Filler),
        *(Record, Record, Invalid),
    ]
    assert isinstance(items[-1][1], Invalid)
    assert items[-1][1].fault == Fault.MAGIC
    assert (log.min_position, log.file_end, log.segment_bytes) == (1024, 1024 + 3 * 512, 512)


def test_scan_begins_and_ends_where_told(store_dir: Path) -> None:
    positions = write_log(store_dir, [100, 100, 100, 300])
    log = opened(store_dir)
    scanned = log.scan(positions[1], positions[3])
    assert [at for at, item in scanned if isinstance(item, Record)] == positions[1:3]
    assert list(log.scan(log.file_end)) == []


def test_invalid_bytes_end_a_scan_and_are_named(store_dir: Path) -> None:
    positions = write_log(store_dir, [100, 100, 300])
    first = store_dir / "commitlog" / f"{0:020d}"
    data = bytearray(first.read_bytes())
    data[positions[1] + 90] ^= 1
    first.write_bytes(data)
    log = opened(store_dir)
    *_, (at, last) = log.scan(0)
    assert isinstance(last, Invalid)
    assert (at, last.fault) == (positions[1], Fault.BODY_CRC)
    whole = [at for at, item in log.scan(0, check=STRUCTURE) if isinstance(item, Record)]
    assert whole == positions


def test_positions_find_their_segment(store_dir: Path) -> None:
    write_log(store_dir, [300, 300], base=512)
    log = opened(store_dir)
    bases = [log.segment_at(at) for at in (511, 512, 1023, 1024, 1535, 1536)]
    assert [segment.base if segment else None for segment in bases] == [
        *(None, 512, 512, 1024, 1024, None)
    ]


def test_heads_are_columns(store_dir: Path) -> None:
    positions = write_log(store_dir, [100, 20, 50])
    (segment,) = opened(store_dir).segments
    starts = segment.record_starts(segment.base, segment.end)
    assert starts.tolist() == positions
    heads = segment.heads(starts)
    assert heads["physical_offset"].tolist() == positions
    assert heads["body_length"].tolist() == [100, 20, 50]
    assert set(heads["queue_id"].tolist()) == {3}
    assert segment.heads(np.array([], np.int64)).shape == (0,)


def test_views_are_read_only(store_dir: Path) -> None:
    write_log(store_dir, [10])
    (segment,) = opened(store_dir).segments
    with pytest.raises(ValueError, match="read-only"):
        segment.view[0] = 1


def test_an_empty_last_file_does_not_count(store_dir: Path) -> None:
    """SF-11, SF-117."""
    write_log(store_dir, [300, 300])
    (store_dir / "commitlog" / f"{1024:020d}").touch()
    (store_dir / "commitlog" / "folder").mkdir()
    assert [segment.base for segment in opened(store_dir, 512).segments] == [0, 512]


@pytest.mark.parametrize("name", ["notes.txt", "0", "00000000000000000512.tmp"])
def test_a_stray_file_is_refused_by_name(store_dir: Path, name: str) -> None:
    """SF-11."""
    write_log(store_dir, [10])
    (store_dir / "commitlog" / name).write_bytes(bytes(512))
    with pytest.raises(Incompatible, match=name):
        opened(store_dir)


def test_another_length_is_refused_with_both_numbers(store_dir: Path) -> None:
    """SF-11."""
    write_log(store_dir, [300, 300])
    with pytest.raises(Incompatible) as refused:
        opened(store_dir, 1024)
    assert (refused.value.expected, refused.value.found) == (1024, 512)
    (store_dir / "commitlog" / f"{512:020d}").write_bytes(bytes(100))
    with pytest.raises(Incompatible, match="100 bytes"):
        opened(store_dir)


def test_no_log_at_all(store_dir: Path) -> None:
    log = opened(store_dir)
    assert list(log.scan(0)) == []
    assert (log.min_position, log.file_end, log.segment_bytes) == (0, 0, 0)


def test_columns_of_a_queue_file() -> None:
    unit = layout.CQ_UNIT.pack(physical_offset=5, size=7, tags_code=-9)
    units = columns(np.frombuffer(unit * 3 + b"rest", np.uint8), layout.CQ_UNIT)
    assert units.tolist() == [(5, 7, -9)] * 3
