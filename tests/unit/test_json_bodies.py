"""Spark's bodies of JSON: typed values, and why a body has none."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from gantrymq.clients.spark.jsonbodies import BodyDecoder
from gantrymq.clients.spark.options import ReadOptions
from gantrymq.shm.errors import SettingIllegal
from tests.support.trials import mends

ORDER = pa.struct(
    [
        pa.field("id", pa.int32(), nullable=False),
        pa.field("total", pa.decimal128(6, 2)),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("lines", pa.list_(pa.struct([("sku", pa.string()), ("count", pa.int8())]))),
        pa.field("notes", pa.map_(pa.string(), pa.string())),
    ]
)


def decode(*bodies: bytes | None) -> list[tuple[Any, str | None]]:
    found = BodyDecoder(ORDER).decode(pa.array(bodies, pa.binary()))
    found.values.validate(full=True)
    return list(zip(found.values.to_pylist(), found.errors.to_pylist(), strict=True))


def test_values_have_the_schemas_types() -> None:
    body = b"""{"id": 7, "total": 1.5, "at": "2026-01-01T02:00:00+02:00", "unknown": [1],
        "lines": [{"sku": "a", "count": 2}, {"sku": null}], "notes": {"by": "me"}}"""
    ((value, error),) = decode(body)
    assert error is None
    assert (value["id"], str(value["total"]), value["at"].isoformat()) == (
        7, "1.50", "2026-01-01T00:00:00+00:00",
    )  # fmt: skip
    assert value["lines"] == [{"sku": "a", "count": 2}, {"sku": None, "count": None}]
    assert value["notes"] == [("by", "me")]
    ((lacking, _),) = decode(b'{"id":1}')
    assert lacking == {"id": 1, "total": None, "at": None, "lines": None, "notes": None}


@mends("S23")
@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "truncated"),
        (b'{"id":1', "truncated"),
        (b'{"id":1} {"id":2}', "trailing characters"),
        (b'{"id":1}\n', None),
        (b"null", "Expected `object`"),
        (b"{}", "missing required field `id`"),
        (b'{"id":"1"}', r"Expected `int`, got `str` - at `$.id`"),
        (b'{"id":1,"notes":{"a":"\xff"}}', "no UTF-8"),
        (b'{"id":1,"more":' + b"[" * 5000 + b"]" * 5000 + b"}", "nested too deeply"),
        (b'{"id":1,"notes":{"a":"\\ud800"}}', "truncated"),
        (b'{"id":1,"total":1e999999999}', "decimal128"),
        (b'{"id":1,"total":"NaN"}', "decimal128"),
        (b'{"id":1,"total":"sNaN"}', "decimal128"),
        (b'{"id":5000000000}', "too large"),
        (b'{"id":1,"lines":[{"count":300}]}', "too large"),
        (b'{"id":1,"total":1.255}', "data loss"),
    ],
)
def test_one_that_is_malformed_touches_no_other(body: bytes, reason: str | None) -> None:
    before, found, none, after = decode(b'{"id":1}', body, None, b'{"id":3}')
    assert (before[0]["id"], after[0]["id"]) == (1, 3)
    assert (before[1], none, after[1]) == (None, (None, None), None)
    if reason is None:
        assert found[0]["id"] == 1
    else:
        assert found[0] is None
        assert reason in str(found[1])


def test_a_type_that_json_lacks_is_named() -> None:
    kind = pa.struct([("took", pa.duration("us"))])
    with pytest.raises(SettingIllegal, match=r"body\.took is duration"):
        BodyDecoder(kind)


def test_format_and_schema_go_together() -> None:
    options = {"store": "s", "bodyFormat": "json", "schema": "id INT"}
    read = ReadOptions.parse(options)
    assert read.columns[-1] == "body_error"
    assert "body struct<id INT>, " in read.schema
    assert "body_error" not in ReadOptions.parse({"store": "s"}).columns
    for wrong in ({"schema": "id INT"}, {"bodyFormat": "json"}):
        with pytest.raises(SettingIllegal, match="go together"):
            ReadOptions.parse({"store": "s", **wrong})
    with pytest.raises(SettingIllegal, match="beside column body"):
        ReadOptions.parse({**options, "columns": "topic,body_error"})
