"""What the agents of a test have left open, as processes that died have: closed with the test.

A descriptor is an integer that nothing gives back but its owner, and a test whose agent dies amid
its work has no owner any more. Without this a long run has thousands of them open.
"""

from __future__ import annotations

import os
from pathlib import Path

from gantrymq.shm.storage import PosixFile

_opened: list[PosixFile] = []
_made = PosixFile.__init__


def _note(self: PosixFile, descriptor: int, name: str) -> None:
    _made(self, descriptor, name)
    _opened.append(self)


def watch() -> None:
    """Remember each file that is opened in this process from now on."""
    PosixFile.__init__ = _note  # type: ignore[method-assign]


def close_below(folder: Path | None) -> int:
    """Close what lies below the folder of a test that is over, forget the others; how many."""
    left = [file for file in _opened if file.descriptor >= 0]
    _opened.clear()
    inside = [file for file in left if folder is not None and _lies_below(file, folder)]
    for file in inside:
        file.close()
    return len(inside)


def _lies_below(file: PosixFile, folder: Path) -> bool:
    return os.readlink(f"/proc/self/fd/{file.descriptor}").startswith(f"{folder}/")
