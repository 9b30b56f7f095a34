"""JSON files that somebody reads, sound ones, with whoever reads them: for sweeps of their values.

A reader is what product code calls, in a folder that has no other file. What it gives is judged by
its numbers: none may be such that whoever computes with it fails.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import msgspec

from gantrymq.brokerd import config, epoch, holders, ledgerend
from gantrymq.brokerd.batchqueues import batch_topics_of
from gantrymq.brokerd.dump.recovered import open_store
from gantrymq.brokerd.dump.settings import load_settings
from gantrymq.brokerd.handover import groupfiles, refusals
from gantrymq.brokerd.log import Log
from gantrymq.brokerd.metadata import Metadata
from gantrymq.brokerd.queuestarts import FILE as STARTS
from gantrymq.brokerd.queuestarts import read_starts
from gantrymq.brokerd.subscriptions import Subscriptions
from gantrymq.brokerd.verify.config import ConfigCheck, store_file_is_sound
from gantrymq.brokerd.verify.report import Report
from gantrymq.brokerd.verify.scope import Scope, _synced_units
from gantrymq.clients.home import read_board_file
from gantrymq.clients.push.broadcast import OffsetFile
from gantrymq.clients.queries.view import StoppedStore
from gantrymq.clients.spark.options import ReadOptions
from gantrymq.clients.spark.sink.ledger import StagingFolder
from gantrymq.clients.spark.sink.options import WriteOptions
from gantrymq.clients.spark.table.manifest import load_intent, load_manifest
from gantrymq.clients.spark.table.pin import Pin
from gantrymq.clients.spark.topics import require_topics
from gantrymq.shm import bitmapnote, imported, indexnote, lineage, ranges, topicfiles
from gantrymq.shm.clock import SystemClock
from gantrymq.shm.errors import TopicNotFound
from gantrymq.shm.jsonsum import with_sum
from gantrymq.shm.storage import PosixStorage
from gantrymq.shm.valueranges import NUMBER_MAX, WORD_MAX
from gantrymq.workers import filterfile
from gantrymq.workers.groups import deadletternote
from gantrymq.workers.groups.ledger import Ledger
from gantrymq.workers.groups.offsetfile import import_offsets, read_offsets
from gantrymq.workers.groups.visits import go_back
from gantrymq.workers.housekeeper.progress import read_progress
from gantrymq.workers.scheduler import note as schedulenote
from gantrymq.workers.scheduler.othersettled import OtherSettled
from gantrymq.workers.transactions import note as transactionnote
from tests.unit.test_metadata import Found, make_board

Reader = Callable[[Path], object]
BOOT = "0123456789abcdef" * 2
SETTINGS = config.load(None, {}, {}).settings
#: What a number in a file may be instead.
VALUES: tuple[Any, ...] = (
    -(1 << 63) - 1, -(1 << 63), -1, 0, 1, 1 << 31, 1 << 32, NUMBER_MAX, NUMBER_MAX + 1,
    (1 << 63) - 1, 1 << 63, 1 << 64, 10**30, 1.5, 1e300, float("nan"), float("inf"), True, None,
    "", "1", "x", [], [[]], {},
)  # fmt: skip
#: Instead of a number that is the end of a key.
KEYS = ("-1", str(1 << 31), str(1 << 63), str(10**30), "9" * 5000, "1.5", "01", "\u00b2", "x", "")
_ENDS_IN_NUMBER = re.compile(r"[0-9]+\Z")


@dataclass(frozen=True, slots=True)
class SweptFile:
    """Where it is, what it says, and who reads it."""

    path: str
    content: object
    readers: tuple[Reader, ...]
    text: Callable[[object], str] = json.dumps

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.path.rpartition("/")[2]

    def write(self, root: Path, content: object) -> None:
        """Have it say something, with a checksum that is right where it has one."""
        path = root / self.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.text(content), "utf-8")


# ----------------------------------------------------------------------------------------- values


def changed(content: object) -> Iterator[object]:
    """The same with one of its values, or the number that ends one of its keys, extreme."""
    yield from VALUES
    if isinstance(content, dict):
        for name, item in content.items():
            yield from ({**content, name: other} for other in changed(item))
            others = {key: item for key in content if key != name}
            if _ENDS_IN_NUMBER.search(name):
                for end in KEYS:
                    yield {**content, **others} | {_ENDS_IN_NUMBER.sub(end, name): item}
    elif isinstance(content, list):
        for number, item in enumerate(content):
            for other in changed(item):
                yield [*content[:number], other, *content[number + 1 :]]


def wrong_numbers(value: object) -> Iterator[object]:
    """Numbers in what a reader gives with which whoever computes may fail."""
    is_wrong = isinstance(value, int) and not -WORD_MAX - 1 <= value <= WORD_MAX
    if is_wrong or isinstance(value, float):
        yield value
    for part in _parts(value):
        yield from wrong_numbers(part)


def _parts(value: object) -> Iterator[object]:
    if isinstance(value, dict):
        yield from value
        yield from value.values()
    elif isinstance(value, list | tuple | set):
        yield from value
    elif isinstance(value, msgspec.Struct):
        yield from msgspec.structs.astuple(value)
    elif is_dataclass(value):
        yield from (getattr(value, field.name) for field in fields(value))


# ------------------------------------------------------------------------------------------ files


def _summed(content: object) -> str:
    text = json.dumps(content)
    return with_sum(text) if isinstance(content, dict) else text


def _with_crc(content: object) -> str:
    """As ranges.json and imported.json have it."""
    if not isinstance(content, dict):
        return json.dumps(content)
    compact = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return json.dumps({**content, "crc": zlib.crc32(compact.encode())}, sort_keys=True)


def _of_store(*readers: Callable[[PosixStorage], object]) -> tuple[Reader, ...]:
    return tuple(lambda root, read=read: read(PosixStorage(str(root))) for read in readers)


def _metadata(storage: PosixStorage) -> None:
    """As a start reads it, and then writes it anew."""
    metadata = Metadata(storage, SETTINGS, SystemClock())
    metadata.load()
    metadata.add_parking_topics()
    metadata.publish(make_board(16, 128), Found())
    metadata.create("fresh", 1, "written")
    metadata.groups.add("fresh")
    assert metadata.groups.commit(Log("error", StringIO())) == 0


def _groups(storage: PosixStorage) -> None:
    groups = Subscriptions(storage, SystemClock())
    groups.load()
    groups.add("g", {"retryMaxTimes": 3})
    groups.add("fresh")
    assert groups.commit(Log("error", StringIO())) == 0


def _offsets(storage: PosixStorage) -> None:
    ledger = Ledger(storage)
    ledger.load()
    import_offsets(ledger)
    ledger.sync()
    ledger.close()


def _start(storage: PosixStorage) -> None:
    """The steps of a start that read what the store was made with."""
    ledgerend.version_of(storage)
    epoch.settings_of_store(storage, config.load(None, {}, {}))
    epoch.with_own_levels(storage, SETTINGS)
    epoch.begin(storage, config.load(None, {}, {}))


def _config_check(storage: PosixStorage) -> None:
    scope = Scope("stopped", True, None, None)
    ConfigCheck(storage, scope, Report("")).run(frozenset({"orders"}), exact=True)


def _dumped(storage: PosixStorage) -> None:
    open_store(storage, load_settings(storage))


def _index_told(storage: PosixStorage) -> object:
    """What the indexer and RocketMQ's checkpoint are told of the note."""
    (Path(storage.root) / "checkpoint").write_bytes(bytes(4096))
    indexnote.tell_rocketmq(storage, indexnote.safe_time(storage))
    found = indexnote.read_note(storage)
    if found is not None:
        shape, note = found
        shape.slot_at(7)
        for _name, header in note.files:
            header.encode()
    return found


