"""What is decided and not written yet, appended to a stopped log before it is handed over.

A RocketMQ looks for op records only (HO-45): a half that was committed, rolled back or appended
again must be named by one, or it is checked and committed once more. And the halves of a committed
transaction are all committed: those that have no copy yet get it. This is a life of a broker that
appends and ends; the recovery that follows makes of it what it makes of a crash.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from gantrymq.brokerd import epoch
from gantrymq.brokerd.commitlog import CommitLog
from gantrymq.brokerd.lanes import LOOPBACK
from gantrymq.shm import layout, limits
from gantrymq.shm.properties import GANTRY_TX_DELAY, HALF_DROPPED, OP_TOPIC, encode_properties
from gantrymq.shm.record import Record, encode_filler, encode_record
from gantrymq.shm.storereader import StoreReader

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gantrymq.brokerd.config import Settings
    from gantrymq.brokerd.handover.halves import Transactions
    from gantrymq.brokerd.recovered import Recovered
    from gantrymq.shm.storage import Storage

_OP: Final = encode_properties({"TAGS": "d", "WAIT": "true"})
#: RocketMQ closes an op message's body once it has so many characters (TX-23).
_BODY_MAX: Final = 4096


def finish(
    storage: Storage, settings: Settings, found: Recovered, left: Transactions, now_ms: int
) -> tuple[int, int]:
    """Append what lacks to a recovered store: how many commit copies, and offsets in op records.

    The store has to be recovered again afterwards. A half with a delay is left: its wish is one
    that only GantryMQ knows. Raises Corrupt, OSError.
    """
    copies = list(_copies(storage, left.unfinished))
    offsets = [*left.missing, *(offset for offset, _record in copies)]
    if not offsets:
        return 0, 0
    epoch.mark_running(storage, epoch.Life(0, epoch.boot_id()), found.appended)
    end = _End(storage, settings, found, now_ms)
    try:
        for _offset, record in copies:
            end.append(record)
        for body in _bodies(offsets):
            end.append(Record(topic=OP_TOPIC, body=body, properties=_OP))
    finally:
        end.close()
    return len(copies), len(offsets)


def count(storage: Storage, left: Transactions) -> tuple[int, int]:
    """What `finish` would say. Raises Corrupt, OSError."""
    copies = sum(1 for _copy in _copies(storage, left.unfinished))
    return copies, copies + len(left.missing)


def _copies(storage: Storage, halves: Any) -> Iterator[tuple[int, Record]]:  # noqa: ANN401 - rows
    """Commit copies (TX-15, TX-46), each with its half's queue offset."""
    reader = StoreReader(storage)
    for offset, position in halves[["offset", "position"]].tolist():
        half = reader.record(position)
        properties = half.property_map()
        if GANTRY_TX_DELAY in properties:
            continue
        kept = {name: text for name, text in properties.items() if name not in HALF_DROPPED}
        yield (
            offset,
            replace(
                half,
                topic=properties["REAL_TOPIC"],
                queue_id=int(properties["REAL_QID"]),
                sys_flag=half.sys_flag | layout.SYS_COMMIT,
                prepared_transaction_offset=position,
                properties=encode_properties(kept),
            ),
        )


def _bodies(offsets: list[int]) -> Iterator[bytes]:
    body = b""
    for offset in sorted(offsets):
        body += b"%d," % offset
        if len(body) >= _BODY_MAX:
            yield body
            body = b""
    if body:
        yield body


class _End:
    """The end of the log, as a writer appends to it (SF-20); synced when it is closed."""

    def __init__(self, storage: Storage, settings: Settings, found: Recovered, now_ms: int) -> None:
        self._log = CommitLog(storage, settings.mapped_file_size_commit_log, found.appended)
        self._position, self._now_ms = found.appended, max(now_ms, found.store_ms)
        self._next = {key: following for key, (following, _units, _low) in found.queues.items()}
        self._host = LOOPBACK + int(settings.broker_port).to_bytes(4, "big")

    def append(self, record: Record) -> None:
        """Give it its place and write it."""
        key = (record.topic, record.queue_id)
        placed = replace(
            record,
            queue_offset=self._next.get(key, 0),
            store_timestamp=self._now_ms,
            store_host=self._host if record.topic == OP_TOPIC else record.store_host,
            born_host=self._host if record.topic == OP_TOPIC else record.born_host,
            born_timestamp=record.born_timestamp or self._now_ms,
        )
        self._next[key] = placed.queue_offset + 1
        data = self._encoded(placed)
        left = self._log.end - self._position
        if len(data) + limits.FILLER_BYTES_MIN > left:
            if left:  # none where the last life ended with its segment
                self._log.append(memoryview(encode_filler(left)), self._position)
            self._log.sync()
            self._log.roll()
            self._position = self._log.base
            data = self._encoded(placed)
        self._log.append(memoryview(data), self._position)
        self._position += len(data)

    def _encoded(self, record: Record) -> bytes:
        return encode_record(replace(record, physical_offset=self._position), trailer=True)

    def close(self) -> None:
        """Make it durable."""
        try:
            self._log.sync()
        finally:
            self._log.close()
