"""RocketMQ's other kind of queue, which this broker does not serve: `queue.type=BatchCQ`.

A record of such a topic may be many messages with a unit of its own kind (SF-75, RD-70), and a
RocketMQ refuses to start where a plain ConsumeQueue of such a topic lies (SF-77).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shm.configfile import read_config
from shm.errors import Incompatible

if TYPE_CHECKING:
    from shm.storage import Storage


def require_none(storage: Storage) -> None:
    """Look before anything is changed. Raises Incompatible with the first such topic's name."""
    content: Any = read_config(storage, "topics.json") or {}
    table: dict[str, Any] = content.get("topicConfigTable") or {}
    for name, entry in sorted(table.items()):
        if (entry.get("attributes") or {}).get("queue.type") == "BatchCQ":
            raise Incompatible(
                f"topic {name} of this store has queue.type=BatchCQ, which GantryMQ does not serve;"
                " nothing was changed. Its messages can be read by Spark (`gantrymq ingest`) and"
                " shown by `gantrymq store dump`; a RocketMQ goes on serving the store",
                topic=name,
            )
