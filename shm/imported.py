"""`gantry/imported.json`: which parked records were settled as of a log position.

Whether a parked record was delivered is told by the origin of its copy, where the copy is ours; a
RocketMQ's copies have none. So what its ranges of the log mean is worked out once, by counting
(brokerd.handover.pending), and kept here: JSON with the position `end`, and for each parked queue
the first offset that is not settled and a bit for each record from there on. `crc` is the CRC-32 of
the rest as compact JSON with sorted keys. Derived: it can be made again of log and ranges.
"""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from gantrymq.shm.errors import Corrupt
from gantrymq.shm.fromhandlers import require_ours
from gantrymq.shm.jsontext import parse_json
from gantrymq.shm.storage import read_file, replace_file
from gantrymq.shm.valueranges import id_of, offset_of

if TYPE_CHECKING:
    from gantrymq.shm.storage import Storage

FILE: Final = "gantry/imported.json"
VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Settled:
    """Of one parked queue: offsets below `first` are settled; bit i stands for offset first + i."""

    first: int
    count: int
    bits: bytes  # least significant bit first

    def __contains__(self, offset: int) -> bool:
        if offset < self.first:
            return True
        at = offset - self.first
        return at < self.count and bool(self.bits[at >> 3] >> (at & 7) & 1)


@dataclass(frozen=True, slots=True)
class Imported:
    """Nothing is said of parked records at or behind log position `end`."""

    end: int
    queues: dict[tuple[str, int], Settled] = field(default_factory=dict)

    def first(self, topic: str, queue_id: int) -> int:
        """Every queue offset below it is settled."""
        found = self.queues.get((topic, queue_id))
        return found.first if found else 0

    def is_settled(self, topic: str, queue_id: int, offset: int) -> bool:
        """Whether a record was delivered, recalled or replaced: it is never delivered (again)."""
        found = self.queues.get((topic, queue_id))
        return found is not None and offset in found

    def bits(self, topic: str, queue_id: int) -> tuple[int, int, bytes]:
        """First offset, how many there are from it on, a bit for each of these."""
        found = self.queues.get((topic, queue_id))
        return (found.first, found.count, found.bits) if found else (0, 0, b"")


def read_imported(storage: Storage) -> Imported | None:
    """What the file says; None without it. Raises Corrupt, OSError."""
    try:
        data = read_file(storage, FILE)
    except FileNotFoundError as error:
        require_ours(error)
        return None
    try:
        content = parse_json(data)
        queues = dict(map(_queue_of, content["queues"].items()))
        found = Imported(offset_of(content["end"]), queues)
        whole = content["version"] == VERSION and content["crc"] == _content(found)["crc"]
    except (ValueError, KeyError, TypeError, AttributeError, zlib.error) as error:
        require_ours(error)
        whole = False
    if not whole:
        raise Corrupt(f"{FILE} is damaged: delete it, a start makes it again", path=FILE)
    return found


def write_imported(storage: Storage, imported: Imported) -> None:
    """Replace the file, durably. Raises OSError."""
    text = json.dumps(_content(imported), sort_keys=True)
    replace_file(storage, FILE, text.encode() + b"\n")


def _queue_of(item: tuple[str, Any]) -> tuple[tuple[str, int], Settled]:
    name, value = item
    topic, _, queue_id = name.rpartition("/")
    bits = zlib.decompress(base64.b64decode(value["settled"], validate=True))
    settled = Settled(offset_of(value["first"]), offset_of(value["count"]), bits)
    if len(bits) != (settled.count + 7) // 8:
        raise ValueError(f"{name}: {len(bits)} bytes for {settled.count} records")
    return (topic, id_of(queue_id)), settled


def _content(imported: Imported) -> dict[str, Any]:
    queues = {
        f"{topic}/{queue_id}": {
            "first": settled.first,
            "count": settled.count,
            "settled": base64.b64encode(zlib.compress(settled.bits, 6)).decode(),
        }
        for (topic, queue_id), settled in imported.queues.items()
    }
    content = {"end": imported.end, "queues": queues, "version": VERSION}
    compact = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return {**content, "crc": zlib.crc32(compact.encode())}
