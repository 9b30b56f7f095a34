"""How many of a topic's last messages a filter lets pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gantrymq.cli.board import running_board
from gantrymq.clients.home import store_of
from gantrymq.shm.errors import TopicNotFound
from gantrymq.shm.properties import parse_properties
from gantrymq.shm.storage import PosixStorage
from gantrymq.shm.storereader import StoreReader, Unit

if TYPE_CHECKING:
    from pathlib import Path

    from gantrymq.shm.filter import SqlFilter


def count_passing(chosen: SqlFilter, home: Path, topic: str, last: int) -> dict[str, Any]:
    """`examined` and `passed` of the topic's newest messages, by the order of the log.

    Raises TopicNotFound, and what reading a store raises.
    """
    board = running_board(home)
    wanted = [found for found in board.topics() if found.name == topic and found.perm]
    if not wanted:
        raise TopicNotFound(f"there is no topic {topic}: `gantrymq topic list` shows all")
    reader = StoreReader(PosixStorage(str(store_of(home))))
    units: list[Unit] = []
    for queue_id in range(wanted[0].queue_count):
        queue = board.queue(wanted[0].queue_base + queue_id)
        end = queue["max_offset"]
        start = max(queue["min_offset"], end - last)
        units += reader.units(topic, queue_id, start, end, board.cq_bytes)
    found = (reader.of_unit(unit) for unit in sorted(units)[-last:])
    newest = [record for record in found if record is not None]  # else it has just expired
    passed = sum(chosen.matches(parse_properties(record.properties)) is True for record in newest)
    return {"topic": topic, "examined": len(newest), "passed": passed}