def _settled(storage: PosixStorage) -> object:
    found = OtherSettled(storage)
    for topic, queue_id in found.imported.queues:
        found.among(topic, queue_id, 0, 20)
    ledger = Ledger(storage)
    ledger.group("g").queue(("a", 0)).commit(50)
    go_back(ledger, found.imported.visit)
    return found.imported


def _asked_by_spark(root: Path) -> None:
    with suppress(TopicNotFound):
        require_topics(ReadOptions.parse({"store": str(root), "topic": "orders"}))


def _broadcast(root: Path) -> object:
    file = OffsetFile("/nowhere", "g", "i")
    try:
        return file.offsets
    finally:
        file.close()


_PROOF = {"store": "s", "record": 5, "size": 100, "crc": 7}
_MANIFEST = {
    "version": 1, "generation": 2, "begin": 0, "position": 400, "topics": ["orders"],
    "system": False, "filter": "", "columns": {"body": "binary"}, "proof": _PROOF, "layout": 2,
    "gaps": [[3, 9]],
    "files": [{"path": "data/x.parquet", "start": 0, "end": 400, "rows": 7, "bytes": 900}],
}  # fmt: skip
_PENDING = {
    "batch": 3, "files": [{"name": "a.arrow", "rows": 2, "topics": ["orders"]}], "sent": 1,
    "identity": "ab", "position": 10, "store": "s",
}  # fmt: skip
_BLOOM = filterfile.bloom_form(SETTINGS)
_TABLE_OF_TOPICS = {
    "dataVersion": {"counter": 7, "stateVersion": 0, "timestamp": 5},
    "topicConfigTable": {
        "orders": {
            "attributes": {"gantry.durability": "written", "gantry.begins": "0,5"},
            "order": False, "perm": 6, "readQueueNums": 2, "topicFilterType": "SINGLE_TAG",
            "topicName": "orders", "topicSysFlag": 0, "writeQueueNums": 2,
        },
    },
}  # fmt: skip

