"""SQL92 filters beside the golden answers: where dialects differ, and what is refused, and how."""

from __future__ import annotations

import re

import pytest

from gantrymq.shm.errors import FilterSyntaxError
from gantrymq.shm.opcodes import NAMES_MAX
from gantrymq.shm.sql92.dialect import DIFFERENCES, Dialect
from gantrymq.shm.sql92.parser import DEPTH_MAX, LIKE_MAX, TEXT_MAX, parse
from gantrymq.shm.sql92.program import compile_program
from tests.support.sqlfilters import answer
from tests.support.tree import ROOT
from tests.support.trials import mends

ROCKETMQ = Dialect.ROCKETMQ


def refusal(text: str, dialect: Dialect = Dialect.SQL) -> FilterSyntaxError:
    with pytest.raises(FilterSyntaxError) as caught:
        parse(text, dialect)
    return caught.value


@mends("S205")
@pytest.mark.parametrize("text", ["FALSE", "TRUE", "NULL", "''", "'x'"])
def test_a_constant_is_named_as_it_is_written(text: str) -> None:
    """By the same function as in the tree of `filter explain`."""
    assert f"{text} has no order" in str(refusal(f"a > {text}"))


# -------------------------------------------------------------------------- the table of dialects


def values_that_do_not_fit() -> None:
    assert answer("a > 5", {"a": "abc"}, ROCKETMQ) == "error"  # FL-31
    assert answer("a > 5", {"a": "abc"}) == "null"
    assert answer("a = 5 OR b = 1", {"a": "x", "b": "1"}, ROCKETMQ) == "error"
    assert answer("a = 5 OR b = 1", {"a": "x", "b": "1"}) == "true"
    assert answer("TRUE = a", {"a": "true"}, ROCKETMQ) == "error"  # FL-33
    assert answer("TRUE = a", {"a": "true"}) == "true"


def whole_and_broken_numbers() -> None:
    assert answer("a > 5", {"a": "5.5"}, ROCKETMQ) == "error"
    assert answer("a > 5", {"a": "5.5"}) == "true"
    assert answer("a > 5", {"a": "3000000000"}) == "true"
    assert answer("5 < a", {"a": "1e3"}) == "true"
    assert answer("a > 9223372036854775807", {"a": "9223372036854775808"}) == "false", "rounded"


@mends("S169")
@pytest.mark.parametrize("zero", ["-0.0", "-0", "-1e-400", "0.0", "0"])
def test_zero_has_no_sign(zero: str) -> None:
    """Dialect `sql`, by the program and by the reference; Java's doubles have two zeroes."""
    for text in ("a = 0", "a = 0.0", "a = -0.0", "a >= 0", "a BETWEEN 0 AND 5", "a IN (0)"):
        assert answer(text, {"a": zero}) == "true", text
    for text in ("a < 0", "a < -0.0", "a > 0", "a <> 0", "a > b", "a < b"):
        assert answer(text, {"a": zero, "b": "-0.0"}) == "false", text
    assert answer("a < b", {"a": "-0.0", "b": "0"}, ROCKETMQ) == "true"  # FL-34


def end_of_the_text() -> None:
    assert answer("a = 1 garbage", {"a": "1"}, ROCKETMQ) == "true"  # FL-25
    assert refusal("a = 1 garbage").position == 6


def not_before_a_comparison() -> None:
    assert answer("NOT a = 1", {"a": "2"}, ROCKETMQ) == "false"  # FL-26
    error = refusal("NOT a = 1")
    assert "NOT (a = 1)" in str(error)
    assert error.position == 6
    assert answer("NOT (a = 1)", {"a": "2"}) == "true"
    assert answer("NOT a", {"a": "2"}) == "true"  # FL-43


def unequal() -> None:
    assert refusal("a != 1", ROCKETMQ).position == 2
    assert answer("a != 1", {"a": "2"}) == "true"


def like() -> None:
    assert answer("a LIKE 'x%'", {"a": "xyz"}, ROCKETMQ) == "false"  # FL-25: a alone
    assert answer("a LIKE 'x%'", {"a": "xyz"}) == "true"
    assert answer("a LIKE '_yz'", {"a": "xyz"}) == "true"
    assert answer("a LIKE '%a%b'", {"a": "1a2b3b"}) == "true"
    assert answer("a LIKE '%a%b'", {"a": "1b2a"}) == "false"
    assert answer("a LIKE '10!%' ESCAPE '!'", {"a": "10%"}) == "true"
    assert answer("a LIKE '10!%' ESCAPE '!'", {"a": "10x"}) == "false"
    assert answer("a NOT LIKE 'x%'", {"a": "xyz"}) == "false"
    assert answer("a LIKE 'x%'", {}) == "null"
    assert answer("a LIKE '上_'", {"a": "上海"}) == "true"


