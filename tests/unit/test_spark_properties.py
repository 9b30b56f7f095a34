"""Properties as columns: one by its name is what all of them say, and what the reference reads."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from gantrymq.clients.spark.properties import Properties, bytes_without_trailer, values_of
from gantrymq.shm import layout
from gantrymq.shm.properties import parse_properties
from gantrymq.shm.record import Record, encode_record
from gantrymq.shm.record_columns import read_records

#: Names, what begins and ends like them, separators, and nothing.
PIECES = (b"TAGS", b"GS", b"TA", b"KEYS", b"\x01", b"\x01", b"\x02", b"\x02", b"x", b"\xff", b"")


@pytest.mark.parametrize("name", ["TAGS", "KEYS", "x"])
def test_one_property_is_what_all_of_them_say(name: str, seed: int) -> None:
    sample = random.Random(seed)
    for _ in range(40):
        raw = [b"".join(sample.choices(PIECES, k=sample.randrange(14))) for _ in range(60)]
        stored = pa.array(raw, pa.binary())
        found = values_of(stored, name)
        assert found.equals(Properties.parse(stored).values_of(name))
        assert found.to_pylist() == [parse_properties(item).get(name) for item in raw]


def test_a_key_that_is_there_twice_has_its_last_value() -> None:
    """Among few names and among more than bits of a number."""
    many = b"".join(b"k%d\x01v\x02" % n for n in range(70))
    for more in (b"", many):
        raw = pa.array([b"a\x01one\x02" + more + b"a\x01two\x02", b"a\x01one\x02" + more])
        maps = Properties.parse(raw).maps().to_pylist()
        assert [dict(found)["a"] for found in maps] == ["two", "one"]
        assert [len(found) for found in maps] == [len(dict(found)) for found in maps]


@pytest.mark.parametrize(
    ("properties", "trailer", "less"),
    [
        (b"", True, True),
        (b"a\x01b\x02", True, True),
        (b"a\x01__CRC32#\x011234567890\x02", False, False),
        (b"a\x01b\x02__CRC32#\x011234567890\x02", False, True),
        (b"a\x01b\x02", False, False),
    ],
)
def test_a_trailer_is_left_out_where_it_is_one(
    properties: bytes, trailer: bool, less: bool
) -> None:
    """Also where it is all there is; not where a value ends as one does (SF-22)."""
    raw = encode_record(Record(topic="t", properties=properties), trailer=trailer)
    view = np.frombuffer(raw, np.uint8)
    columns = read_records(view, np.zeros(1, np.int64), np.array([len(raw)]), 0)
    kept = columns.properties_bytes - bytes_without_trailer(view, columns)
    assert kept.tolist() == [layout.TRAILER.size if less else 0]
