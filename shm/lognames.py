"""What the files of the commit log, and those about it, are called; for all layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gantrymq.shm.storage import Storage

DIRECTORY: Final = "commitlog"
_DIGITS: Final = 20
#: One file for each reader without a group, who holds the log for himself (ADR 0015).
PINS: Final = "gantry/pins"


def segment_name(base: int) -> str:
    """File of the segment that starts at a log position (SF-9)."""
    return f"{DIRECTORY}/{base:0{_DIGITS}d}"


def is_position(name: str) -> bool:
    """Whether a file is named by its first position, as those of the log and of queues are."""
    return len(name) == _DIGITS and name.isascii() and name.isdigit()


def positions_in(storage: Storage, folder: str) -> list[str]:
    """Names in a folder that are positions, in order; what has another name is nobody's there."""
    return list(filter(is_position, storage.list(folder)))


def bases_of(storage: Storage) -> list[int]:
    """Where the segments that are there begin, in order; what has another name is none."""
    return list(map(int, positions_in(storage, DIRECTORY)))
