"""The dump's objects: kinds and fields of the golden sets' schema, in their order."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from typing import Any, Final

from gantrymq.brokerd.dump.index import message_keys
from gantrymq.brokerd.dump.queues import BatchQueue, ExtFiles, Queue
from gantrymq.brokerd.dump.recovered import Store, load_index
from gantrymq.brokerd.dump.timers import timer_lines
from gantrymq.clients.stored_body import plain_body
from gantrymq.shm.layout import SYS_COMPRESSED
from gantrymq.shm.messageid import format_host
from gantrymq.shm.record import STRUCTURE, Filler, Invalid, Record
from gantrymq.shm.storage import read_file

Line = dict[str, Any]

_BODY_SHOWN_MAX: Final = 64
_BINARY_CONFIG: Final = ("timercheck", "timercheck.bak")


def meta_line(store: Store, stage: str) -> Line:
    """First line: whose rules, which stage, and the settings that were used."""
    return {
        "kind": "meta",
        "rocketmq": store.release,
        "stage": stage,
        "abort": store.aborted,
        "settings": store.settings.given,
    }


# ------------------------------------------------------------------------------------------- log


def recovered_log_lines(store: Store) -> Iterator[Line]:
    """Log up to its recovered end; damage before it is told and the next segment taken."""
    for segment in store.log.segments:
        if segment.base >= store.end:
            return
        for position, item in segment.scan(segment.base, store.end, STRUCTURE):
            yield item_line(position, item)


def disk_log_lines(store: Store) -> Iterator[Line]:
    """Log as it lies there, up to the first bytes that are no record."""
    for position, item in store.log.scan(store.log.min_position, check=store.settings.check):
        if isinstance(item, Invalid):
            return
        yield item_line(position, item)


def item_line(position: int, item: Record | Filler | Invalid) -> Line:
    """What lies at a position; kind `invalid` for bytes that are neither record nor filler."""
    if isinstance(item, Record):
        return record_line(position, item)
    if isinstance(item, Filler):
        magic = f"{item.magic:08x}"
        return {"kind": "filler", "physicalOffset": position, "size": item.size, "magic": magic}
    return {
        "kind": "invalid",
        "physicalOffset": position,
        "reason": str(item.fault),
        "detail": item.detail,
    }


def record_line(position: int, record: Record) -> Line:
    """One record."""
    properties = record.property_map()
    return {
        "kind": "record",
        "physicalOffset": position,
        "size": record.total_size,
        "magic": f"{record.magic:08x}",
        "bodyCRC": record.body_crc,
        "queueId": record.queue_id,
        "flag": record.flag,
        "queueOffset": record.queue_offset,
        "sysFlag": record.sys_flag,
        "bornTimestamp": record.born_timestamp,
        "bornHost": format_host(record.born_host),
        "storeTimestamp": record.store_timestamp,
        "storeHost": format_host(record.store_host),
        "reconsumeTimes": record.reconsume_times,
        "preparedTransactionOffset": record.prepared_transaction_offset,
        "bodyLength": len(record.body),
        **_body_fields(record),
        "topic": record.topic,
        "propertiesHex": record.properties.hex(),
        "properties": properties,
        "uniqKey": properties.get("UNIQ_KEY"),
        "offsetMsgId": record.offset_message_id,
    }


def _body_fields(record: Record) -> Line:
    shown = {"bodyHex": record.body.hex()} if len(record.body) <= _BODY_SHOWN_MAX else {}
    fields: Line = {**shown, "bodySha256": hashlib.sha256(record.body).hexdigest()}
    if record.sys_flag & SYS_COMPRESSED:
        fields["plainBodySha256"] = _plain_digest(record)
    return fields


def _plain_digest(record: Record) -> str | None:
    try:
        return hashlib.sha256(plain_body(record.body, record.sys_flag)).hexdigest()
    except ValueError:
        return None  # not what sysFlag says


# ---------------------------------------------------------------------------------------- queues


def queue_lines(store: Store) -> Iterator[Line]:
    """Each queue, by topic and number, with its units."""
    for key in sorted(store.queues):
        queue = store.queues[key]
        yield {
            "kind": "queue",
            "topic": queue.topic,
            "queueId": queue.queue_id,
            "type": queue.kind,
            "minOffset": queue.min_offset,
            "maxOffset": queue.max_offset,
            "maxPhysicOffset": queue.max_physical,
        }
        if isinstance(queue, BatchQueue):
            yield from _batch_units(queue)
        else:
            yield from _plain_units(queue, ExtFiles(store.storage, *key))


def _plain_units(queue: Queue, extensions: ExtFiles) -> Iterator[Line]:
    for number, (position, size, code) in queue.units(queue.min_offset):
        ext = queue.exts.get(number) or extensions.unit(code)
        line: Line = {
            "kind": "cq",
            "topic": queue.topic,
            "queueId": queue.queue_id,
            "index": number,
            "physicalOffset": position,
            "size": size,
            "tagsCode": ext["tagsCode"] if ext else code,
        }
        if ext:
            line["ext"] = ext
        yield line


def _batch_units(queue: BatchQueue) -> Iterator[Line]:
    for _, unit in queue.units(0):
        if unit[4] < queue.min_offset:
            continue
        yield {
            "kind": "bcq",
            "topic": queue.topic,
            "queueId": queue.queue_id,
            "index": unit[4],
            "physicalOffset": unit[0],
            "size": unit[1],
            "tagsCode": unit[2],
            "batchNum": unit[5],
            "compactedOffset": unit[6],
        }


# ----------------------------------------------------------------------------------------- index


def index_lines(store: Store) -> Iterator[Line]:
    """Index files as they are on disk, before recovery."""
    for file in load_index(store.storage, store.settings).files:
        head = file.header
        yield {
            "kind": "indexFile",
            "name": file.name,
            "size": file.size,
            "beginTimestamp": head.begin_timestamp,
            "endTimestamp": head.end_timestamp,
            "beginPhyOffset": head.begin_phy_offset,
            "endPhyOffset": head.end_phy_offset,
            "hashSlotCount": head.hash_slot_count,
            "indexCount": head.index_count,
        }
        for number in range(1, min(head.index_count, len(file.entries))):
            key_hash, position, diff, prev = file.entry(number)
            yield {
                "kind": "indexEntry",
                "file": file.name,
                "n": number,
                "keyHash": key_hash,
                "physicalOffset": position,
                "timeDiff": diff,
                "prev": prev,
            }


def index_query_lines(store: Store) -> Iterator[Line]:
    """What a query for each key of the log finds, in the order of the keys' first records."""
    asked = set()
    if not store.index.readable:
        return
    for position, item in store.log.scan(store.log.min_position, store.end, STRUCTURE):
        if not isinstance(item, Record) or position >= store.end:
            continue
        for key in message_keys(item.property_map()):
            if (item.topic, key) not in asked:
                asked.add((item.topic, key))
                found = store.index.query(item.topic, key)
                yield {
                    "kind": "indexQuery",
                    "topic": item.topic,
                    "key": key,
                    "physicalOffsets": found,
                }


