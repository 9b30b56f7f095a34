"""What a RocketMQ's own records settle: there no origin tells which parked record a copy is of.

HO-81: a copy, and what a roll appends again, is linked by properties. They are counted, not looked
up: a producer that sends again parks the same UNIQ_KEY twice. Recalls: DT-72, DT-76.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from gantrymq.brokerd.handover.names import PARKING
from gantrymq.shm.kernels import scan
from gantrymq.shm.properties import parse_properties
from gantrymq.shm.record_columns import read_records

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from gantrymq.brokerd.logscan import Piece
    from gantrymq.shm.record_columns import RecordColumns

Properties = Mapping[str, str]
_TIMER_MARK: Final = re.compile(b"TIMER_OUT_MS\x01")


@dataclass(slots=True)
class Links:
    """Copies and rolls by what links them, each with the log position; recalls by key and time."""

    copies: dict[bytes, list[int]] = field(default_factory=lambda: defaultdict(list))
    recalls: set[tuple[str, str]] = field(default_factory=set)

    def learn_copies(self, piece: Piece, topics: NDArray[np.uint16], names: list[str]) -> None:
        """Note records of real topics that a RocketMQ delivered, by their properties."""
        rows = piece.rows
        parked = np.array([name in PARKING for name in names])
        marked = (rows[:, scan.DELAY] > 0) | _with_timer(piece)
        chosen = np.flatnonzero(marked & ~parked[topics])
        columns = columns_of(piece, chosen)
        for at, properties in enumerate(properties_of(piece, rows[chosen])):
            row = rows[chosen[at]]
            topic, queue_id = names[topics[chosen[at]]], int(row[scan.QUEUE_ID])
            if (properties.get("REAL_TOPIC"), properties.get("REAL_QID")) != (topic, str(queue_id)):
                continue
            position = piece.base + int(row[scan.AT])
            if row[scan.DELAY] > 0:
                key = level_key(properties, int(columns.reconsume_times[at]))
                self.copies[key].append(position)
            if "TIMER_OUT_MS" in properties:
                self.copies[timer_key(properties)].append(position)

    def recall(self, properties: Properties) -> None:
        """Note a recall that a RocketMQ stored."""
        self.recalls.add((properties["TIMER_DEL_UNIQKEY"], properties.get("TIMER_OUT_MS", "")))

    def is_recalled(self, properties: Properties) -> bool:
        """Either version's form counts, whatever RocketMQ would have done (DT-76)."""
        key, time = properties.get("UNIQ_KEY", ""), properties.get("TIMER_OUT_MS", "")
        full = f"{properties.get('REAL_TOPIC', '')}+{key}"
        return (key, time) in self.recalls or (full, time) in self.recalls


def timer_key(properties: Properties) -> bytes:
    """Links a timer, what a roll made of it, and its copy."""
    names = ("UNIQ_KEY", "TIMER_OUT_MS", "REAL_TOPIC", "REAL_QID")
    return _digest("timer", *(properties.get(name, "") for name in names))


def level_key(properties: Properties, reconsume_times: int) -> bytes:
    """Links a record that waits for a delay level and its copy; retries differ by their round."""
    names = ("UNIQ_KEY", "REAL_TOPIC", "REAL_QID")
    return _digest("level", str(reconsume_times), *(properties.get(name, "") for name in names))


def settle(keys: list[bytes], positions: NDArray[np.int64], done: NDArray[np.bool_],
           rolled: set[int], copies: Mapping[bytes, list[int]]) -> None:  # fmt: skip
    """Mark in `done` the records that copies and rolls of the same key have settled, oldest first.

    `rolled`: positions of records that a roll appended, each in place of an older one.
    """
    replaces = [position in rolled for position in positions.tolist()]
    needed = {key for key, rolls in zip(keys, replaces, strict=True) if rolls} | copies.keys()
    chains: dict[bytes, list[tuple[int, int]]] = defaultdict(list)
    for at, key in enumerate(keys):
        if key in needed and (replaces[at] or not done[at]):
            chains[key].append((int(positions[at]), at))
    for key, chain in chains.items():
        waiting: list[int] = []
        for _position, at in sorted([*chain, *((place, -1) for place in copies.get(key, ()))]):
            if (at < 0 or replaces[at]) and waiting:
                done[waiting.pop(0)] = True
            if at >= 0 and not done[at]:
                waiting.append(at)


def columns_of(piece: Piece, chosen: NDArray[np.int64]) -> RecordColumns:
    """Fields of some of a piece's records."""
    rows = piece.rows[chosen]
    return read_records(piece.view, rows[:, scan.AT], rows[:, scan.SIZE], piece.base)


def properties_of(piece: Piece, rows: NDArray[np.int64]) -> Iterator[dict[str, str]]:
    """Properties of records, in their order."""
    view = piece.view
    for at, size in rows[:, [scan.PROPERTIES_AT, scan.PROPERTIES_SIZE]].tolist():
        yield parse_properties(view[at : at + size].tobytes())


def _with_timer(piece: Piece) -> NDArray[np.bool_]:
    """Which records have a timer's time among their properties."""
    rows = piece.rows
    found = np.zeros(len(rows), np.bool_)
    start, stop = int(rows[0, scan.AT]), int(rows[-1, scan.AT] + rows[-1, scan.SIZE])
    hits = [start + hit.start() for hit in _TIMER_MARK.finditer(piece.view[start:stop].data)]
    places = np.array(hits, np.int64)
    index = np.searchsorted(rows[:, scan.AT], places, "right") - 1
    found[index[places >= rows[index, scan.PROPERTIES_AT]]] = True
    return found


def _digest(*parts: str) -> bytes:
    text = "\x00".join(parts)
    return hashlib.blake2b(text.encode(errors="surrogateescape"), digest_size=16).digest()
