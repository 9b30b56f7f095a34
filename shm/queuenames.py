"""Where the units of queues are, for all layers.

Topics of RocketMQ's `queue.type=BatchCQ` have theirs elsewhere: it refuses to start where a plain
ConsumeQueue of such a topic lies (SF-77). Their *member queues* are plain ConsumeQueues in all but
the place, with a unit for each message: those of an inner batch (RD-70) all name its one record.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

from gantrymq.shm import limits
from gantrymq.shm.errors import Corrupt
from gantrymq.shm.fromhandlers import require_ours

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gantrymq.shm.storage import Storage

DIRECTORY: Final = "consumequeue"
#: How the folder of a topic begins whose name is none for a folder: no topic can be called so.
_NO_NAME: Final = "\ufffd"
#: Has a folder for each topic of type BatchCQ from the start of a broker on, and for no other.
MEMBERS: Final = "gantry/memberqueues"


def is_folder_name(topic: str) -> bool:
    """Whether a topic may be called so as far as files go; what users may call one is stricter.

    RocketMQ makes topics of names of brokers and clusters, so dots and others have to be fine.
    """
    if topic in ("", ".", "..") or "/" in topic or "\0" in topic:
        return False
    try:
        return len(topic.encode()) <= limits.RETRY_TOPIC_BYTES_MAX
    except UnicodeEncodeError as error:
        require_ours(error)
        return False


def folder_of(topic: str) -> str:
    """Name of a topic's folders: its own, but for one that could lead elsewhere, or cannot be one.

    Only records that another program has forged have such, and nobody can use such a topic. Each
    has a folder of its own, so that their units do not mix; bytes that are no UTF-8 are surrogates.
    """
    if is_folder_name(topic):
        return topic
    raw = topic.encode(errors="surrogatepass")
    return f"{_NO_NAME}{hashlib.blake2b(raw, digest_size=16).hexdigest()}"


def require_folder_names(topics: Iterable[str], path: str) -> None:
    """Raise Corrupt if a file names a topic by what no topic can be called."""
    for topic in topics:
        if not is_folder_name(topic):
            raise Corrupt(
                f"{path} names a topic {topic[:60]!r}, which would be a folder elsewhere, or none:"
                " take that entry out of the file",
                path=path,
            )


def has_members(storage: Storage, topic: str) -> bool:
    """Whether a topic's units are those of member queues."""
    return bool(topic) and storage.is_directory(f"{MEMBERS}/{folder_of(topic)}")


def root_of(storage: Storage, topic: str) -> str:
    """Which of the two has a topic's folder."""
    return MEMBERS if has_members(storage, topic) else DIRECTORY


def queue_directory(storage: Storage, topic: str, queue_id: int) -> str:
    """Folder of a queue's files (SF-8)."""
    return f"{root_of(storage, topic)}/{folder_of(topic)}/{queue_id}"
