"""How far groups have got, as the files of a store say it; loads no numpy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gantrymq.workers.groups.offsetfile import TRANSACTIONS_GROUP

if TYPE_CHECKING:
    from gantrymq.shm.board import Board

#: (topic, group) -> queue id -> next offset to consume
Offsets = Mapping[tuple[str, str], Mapping[int, int]]


@dataclass(frozen=True, slots=True)
class QueueLag:
    """One group in one queue. `lag`: messages that it may read and has not committed."""

    group: str
    topic: str
    queue: int
    offset: int
    max_offset: int

    @property
    def lag(self) -> int:
        """Messages; never below 0 (offsets may be younger than the board's word that was read)."""
        return max(0, self.max_offset - self.offset)


def lags(board: Board, offsets: Offsets) -> Iterator[QueueLag]:
    """Where groups are in the topics that exist, by group, topic and queue."""
    topics = {topic.name: topic for topic in board.topics() if topic.perm}
    for topic_name, group in sorted(offsets, key=lambda key: (key[1], key[0])):
        topic = topics.get(topic_name)
        if topic is None or group == TRANSACTIONS_GROUP:  # the txn-checker's progress, no consumer
            continue
        for queue_id, offset in sorted(offsets[topic_name, group].items()):
            if queue_id < topic.queue_count:
                slot = board.queue(topic.queue_base + queue_id)
                yield QueueLag(group, topic_name, queue_id, offset, slot["max_offset"])
