"""Some blocks for the next start on a full disk, in `gantry/reserve`.

A start needs small files of its own before anything else can be done about the disk: without these
blocks it could not begin where not one is free, and consumers would stand still as well. They are
given back then, and kept again by a start that finds room. A RocketMQ does not look there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gantrymq.shm.storage import is_disk_full

if TYPE_CHECKING:
    from gantrymq.shm.storage import Storage

DIRECTORY: Final = "gantry"
NAME: Final = f"{DIRECTORY}/reserve"
RESERVE_BYTES: Final = 256 * 1024
#: With less on the disk somebody else needs it more.
FREE_BYTES_MIN: Final = 4 * RESERVE_BYTES


def give_back(storage: Storage) -> bool:
    """On a disk that has not even this much left: whether there were blocks to give back."""
    if storage.free_bytes() >= RESERVE_BYTES or not storage.exists(NAME):
        return False
    storage.unlink(NAME)
    return True


def keep(storage: Storage) -> None:
    """Have the blocks, if there is room, also after a power cut, which may have taken them.

    Raises OSError for anything else than a full disk.
    """
    if storage.exists(NAME):
        if storage.size_of(NAME) == RESERVE_BYTES:
            return
        storage.unlink(NAME)
    if storage.free_bytes() < FREE_BYTES_MIN:
        return
    file = storage.create(NAME)
    try:
        file.allocate(RESERVE_BYTES)
        file.sync()
        storage.sync_directory(DIRECTORY)
    except OSError as error:
        storage.unlink(NAME)
        if not is_disk_full(error):
            raise
    finally:
        file.close()