# ----------------------------------------------------------------------------------------- files


def file_lines(store: Store) -> Iterator[Line]:
    """Every file of the root but `lock`."""
    for path in sorted(_files_below(store, "")):
        if path == "lock":
            continue
        try:
            size = store.storage.size_of(path)
        except FileNotFoundError:
            continue  # a broker has removed it since it was listed
        yield {"kind": "file", "path": path, "size": size}


def _files_below(store: Store, directory: str) -> Iterator[str]:
    for name in store.storage.list(directory):
        path = os.path.join(directory, name)
        if store.storage.is_directory(path):
            yield from _files_below(store, path)
        else:
            yield path


def rest_lines(store: Store) -> Iterator[Line]:
    """Checkpoints, the timer's files, configuration."""
    if store.storage.exists("checkpoint"):
        yield _checkpoint_line(store)
    yield from timer_lines(store.storage)
    for name in store.storage.list("config"):
        path = f"config/{name}"
        if name not in _BINARY_CONFIG and not store.storage.is_directory(path):
            text = read_file(store.storage, path).decode(errors="replace")
            yield {"kind": "config", "name": name, "text": text}


def _checkpoint_line(store: Store) -> Line:
    point = store.checkpoint
    return {
        "kind": "checkpoint",
        "physicMsgTimestamp": point["physic_msg_timestamp"],
        "logicsMsgTimestamp": point["logics_msg_timestamp"],
        "indexMsgTimestamp": point["index_msg_timestamp"],
        "masterFlushedOffset": point["master_flushed_offset"],
        "confirmPhyOffset": point["confirm_phy_offset"],
        "minTimestamp": store.min_timestamp,
    }


# --------------------------------------------------------------------------------------- summary


def recovered_summary(store: Store, records: int) -> Line:
    """Last line of stage `recovered`."""
    ranges = {
        f"{topic}@{queue_id}": [queue.min_offset, queue.max_offset]
        for (topic, queue_id), queue in store.queues.items()
    }
    return {
        "kind": "summary",
        "minPhyOffset": store.log.min_position if store.log.segments else -1,
        "maxPhyOffset": store.end,
        "confirmOffset": store.end,
        "records": records,
        "queues": dict(sorted(ranges.items())),
        "topics": sorted(store.topics),
        "indexFilesAfterLoad": [file.name for file in store.index.files],
    }


def disk_summary(store: Store, records: int, end: int) -> Line:
    """Last line of stage `disk`; `queueEnds` counts units, with the oldest file's place.

    Plain queues only: in a batch queue a unit's place says nothing (SF-75).
    """
    ends = {
        f"{topic}-{number}": queue.end
        for (topic, number), queue in store.queues.items()
        if not isinstance(queue, BatchQueue)
    }
    return {
        "kind": "summary",
        "minPhyOffset": store.log.min_position,
        "maxPhyOffset": end,
        "records": records,
        "queueEnds": dict(sorted(ends.items())),
    }
