"""Which topics there are and which are deleted, of one moment: `topics.json` and its counterpart.

A broker that runs writes them one after the other, so that each topic of the log is in one of them.
Who reads them one after the other may see a topic that is made again meanwhile in neither.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from gantrymq.shm.errors import Timeout

TOPICS: Final = "config/topics.json"
DELETED: Final = "gantry/deleted_topics.json"
#: Each change of topics takes syncs of several files: hardly one comes amid two looks in a row.
_LOOKS: Final = 50

T = TypeVar("T")
U = TypeVar("U")


def of_one_moment(topics: Callable[[], T], deleted: Callable[[], U]) -> tuple[T, U]:
    """What these say of the two files, `topics.json` being the same before and behind the other.

    It counts its changes, so that no two states of it are the same. Raises Timeout.
    """
    for _ in range(_LOOKS):
        before, found = topics(), deleted()
        if topics() == before:
            return before, found
    raise Timeout(
        f"topics were created or deleted amid each of {_LOOKS} looks at {TOPICS} and {DELETED}:"
        " do that again at a quieter moment"
    )
