"""What the files of the commit log are called; for all layers."""

from __future__ import annotations

from typing import Final

DIRECTORY: Final = "commitlog"


def segment_name(base: int) -> str:
    """File of the segment that starts at a log position (SF-9)."""
    return f"{DIRECTORY}/{base:020d}"