def numbers_in_in() -> None:
    assert refusal("a IN (1, 2)", ROCKETMQ).position == 6
    assert answer("a IN (1, 'x', -2.5)", {"a": "01"}) == "true"
    assert answer("a IN (1, 'x', -2.5)", {"a": "-2.50"}) == "true"
    assert answer("a IN (1, 'x')", {"a": "y"}) == "null"
    assert answer("a IN (1, 2)", {"a": "3"}) == "false"


def zero_point_zero() -> None:
    assert refusal("a > 0.0", ROCKETMQ).position == 4  # FL-30
    assert answer("a > 0.0", {"a": "0.1"}) == "true"


SHOWN = {
    "values that do not fit": values_that_do_not_fit,
    "whole and broken numbers": whole_and_broken_numbers,
    "end of the text": end_of_the_text,
    "NOT before a comparison": not_before_a_comparison,
    "!=": unequal,
    "LIKE": like,
    "numbers in IN": numbers_in_in,
    "0.0": zero_point_zero,
}


def test_each_difference_has_a_test() -> None:
    assert [name for name, _, _ in DIFFERENCES] == list(SHOWN)


@pytest.mark.parametrize("name", SHOWN)
def test_dialects_differ_as_the_table_says(name: str) -> None:
    SHOWN[name]()


def examples_without_a_property() -> list[tuple[str, str]]:
    """The table of docs/clients.md: expressions, and what it says that they are."""
    page = (ROOT / "docs/clients.md").read_text("utf-8")
    rows = page.partition("| without a property `d`")[2].partition("\n\n")[0].splitlines()[2:]
    cells = [row.strip("| ").split(" | ") for row in rows]
    return [(text, said) for texts, said in cells for text in re.findall("`(.+?)`", texts)]


@mends("S267")
def test_a_property_that_is_not_there_counts_as_the_page_says() -> None:
    words = {"unknown": "null", "FALSE": "false", "TRUE: the message comes": "true"}
    examples = examples_without_a_property()
    assert {said for _, said in examples} == words.keys()
    for dialect in Dialect:
        for properties in ({"a": "1"}, {"a": "1", "d": "", "e": ""}):
            found = {text: answer(text, properties, dialect) for text, _ in examples}
            assert found == {text: words[said] for text, said in examples}


def test_the_page_has_the_table_of_differences() -> None:
    page = (ROOT / "docs/clients.md").read_text("utf-8")
    for name, theirs, ours in DIFFERENCES:
        assert f"| {name} | {theirs} | {ours} |" in page


def test_an_empty_search_is_false_whatever_it_is_asked_of() -> None:
    """FL-44: the operand, which would fail, is not evaluated."""
    for search in ("CONTAINS", "STARTSWITH", "ENDSWITH"):
        for word in (search, f"NOT {search}"):
            assert answer(f"(a > 5) {word} ''", {"a": "x"}, ROCKETMQ) == "false"
            assert answer(f"a {word} ''", {}, ROCKETMQ) == "false"
            assert answer(f"(a {word} '') = FALSE AND b = 1", {"b": "1"}) == "true"
        assert answer(f"(a > 5) {search} 'x'", {"a": "x"}, ROCKETMQ) == "error"


# ------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("text", "position", "expected"),
    [
        ("", 0, "a property"),
        ("a >", 3, "a property"),
        ("a IN 'x'", 5, "("),
        ("a IN ('x'", 9, ")"),
        ("a BETWEEN 1 OR 2", 12, "AND"),
        ("a IS 5", 5, "NULL"),
        ("a NOT 5", 6, "CONTAINS"),
        ("(a = 1", 6, ")"),
        ("a CONTAINS 5", 11, "a string"),
        ("a = 1 b", 6, "the end"),
    ],
)
def test_a_refusal_names_position_and_what_was_expected(
    text: str, position: int, expected: str
) -> None:
    error = refusal(text)
    assert error.position == position
    assert expected in error.expected
    assert f"position {position}" in str(error)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a = NULL", "IS NULL"),
        ("a > '5'", "no order"),
        ("a > TRUE", "no order"),
        ("a > 1 > 2", "no order"),
        ("a BETWEEN 5 AND 1", "lower one first"),
        ("5", "no condition"),
        ("a = 1 AND 'x'", "no condition"),
        ("5 IN ('x')", "only a property"),
        ("a = 'x", "closing '"),
        ("a = 1 /* x", "*/"),
        ("a ; b", "no part"),
        ("a = 9223372036854775808", "above"),
        ("a = 1E400", "range"),
        ("a LIKE 'x!' ESCAPE '!'", "ends in its ESCAPE"),
        ("a LIKE 'x' ESCAPE 'ab'", "one character"),
    ],
)
def test_what_cannot_be_meant_is_refused(text: str, said: str) -> None:
    """FL-50, FL-22, FL-30."""
    assert said in str(refusal(text))


