"""Spark's bodies of JSON: typed values, and why a body has none."""

from __future__ import annotations

import math
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


#: The largest float of 4 bytes, and the first number that is not rounded to it.
FLOAT_MAX, FLOAT_END = float(2**128 - 2**104), float(2**128 - 2**103)


def decode(
    *bodies: bytes | None,
    kind: Any = ORDER,  # noqa: ANN401 - pa.StructType
) -> list[tuple[Any, str | None]]:
    found = BodyDecoder(kind).decode(pa.array(bodies, pa.binary()))
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
        (b'{"id":1,"notes":{"a":"\\ud800"}}', "half of its pair"),
        (b'{"id":1,"total":1e999999999}', "decimal(6, 2)"),
        (b'{"id":1,"total":"NaN"}', "decimal(6, 2)"),
        (b'{"id":1,"total":"sNaN"}', "decimal(6, 2)"),
        (b'{"id":5000000000}', "<= 2147483647"),
        (b'{"id":1,"lines":[{"count":300}]}', "<= 127"),
        (b'{"id":1,"total":1.255}', "2 behind it"),
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


def decode_field(kind: Any, text: str) -> tuple[Any, str | None]:  # noqa: ANN401
    """What becomes of one field's text, as a field and below each type that holds others."""
    holders = {
        "%s": kind,
        "[%s]": pa.list_(kind),
        '{"b":%s}': pa.struct([("b", kind)]),
        '{"c": %s}': pa.map_(pa.string(), kind),
    }
    found = []
    for form, holder in holders.items():
        body = f'{{"a":{form % text}}}'.encode()
        ((value, error),) = decode(body, kind=pa.struct([("a", holder)]))
        found.append((value and value["a"], error))
    (first, *others) = found
    for (value, error), path in zip(others, ("$.a[0]", "$.a.b", "$.a[...]"), strict=True):
        assert error == (first[1] and first[1].replace("$.a", path))
        assert value in (None, [first[0]], {"b": first[0]}, [("c", first[0])])
    return first


@mends("S265")
@pytest.mark.parametrize("sign", ["", "-"])
def test_a_float_out_of_range_is_refused(sign: str) -> None:
    for text in (repr(FLOAT_END), "1e39", "1" + "0" * 39):
        value, error = decode_field(pa.float32(), sign + text)
        assert (value, str(error).endswith("- at `$.a`")) == (None, True), text
    for text in (repr(FLOAT_MAX), "3.4028235e38", repr(math.nextafter(FLOAT_END, 0))):
        assert decode_field(pa.float32(), sign + text) == (float(sign + repr(FLOAT_MAX)), None)
    assert "out of range" in str(decode_field(pa.float64(), sign + "1e309")[1])


@mends("S266")
@pytest.mark.parametrize("kind", [pa.int8(), pa.int16(), pa.int32(), pa.int64()], ids=str)
def test_a_whole_number_out_of_range_is_told_its_bounds(kind: Any) -> None:  # noqa: ANN401
    end = 2 ** (kind.bit_width - 1)
    for number in (-end, end - 1):
        assert decode_field(kind, str(number)) == (number, None)
    for number in (end, 10**23):
        assert decode_field(kind, str(number))[1] == f"Expected `int` <= {end - 1} - at `$.a`"
        assert decode_field(kind, str(-number - 1))[1] == f"Expected `int` >= {-end} - at `$.a`"


@mends("S266")
@pytest.mark.parametrize("text", ["1234567", "12345.67", "1.255", "1e999999999", '"NaN"'])
def test_a_decimal_that_does_not_fit_is_told_its_digits(text: str) -> None:
    said = (
        "Expected `decimal(6, 2)`: a number with at most 4 digits before the point and 2 behind it"
    )
    assert decode_field(pa.decimal128(6, 2), text) == (None, f"{said} - at `$.a`")
    assert decode_field(pa.decimal128(6, 2), "-9999.9900")[1] is None


@mends("S294")
def test_a_string_is_a_decimal_as_json_writes_numbers() -> None:
    kind = pa.decimal128(6, 2)
    for text in ("1", "-1.50", "1e3", "1.25E+2", "0", "-0", "12e-1"):
        value, error = decode_field(kind, text)
        assert error is None
        assert decode_field(kind, f'"{text}"') == (value, None), text
    for text in (
        "1_0", " 1", "1 ", r"1\n", "\uff11", "\u0661", "+1", "01", ".5", "5.", "1e", "", "-", "0x1",
        "Infinity", "1,5", "1e99999999999999999999",
    ):  # fmt: skip
        value, error = decode_field(kind, f'"{text}"')
        assert value is None, text
        assert str(error).startswith("Expected `decimal(6, 2)`: a number with"), text
    for text in ("true", "[1]", "{}", "1e99999999999999999999"):
        assert str(decode_field(kind, text)[1]).endswith("2 behind it - at `$.a`"), text


@mends("S266")
@pytest.mark.parametrize("field", ["name", "other"])
@pytest.mark.parametrize("text", [r"\ud800", r"\ud800\n", r"\ud800 and more", r"\uDBFF\ud800"])
def test_half_of_a_pair_is_named(field: str, text: str) -> None:
    """Whether the field is in the schema or not, at the body's end or before."""
    kind = pa.struct([("id", pa.int32()), ("name", pa.string())])
    for rest in ("}", " }\n", ',"id":1}'):
        ((value, error),) = decode(f'{{"{field}":"{text}"{rest}'.encode(), kind=kind)
        assert value is None
        assert "without the other half of its pair (byte " in str(error)


@mends("S266")
@pytest.mark.parametrize("text", ["t", "nul", r'"\u1"'])
def test_a_body_that_is_malformed_at_its_end_is_not_called_truncated(text: str) -> None:
    kind = pa.struct([("id", pa.int32())])
    ((_, whole), (_, cut)) = decode(
        f'{{"more":{text}}}'.encode(), f'{{"more":{text}'.encode(), kind=kind
    )
    assert "JSON is malformed: invalid character" in str(whole)
    assert "truncated" in str(cut)


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
