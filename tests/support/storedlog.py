"""What the oracles of the simulator read of a store by themselves, and their verdict."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NoReturn

from gantrymq.shm import layout
from gantrymq.shm.properties import SCHEDULE_TOPIC, TIMER_TOPIC
from gantrymq.shm.queuenames import has_members, queue_directory
from gantrymq.shm.record import OWN, Filler, Invalid
from gantrymq.shm.segment import Segment, open_log
from gantrymq.shm.storage import Storage, read_file
from tests.support.parked import destination_of
from tests.support.txnrecords import Doubted, doubted

QueueName = tuple[str, int]
_PARKED = (SCHEDULE_TOPIC, TIMER_TOPIC)
_SIZE = struct.Struct(">i")
#: What records say, by their position and all their bytes: a run reads its log many times.
_known: dict[tuple[int, bytes], Stored] = {}
KNOWN_MAX = 20_000


class BrokenPromiseError(AssertionError):
    """The oracle's verdict; its text begins with the promise."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A record as found in the log."""

    producer: str
    seq: int
    topic: str
    queue: int
    offset: int
    position: int
    end: int
    body: bytes = field(repr=False)
    destination: QueueName | None = None  # of a parked one
    origin: int = -1  # of a copy: the parked record's position
    store_ms: int = 0
    attempt: int = 0  # reconsumeTimes
    strikes: bool = False  # takes a parked one out
    doubted: Doubted | None = None  # what it says of transactions

    @property
    def is_sent(self) -> bool:
        """Whether a producer has put it, not an agent."""
        return self.origin < 0 and (self.doubted is None or self.doubted.is_half)

    @property
    def real(self) -> QueueName:
        """The queue that it was sent to, as far as it does not wait for its time."""
        half = self.doubted is not None and self.doubted.is_half
        return self.doubted.real if half and self.doubted else (self.topic, self.queue)


def broken(promise: str, what: str) -> NoReturn:
    """Raise BrokenPromiseError."""
    raise BrokenPromiseError(f"{promise}: {what}")


def require(holds: bool, promise: str, what: str) -> None:
    """`broken` unless a promise holds; where the text is dear, `broken` is called by itself."""
    if not holds:
        broken(promise, what)


def require_side_by_side(who: str, members: Iterable[Stored]) -> None:
    """P6: records of a batch follow one another in the log, and in one queue."""
    for one, two in pairwise(members):
        behind = (one.end, one.queue, one.offset + 1)
        if behind != (two.position, two.queue, two.offset):
            broken("P6", f"{who} is not side by side: {one}, {two}")


def read_log(storage: Storage, appended: int, low: int = 0, *, whole: bool = True) -> list[Stored]:
    """All records from `low` to below a position, each checked by its own checksums.

    Nothing lies behind the log's end (if `whole`), nor behind the filler of a segment (P13).
    """
    found: list[Stored] = []
    log = open_log(storage)
    for segment in log.segments:
        if segment.end > low:
            found += _read_segment(segment, max(low, segment.base), appended)
        if whole:
            rest = segment.view[max(0, appended - segment.base) :]
            require(not rest.any(), "P13", f"bytes behind the log's end {appended}")
    return found


def _read_segment(segment: Segment, start: int, appended: int) -> Iterator[Stored]:
    """Records of one segment from `start` to below `appended`."""
    position, data = start, segment.view.data
    while position < min(appended, segment.end):
        at = position - segment.base
        size = _SIZE.unpack_from(data, at)[0] if segment.end - position >= _SIZE.size else 0
        raw = bytes(data[at : at + max(0, size)])
        stored = _known.get((position, raw)) or _parse(segment, position)
        if stored is None:
            rest = segment.view[at + layout.FILLER.size :]
            require(not rest.any(), "P13", f"bytes behind the filler at {position}")
            return
        if len(_known) >= KNOWN_MAX:
            _known.clear()
        _known[position, raw] = stored
        yield stored
        position = stored.end


def _parse(segment: Segment, position: int) -> Stored | None:
    """The record at a position; None for a filler."""
    item = segment.item_at(position, OWN)
    if isinstance(item, Filler):
        return None
    if isinstance(item, Invalid):
        broken("P13", f"no record at {position}: {item}")
    if item.physical_offset != position:
        broken("P13", f"position in {item}")
    properties = item.property_map()
    uniq = properties.get("UNIQ_KEY", "")
    prepared = item.prepared_transaction_offset
    return Stored(
        uniq[:20].lower(),
        int(uniq[20:] or "0", 16),
        item.topic,
        item.queue_id,
        item.queue_offset,
        position,
        position + item.total_size,
        item.body,
        destination_of(properties) if item.topic in _PARKED else None,
        -1 - prepared if prepared < 0 else -1,
        item.store_timestamp,
        item.reconsume_times,
        "TIMER_DEL_UNIQKEY" in properties,
        doubted(item, properties),
    )


def check_units(
    storage: Storage, log: list[Stored], queue: QueueName, units: int, low: int = 0
) -> None:
    """The first `units` of a ConsumeQueue name the queue's records in their order (P14)."""
    folder = queue_directory(storage, *queue)
    files = storage.list(folder)
    data = b"".join(read_file(storage, f"{folder}/{name}") for name in files)
    first = int(files[0]) // layout.CQ_UNIT_BYTES if files else 0
    records = [record for record in log if (record.topic, record.queue) == queue]
    require(not storage.list(f"consumequeue/{queue[0]}") or not has_members(storage, queue[0]),
            "P14", f"{queue[0]} has a plain queue, which a RocketMQ refuses (SF-77)")  # fmt: skip
    require(units <= len(records), "P14", f"{queue} has {units} units, {len(records)} records")
    for offset in range(first, units):
        unit = layout.CQ_UNIT.unpack(data, (offset - first) * layout.CQ_UNIT_BYTES)
        if unit["size"] == layout.CQ_FILLER_SIZE and records[offset].position < low:
            continue  # SF-65: made again without its record
        record = records[offset]
        names = (unit["physical_offset"], unit["size"])
        expected = (record.position, record.end - record.position)
        require(names == expected, "P14", f"unit {offset} of {queue} is {names}, not {expected}")
