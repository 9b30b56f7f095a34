"""Files of `config/` that a RocketMQ goes on from: progress, topics, groups (HO-30, HO-60 on).

Each is written as RocketMQ writes it; then its backup goes, or RocketMQ would fall back on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from gantrymq.brokerd.checkpoint import read_checkpoint
from gantrymq.brokerd.metadata import TOPICS_FILE
from gantrymq.brokerd.subscriptions import GROUPS_FILE, group_table
from gantrymq.shm.bitmapnote import read_covered
from gantrymq.shm.configfile import BACKUP_SUFFIX, parse_config, read_config, write_config
from gantrymq.shm.properties import RETRY_PREFIX
from gantrymq.shm.storage import read_file
from gantrymq.shm.topicfiles import topic_table
from gantrymq.workers.filterfile import bloom_form, read_filters, write_filters
from gantrymq.workers.groups.ledger import Ledger
from gantrymq.workers.groups.ledgerentries import NAME as LEDGER
from gantrymq.workers.groups.ledgerentries import Names
from gantrymq.workers.groups.offsetfile import (
    TRANSACTIONS_GROUP,
    Offsets,
    checksum_of,
    import_offsets,
    offsets_of,
    read_offsets,
    write_offsets,
)
from gantrymq.workers.groups.visits import go_back

if TYPE_CHECKING:
    from gantrymq.brokerd.config import Settings
    from gantrymq.shm.imported import Visit
    from gantrymq.shm.storage import Storage

Queues = Mapping[tuple[str, int], tuple[int, int]]  # first and next offset of each
_CONFIG: Final = "config"
#: RocketMQ makes them anew; ours would be wrong.
_COUNTERS: Final = ("timermetrics", "transactionMetrics")
_TABLES: Final = {
    TOPICS_FILE: ("topicConfigTable", "topicName", topic_table),
    GROUPS_FILE: ("subscriptionGroupTable", "groupName", group_table),
}


def read_group_offsets(storage: Storage, queues: Queues, visit: Visit | None) -> Offsets:
    """Offsets of all groups as a RocketMQ has to find them; changes nothing. Raises OSError."""
    ledger = _replayed(storage)
    go_back(ledger, visit)
    import_offsets(ledger)
    return _completed(storage, offsets_of(ledger.groups), queues)


def done_ahead(storage: Storage) -> int:
    """Messages that groups are done with behind one that they are not. Raises OSError.

    A RocketMQ's group has an offset for each queue and nothing else: they come again.
    """
    groups = _replayed(storage).groups.values()
    queues = [queue for group in groups for queue in group.queues.values()]
    return sum(end - first for queue in queues for first, end in queue.done)


def _replayed(storage: Storage) -> Ledger:
    ledger = Ledger(storage)
    if storage.exists(LEDGER):
        ledger.replay_whole(read_file(storage, LEDGER), Names())
    return ledger


def write_group_offsets(storage: Storage, offsets: Offsets, log_end: int) -> None:
    """`consumerOffset.json`, and the same in the ledger, which ends as after a clean stop.

    `log_end`: of the log by which the offsets were worked out. Raises OSError.
    """
    checksum = checksum_of(offsets)
    last = read_checkpoint(storage)
    ledger = Ledger(storage)
    ledger.load()
    try:
        ledger.begin_epoch(last.epoch if last else 0)  # whoever held a queue is gone
        import_offsets(ledger)
        ledger.limit_positions(log_end)
        known = offsets_of(ledger.groups)
        for (topic, group), queues in offsets.items():
            if group == TRANSACTIONS_GROUP:
                continue  # no group of consumers: it has nothing to hold and nothing to read
            for queue_id, offset in queues.items():
                if known.get((topic, group), {}).get(queue_id) != offset:
                    ledger.commit(group, (topic, queue_id), offset)
        if checksum not in ledger.exports or checksum != checksum_of(read_offsets(storage)):
            ledger.exported(checksum)
            ledger.sync()
            write_offsets(storage, offsets)
        ledger.end()
    finally:
        ledger.close()


def complete_tables(storage: Storage) -> list[str]:
    """Entries of topics.json and subscriptionGroup.json have their names; returns those mended.

    Without them a RocketMQ does not start, or leaves the group's consumers waiting. Raises Corrupt,
    OSError.
    """
    mended: list[str] = []
    for name, (table, field, entries_of) in _TABLES.items():
        content: Any = read_config(storage, name)
        entries = entries_of(content)
        if content is None:
            continue
        lacking = [key for key, entry in entries.items() if not entry.get(field)]
        for key in lacking:
            entries[key][field] = key
        if lacking or not storage.exists(f"{_CONFIG}/{name}"):
            write_config(storage, name, {**content, table: entries})
        mended += lacking
    return mended


def remove_leftovers(storage: Storage) -> None:
    """Counters and backups go; a backup whose file is gone or broken takes its place.

    Raises OSError.
    """
    for name in storage.list(_CONFIG):
        path = f"{_CONFIG}/{name}"
        if name.removesuffix(BACKUP_SUFFIX) in _COUNTERS:
            storage.unlink(path)
        elif name.endswith(BACKUP_SUFFIX):
            if _is_good(storage, path.removesuffix(BACKUP_SUFFIX)) or not _is_good(storage, path):
                storage.unlink(path)
            else:
                storage.rename(path, path.removesuffix(BACKUP_SUFFIX))
    if storage.exists(_CONFIG):
        storage.sync_directory(_CONFIG)


def topic_queues(storage: Storage) -> dict[str, int]:
    """Queues of each topic of topics.json."""
    return {
        name: max(entry.get(field, 0) for field in ("readQueueNums", "writeQueueNums"))
        for name, entry in topic_table(read_config(storage, TOPICS_FILE)).items()
    }


def _completed(storage: Storage, offsets: Offsets, queues: Queues) -> Offsets:
    """Every queue of a group's topics has an offset that it holds (HO-61)."""
    counts = topic_queues(storage)
    for topic, queue_id in queues:
        counts[topic] = max(counts.get(topic, 0), queue_id + 1)
    groups = {group for _topic, group in offsets}
    retries = {(f"{RETRY_PREFIX}{group}", group) for group in groups}
    wanted = offsets.keys() | {key for key in retries if key[0] in counts}
    found: Offsets = {}
    for key in sorted(wanted):
        known = offsets.get(key, {})
        numbers = known.keys() | range(counts.get(key[0], 0))
        gone = key[0] not in counts and key not in retries
        found[key] = {
            number: _inside(known.get(number, 0), queues.get((key[0], number)), gone)
            for number in sorted(numbers)
        }
    return found


def _inside(offset: int, queue: tuple[int, int] | None, gone: bool) -> int:
    """An offset above a queue's end would lose what comes; of a topic that is gone it stays."""
    if queue is None:
        return offset if gone else 0
    return min(max(offset, queue[0]), queue[1])


def _is_good(storage: Storage, path: str) -> bool:
    if not storage.exists(path):
        return False
    try:
        parse_config(read_file(storage, path).decode())
    except ValueError:
        return False
    return True


def settle_filters(storage: Storage, settings: Settings, now_ms: int) -> None:
    """A RocketMQ believes the bits of all that was stored after a filter's bornTime (FL-65).

    Where they are not known for all of the log the filter counts as born just now.
    """
    form = bloom_form(settings)
    known = {covered.key for covered in read_covered(storage) if covered.start == 0}
    entries = read_filters(storage, form)
    settled = [
        entry
        if (entry.topic, entry.group, entry.dialect, entry.expression) in known
        else replace(entry, born_ms=now_ms)
        for entry in entries
    ]
    if settled != entries:
        write_filters(storage, settled, form)