def test_hostile_texts_are_refused_before_they_cost_anything() -> None:
    assert "characters" in str(refusal("a" * (TEXT_MAX + 1)))
    for text in ("(" * 50_000, "NOT " * 10_000 + "a", "-" * 60_000, "a" + " = a" * 10_000):
        assert f"more than {DEPTH_MAX} deep" in str(refusal(text))
    items = ",".join(["'x'"] * 100_000)
    assert "characters" in str(refusal(f"a IN ({items})"))
    names = " AND ".join(f"a{n} = 1" for n in range(NAMES_MAX + 1))
    assert f"names {NAMES_MAX + 1} properties" in str(refusal(names))
    assert str(LIKE_MAX) in str(refusal(f"a LIKE '{'%a' * LIKE_MAX}'"))


@pytest.mark.parametrize(
    "text",
    [
        "a = 1 {}".format("x" * 60_000),
        "a = 1{}".format("9" * 60_000),
        "a = 1e{}".format("9" * 60_000),
        "a = 1 '{}'".format("x" * 60_000),
        "a > '{}'".format("x" * 60_000),
        "'{}'".format("x" * 60_000),
        "a IN ({})".format("x" * 60_000),
        "NOT a = {}".format("x" * 60_000),
    ],
    ids=range(8),
)
def test_a_refusal_is_short_however_long_the_text_is(text: str) -> None:
    error = refusal(text)
    assert len(str(error)) < 300
    assert len(error.token) < 100


def test_a_long_token_is_told_by_its_beginning_and_its_length() -> None:
    assert "xxx... (60000 characters) where" in str(refusal("a = 1 " + "x" * 60_000))


def test_wide_texts_are_served() -> None:
    conditions = " OR ".join(f"a = {n}" for n in range(5_000))
    assert answer(conditions, {"a": "4999"}) == "true"
    items = ",".join(f"'{n:05}'" for n in range(7_000))
    assert answer(f"a IN ({items})", {"a": "06999"}) == "true"
    assert answer(f"a IN ({items})", {"a": "7000"}) == "false"
    nested = "(" * (DEPTH_MAX - 2) + "a = 1" + ")" * (DEPTH_MAX - 2)
    assert answer(nested, {"a": "1"}) == "true"


def test_long_values_are_looked_through() -> None:
    value = "ab" * 16_000
    assert answer("a CONTAINS 'bb'", {"a": value}) == "false"
    assert answer("a CONTAINS 'ba'", {"a": value}) == "true"
    assert answer(f"a LIKE '{'%ab' * 300}%c'", {"a": value}) == "false"
    assert answer("a > 5", {"a": "9" * 32_000}, ROCKETMQ) == "error"
    assert answer("a = 5", {"a": "0" * 4096 + "5"}, ROCKETMQ) == "true"  # FL-31: zeros are fine
    assert answer("a = 9223372036854775807", {"a": "0" * 4096 + "9223372036854775807"}) == "true"


@pytest.mark.parametrize("value", ["0" * 32_000 + "٥x", "5" * 32_000 + "x", "0." * 16_000])
def test_long_values_that_are_almost_numbers_take_no_time(value: str) -> None:
    """Each was tried in as many ways as it has digits: a minute for one message."""
    assert answer("a > 5.5", {"a": value}) == "null"
    assert answer("a > 5.5", {"a": value}, ROCKETMQ) == "error"


def test_a_program_can_be_read() -> None:
    listing = compile_program(parse("a > 5 AND b IN ('x', 'y')"), Dialect.SQL).listing()
    text = "\n".join(listing)
    for part in ("LOAD     a", "PUSH     5", "COMPARE  >", "IN       'x', 'y'", "AND_STEP", "END"):
        assert part in text
