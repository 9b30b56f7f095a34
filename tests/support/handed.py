"""Small logs, record by record, that two brokers have written in turn."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gantrymq.shm.properties import SCHEDULE_TOPIC, TIMER_TOPIC, encode_properties
from gantrymq.shm.ranges import Ranges, write_ranges
from gantrymq.shm.record import Record, encode_record
from gantrymq.shm.storage import Storage, replace_file

SEGMENT_BYTES = 16 * 1024
START_MS = 1_700_000_000_000


@dataclass
class HandMadeLog:
    """One segment. `ours`: who writes what is added from now on."""

    ours: bool = False
    data: bytearray = field(default_factory=bytearray)
    offsets: dict[tuple[str, int], int] = field(default_factory=dict)
    spans: list[list[int]] = field(default_factory=list)
    now_ms: int = START_MS

    def add(
        self, topic: str, properties: dict[str, str], *, queue_id: int = 0,
        origin: int | None = None, **fields: Any,  # noqa: ANN401 - of Record
    ) -> int:  # fmt: skip
        """Append a record; its position. `origin`: of which parked record it is made (ours)."""
        position, key = len(self.data), (topic, queue_id)
        if origin is not None:
            fields["prepared_transaction_offset"] = -1 - origin
        record = Record(
            topic=topic, queue_id=queue_id, queue_offset=self.offsets.get(key, 0),
            physical_offset=position, properties=encode_properties(properties),
            born_timestamp=self.now_ms, store_timestamp=self.now_ms,
            **{"body": b"body"} | fields,
        )  # fmt: skip
        self.data += encode_record(record, trailer=self.ours)
        self.offsets[key] = record.queue_offset + 1
        self.now_ms += 1
        if self.ours:
            if not self.spans or self.spans[-1][1] != position:
                self.spans.append([position, position])
            self.spans[-1][1] = len(self.data)
        return position

    def timer(
        self, key: str, out_ms: int, *, topic: str = "later", queue_id: int = 0, **more: str
    ) -> int:
        """Park a timer."""
        return self.add(TIMER_TOPIC, timer_properties(key, out_ms, topic, queue_id, **more))

    def level(self, key: str, level: int, *, topic: str = "later", rounds: int = 0) -> int:
        """Park for a delay level."""
        properties = level_properties(key, level, topic)
        return self.add(SCHEDULE_TOPIC, properties, queue_id=level - 1, reconsume_times=rounds)

    def write(self, storage: Storage) -> Ranges:
        """Make the files."""
        replace_file(storage, "commitlog/" + "0" * 20, bytes(self.data).ljust(SEGMENT_BYTES, b"\0"))
        ranges = Ranges(tuple((start, end) for start, end in self.spans))
        write_ranges(storage, ranges)
        return ranges


def timer_properties(
    key: str, out_ms: int, topic: str = "later", queue_id: int = 0, **more: str
) -> dict[str, str]:
    """As a parked timer and its copies have them."""
    names = {"UNIQ_KEY": key, "TIMER_OUT_MS": str(out_ms), "REAL_TOPIC": topic}
    return {**names, "REAL_QID": str(queue_id), **more}


def level_properties(key: str, level: int, topic: str = "later") -> dict[str, str]:
    """As a record that waits for a delay level and its copies have them."""
    return {"UNIQ_KEY": key, "DELAY": str(level), "REAL_TOPIC": topic, "REAL_QID": "0"}
