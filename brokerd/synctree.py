"""Makes a directory that was written anew durable, before it gets its name."""

from __future__ import annotations

import os
from pathlib import Path

from gantrymq.shm.held import Descriptor


def rename_durably(partial: Path, target: Path) -> None:
    """Sync all that `partial` holds, then call it `target`: it is there whole, or not at all."""
    _sync_tree(partial)
    partial.rename(target)
    _sync(target.parent, os.O_DIRECTORY)


def _sync_tree(root: Path) -> None:
    for folder, _folders, files in os.walk(root):
        for name in files:
            _sync(Path(folder) / name)
        _sync(Path(folder), os.O_DIRECTORY)


def _sync(path: Path, flags: int = 0) -> None:
    with Descriptor(os.open, path, os.O_RDONLY | os.O_CLOEXEC | flags) as opened:
        os.fsync(opened.number)
