"""The kernel's program answers as the reference does, for any filter and any properties."""

from __future__ import annotations

import re
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from gantrymq.shm.errors import FilterSyntaxError
from gantrymq.shm.properties import parse_properties
from gantrymq.shm.sql92.dialect import Dialect
from gantrymq.shm.sql92.parser import parse
from tests.support.sqlfilters import answer, by_program, by_reference

NAMES = ("a", "b", "TAGS", "_x")
STRINGS = ("", "x", "a b", "5", "5.0", "true", "上海", "it's", "\N{REPLACEMENT CHARACTER}")
NUMBERS = ("0", "5", "-5", "+3", "5.5", ".5", "1e3", "2147483648", "9223372036854775807", "1.5E300")
VALUES = (
    *STRINGS, *NUMBERS, "NaN", "-Infinity", " 5 ", "5d", "0x1p3", "0x10", "-9223372036854775808",
    "9223372036854775808", "-0.0", "1e-400", "0.1234567890123456789", "12345678901234567890.5",
    "TRUE", "5e", "e5", ".", "+", "--5", "٥", "1e99999999",
    "0" * 4096 + "5", "-" + "0" * 4097 + "9223372036854775808", "0" * 4097 + "x", "٠" * 4096 + "5",
)  # fmt: skip

names = st.sampled_from(NAMES)
strings = st.one_of(st.sampled_from(STRINGS), st.text("ab'%_é", max_size=4)).map(
    lambda text: "'" + text.replace("'", "''") + "'"
)
numbers = st.sampled_from(NUMBERS)
operands = st.one_of(names, numbers, strings, st.sampled_from(("TRUE", "FALSE")))
comparisons = st.one_of(
    st.tuples(operands, st.sampled_from(("=", "<>", ">", ">=", "<", "<=")), operands).map(" ".join),
    st.tuples(names, st.sampled_from(("IS NULL", "IS NOT NULL"))).map(" ".join),
    st.tuples(
        names, st.sampled_from(("", "NOT ")),
        st.sampled_from(("CONTAINS", "STARTSWITH", "ENDSWITH", "LIKE")), strings,
    ).map(lambda parts: f"{parts[0]} {parts[1]}{parts[2]} {parts[3]}"),
    st.tuples(names, st.sampled_from(("IN", "NOT IN")), st.lists(strings, min_size=1, max_size=5))
    .map(lambda parts: f"{parts[0]} {parts[1]} ({', '.join(parts[2])})"),
    st.tuples(names, st.sampled_from(("BETWEEN", "NOT BETWEEN")), numbers, numbers)
    .map(lambda parts: f"{parts[0]} {parts[1]} {parts[2]} AND {parts[3]}"),
    names,
)  # fmt: skip
conditions = st.recursive(
    comparisons,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from((" AND ", " OR ")), inner).map("".join),
        inner.map(lambda text: f"NOT ({text})"),
        inner.map(lambda text: f"({text})"),
        st.tuples(inner, st.sampled_from((" = TRUE", " <> FALSE"))).map(
            lambda parts: f"({parts[0]}){parts[1]}"
        ),
    ),
    max_leaves=8,
)
messages = st.dictionaries(names, st.sampled_from(VALUES), max_size=4)


@settings(max_examples=400, deadline=None)
@given(conditions, st.lists(messages, min_size=1, max_size=6), st.sampled_from(Dialect))
def test_the_program_says_what_the_reference_says(
    text: str, found: list[dict[str, str]], dialect: Dialect
) -> None:
    try:
        node = parse(text, dialect)
    except FilterSyntaxError:
        return
    said = [by_reference(node, properties, dialect) for properties in found]
    for properties, ran, wanted in zip(found, by_program(node, found, dialect), said, strict=True):
        assert ran in (wanted, "ask"), f"{text} of {properties}"


@settings(max_examples=200, deadline=None)
@given(
    conditions,
    st.lists(
        st.one_of(
            st.binary(max_size=12),
            st.sampled_from((b"\x01", b"\x02", b"a\x01", b"\xe4\xb8", b"\xff", b"a\x01\xff5\x02")),
        ),
        max_size=8,
    ).map(b"".join),
)
def test_any_bytes_are_read_as_properties_are(text: str, stored: bytes) -> None:
    """SF-28: half entries drop out, the last of a key wins; bytes that are no UTF-8."""
    try:
        node = parse(text)
    except FilterSyntaxError:
        return
    said = by_reference(node, parse_properties(stored), Dialect.SQL)
    assert by_program(node, [stored], Dialect.SQL)[0] in (said, "ask")


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=60))
def test_any_text_compiles_or_is_refused_by_position(text: str) -> None:
    for dialect in Dialect:
        position = 0
        try:
            parse(text, dialect)
        except FilterSyntaxError as error:
            position = error.position
        assert 0 <= position <= len(text)


letters = st.text("ab", max_size=90)
patterns = st.lists(st.text("ab_", max_size=90), min_size=1, max_size=4).map("%".join)


@settings(max_examples=300, deadline=None)
@given(letters, letters.filter(bool), letters)
def test_what_is_contained_is_found(before: str, wanted: str, behind: str) -> None:
    text = before + behind
    assert answer(f"a CONTAINS '{wanted}'", {"a": text}) == str(wanted in text).lower()
    whole = before + wanted + behind
    assert answer(f"a CONTAINS '{wanted}'", {"a": whole}) == "true"
    assert answer(f"a LIKE '%{wanted}%'", {"a": whole}) == "true"


@settings(max_examples=300, deadline=None)
@given(patterns, st.text("ab", min_size=1, max_size=120), st.randoms(use_true_random=False))
def test_like_says_what_a_regular_expression_says(pattern: str, text: str, dice: Random) -> None:
    """Also of a text that is made to fit, which one of letters hardly does."""
    fitting = re.sub("[_%]", lambda _: dice.choice("ab"), pattern)
    expected = re.compile(pattern.replace("_", ".").replace("%", ".*"))
    for value in filter(None, (text, fitting, fitting + text)):
        said = answer(f"a LIKE '{pattern}'", {"a": value})
        assert said == str(expected.fullmatch(value) is not None).lower(), value
