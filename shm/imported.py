"""`gantry/imported.json`: what another broker has done to the log, as of a position.

Whether a parked record was delivered is told by the origin of its copy, where the copy is ours; a
RocketMQ's copies have none. So what its ranges of the log mean is worked out once, by counting
(brokerd.handover.pending), and kept here: JSON with the position `end`, and for each parked queue
the first offset that is not settled and a bit for each record from there on. `visit` says what it
has stored last, by queues: the groups' ledger may know less of these, or of others. `crc` is the
CRC-32 of the rest as compact JSON with sorted keys. Derived: log and ranges say it again.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
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
class Visit:
    """The last part of the log that another broker wrote, [start, end)."""

    start: int
    end: int
    #: Queue offset of the first record of a queue in it.
    firsts: Mapping[tuple[str, int], int]
    #: Log position from which on a queue began anew, there or in an earlier part.
    starts: Mapping[tuple[str, int], int]

    def offset_since(self, known: int, key: tuple[str, int]) -> int | None:
        """Queue offset of the first record that came behind log position `known`, if it is told.

        0 for a queue that began anew.
        """
        since = max(known, self.start)
        if self.starts.get(key, -1) >= since:
            return 0
        return self.firsts.get(key) if since == self.start else None


@dataclass(frozen=True, slots=True)
class Imported:
    """Nothing is said of parked records at or behind log position `end`."""

    end: int
    queues: dict[tuple[str, int], Settled] = field(default_factory=dict)
    visit: Visit | None = None

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
        visit = content.get("visit")  # older files have none
        found = Imported(
            offset_of(content["end"]), queues, None if visit is None else _visit_of(visit)
        )
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
    bits = zlib.decompress(base64.b64decode(value["settled"], validate=True))
    settled = Settled(offset_of(value["first"]), offset_of(value["count"]), bits)
    if len(bits) != (settled.count + 7) // 8:
        raise ValueError(f"{name}: {len(bits)} bytes for {settled.count} records")
    return _key_of(name), settled


def _key_of(name: str) -> tuple[str, int]:
    topic, _, queue_id = name.rpartition("/")
    return topic, id_of(queue_id)


def _visit_of(value: Any) -> Visit:  # noqa: ANN401 - JSON
    start, end = offset_of(value["start"]), offset_of(value["end"])
    return Visit(start, end, _by_queue(value["firsts"]), _by_queue(value["starts"]))


def _by_queue(table: Mapping[str, Any]) -> dict[tuple[str, int], int]:
    return {_key_of(name): offset_of(number) for name, number in table.items()}


def _named(table: Mapping[tuple[str, int], int]) -> dict[str, int]:
    return {f"{topic}/{queue_id}": number for (topic, queue_id), number in sorted(table.items())}


def _content(imported: Imported) -> dict[str, Any]:
    queues = {
        f"{topic}/{queue_id}": {
            "first": settled.first,
            "count": settled.count,
            "settled": base64.b64encode(zlib.compress(settled.bits, 6)).decode(),
        }
        for (topic, queue_id), settled in imported.queues.items()
    }
    content: dict[str, Any] = {"end": imported.end, "queues": queues, "version": VERSION}
    if imported.visit is not None:
        visit = imported.visit
        bounds = {"start": visit.start, "end": visit.end}
        tables = {"firsts": _named(visit.firsts), "starts": _named(visit.starts)}
        content["visit"] = {**bounds, **tables}
    compact = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return {**content, "crc": zlib.crc32(compact.encode())}
