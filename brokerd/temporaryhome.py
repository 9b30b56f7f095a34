"""Homes that are removed with what is in them: only who made one for that removes it.

A home says so by a file with a word that was made up when the home was made; who removes it has
heard that word from its maker. No other folder is ever removed, whatever a command line names.

Where the word is no secret, whoever is at work in the folder has its mark locked meanwhile.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gantrymq.shm.errors import NotPermitted, StoreBusy
from gantrymq.shm.fromhandlers import require_ours
from gantrymq.shm.ownfiles import create_file, open_file, read_trusted

if TYPE_CHECKING:
    from gantrymq.shm.held import Descriptor

MARKER: Final = "temporary"


def make() -> tuple[Path, str]:
    """Make a temporary home; it and its word, without which it stays."""
    home = Path(tempfile.mkdtemp(prefix="gantrymq-"))
    word = secrets.token_hex(16)
    claim(home, word)
    return home, word


@contextmanager
def making(folder: Path, word: str) -> Iterator[None]:
    """Make a folder that is removed if what is done meanwhile fails, and kept from others.

    It may be called something else in the end. What a kill leaves `remove_left` removes.
    """
    with _make_at(folder, word) as mark:
        try:
            yield
        except BaseException:
            if _is_at(mark, folder):
                _remove_tree(folder)
            raise


def _make_at(folder: Path, word: str) -> Descriptor:
    """Make a folder with its mark, which is locked; if that fails, it is not there."""
    folder.mkdir(mode=0o700, parents=True)
    try:
        return claim(folder, word)
    except BaseException:
        (folder / MARKER).unlink(missing_ok=True)
        folder.rmdir()
        raise


def claim(folder: Path, word: str) -> Descriptor:
    """Say that a folder that has just been made is to be removed by who knows the word.

    `remove_left` leaves it alone as long as somebody has what this returns open.
    """
    mark = create_file(folder / MARKER)
    fcntl.flock(mark.number, fcntl.LOCK_EX)  # before it has its word: then others may come
    with os.fdopen(mark.number, "w", closefd=False) as file:
        file.write(word)
    return mark


def remove_left(folder: Path, word: str) -> None:
    """Remove what a killed `making` with that word has left; anything else stays as it is.

    Raises StoreBusy if it is at work.
    """
    if not _is_marked(folder, word):
        return
    with open_file(folder / MARKER, os.O_RDWR) as mark:
        try:
            fcntl.flock(mark.number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            require_ours(error)
            raise StoreBusy(
                f"{folder} is being written by another process: wait until it has ended",
                folder=str(folder),
            ) from None
        if _is_at(mark, folder):
            _remove_tree(folder)


def remove(home: Path, word: str) -> None:
    """Remove a temporary home; anything else stays as it is."""
    if _is_marked(home, word):
        _remove_tree(home)


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


def _is_at(mark: Descriptor, folder: Path) -> bool:
    """Whether this is the folder's mark, not that of one that had its name before."""
    try:
        return os.path.samestat(os.fstat(mark.number), os.lstat(folder / MARKER))
    except OSError as error:
        require_ours(error)
        return False


def _remove_tree(folder: Path) -> None:
    """The mark goes behind all folders: what a kill leaves meanwhile has it still."""
    _root, inner, _files = next(os.walk(folder), ("", [], []))
    for name in inner:
        shutil.rmtree(folder / name, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)
