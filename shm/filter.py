"""What a subscription lets through: tags, or an expression (filtering.md sections 1 and 3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gantrymq.shm.errors import FilterSyntaxError
from gantrymq.shm.properties import java_hash
from gantrymq.shm.sql92.dialect import Dialect
from gantrymq.shm.sql92.evaluate import FilterFailed, evaluate
from gantrymq.shm.sql92.parser import parse
from gantrymq.shm.sql92.tokens import shorten
from gantrymq.shm.sql92.tree import Node

EVERYTHING = "*"
_OR = "||"


@dataclass(frozen=True, slots=True)
class TagFilter:
    """A set of tags; `tags` is None where everything matches, and may be empty (FL-1)."""

    tags: frozenset[str] | None

    @property
    def selective(self) -> bool:
        """False if every message matches."""
        return self.tags is not None

    def ordered(self) -> list[tuple[int, bytes]]:
        """Java hash and UTF-8 bytes of each tag by rising hash; hashes may be equal (FL-3)."""
        return sorted((java_hash(tag), tag.encode()) for tag in self.tags or ())

    def matches(self, tag: str | None) -> bool:
        """What a client decides in the end: exact comparison (FL-4), without a tag no match."""
        return self.tags is None or (tag is not None and tag in self.tags)


@dataclass(frozen=True, slots=True)
class SqlFilter:
    """An SQL92 expression that compiles; `node` is its tree."""

    text: str
    dialect: Dialect
    node: Node

    def matches(self, properties: Mapping[str, str]) -> bool | None:
        """TRUE, FALSE, or None: unknown, also where RocketMQ's evaluation would fail (FL-15)."""
        try:
            return evaluate(self.node, properties, self.dialect)
        except FilterFailed:
            return None


Filter = TagFilter | SqlFilter


def parse_sql(text: str, dialect: Dialect = Dialect.SQL) -> SqlFilter:
    """An expression's filter. Raises FilterSyntaxError."""
    return SqlFilter(text, dialect, parse(text, dialect))


def parse_tags(text: str | None) -> TagFilter:
    """A subscription's text: `*`, or tags between `||` (FL-1).

    Blanks alone match nothing. Raises FilterSyntaxError if `||` separates nothing from nothing.
    """
    if text is None or text in ("", EVERYTHING):
        return TagFilter(None)
    parts = text.split(_OR)
    if not any(parts):
        raise FilterSyntaxError(f"subscription {shorten(text)} names no tag", position=0)
    return TagFilter(frozenset(part.strip() for part in parts) - {""})
