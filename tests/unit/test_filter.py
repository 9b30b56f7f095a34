"""Subscriptions by tags."""

from __future__ import annotations

import pytest

from shm.errors import FilterSyntaxError
from shm.filter import parse_tags


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
