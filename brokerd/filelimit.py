"""Edge to the operating system: how large a file of this process may be."""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gantrymq.brokerd.config import Settings


def too_small_for(settings: Settings) -> str:
    """How the limit is below what a store's files need, by RLIMIT_FSIZE; "" if it is not.

    By the hard limit: a start raises the other one to that.
    """
    limit, largest = resource.getrlimit(resource.RLIMIT_FSIZE)[1], settings.largest_file_bytes
    if limit == resource.RLIM_INFINITY or limit >= largest:
        return ""
    return f"RLIMIT_FSIZE {limit}, the largest file of a store has {largest} bytes"
