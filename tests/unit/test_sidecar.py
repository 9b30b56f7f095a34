"""Sidecars: what is built from a segment, what the file says, and that damage is noticed."""

from __future__ import annotations

import zlib
from dataclasses import fields, replace

import numpy as np
import pytest

from gantrymq.shm import layout, sidecar
from gantrymq.shm.errors import Corrupt
from gantrymq.shm.record import Record
from gantrymq.shm.sidecar import Sidecar, build_from_segment, parse
from tests.support.sealed import segment_of

SEGMENT_BYTES = 4096
BASE = 3 * SEGMENT_BYTES
RECORDS = [
    Record(topic=topic, body=bytes(number), store_timestamp=1000 + number)
    for number, topic in enumerate(["orders", "päyments", "orders", "%RETRY%g", "orders"])
]


def same(one: Sidecar, other: Sidecar) -> bool:
    pairs = ((getattr(one, f.name), getattr(other, f.name)) for f in fields(Sidecar))
    return all(np.array_equal(a, b) for a, b in pairs)


@pytest.fixture
def built() -> Sidecar:
    view, _ = segment_of(RECORDS, SEGMENT_BYTES, BASE)
    return build_from_segment(view, BASE)


def test_a_segment_is_described(built: Sidecar) -> None:
    view, placed = segment_of(RECORDS, SEGMENT_BYTES, BASE)
    assert (built.base, built.segment_bytes) == (BASE, SEGMENT_BYTES)
    assert built.positions.tolist() == [r.physical_offset - BASE for r in placed]
    assert built.end == placed[-1].physical_offset + placed[-1].total_size
    assert [built.names[n] for n in built.topic_numbers] == [r.topic for r in RECORDS]
    assert (built.first_ms, built.last_ms) == (1000, 1004)
    assert built.block_crcs.tolist() == [zlib.crc32(view.tobytes())]


def test_what_is_written_is_read(built: Sidecar) -> None:
    assert same(parse(built.encode()), built)


def test_the_file_has_the_documented_size(built: Sidecar) -> None:
    names = sum(2 + len(name.encode()) for name in built.names)
    assert len(built.encode()) == 128 + 6 * len(RECORDS) + names + 4


def test_every_flipped_bit_is_noticed(built: Sidecar) -> None:
    data = built.encode()
    for at in range(len(data)):
        for bit in range(8):
            damaged = data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]
            with pytest.raises(Corrupt, match="gantry/segments/7"):
                parse(damaged, "gantry/segments/7")


def test_every_cut_is_noticed(built: Sidecar) -> None:
    data = built.encode()
    for count in range(len(data)):
        with pytest.raises(Corrupt):
            parse(data[:count])


@pytest.mark.parametrize(
    "wrong",
    [
        {"positions": np.array([0, 90], np.uint32), "topic_numbers": np.zeros(2, np.uint16)},
        {"topic_numbers": np.full(len(RECORDS), 3, np.uint16)},
        {"end": BASE + SEGMENT_BYTES + 1},
        {"block_crcs": np.zeros(2, np.uint32)},
    ],
    ids=["overlap", "topic", "end", "blocks"],
)
def test_numbers_that_would_mislead_readers_are_refused(
    built: Sidecar, wrong: dict[str, object]
) -> None:
    with pytest.raises(Corrupt):
        parse(replace(built, **wrong).encode())  # type: ignore[arg-type]


def test_blocks_are_one_mebibyte() -> None:
    view = np.arange((2 << 20) + 5, dtype=np.uint32).astype(np.uint8)
    crcs = sidecar.block_crcs(view.data)
    raw = view.tobytes()
    assert crcs.tolist() == [
        zlib.crc32(raw[: 1 << 20]),
        zlib.crc32(raw[1 << 20 : 2 << 20]),
        zlib.crc32(raw[2 << 20 :]),
    ]
    assert sidecar.block_crcs(view.data, 1, 1).tolist() == crcs[1:2].tolist()


def test_an_unused_segment_has_no_records() -> None:
    built = build_from_segment(np.zeros(SEGMENT_BYTES, np.uint8), BASE)
    assert (len(built.positions), built.names, built.end) == (0, (), BASE)
    assert same(parse(built.encode()), built)


def test_the_active_segment_ends_at_zeroes() -> None:
    view, placed = segment_of(RECORDS, SEGMENT_BYTES, BASE, sealed=False)
    built = build_from_segment(view, BASE)
    assert built.end == placed[-1].physical_offset + placed[-1].total_size


@pytest.mark.parametrize(
    ("field", "value"),
    [("total_size", 95), ("magic", 0), ("body_length", 7), ("physical_offset", 1)],
)
def test_a_damaged_record_is_named(field: str, value: int) -> None:
    view, placed = segment_of(RECORDS, SEGMENT_BYTES, BASE)
    at = placed[2].physical_offset - BASE + layout.RECORD.offset(field)
    width = 8 if field == "physical_offset" else 4
    view[at : at + width] = np.frombuffer(value.to_bytes(width, "big"), np.uint8)
    with pytest.raises(Corrupt) as caught:
        build_from_segment(view, BASE)
    assert caught.value.position == placed[2].physical_offset


def test_a_record_that_reaches_beyond_the_segment_is_damage() -> None:
    view, placed = segment_of(RECORDS, SEGMENT_BYTES, BASE)
    at = placed[-1].physical_offset - BASE
    view[at : at + 4] = np.frombuffer((SEGMENT_BYTES).to_bytes(4, "big"), np.uint8)
    with pytest.raises(Corrupt) as caught:
        build_from_segment(view, BASE)
    assert caught.value.position == placed[-1].physical_offset
