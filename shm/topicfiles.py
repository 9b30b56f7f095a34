"""The two files that say which topics there are, and which are deleted, for all layers.

The log keeps the messages of a deleted topic until retention takes them: by these files a store
shows nothing of it, and, once it is made again, only what was sent to it since.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from gantrymq.shm.errors import Timeout
from gantrymq.shm.fromhandlers import require_ours
from gantrymq.shm.jsonsum import sum_holds, without_sum
from gantrymq.shm.jsontext import parse_object

TOPICS: Final = "config/topics.json"
#: Names whose records are still in the log, with their queues: they are dispatched, but hidden.
DELETED: Final = "gantry/deleted_topics.json"
#: Of a topic that was deleted and created again: the first queue offset of each queue, by commas.
BEGINS_ATTRIBUTE: Final = "gantry.begins"
#: Each change of topics takes syncs of several files: hardly one comes amid two looks in a row.
_LOOKS: Final = 50

T = TypeVar("T")
U = TypeVar("U")


def of_one_moment(topics: Callable[[], T], deleted: Callable[[], U]) -> tuple[T, U]:
    """What these say of the two files, `topics.json` being the same before and behind the other.

    A broker writes one after the other, so that each topic of the log is in one of them: who looks
    once may see one that is made again meanwhile in neither. `topics.json` counts its changes, so
    that no two states of it are the same. Raises Timeout.
    """
    for _ in range(_LOOKS):
        before, found = topics(), deleted()
        if topics() == before:
            return before, found
    raise Timeout(
        f"topics were created or deleted amid each of {_LOOKS} looks at {TOPICS} and {DELETED}:"
        " do that again at a quieter moment"
    )


def begins_of(attributes: Mapping[str, str]) -> list[int]:
    """Where each queue of a topic begins, by its attributes; queues beyond begin at 0."""
    text = attributes.get(BEGINS_ATTRIBUTE, "")
    return [int(number) for number in text.split(",") if number.isdigit()]


def deleted_names(data: bytes) -> frozenset[str]:
    """Who is deleted by a file's bytes; a damaged file hides nothing (no broker starts with it)."""
    try:
        content = parse_object(data)
    except ValueError as error:
        require_ours(error)
        return frozenset()
    return frozenset() if sum_holds(data) is False else frozenset(without_sum(content))
