"""Topics of RocketMQ's other kind of queue, `queue.type=BatchCQ`: which they are (SF-75, SF-77).

A record of such a topic may be many messages, and RocketMQ's unit of it counts them. Our agents and
consumers use member queues instead (shm/queuenames.py), which recovery makes of what a RocketMQ
wrote (brokerd/memberqueues.py); RocketMQ's own units are completed for its next start
(brokerd/batchunits.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gantrymq.shm.configfile import read_config
from gantrymq.shm.errors import Incompatible
from gantrymq.shm.queuenames import MEMBERS, folder_of
from gantrymq.shm.storage import folders_in
from gantrymq.shm.topicfiles import topic_table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gantrymq.shm.storage import Storage

KIND_ATTRIBUTE: Final = "queue.type"
BATCH: Final = "BatchCQ"


def is_batch_topic(entry: Mapping[str, Any]) -> bool:
    """Whether an entry of topics.json asks for BatchCQ."""
    return bool((entry.get("attributes") or {}).get(KIND_ATTRIBUTE) == BATCH)


def batch_topics_of(storage: Storage) -> frozenset[str]:
    """Topics of that type by `topics.json`."""
    return frozenset(name for name, entry in _table(storage).items() if is_batch_topic(entry))


def settle_topics(storage: Storage) -> set[str]:
    """The topics that have member queues, each with a folder from now on.

    One that a RocketMQ has deleted since keeps them, for its records may be there. Raises
    Incompatible if one has got the other type.
    """
    found = set(batch_topics_of(storage))
    found.update(folders_in(storage, MEMBERS))
    for topic in sorted(found):
        add_topic(storage, topic)
    return found


def add_topic(storage: Storage, topic: str) -> None:
    """Let a topic have member queues. Raises Incompatible if it is of the other type."""
    entry = _table(storage).get(topic)
    if entry is not None and not is_batch_topic(entry):
        raise Incompatible(
            f"topic {topic} has, or had, inner batches, and config/topics.json does not say that it"
            f' is of {KIND_ATTRIBUTE}={BATCH}: let its attributes be {{"{KIND_ATTRIBUTE}":'
            f' "{BATCH}"}} there. If it was made anew since and has none in the log any more,'
            f" remove {MEMBERS}/{topic}",
            topic=topic,
        )
    storage.make_directory(f"{MEMBERS}/{folder_of(topic)}")


def _table(storage: Storage) -> dict[str, Any]:
    return topic_table(read_config(storage, "topics.json"))
