"""What is in a folder, for who compares two of them, or one before and after."""

from __future__ import annotations

from pathlib import Path


def files_below(folder: Path) -> dict[str, bytes]:
    """Contents of all files below it, by their paths from there."""
    found = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}
