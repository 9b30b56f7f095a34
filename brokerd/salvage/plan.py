"""What takes the place of damage in a salvaged log, so that both brokers read on (ADR 0014).

Of each lost record whose queue and queue offset are known a marker takes the place: a record of
that queue and offset without a body, tagged GANTRY_LOST. Bytes of which nothing is known become a
rollback record, which no queue and no index has (SF-61), or a filler at a segment's end (SF-20).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Final

from gantrymq.brokerd.handover.names import PARKING
from gantrymq.brokerd.producers import BORN_HOST
from gantrymq.brokerd.salvage.losses import ENDLESS, Claim, Losses, QueueKey
from gantrymq.shm import layout
from gantrymq.shm.properties import HALF_TOPIC, LOST_TAG
from gantrymq.shm.record import Record, encode_filler, encode_record

TAG: Final = LOST_TAG
#: Topic of what no queue has.
TOPIC: Final = "gantry_lost"
_MARK: Final = f"TAGS\x01{TAG}\x02".encode()
#: What a broker does with a message of these topics is to put it into its real one.
_PARKED: Final = PARKING | {HALF_TOPIC}
_REAL: Final = f"REAL_TOPIC\x01{TOPIC}\x02REAL_QID\x010\x02".encode()
_RECORD_MAX: Final = 4 * 1024 * 1024


@dataclass(slots=True)
class Part:
    """Log positions [start, end) to be filled. `at_end`: of a segment; `last`: of the log."""

    start: int
    end: int
    at_end: bool = False
    last: bool = False
    queued: list[tuple[QueueKey, int]] = field(default_factory=list)
    used: int = 0

    @property
    def room(self) -> int:
        """Bytes left for further markers."""
        reserved = layout.FILLER.size if self.at_end else 0
        return self.end - self.start - self.used - reserved


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of a new log at a position: `head`, `zeroes` of a body, `tail`."""

    position: int
    data: bytes


def marker(key: QueueKey, offset: int, position: int, size: int, store_ms: int) -> bytes:
    """A record in place of a lost one; `size` 0 = as small as it can be.

    Raises ValueError if `size` is too small for one.
    """
    topic, queue_id = key
    record = Record(
        topic=topic,
        queue_id=queue_id,
        queue_offset=offset,
        physical_offset=position,
        properties=_MARK + (_REAL if topic in _PARKED else b""),
    )
    for properties in (record.properties, b""):
        try:
            return _sized(replace(record, properties=properties), size, store_ms)
        except ValueError:
            continue
    raise ValueError(f"{size} bytes are no record of {topic}")


@cache
def marker_bytes(topic: str) -> int:
    """Size of the smallest marker of a topic."""
    return len(marker((topic, 0), 0, 0, 0, 1))


def blank(position: int, size: int, store_ms: int) -> bytes:
    """A rollback record of `size` bytes, which nobody will ever see. Raises ValueError."""
    record = Record(topic=TOPIC, physical_offset=position, sys_flag=layout.SYS_ROLLBACK)
    return _sized(record, size, store_ms)


@cache
def blank_bytes() -> int:
    """Size of the smallest record that nobody sees."""
    return len(blank(0, 0, 1))


def _sized(record: Record, size: int, store_ms: int) -> bytes:
    """A record of `size` bytes (0: without a body). Raises ValueError if it does not fit."""
    stored = replace(
        record,
        born_timestamp=store_ms,
        born_host=BORN_HOST,
        store_timestamp=store_ms,
        store_host=BORN_HOST,
    )
    bare = encode_record(stored, trailer=True)
    if not size or len(bare) == size:
        return bare
    if len(bare) > size:
        raise ValueError(f"{size} bytes, a record needs {len(bare)}")
    return encode_record(replace(stored, body=bytes(size - len(bare))), trailer=True)


def split(
    start: int, end: int, claims: list[Claim], *, at_end: bool, last: bool
) -> tuple[list[Claim], list[Part]]:
    """A lost range as claims that can be kept and the parts between them.

    Parts too small for a record go to the claim before or behind them.
    """
    kept: list[Claim] = []
    parts: list[Part] = []
    at = start
    for claim in claims:
        limit = end - layout.FILLER.size if at_end and not last else end
        if claim.end > limit or claim.size < marker_bytes(claim.key[0]):
            continue
        gap = claim.position - at
        begin = claim.position
        if 0 < gap < blank_bytes():
            if kept:
                kept[-1] = _longer(kept[-1], gap)
            else:
                begin = at
        elif gap:
            parts.append(Part(at, claim.position))
        kept.append(Claim(begin, claim.end - begin, claim.key, claim.offset))
        at = claim.end
    if at < end:
        if kept and not at_end and end - at < blank_bytes():
            kept[-1] = _longer(kept[-1], end - at)
        else:
            parts.append(Part(at, end, at_end, last))
    return kept, parts


def _longer(claim: Claim, by: int) -> Claim:
    return Claim(claim.position, claim.size + by, claim.key, claim.offset)


def place_unclaimed(losses: Losses, claims: list[Claim], parts: list[Part]) -> int:
    """Give each offset of a gap that no claim has a place in a part; returns how many have none."""
    claimed: dict[QueueKey, dict[int, int]] = {}
    for claim in claims:
        claimed.setdefault(claim.key, {})[claim.offset] = claim.position
    without = 0
    for key, offset, behind, before in _unclaimed(losses, claimed):
        part = next((p for p in parts if _fits(p, behind, before, marker_bytes(key[0]))), None)
        if part is None:
            without += 1
            continue
        part.queued.append((key, offset))
        part.used += marker_bytes(key[0])
    return without


def _unclaimed(
    losses: Losses, claimed: dict[QueueKey, dict[int, int]]
) -> Iterator[tuple[QueueKey, int, int, int]]:
    """Offsets that nobody claims, and the log positions that theirs lay between."""
    for key in sorted(losses.gaps.keys() | claimed.keys()):
        known = claimed.get(key, {})
        for gap in losses.missing_of(key):
            inside = sorted(n for n in known if gap.first <= n < gap.end)
            end = gap.end if gap.end < ENDLESS else (inside[-1] if inside else gap.first)
            behind, following = gap.behind, iter(inside)
            upper = next(following, None)
            for offset in range(gap.first, end):
                if offset == upper:
                    behind, upper = known[offset], next(following, None)
                    continue
                yield key, offset, behind, gap.before if upper is None else known[upper]


def _fits(part: Part, behind: int, before: int, size: int) -> bool:
    return behind < part.end and part.start < before and size <= part.room


def fill(part: Part, store_ms: int) -> Iterator[Piece]:
    """What to write into a part."""
    at = part.start
    for number, (key, offset) in enumerate(part.queued, 1):
        left = part.end - at - marker_bytes(key[0])
        fills = number == len(part.queued) and left < blank_bytes()  # too little for a record
        size = part.end - at if fills and not (part.at_end or part.last) else 0
        data = marker(key, offset, at, size, store_ms)
        yield Piece(at, data)
        at += len(data)
    if part.last:
        return
    if part.at_end:
        yield Piece(at, encode_filler(part.end - at))
        return
    while at < part.end:
        size = min(_RECORD_MAX, part.end - at)
        if 0 < part.end - at - size < blank_bytes():
            size -= blank_bytes()
        yield Piece(at, blank(at, size, store_ms))
        at += size
