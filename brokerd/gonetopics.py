"""Deleted topics of which the log has nothing any more: a start forgets where their queues ended.

In this order, so that a start after a kill or a power cut at any step finds the same: first the
notes that a start believes, durably, then the files, which a start without these notes cuts too.
A topic that is made again under the name then begins at offset 0, as one that never was. Not so a
dead-letter topic of which an operator has marked letters: the marks are by offset.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from gantrymq.brokerd.queuefiles import QueueKey, remove_files
from gantrymq.brokerd.queuestarts import read_starts, save_starts
from gantrymq.shm.errors import Corrupt
from gantrymq.shm.properties import DLQ_PREFIX
from gantrymq.shm.queuenames import queue_directory
from gantrymq.shm.storage import is_disk_full
from gantrymq.workers.groups.deadletternote import read_note
from gantrymq.workers.housekeeper.progress import read_progress, save_progress

if TYPE_CHECKING:
    from gantrymq.shm.storage import Storage

#: Of a queue: next offset, units written, first unit.
Numbers = tuple[int, int, int]


def forget_gone(
    storage: Storage,
    deleted: Collection[str],
    queues: dict[QueueKey, Numbers],
    in_log: Collection[str],
) -> None:
    """Drop what is gone from `queues`, and from the store; on a full disk it stays. Raises OSError.

    `in_log` has topics of which records are known that no queue tells of.
    """
    kept = {name for (name, _queue_id), (end, _, first) in queues.items() if first < end}
    names = {name for name, _queue_id in queues if name in deleted}.difference(kept, in_log)
    leaving = names - _marked(storage, names)
    gone = {key for key in queues if key[0] in leaving}
    if not gone:
        return
    try:
        _forget_notes(storage, gone)
    except OSError as error:
        if not is_disk_full(error):
            raise
        return
    for key in gone:
        remove_files(storage, queue_directory(storage, *key))
        del queues[key]


def _marked(storage: Storage, names: set[str]) -> set[str]:
    """Dead-letter topics that may have marks: of other letters, if their offsets came again."""
    dead = {name for name in names if name.startswith(DLQ_PREFIX)}
    if not dead:
        return dead
    try:
        return {DLQ_PREFIX + group for group in read_note(storage).marked()}
    except Corrupt:  # it may be put back
        return dead


def _forget_notes(storage: Storage, gone: set[QueueKey]) -> None:
    # By its progress the next start knows the topic: that goes last, or the other would stay.
    starts = read_starts(storage)
    if starts is not None and not gone.isdisjoint(starts[1]):
        save_starts(storage, starts[0], _without(starts[1], gone))
    progress = read_progress(storage)
    if progress is not None and not gone.isdisjoint(progress[1]):
        save_progress(storage, progress[0], _without(progress[1], gone))


def _without(offsets: Mapping[QueueKey, int], gone: Collection[QueueKey]) -> dict[QueueKey, int]:
    return {key: offset for key, offset in offsets.items() if key not in gone}
