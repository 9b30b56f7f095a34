"""Ledgers whose compaction a test wants whole, or in small steps."""

from __future__ import annotations

from dataclasses import replace

from gantrymq.workers.groups.ledger import Ledger
from gantrymq.workers.groups.progress import GroupProgress, Progress

NOTHING = Progress()


def compact(ledger: Ledger) -> None:
    """Put a shorter file into the place of the ledger's, with all steps that it takes."""
    ledger.begin_compaction()
    while ledger.step():
        pass
    ledger.sync()


def told(ledger: Ledger) -> tuple[object, ...]:
    """All that a ledger's file has to tell, groups in their order.

    Not of queues that were only looked at, nor which leases their holders were asked to give back.
    """
    groups = [(name, _group_told(group)) for name, group in ledger.groups.items()]
    held = {session: set(ledger._held[session]) for session in ledger.holders()}
    return groups, held, ledger.epoch, ledger.last_lease, list(ledger.exports), _places(ledger)


def _places(ledger: Ledger) -> tuple[int, int]:
    return ledger.copies_from, ledger.log_known


def _group_told(group: GroupProgress) -> GroupProgress:
    queues = {
        key: replace(queue, lease=queue.lease and replace(queue.lease, revoking=False))
        for key, queue in group.queues.items()
        if queue != NOTHING
    }
    return GroupProgress(queues, dict(group.subscribed), consumed=group.consumed)
