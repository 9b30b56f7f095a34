"""Edge to the operating system: how large files of this process may be, and how many are open."""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gantrymq.brokerd.config import Settings

#: Descriptors of a session in the supervisor: connection, arena, bell. Others have fewer.
SESSION_DESCRIPTORS: Final = 3
#: What a process of the broker has besides, and keeps, and some clients' that are there at once.
OTHER_DESCRIPTORS: Final = 256


def too_small_for(settings: Settings) -> str:
    """How the limit is below what a store's files need, by RLIMIT_FSIZE; "" if it is not.

    By the hard limit: a start raises the other one to that.
    """
    largest = settings.largest_file_bytes
    if _allows(resource.RLIMIT_FSIZE, largest):
        return ""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    return f"RLIMIT_FSIZE {limit}, the largest file of a store has {largest} bytes"


def has_descriptors(needed: int) -> bool:
    """Whether RLIMIT_NOFILE allows so many; the hard limit, as above."""
    return _allows(resource.RLIMIT_NOFILE, needed)


def _allows(kind: int, needed: int) -> bool:
    limit = resource.getrlimit(kind)[1]
    return limit == resource.RLIM_INFINITY or limit >= needed


def descriptors_for(settings: Settings) -> int:
    """What as many sessions as may be at once take."""
    return SESSION_DESCRIPTORS * settings.sessions_max + OTHER_DESCRIPTORS
