"""Homes that are removed with what is in them: only who made one for that removes it.

A home says so by a file with a word that was made up when the home was made; who removes it has
heard that word from its maker. No other folder is ever removed, whatever a command line names.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from pathlib import Path
from typing import Final

from gantrymq.shm.errors import NotPermitted
from gantrymq.shm.fromhandlers import require_ours
from gantrymq.shm.ownfiles import create_file, read_trusted

MARKER: Final = "temporary"


def make() -> tuple[Path, str]:
    """Make a temporary home; it and its word, without which it stays."""
    home = Path(tempfile.mkdtemp(prefix="gantrymq-"))
    word = secrets.token_hex(16)
    claim(home, word)
    return home, word


def make_at(folder: Path, word: str) -> None:
    """Make a folder that who knows the word removes; if that fails, it is not there."""
    folder.mkdir(mode=0o700, parents=True)
    try:
        claim(folder, word)
    except BaseException:
        (folder / MARKER).unlink(missing_ok=True)
        folder.rmdir()
        raise


def claim(folder: Path, word: str) -> None:
    """Say that a folder that has just been made is to be removed by who knows the word."""
    with create_file(folder / MARKER) as own, os.fdopen(own.number, "w", closefd=False) as file:
        file.write(word)


def remove(home: Path, word: str) -> None:
    """Remove a temporary home; anything else stays as it is."""
    if _is_marked(home, word):
        shutil.rmtree(home, ignore_errors=True)


def require(home: Path, word: str) -> None:
    """Raise NotPermitted unless the home was made as a temporary one with that word."""
    if not _is_marked(home, word):
        raise NotPermitted(
            f"{home} was not made as a temporary home, and would be removed in the end: leave"
            " --lifeline out, which only `Broker.temporary()` gives",
            home=str(home),
        )


def _is_marked(home: Path, word: str) -> bool:
    try:
        found = read_trusted(home / MARKER)
    except OSError as error:
        require_ours(error)
        return False
    return bool(word) and secrets.compare_digest(found, word.encode())
