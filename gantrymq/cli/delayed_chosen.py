"""Which of the messages that wait are meant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gantrymq.cli.delayed_kind import Kind
from gantrymq.shm import layout
from gantrymq.shm.record import STRUCTURE, Record, parse_record

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray

    from gantrymq.brokerd.handover.stopped import StoppedMessages
    from gantrymq.workers.scheduler.waiting import WaitingMessages

    Look = WaitingMessages | StoppedMessages

#: Where the body is if both hosts have four bytes; its length is before it.
_BODY_AT: Final = layout.RECORD_HEAD_BYTES
_FLAGS_AT: Final = layout.RECORD_SYS_FLAG
_V6: Final = layout.SYS_BORN_V6 | layout.SYS_STORE_V6
_UNIQUE: Final = b"UNIQ_KEY\x01"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """All that is given must hold. Times are those of delivery, Unix ms."""

    topic: str | None = None
    tag: str | None = None
    key: str | None = None
    kind: Kind | None = None
    from_ms: int | None = None
    until_ms: int | None = None

    def among(self, look: Look, found: NDArray[np.void]) -> NDArray[np.void]:
        """Those of `found` (workers.scheduler.waiting.WAITING) that are wanted."""
        import numpy as np

        found = found[self._by_row(found)]
        texts = [
            f"REAL_TOPIC\x01{self.topic}" if self.topic is not None else "",
            f"TAGS\x01{self.tag}" if self.tag is not None else "",
            self.key or "",
        ]
        marks = [text.encode() for text in texts if text]
        if not marks and self.key is None:
            return found
        chosen = np.zeros(len(found), np.bool_)
        for at, data in stored(look, found):
            chosen[at] = all(mark in data for mark in marks) and self._holds(data)
        return found[chosen]

    def _by_row(self, found: NDArray[np.void]) -> NDArray[np.bool_]:
        import numpy as np

        chosen = np.ones(len(found), np.bool_)
        if self.kind is Kind.LEVEL:
            chosen &= found["level"] > 0
        elif self.kind is not None:
            has_time = found["due_ms"] > 0
            chosen &= (found["level"] == 0) & (has_time == (self.kind is Kind.EXACT))
        if self.from_ms is not None:
            chosen &= found["due_ms"] >= self.from_ms
        if self.until_ms is not None:
            chosen &= (found["due_ms"] < self.until_ms) & (found["due_ms"] > 0)
        return chosen

    def _holds(self, data: bytes) -> bool:
        """Bodies and names of properties may hold what looks like it: the record decides then."""
        if self.tag is None and self.key is None and _is_to(data, self.topic):
            return True
        found = parse_record(data, 0, len(data), STRUCTURE)
        if not isinstance(found, Record):
            return False
        properties = found.property_map()
        return (
            self.topic in (None, properties.get("REAL_TOPIC"))
            and self.tag in (None, properties.get("TAGS"))
            and (self.key is None or self.key in properties.get("KEYS", "").split())
        )


def _is_to(record: bytes, topic: str | None) -> bool:
    """Whether the first look shows that a record is to a topic; False: it has to be read."""
    body_bytes = int.from_bytes(record[_BODY_AT - 4 : _BODY_AT], "big")
    flags = int.from_bytes(record[_FLAGS_AT : _FLAGS_AT + 4], "big")
    mark = f"\x02REAL_TOPIC\x01{topic}\x02".encode()
    return not flags & _V6 and record.find(mark, _BODY_AT + body_bytes) >= 0


def stored(look: Look, found: NDArray[np.void]) -> Iterator[tuple[int, bytes]]:
    """Index and bytes of each record that is there."""
    for at, (position, size) in enumerate(found[["position", "size"]].tolist()):
        try:
            base, view = look.views.segment(position)
        except FileNotFoundError:  # it has just expired
            continue
        yield at, view[position - base : position - base + size].tobytes()


def records(look: Look, found: NDArray[np.void]) -> Iterator[tuple[Any, Record]]:
    """Row and record of each that is there."""
    for place in found:
        record = look.views.record(int(place["position"]))
        if record is not None:
            yield place, record


def that_wait(look: Look, names: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Of timers' topics and unique keys those that wait, and could be cancelled."""
    found = Wanted(kind=Kind.EXACT).among(look, look.read())
    uniques = {unique.encode() for _topic, unique in names}
    there = set()
    for _at, data in stored(look, found):
        if any(unique in uniques for unique in _uniques_in(data)):
            record = parse_record(data, 0, len(data), STRUCTURE)
            if isinstance(record, Record):
                properties = record.property_map()
                there.add((properties.get("REAL_TOPIC", ""), properties.get("UNIQ_KEY", "")))
    return there & names


def _uniques_in(record: bytes) -> Iterator[bytes]:
    """What stands behind each mark of a unique key, in the body too."""
    for part in record.split(_UNIQUE)[1:]:
        yield part.partition(b"\x02")[0]
