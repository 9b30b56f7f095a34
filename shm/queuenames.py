"""Where the units of queues are, for all layers.

Topics of RocketMQ's `queue.type=BatchCQ` have theirs elsewhere: it refuses to start where a plain
ConsumeQueue of such a topic lies (SF-77). Their *member queues* are plain ConsumeQueues in all but
the place, with a unit for each message: those of an inner batch (RD-70) all name its one record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from shm.storage import Storage

DIRECTORY: Final = "consumequeue"
#: Has a folder for each topic of type BatchCQ from the start of a broker on, and for no other.
MEMBERS: Final = "gantry/memberqueues"


def has_members(storage: Storage, topic: str) -> bool:
    """Whether a topic's units are those of member queues."""
    return bool(topic) and storage.is_directory(f"{MEMBERS}/{topic}")


def root_of(storage: Storage, topic: str) -> str:
    """Which of the two has a topic's folder."""
    return MEMBERS if has_members(storage, topic) else DIRECTORY


def queue_directory(storage: Storage, topic: str, queue_id: int) -> str:
    """Folder of a queue's files (SF-8)."""
    return f"{root_of(storage, topic)}/{topic}/{queue_id}"