FILES = (
    SweptFile(
        "config/topics.json", _TABLE_OF_TOPICS,
        (
            *_of_store(
                _metadata, batch_topics_of, groupfiles.topic_queues, groupfiles.complete_tables,
                _config_check, _dumped, lambda s: StoppedStore(s, indexnote.DEFAULT_SHAPE).topics(),
            ),
            _asked_by_spark,
        ), _summed,
    ),
    SweptFile(
        "config/subscriptionGroup.json",
        {
            "dataVersion": {"counter": 7, "stateVersion": 0, "timestamp": 5},
            "forbiddenTable": {},
            "subscriptionGroupTable": {
                "g": {"brokerId": 0, "groupName": "g", "retryMaxTimes": 16, "retryQueueNums": 8},
            },
        },
        _of_store(_groups, _metadata, groupfiles.complete_tables, _config_check), _summed,
    ),
    SweptFile(
        "config/consumerOffset.json",
        {
            "dataVersion": {"counter": 7},
            "offsetTable": {"orders@g": {"0": 4, "1": 0}},
        },
        _of_store(read_offsets, _offsets), _summed,
    ),
    SweptFile(
        "config/delayOffset.json",
        {"dataVersion": {"counter": 0}, "offsetTable": {"3": 4, "17": 0}},
        _of_store(schedulenote.read_level_offsets), _summed,
    ),
    SweptFile(
        "config/consumerFilter.json",
        {
            "filterDataByTopic": {
                "orders": {
                    "groupFilterData": {
                        "g": {
                            "bloomFilterData": {
                                "bitNum": _BLOOM.bits, "bitPos": _BLOOM.positions("g", "orders"),
                            },
                            "bornTime": 5, "clientVersion": 6, "deadTime": 0, "dialect": "sql",
                            "expression": "a > 1", "expressionType": "SQL92",
                        },
                    },
                    "topic": "orders",
                },
            },
        },
        _of_store(
            lambda storage: filterfile.read_filters(storage, _BLOOM),
            lambda storage: groupfiles.settle_filters(storage, SETTINGS, 7),
        ), _summed,
    ),
    SweptFile(
        "config/consumerOrderInfo.json",
        {"table": {"orders@g": {"0": {"o": [1, 2], "cm": 3, "i": 5}}}},
        _of_store(refusals._ordered_pop),
    ),
    SweptFile(
        lineage.FILE,
        {
            "version": 3, "starts": 2, "mapped_file_size_commit_log": 65536,
            "mapped_file_size_consume_queue": 20000, "message_delay_level": "1s 5s",
            "earlier_delay_levels": ["1s"],
            "used": {"broker_port": 10911, "timer_precision_ms": 1000, "broker_name": "b"},
            "lineage": [["a", 0], ["b", 70]], "copied_at": 90,
        },
        _of_store(
            _start, lineage.lineage_of, load_settings,
            lambda storage: store_file_is_sound(storage, lineage.FILE, Report("")),
        ), _summed,
    ),
    SweptFile(
        ranges.FILE,
        {"boot_id": BOOT, "life": "2f0001", "ranges": [[0, 4096], [8192, None]], "version": 2},
        _of_store(ranges.read_ranges), _with_crc,
    ),
    SweptFile(
        imported.FILE,
        {
            "end": 4096, "version": 1,
            "queues": {"later/0": {"first": 2, "count": 3, "settled": "eJxjBQAABgAG"}},
            "visit": {"start": 100, "end": 4096, "firsts": {"a/0": 5}, "starts": {"a/0": 200}},
        },
        _of_store(_settled), _with_crc,
    ),
    SweptFile(
        bitmapnote.FILE,
        {
            "filters": [
                {
                    "topic": "orders", "group": "g", "dialect": "sql", "expression": "a > 1",
                    "bits": 112, "positions": [3, 9], "start": 40,
                },
            ],
        },
        _of_store(bitmapnote.read_covered), _summed,
    ),
    SweptFile(
        "gantry/queues.json", {"position": 400, "queues": {"orders@0": 5}},
        _of_store(read_progress, _synced_units), _summed,
    ),
    SweptFile(
        STARTS, {"low": 400, "queues": {"orders@0": 5}}, _of_store(read_starts), _summed
    ),
    SweptFile(
        topicfiles.DELETED, {"gone": 2},
        (
            *_of_store(_metadata),
            lambda root: topicfiles.deleted_names((root / topicfiles.DELETED).read_bytes()),
        ), _summed,
    ),
    SweptFile(
        indexnote.NOTE_FILE,
        {
            "version": 1, "slots": 100, "entries": 700, "tags": True, "position": 400, "low": 0,
            "full_ms": 5, "files": {"20261128150126819": [1, 2, 0, 400, 99, 700]},
        },
        _of_store(_index_told), _summed,
    ),
    SweptFile(
        deadletternote.FILE,
        {
            "version": 1, "known": 70,
            "groups": {"g": {"0": {"resent": [[1, 2]], "purged": [[4, 9]]}}},
        },
        _of_store(deadletternote.read_note), _summed,
    ),
    SweptFile(
        schedulenote.FILE,
        {
            "version": 1, "scanned": 400, "levels": {"3": 4}, "absent": [[5, 100]],
            "boot_id": BOOT, "base_ns": 5, "wall_ms": 6, "made": "ab", "buckets": {"1-0": 48},
            "timers_ms": 7, "delays_ms": 8, "timers_next": 1, "timers_position": 100,
            "timers_floor": 0, "clock_boot_id": BOOT, "frozen": [5], "shift_ms": 0, "filed_ms": 9,
            "ahead_ms": 1, "paces": [[0, 0, 5]], "unsure": [[1, 2, 3]], "stamped_ms": 4,
        },
        _of_store(schedulenote.read_note), _summed,
    ),
    SweptFile(
        transactionnote.FILE,
        {
            "version": 1, "scanned": 400, "halves_next": 1, "ops_next": 1, "notes_next": 0,
            "open": [[0, 100, 200, 1]], "given_next": 1, "given_up": [[0, 100, 200, 5]],
            "begun": [["ab", "committed"]], "half_progress": 0, "op_progress": 0,
        },
        _of_store(transactionnote.read_note), _summed,
    ),
    SweptFile(
        "gantry/pins/p",
        {"position": 40, "until_ratio": 100, "table": "/t", "store": ""},
        (
            *_of_store(holders.read_pins, lambda s: holders.Pins(s).lowest_position(50)),
            lambda root: Pin(str(root), "p", "/t"),
        ),
    ),
    SweptFile("_gantry/manifest.json", _MANIFEST, _of_store(load_manifest), _summed),
    SweptFile(
        "_gantry/intent.json",
        {
            "manifest": _MANIFEST, "moves": [{"aside": "a", "final": "b"}],
            "swaps": [{"aside": "a", "final": "b", "proof": "c"}],
        },
        _of_store(load_intent), _summed,
    ),
    SweptFile(
        "ledger.json", {"version": 1, "done": 2, "pending": _PENDING},
        (lambda root: StagingFolder(str(root)).load(),), _summed,
    ),
    SweptFile(
        "metadata", {"id": "q"}, (lambda root: WriteOptions(checkpoint=str(root)).stream_folder(),)
    ),
    SweptFile(
        "run/board", {"board": "/b", "boot_id": BOOT, "epoch": "5", "store": "s"},
        (read_board_file,),
    ),
    SweptFile(
        "gantrymq/broadcast/g/i-0fc6c64305da.json",
        {"store": "s", "life": "f", "offsets": {"orders": {"0": 7}}}, (_broadcast,),
    ),
)  # fmt: skip
