"""What another broker has done to queues of which the ledger knows how far groups are.

It may have deleted a topic and made it again, whose queues begin at offset 0 once more (CQ-109). Or
it has gone on where a power cut had left a queue shorter than a group was. Then an offset of ours
lies behind messages that nobody of the group has seen, and the group has to go back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gantrymq.shm import layout
from gantrymq.shm.ranges import Stretch, ranges_of

if TYPE_CHECKING:
    from gantrymq.shm.board import Board
    from gantrymq.shm.ranges import Ranges
    from gantrymq.shm.storage import Storage
    from gantrymq.workers.groups.ledger import Ledger
    from gantrymq.workers.groups.progress import QueueKey


@dataclass(frozen=True, slots=True)
class Visit:
    """The last part of the log that another broker wrote, [start, end)."""

    start: int
    end: int
    #: Queue offset of the first record of a queue in it.
    firsts: Mapping[QueueKey, int]
    #: Log position from which on a queue began anew, there or in an earlier part.
    starts: Mapping[QueueKey, int]

    def offset_since(self, known: int, key: QueueKey) -> int | None:
        """Queue offset of the first record that came behind log position `known`, if it is told.

        0 for a queue that began anew.
        """
        since = max(known, self.start)
        if self.starts.get(key, -1) >= since:
            return 0
        return self.firsts.get(key) if since == self.start else None


def last_foreign(ranges: Ranges, end: int) -> Stretch | None:
    """The last part of a log that ends at `end` which another broker wrote."""
    theirs = [stretch for stretch in ranges.stretches(0, end) if not stretch.ours]
    return theirs[-1] if theirs else None


def visit_of(storage: Storage, board: Board) -> Visit | None:
    """What recovery has found and put on the board; None: nobody else was ever here.

    Raises Corrupt, OSError.
    """
    part = last_foreign(ranges_of(storage), board.word(layout.BOARD_RECOVERED_END))
    if part is None:
        return None
    firsts, starts = {}, {}
    for topic in board.topics():
        for queue_id in range(topic.queue_count):
            words = board.queue(topic.queue_base + queue_id)
            if words["theirs"]:
                firsts[topic.name, queue_id] = words["theirs"] - 1
            if words["starts"]:
                starts[topic.name, queue_id] = words["starts"]
    return Visit(part.start, part.end, firsts, starts)


def go_back(ledger: Ledger, visit: Visit | None) -> None:
    """Set groups back to what another broker has stored since the ledger was used last.

    Before the offsets that it has saved count: its own consumers may have got further.
    """
    if visit is None or ledger.knows_log_to(visit.end):
        return
    for name, group in ledger.groups.items():
        for key, queue in group.queues.items():
            offset = visit.offset_since(ledger.log_known, key)
            if offset is None or offset >= max(queue.committed, queue.started):
                continue
            if offset:  # what is not done with below stays so
                ledger.clamp(name, key, 0, offset)
            else:
                ledger.reset(name, key, 0, visit.end)
