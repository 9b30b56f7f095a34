"""What a store holds, read with the plain Python codec, and what must be true of every store."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gantrymq.brokerd.config import DEFAULTS
from gantrymq.clients.home import store_of
from gantrymq.clients.message import SendReceipt
from gantrymq.shm import layout
from gantrymq.shm.indexnote import read_note
from gantrymq.shm.properties import parse_delay_levels, tags_code
from gantrymq.shm.record import OWN, Filler, Invalid, Record
from gantrymq.shm.segment import LogView, columns, open_files, open_log
from gantrymq.shm.storage import PosixStorage
from tests.support.agents import board_of
from tests.support.checkindex import check_index

QueueKey = tuple[str, int]
_LEVELS = parse_delay_levels(DEFAULTS["message_delay_level"])


@dataclass(frozen=True, slots=True)
class Stored:
    """A record and where it lies; `message_id` is its UNIQ_KEY."""

    position: int
    record: Record
    message_id: str

    @property
    def producer(self) -> str:
        """The 20 digits of the producer."""
        return self.message_id[:20]

    @property
    def seq(self) -> int:
        """Its number among the producer's messages."""
        return int(self.message_id[20:], 16)

    @property
    def queue(self) -> QueueKey:
        """Topic and queue."""
        return self.record.topic, self.record.queue_id


def read_log(store: Path) -> list[Stored]:
    """Every record of a store, oldest first; all checksums hold and all the rest is zero (P13)."""
    log = open_log(PosixStorage(str(store)))
    found = []
    for position, item in log.scan(log.min_position, check=OWN):
        if isinstance(item, Record):
            assert item.physical_offset == position
            found.append(Stored(position, item, item.property_map().get("UNIQ_KEY", "")))
        else:
            _require_zeroes_behind(log, position, item)
    return found


def read_live_log(home: Path) -> list[Stored]:
    """Likewise of a broker that runs: what it has appended by now."""
    log = open_log(PosixStorage(str(store_of(home))))
    end = board_of(home).word(layout.BOARD_APPENDED)
    found = []
    for position, item in log.scan(log.min_position, end, check=OWN):
        if isinstance(item, Record):
            found.append(Stored(position, item, item.property_map().get("UNIQ_KEY", "")))
        else:
            assert isinstance(item, Filler), f"at {position}: {item}"
    return found


def _require_zeroes_behind(log: LogView, position: int, item: Filler | Invalid) -> None:
    segment = log.segment_at(position)
    assert segment is not None
    inside = position - segment.base + (layout.FILLER.size if isinstance(item, Filler) else 0)
    assert not segment.view[inside:].any(), f"bytes behind {position}: {item}"
    if isinstance(item, Invalid):
        assert segment is log.segments[-1], f"no record at {position}: {item}"


def queue_units(store: Path) -> dict[QueueKey, list[tuple[int, int, int]]]:
    """Units of every ConsumeQueue: position, size, tags code; zero units at the end are none."""
    storage = PosixStorage(str(store))
    found: dict[QueueKey, list[tuple[int, int, int]]] = {}
    for topic, queue_id in _queue_folders(storage):
        files = open_files(storage, f"consumequeue/{topic}/{queue_id}")
        rows = np.concatenate([columns(view, layout.CQ_UNIT) for _base, view in files])
        used = np.flatnonzero(rows["size"])
        count = int(used[-1]) + 1 if used.size else 0
        found[topic, int(queue_id)] = [tuple(row) for row in rows[:count].tolist()]
    return found


def _queue_folders(storage: PosixStorage) -> Iterator[tuple[str, str]]:
    for topic in storage.list("consumequeue"):
        for queue_id in storage.list(f"consumequeue/{topic}"):
            yield topic, queue_id


def require_sound(store: Path) -> list[Stored]:
    """Read a store that was stopped and check what holds of every one.

    Offsets are dense, a producer's order is kept in each queue, no (producer, seq) is there twice,
    times do not go back (P5, P6), each ConsumeQueue and the index are the log's (P14). Returns the
    records.
    """
    records = read_log(store)
    # What a producer sent is there once; a copy that is delivered later shares its id (P9).
    ids = Counter(item.message_id for item in records if _is_sent(item))
    assert not [key for key, count in ids.items() if count > 1], "stored twice"
    queues: dict[QueueKey, list[Stored]] = defaultdict(list)
    for item in records:
        queues[item.queue].append(item)
    times = [item.record.store_timestamp for item in records]
    assert times == sorted(times)
    for key, items in queues.items():
        assert [item.record.queue_offset for item in items] == list(range(len(items))), key
        sent = [item for item in items if _is_sent(item)]
        _require_order_of_producers(sent)  # copies come in the order of their times
    expected = {key: [_unit(item) for item in items] for key, items in queues.items()}
    assert {key: units for key, units in queue_units(store).items() if units} == expected
    _require_index(store, records)
    return records


def _is_sent(item: Stored) -> bool:
    """Whether a producer sent it: not a copy, a commit copy, or a record of the broker's own."""
    record = item.record
    is_copy = record.prepared_transaction_offset < 0 or record.sys_flag & layout.SYS_TRANSACTION
    return bool(item.message_id) and not is_copy


def _require_index(store: Path, records: list[Stored]) -> None:
    """A stopped store is indexed whole, another as far as is noted.

    Files of RocketMQ's size would take too long to read.
    """
    storage = PosixStorage(str(store))
    known = read_note(storage)
    if known is None or known[0].file_bytes > 1 << 24:
        return
    end = known[1].position
    stopped = not (store / "abort").exists()
    if stopped and records:
        assert records[-1].position + records[-1].record.total_size <= end
    check_index(storage, end, end if stopped else -1, Counter())


def _require_order_of_producers(items: list[Stored]) -> None:
    last: dict[str, int] = defaultdict(int)
    for item in items:
        assert item.seq > last[item.producer]
        last[item.producer] = item.seq


def _unit(item: Stored) -> tuple[int, int, int]:
    record = item.record
    code = tags_code(record.topic, record.property_map(), record.store_timestamp, _LEVELS)
    return item.position, record.total_size, code


def require_true(receipts: Iterable[tuple[SendReceipt, bytes]], records: list[Stored]) -> None:
    """Each receipt names the place where its message is (P1, P2)."""
    places = {(*item.queue, item.record.queue_offset): item for item in records}
    for receipt, body in receipts:
        queue = receipt.message_queue
        item = places[queue.topic, queue.queue_id, receipt.queue_offset]
        assert item.record.body == body
        assert item.message_id == receipt.message_id
        assert item.record.offset_message_id == receipt.offset_msg_id


def require_once(bodies: Iterable[bytes], records: list[Stored]) -> None:
    """Exactly these messages are there, each one time (P1, P6)."""
    wanted = Counter(bodies)
    found = Counter(item.record.body for item in records)
    assert not wanted - found, f"lost: {list(wanted - found)[:5]}"
    assert not found - wanted, f"too many: {list(found - wanted)[:5]}"


def require_whole(batches: Iterable[list[bytes]], records: list[Stored]) -> None:
    """The members of each batch lie side by side, in one queue, or none of them is there."""
    places = {item.record.body: index for index, item in enumerate(records)}
    for batch in batches:
        at = [places[body] for body in batch if body in places]
        assert at in ([], list(range(at[0], at[0] + len(batch))) if at else []), batch
        assert len({records[index].queue for index in at}) <= 1, batch
