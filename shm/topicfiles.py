"""The two files that say which topics there are, and which are deleted, for all layers.

The log keeps the messages of a deleted topic until retention takes them: by these files a store
shows nothing of it, and, once it is made again, only what was sent to it since.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from gantrymq.shm.codes import Level
from gantrymq.shm.configfile import table_in
from gantrymq.shm.errors import Corrupt, Timeout, shown
from gantrymq.shm.fromhandlers import require_ours
from gantrymq.shm.jsonsum import sum_holds, without_sum
from gantrymq.shm.jsontext import parse_object
from gantrymq.shm.queuenames import require_folder_names
from gantrymq.shm.valueranges import is_small

TOPICS: Final = "config/topics.json"
#: Names whose records are still in the log, with their queues: they are dispatched, but hidden.
DELETED: Final = "gantry/deleted_topics.json"
#: Of a topic that was deleted and created again: the first queue offset of each queue, by commas.
BEGINS_ATTRIBUTE: Final = "gantry.begins"
#: What its consumers may see, and what a receipt waits for.
LEVEL_ATTRIBUTE: Final = "gantry.durability"
_BEGINS: Final = re.compile(r"([0-9]{1,18}(,[0-9]{1,18})*)?")
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


def topic_table(content: Any) -> dict[str, dict[str, Any]]:  # noqa: ANN401 - JSON
    """Topics of `topics.json` by name.

    Raises Corrupt for a name that could lead out of a store, and for what no topic can have.
    """
    table = table_in(content, "topicConfigTable", TOPICS)
    require_folder_names(table, TOPICS)
    for name, entry in table.items():
        if wrong := _wrong_in(entry):
            raise Corrupt(
                f"{TOPICS} is damaged: {wrong} of topic {name} is {shown(entry[wrong])}: mend that"
                " entry, or put the file back from a back-up",
                path=TOPICS,
            )
    return table


def _wrong_in(entry: Mapping[str, Any]) -> str:
    """The first field of a topic that says what no topic can have; "" if none does."""
    for name in ("readQueueNums", "writeQueueNums", "perm"):
        if not is_small(entry.get(name, 0)):
            return name
    attributes = entry.get("attributes") or {}
    if not isinstance(attributes, dict):
        return "attributes"
    are_texts = all(isinstance(value, str) for value in attributes.values())
    return "" if are_texts and _are_known(attributes) else "attributes"


def _are_known(attributes: Mapping[str, str]) -> bool:
    """Whether those that are ours say what they can."""
    level = attributes.get(LEVEL_ATTRIBUTE, Level.WRITTEN.name)
    begins = attributes.get(BEGINS_ATTRIBUTE, "")
    return level.upper() in Level.__members__ and _BEGINS.fullmatch(begins) is not None


def begins_of(attributes: Mapping[str, str]) -> list[int]:
    """Where each queue of a topic begins, by its attributes; queues beyond begin at 0."""
    text = attributes.get(BEGINS_ATTRIBUTE, "")
    return [int(number) for number in text.split(",") if number]


def begin_in(begins: Sequence[int], queue_id: int) -> int:
    """Where one of these queues begins."""
    return begins[queue_id] if queue_id < len(begins) else 0


def deleted_names(data: bytes) -> frozenset[str]:
    """Who is deleted by a file's bytes; a damaged file hides nothing (no broker starts with it)."""
    try:
        content = parse_object(data)
    except ValueError as error:
        require_ours(error)
        return frozenset()
    return frozenset() if sum_holds(data) is False else frozenset(without_sum(content))
