"""What another broker has done to queues of which the ledger knows how far groups are.

It may have deleted a topic and made it again, whose queues begin at offset 0 once more (CQ-109). Or
it has gone on where a power cut had left a queue shorter than a group was. Then an offset of ours
lies behind messages that nobody of the group has seen, and the group has to go back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gantrymq.shm.imported import Visit
    from gantrymq.workers.groups.ledger import Ledger


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
