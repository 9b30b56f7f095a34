"""Subscriptions by tags."""

from __future__ import annotations

import pytest

from gantrymq.clients.subscription import FilterExpression, FilterType
from gantrymq.shm.errors import FilterSyntaxError, MessageIllegal
from gantrymq.shm.filter import parse_tags


@pytest.mark.parametrize("text", [None, "", "*"])
def test_everything(text: str | None) -> None:
    """FL-1."""
    chosen = parse_tags(text)
    assert not chosen.selective
    assert chosen.matches(None)


@pytest.mark.parametrize(
    ("text", "tags"),
    [
        ("a", {"a"}),
        (" a || b ", {"a", "b"}),
        ("a||||b||", {"a", "b"}),
        ("a b", {"a b"}),
        ("  ", set()),
        ("* || a", {"*", "a"}),
    ],
)
def test_tags_between_bars(text: str, tags: set[str]) -> None:
    """FL-1: parts are trimmed, empty ones dropped."""
    chosen = parse_tags(text)
    assert set(chosen.tags or ()) == tags
    assert chosen.selective
    assert not chosen.matches(None)


def test_bars_alone_are_an_error() -> None:
    with pytest.raises(FilterSyntaxError):
        parse_tags("||")


def test_matching_is_exact() -> None:
    """FL-2, FL-4: Aa and BB have the same hash, blanks count."""
    chosen = parse_tags("Aa")
    assert chosen.matches("Aa")
    assert not chosen.matches("BB")
    assert not chosen.matches("Aa ")
    assert parse_tags("BB || Aa").ordered() == [(2112, b"Aa"), (2112, b"BB")]


def test_an_expression_of_other_types_is_refused_when_it_is_made() -> None:
    for text, kind in ((None, FilterType.SQL92), (5, FilterType.SQL92), (5, FilterType.TAG)):
        with pytest.raises(FilterSyntaxError, match="a filter's text is a str"):
            FilterExpression(text, kind)  # type: ignore[arg-type]
    with pytest.raises(FilterSyntaxError, match=r"FilterType\.SQL92"):
        FilterExpression("a = 1", "sql92")  # type: ignore[arg-type]
    assert FilterExpression(None).matches({})  # FL-1


def test_a_value_that_is_no_text_is_named() -> None:
    wanted = FilterExpression("a = 7", FilterType.SQL92)
    with pytest.raises(MessageIllegal, match="'a' is int, not str") as caught:
        wanted.matches({"b": "1", "a": 7})  # type: ignore[dict-item]
    assert caught.value.property == "a"
