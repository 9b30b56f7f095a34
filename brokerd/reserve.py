"""Some blocks for the next start on a full disk, in `gantry/reserve`.

A start needs small files of its own before anything else can be done about the disk: without these
blocks it could not begin where not one is free, and consumers would stand still as well. They are
given back then, and kept again by a start that finds room; a clean stop takes them as well, for the
files that say that it was one. A RocketMQ does not look there.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Final

from gantrymq.shm.storage import is_disk_full, made_anew

if TYPE_CHECKING:
    from collections.abc import Callable

    from gantrymq.shm.storage import Storage

DIRECTORY: Final = "gantry"
NAME: Final = f"{DIRECTORY}/reserve"
RESERVE_BYTES: Final = 256 * 1024
#: Made to see whether there is room; a start removes what ends so.
_TRIED: Final = f"{NAME}.new"
#: With less on the disk somebody else needs it more.
FREE_BYTES_MIN: Final = 4 * RESERVE_BYTES


def give_back(storage: Storage) -> bool:
    """On a disk that has not even this much left: whether there were blocks to give back.

    That is tried: a quota that is used up, or a disk without an inode, is not told by its numbers.
    """
    if not storage.exists(NAME) or _has_room(storage):
        return False
    storage.unlink(NAME)
    return True


def with_room(storage: Storage, act: Callable[[], None]) -> bool:
    """Do what may be done twice; on a full disk once more, with the blocks given back.

    Files that are replaced need them for a moment: they are kept again at once. Whether there was
    no room for that any more. Raises OSError.
    """
    try:
        act()
    except OSError as error:
        if not is_disk_full(error) or not storage.exists(NAME):
            raise
    else:
        return False
    storage.unlink(NAME)
    act()
    return not _allocate(storage, NAME, sync=True)


def keep(storage: Storage) -> None:
    """Have the blocks, if there is room: a power cut may have taken them, a copy left them out.

    Raises OSError for anything else than a full disk.
    """
    if storage.exists(NAME):
        with closing(storage.open(NAME)) as file:
            is_whole = file.size() == RESERVE_BYTES and not file.bytes_without_blocks()
        if is_whole:
            return
        storage.unlink(NAME)
    if storage.free_bytes() >= FREE_BYTES_MIN:
        _allocate(storage, NAME, sync=True)


def _has_room(storage: Storage) -> bool:
    if storage.exists(_TRIED):
        storage.unlink(_TRIED)
    if not _allocate(storage, _TRIED, sync=False):
        return False
    storage.unlink(_TRIED)
    return True


def _allocate(storage: Storage, name: str, *, sync: bool) -> bool:
    """Make a file of that many blocks; without room for it, it is not there."""
    try:
        file = storage.create(name)
        try:
            file.allocate(RESERVE_BYTES)
            if sync:
                with made_anew():
                    file.sync()
                    storage.sync_directory(DIRECTORY)
        finally:
            file.close()
    except OSError as error:
        if storage.exists(name):
            storage.unlink(name)
        if not is_disk_full(error):
            raise
        return False
    return True
