"""How a delayed message waits."""

from __future__ import annotations

from enum import StrEnum


class Kind(StrEnum):
    """As `gantrymq delayed list` shows it."""

    EXACT = "exact"
    LEVEL = "level"
    ABSENT = "absent"
