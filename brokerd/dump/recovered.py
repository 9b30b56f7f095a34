"""A store as it is after RocketMQ's start, worked out in memory on files that stay as they are.

Rules SF-87 to SF-97 and SF-123: the log's end, queues completed or cut, min offsets, index files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gantrymq.brokerd.batchqueues import is_batch_topic
from gantrymq.brokerd.dump.index import Index
from gantrymq.brokerd.dump.queues import BatchQueue, Dispatched, Queue, ext_fields, load_queues
from gantrymq.shm import configfile, layout, topicfiles
from gantrymq.shm.innerbatch import span_of
from gantrymq.shm.properties import tags_code
from gantrymq.shm.record import STRUCTURE, Invalid, Record
from gantrymq.shm.segment import LogView, Segment, open_log
from gantrymq.shm.storage import read_file

if TYPE_CHECKING:
    from gantrymq.brokerd.dump.settings import StoreSettings
    from gantrymq.shm.storage import Storage

_CHECKPOINT_BACK_MS: Final = 3000  # SF-84
_RELEASE_5_3: Final = "V5_3_3"
_RELEASE_5_4: Final = "V5_4_0"
_TOPIC_OF_5_4: Final = "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC"  # SF-124
_QUEUED: Final = (0, layout.SYS_COMMIT)  # SF-61


@dataclass(slots=True)
class Store:
    """A store opened for reading."""

    storage: Storage
    settings: StoreSettings
    log: LogView
    topics: dict[str, Any]  # topicConfigTable of topics.json
    queues: dict[tuple[str, int], Queue]
    index: Index
    aborted: bool
    end: int = 0  # position behind the last record

    @property
    def release(self) -> str:
        """Whose rules hold: 5.4.0 leaves a topic of its own in topics.json (SF-124)."""
        return _RELEASE_5_4 if _TOPIC_OF_5_4 in self.topics else _RELEASE_5_3

    @property
    def checkpoint(self) -> dict[str, int]:
        """Fields of layout.CHECKPOINT; all zero if the file is absent (SF-112)."""
        try:
            data = read_file(self.storage, "checkpoint")
        except FileNotFoundError:
            data = b""
        return layout.CHECKPOINT.unpack(data.ljust(layout.CHECKPOINT.size, b"\0"))

    @property
    def min_timestamp(self) -> int:
        """Abnormal recovery starts with a segment that begins at or before this time (SF-84)."""
        point = self.checkpoint
        oldest = min(point["physic_msg_timestamp"], point["logics_msg_timestamp"])
        return max(0, oldest - _CHECKPOINT_BACK_MS)


def open_store(storage: Storage, settings: StoreSettings, now_ms: int | None = None) -> Store:
    """Map all files of a store; `now_ms` names index files that recovery makes.

    Raises Incompatible where RocketMQ would not start.
    """
    topics = topicfiles.topic_table(configfile.read_config(storage, "topics.json"))
    batch_bytes = settings.number("mapperFileSizeBatchConsumeQueue")
    queues = load_queues(storage, settings.queue_file_bytes, batch_bytes)
    return Store(
        storage,
        settings,
        open_log(storage, segment_bytes=settings.number("mappedFileSizeCommitLog")),
        topics,
        {(queue.topic, queue.queue_id): queue for queue in queues},
        load_index(storage, settings, tags_too=_TOPIC_OF_5_4 in topics, now_ms=now_ms),
        storage.exists("abort"),
    )


def load_index(
    storage: Storage, settings: StoreSettings, *, tags_too: bool = False, now_ms: int | None = None
) -> Index:
    """Map the index files as they are on disk. Raises Incompatible for another length."""
    names = ("maxHashSlotNum", "maxIndexNum")
    slots, entries = map(settings.number, names)
    index = Index(slots, entries, tags_too=tags_too, now_ms=now_ms)
    index.load(storage, sized=not settings.given.keys().isdisjoint(names))
    return index


def recover(store: Store) -> None:
    """Bring an opened store to where it is after a start."""
    if store.aborted:
        store.index.drop_newer(store.checkpoint["index_msg_timestamp"])
    if not store.log.segments:  # SF-95
        for queue in store.queues.values():
            queue.destroy()
        return
    reached = max((queue.max_physical for queue in store.queues.values()), default=-1)
    after = -1 if store.aborted else reached
    store.end = _scan(store, _first_segment(store, reached), after)
    if reached >= store.end:
        for queue in store.queues.values():
            queue.cut(store.end)
    for queue in store.queues.values():
        queue.correct_min(store.log.min_position)


def _first_segment(store: Store, dispatched: int) -> int:
    """Number of the segment that the scan starts with (SF-90, SF-91, SF-123)."""
    segments = store.log.segments
    lowest = 0
    if store.release == _RELEASE_5_4:
        lowest = max(0, len(segments) - store.settings.number("commitLogRecoverMaxNum"))
    for number in range(len(segments) - 1, lowest, -1):
        if _fits(store, segments[number], dispatched):
            return number
    return lowest


def _fits(store: Store, segment: Segment, dispatched: int) -> bool:
    if store.release == _RELEASE_5_3 and not store.aborted:
        return segment.base <= dispatched  # 5.3.3 looks at the name only
    first = segment.item_at(segment.base, STRUCTURE)
    if not isinstance(first, Record) or not first.store_timestamp:
        return False
    if not store.aborted:
        return first.physical_offset <= dispatched
    newest = store.min_timestamp
    if store.settings.is_on("messageIndexSafe"):
        newest = min(newest, store.checkpoint["index_msg_timestamp"])
    return first.store_timestamp <= newest


def _scan(store: Store, first_segment: int, after: int) -> int:
    """Dispatch the valid records behind position `after`; returns the log's end (SF-92).

    A filler counts: behind it the log ends at the next segment's start, however many empty
    segments follow; if there is none, it ends before the filler.
    """
    end = store.log.segments[first_segment].base
    for position, item in store.log.scan(end, check=store.settings.check):
        if isinstance(item, Invalid):
            break
        if isinstance(item, Record):
            end = position + item.total_size
            if item.physical_offset > after:
                _dispatch(store, item)
        elif store.log.segment_at(position + item.size) is not None:
            end = position + item.size
    return end


def _dispatch(store: Store, record: Record) -> None:
    """Add a record to its queue and to the index (SF-59, SF-61)."""
    if record.transaction in _QUEUED:
        _queue_of(store, record).add(_dispatched(store, record))
    if store.settings.is_on("messageIndexEnable"):
        store.index.add(record)


def _queue_of(store: Store, record: Record) -> Queue:
    key = (record.topic, record.queue_id)
    if key not in store.queues:
        batched = is_batch_topic(store.topics.get(record.topic, {}))
        size = store.settings.number("mapperFileSizeBatchConsumeQueue")
        store.queues[key] = (
            BatchQueue(*key, size) if batched else Queue(*key, store.settings.queue_file_bytes)
        )
    return store.queues[key]


def _dispatched(store: Store, record: Record) -> Dispatched:
    properties = record.property_map()
    code = tags_code(record.topic, properties, record.store_timestamp, store.settings.delays_ms)
    base, count = span_of(record)
    extended = store.settings.is_on("enableConsumeQueueExt")
    return Dispatched(
        record.physical_offset,
        record.total_size,
        code,
        record.store_timestamp,
        base,
        count,
        ext_fields(code, record.store_timestamp, b"") if extended else None,
    )
