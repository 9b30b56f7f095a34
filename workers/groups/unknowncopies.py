"""Copies of failed messages of which log and ledger tell different things after a power cut.

A power cut may take the end of the ledger, or of the log, or any part of either.

A copy may be durable though the note that it was on its way is not. Its message would come again,
fail again, and be copied again: it would become two dead letters. The log tells: a copy names its
message, group and attempt.

Or the note that a copy is in the log may be there though the copy is not. Then neither would come
again: the ledger is cut where it says so, as if that had never been written.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from gantrymq.shm.errors import Corrupt
from gantrymq.shm.properties import SCHEDULE_TOPIC, TIMER_TOPIC
from gantrymq.workers.groups.pending import whose
from gantrymq.workers.groups.progress import UNSET, QueueKey

if TYPE_CHECKING:
    from gantrymq.shm.board import Board
    from gantrymq.shm.record import Record
    from gantrymq.workers.groups.ledger import Copied, Ledger
    from gantrymq.workers.groups.records import LiveReader

#: What the scheduler delivers from these is no copy that `groups` has made.
_PARKED = (SCHEDULE_TOPIC, TIMER_TOPIC)
#: Of a queue that is not there: above all offsets.
_NOWHERE: Final = 1 << 62


def first_lost_copy(ledger: Ledger, reader: LiveReader, board: Board) -> Copied | None:
    """The first entry, of those that a power cut might have taken, whose copy it has taken.

    What lies from there on in the ledger counts on it. Raises OSError.
    """
    wanted = {
        (one.group, one.key, one.offset, one.attempt): one
        for one in ledger.copied
        if one.offset >= _low(board, one.key)
    }
    if wanted:
        for record in reader.derived(min(one.position for one in wanted.values())):
            with suppress(Corrupt):  # of no message that comes again
                message = reader.named(record.origin)
                if message is not None:
                    group, attempt = whose(record)
                    key = message.topic, message.queue_id
                    wanted.pop((group, key, message.queue_offset, attempt), None)
    return min(wanted.values(), default=None)


def _low(board: Board, key: QueueKey) -> int:
    """The first offset of a queue that is there."""
    topic = board.topic_named(key[0])
    if topic is None or key[1] >= topic.queue_count:
        return _NOWHERE
    return int(board.queue(topic.queue_base + key[1])["min_offset"])


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
