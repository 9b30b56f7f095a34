"""Copies of failed messages that a ledger does not know of, since a power cut took its end.

A copy may be durable though the note that it was on its way is not. Its message would come again,
fail again, and be copied again: it would become two dead letters. The log tells: a copy names its
message, group and attempt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gantrymq.shm.errors import Corrupt
from gantrymq.shm.properties import SCHEDULE_TOPIC, TIMER_TOPIC
from gantrymq.workers.groups.pending import whose
from gantrymq.workers.groups.progress import UNSET

if TYPE_CHECKING:
    from gantrymq.shm.record import Record
    from gantrymq.workers.groups.ledger import Ledger
    from gantrymq.workers.groups.records import LiveReader

#: What the scheduler delivers from these is no copy that `groups` has made.
_PARKED = (SCHEDULE_TOPIC, TIMER_TOPIC)


def note_unknown_copies(ledger: Ledger, reader: LiveReader) -> None:
    """Note messages whose copies lie in the log as done with, at the start of a life.

    Before anything is granted, and before anybody appends copies of failed messages. Raises
    Corrupt, OSError.
    """
    for record in reader.derived(ledger.copies_from):
        group, _attempt = whose(record)
        if group in ledger.groups:
            _note(ledger, reader, group, record)


def _note(ledger: Ledger, reader: LiveReader, group: str, copy: Record) -> None:
    try:
        message = reader.named(copy.origin)
    except Corrupt:
        return  # no member gets it, and so it does not fail once more
    if message is None:
        return  # removed
    key, offset = (message.topic, message.queue_id), message.queue_offset
    if message.topic in _PARKED:
        return
    queue = ledger.group(group).queue(key)
    if queue.committed == UNSET:  # younger than the subscription, which is never lost
        ledger.commit(group, key, 0)
    if copy.physical_offset >= queue.copies_from and not queue.is_done(offset):
        ledger.finish(group, key, (offset, offset + 1))
