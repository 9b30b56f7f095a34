"""What a subscription lets through: tags (filtering.md section 1)."""

from __future__ import annotations

from dataclasses import dataclass

from shm.errors import FilterSyntaxError
from shm.properties import java_hash

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


def parse_tags(text: str | None) -> TagFilter:
    """A subscription's text: `*`, or tags between `||` (FL-1).

    Blanks alone match nothing. Raises FilterSyntaxError if `||` separates nothing from nothing.
    """
    if text is None or text in ("", EVERYTHING):
        return TagFilter(None)
    parts = text.split(_OR)
    if not any(parts):
        raise FilterSyntaxError(f"subscription {text!r} names no tag", position=0)
    return TagFilter(frozenset(part.strip() for part in parts) - {""})
