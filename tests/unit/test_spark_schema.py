"""Option `schema` of bodies of JSON: which texts are one, and what is said of others."""

from __future__ import annotations

import pytest

from gantrymq.clients.spark.options import ReadOptions
from gantrymq.shm.errors import SettingIllegal
from tests.support.trials import mends

#: A type that holds others, with `%s` in its place, and the path of what is in it.
HOLDERS = {
    "x %s": "body.x",
    "y INT, `x``y` : %s NOT NULL": "body.x`y",
    "x ARRAY<%s>": "body.x",
    "x MAP<STRING, %s>": "body.x",
    "x STRUCT<a: INT, b: %s>": "body.x.b",
    "x ARRAY<MAP<STRING, STRUCT<`a b`: %s COMMENT 'c'>>>": "body.x.a b",
}


def parse(schema: str) -> ReadOptions:
    return ReadOptions.parse({"store": "s", "bodyFormat": "json", "schema": schema})


@mends("S290")
@pytest.mark.parametrize("holder", HOLDERS)
@pytest.mark.parametrize(
    "kind",
    [
        "VARIANT", "GEOMETRY(4326)", "GEOMETRY(ANY)", "geography(4326)", "CHAR(3)", "VARCHAR(3)",
        "INTERVAL YEAR", "INTERVAL DAY TO SECOND", "TIME", "TIME(3)", "VOID", "TEXT",
    ],
)  # fmt: skip
def test_a_type_that_json_does_not_have_is_named(holder: str, kind: str) -> None:
    word = kind.partition("(")[0].partition(" ")[0].upper()
    said = f"option 'schema': {HOLDERS[holder]} is {word}, which JSON does not have"
    with pytest.raises(SettingIllegal) as refused:
        parse(holder % kind)
    assert str(refused.value) == said


@pytest.mark.parametrize("holder", HOLDERS)
@pytest.mark.parametrize(
    "kind",
    [
        "boolean", "BYTE", "TinyInt", "SHORT", "SMALLINT", "INT", "INTEGER", "LONG", "BIGINT",
        "FLOAT", "REAL", "DOUBLE", "DECIMAL", "DEC(5)", "NUMERIC(10, 2)", "STRING", "BINARY",
        "STRING COLLATE UTF8_LCASE", "STRING COLLATE system.builtin.UTF8_BINARY", "DATE",
        "TIMESTAMP", "TIMESTAMP_NTZ", "TIMESTAMP_LTZ", "TIMESTAMP(6)", "STRUCT<>",
        "TIMESTAMP WITHOUT TIME ZONE", "TIMESTAMP WITH LOCAL TIME ZONE",
    ],
)  # fmt: skip
def test_a_type_that_json_has_is_left_to_spark(holder: str, kind: str) -> None:
    assert parse(holder % kind).body_type == f"struct<{holder % kind}>"


def test_what_spark_takes_beside_types_is_taken() -> None:
    for schema in (
        "id INT NOT NULL, total DOUBLE COMMENT 'in EUR, it''s'",
        r"""a INT COMMENT "say \"x\", y", b INT COMMENT 'a' 'b', 1c INT COMMENT r'\'""",
        "a\u00a0INT, b INT COMMENT R'x'",
        "/* two\n, x */ a INT -- one, a INT\n, b: ARRAY < INT >",
        "`` INT, `a, b` INT, select INT, _ INT",
    ):
        assert parse(schema).is_json


@mends("S295")
@pytest.mark.parametrize("holder", HOLDERS)
def test_a_name_that_is_there_twice_is_named(holder: str) -> None:
    schema = holder % "STRUCT<d: INT, c: INT, `d` STRING>"
    with pytest.raises(SettingIllegal) as refused:
        parse(schema)
    assert str(refused.value) == f"option 'schema': {HOLDERS[holder]}.d is there twice"
    parse(holder % "STRUCT<d: INT, D: INT>")  # JSON tells them apart, and so does Spark's row


@mends("S295")
@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("nonsense", "a type for body.nonsense is wanted in place of its end"),
        ("x INT,", "a name (in backquotes if it has other signs than a-z, 0-9 and _) is wanted"),
        (",x INT", "in place of ','"),
        ("é INT", "in place of 'é'"),
        ("1 INT", "in place of '1'"),
        ("'x' INT", "in place of \"'x'\""),
        ("`x INT", "in place of '`'"),
        ("x-y INT", "a type for body.x is wanted in place of '-'"),
        ("x INT y INT", "a comma is wanted in place of 'y'"),
        ("x INT(5)", "a comma is wanted in place of '('"),
        ("x INT>, z STRUCT<y INT", "a comma is wanted in place of '>'"),
        ("x DECIMAL(5", "')' is wanted in place of its end"),
        ("x DECIMAL(y)", "a number is wanted in place of 'y'"),
        ("x ARRAY", "'<' behind ARRAY is wanted in place of its end"),
        ("x ARRAY<INT NOT NULL>", "'>' is wanted in place of 'NOT'"),
        ("x MAP<STRING>", "a comma and the type of a map's values is wanted in place of '>'"),
        ("x STRUCT<a INT; b INT>", "a comma or '>' is wanted in place of ';'"),
        ("x INT COMMENT y", "a text in quotes is wanted in place of 'y'"),
        ("x INT COMMENT 'y", 'a text in quotes is wanted in place of "\'"'),
    ],
)
def test_a_text_that_is_no_schema_is_told_where(schema: str, said: str) -> None:
    with pytest.raises(SettingIllegal) as refused:
        parse(schema)
    text = str(refused.value)
    assert text.startswith("option 'schema': ")
    assert said in text
    assert text.endswith(": give fields as 'id INT NOT NULL, total DOUBLE'")
