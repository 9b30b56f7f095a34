"""What a damaged log has lost, by queue: offsets that no sound record has, and where they were.

Two witnesses: ConsumeQueue units that point into damage tell position and size of a record; a jump
in the queue offsets of sound records tells that some lie between them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

from gantrymq.brokerd.memberqueues import has_units
from gantrymq.shm import layout
from gantrymq.shm.kernels import scan
from gantrymq.shm.lognames import positions_in
from gantrymq.shm.queuenames import DIRECTORY, queue_directory
from gantrymq.shm.storage import map_still

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gantrymq.brokerd.verify.log import LogCheck, Records
    from gantrymq.shm.storage import Storage

QueueKey = tuple[str, int]
#: Behind every position and queue offset.
ENDLESS: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Gap:
    """Queue offsets [first, end) without a sound record; theirs lay between two log positions."""

    first: int
    end: int
    behind: int
    before: int


@dataclass(frozen=True, slots=True)
class Claim:
    """A record that a ConsumeQueue unit tells of."""

    position: int
    size: int
    key: QueueKey
    offset: int

    @property
    def end(self) -> int:
        """Log position behind it."""
        return self.position + self.size


@dataclass(slots=True)
class Losses:
    """Gathers sound records' queue offsets, then what is missing among them."""

    log: LogCheck
    batch_topics: frozenset[str]
    gaps: dict[QueueKey, list[Gap]] = field(default_factory=dict)
    #: Queue offset and position of each queue's newest record.
    last: dict[QueueKey, tuple[int, int]] = field(default_factory=dict)
    #: Log position behind a stretch of sound records, and their highest storeTimestamp so far.
    times: list[tuple[int, int]] = field(default_factory=list)
    first_ms: int = 0
    records: int = 0

    def take(self, records: Records) -> None:
        """Look at the sound records of one call."""
        rows = records.rows
        self.records += len(rows)
        end = int(records.base + rows[-1, scan.AT] + rows[-1, scan.SIZE])
        newest = int(rows[:, scan.STORE_MS].max())
        self.first_ms = self.first_ms or int(rows[0, scan.STORE_MS])
        self.times.append((end, max(newest, self.times[-1][1] if self.times else 0)))
        queued = has_units(rows)
        rows, topics = rows[queued], records.topics[queued]
        keys = topics << 32 | rows[:, scan.QUEUE_ID] & 0xFFFFFFFF
        order = np.argsort(keys, kind="stable")
        cuts = [0, *(np.flatnonzero(np.diff(keys[order])) + 1).tolist(), len(order)]
        for start, stop in pairwise(cuts):
            if start < stop:
                chosen = order[start:stop]
                key = (self.log.names[int(topics[chosen[0]])], int(rows[chosen[0], scan.QUEUE_ID]))
                positions = rows[chosen, scan.AT] + records.base
                self._follow(key, rows[chosen, scan.QUEUE_OFFSET], positions)

    def _follow(
        self, key: QueueKey, offsets: NDArray[np.int64], positions: NDArray[np.int64]
    ) -> None:
        """Note the jumps in one queue's offsets."""
        if key[0] in self.batch_topics:
            return
        before = self.last.get(key, (-1, -1))
        whole = np.concatenate([[before[0]], offsets])
        places = np.concatenate([[before[1]], positions])
        for index in np.flatnonzero(np.diff(whole) > 1).tolist():
            gap = Gap(int(whole[index]) + 1, int(whole[index + 1]), int(places[index]), int(places[index + 1]))  # fmt: skip  # noqa: E501
            self.gaps.setdefault(key, []).append(gap)
        self.last[key] = (int(offsets[-1]), int(positions[-1]))

    def time_before(self, position: int) -> int:
        """Highest storeTimestamp of the sound records below a log position."""
        found = [ms for end, ms in self.times if end <= position]
        return found[-1] if found else self.first_ms

    def missing_of(self, key: QueueKey) -> Iterator[Gap]:
        """A queue's gaps, and what may lie behind its last record."""
        yield from self.gaps.get(key, ())
        offset, position = self.last.get(key, (-1, -1))
        yield Gap(offset + 1, ENDLESS, position, ENDLESS)

    def forget_heads(self) -> None:
        """Of a log whose first segments are gone no queue has to begin at 0."""
        for key, gaps in self.gaps.items():
            self.gaps[key] = [gap for gap in gaps if gap.behind >= 0]


def claims_of_units(
    storage: Storage, losses: Losses, lost: Iterable[tuple[int, int]]
) -> list[Claim]:
    """Records in damage that units tell of, in the order of the log, none over another."""
    found: list[Claim] = []
    ranges = list(lost)
    for topic in storage.list(DIRECTORY):
        folder = f"{DIRECTORY}/{topic}"
        for queue in storage.list(folder) if storage.is_directory(folder) else ():
            if queue.isdigit() and topic not in losses.batch_topics:
                found += _claims_of_queue(storage, losses, (topic, int(queue)), ranges)
    found.sort(key=lambda claim: claim.position)
    return list(_consistent(found))


def _claims_of_queue(
    storage: Storage, losses: Losses, key: QueueKey, lost: list[tuple[int, int]]
) -> Iterator[Claim]:
    missing = list(losses.missing_of(key))
    folder = queue_directory(storage, *key)
    for name in positions_in(storage, folder):
        data = map_still(storage, f"{folder}/{name}")
        count = len(data) // layout.CQ_UNIT_BYTES
        units = np.frombuffer(data.tobytes(), layout.CQ_UNIT.dtype, count)
        for start, end in lost:
            inside = (units["physical_offset"] >= start) & (units["size"] > 0)
            inside &= units["physical_offset"] + units["size"].astype(np.int64) <= end
            inside &= units["size"] != layout.CQ_FILLER_SIZE
            for index in np.flatnonzero(inside).tolist():
                offset = int(name) // layout.CQ_UNIT_BYTES + index
                position = int(units["physical_offset"][index])
                if any(
                    gap.first <= offset < gap.end and gap.behind < position < gap.before
                    for gap in missing
                ):
                    yield Claim(position, int(units["size"][index]), key, offset)


def _consistent(claims: list[Claim]) -> Iterator[Claim]:
    """Without those that overlap another, or go back in their queue."""
    end, newest = -1, dict[QueueKey, int]()
    for claim in claims:
        if claim.position >= end and claim.offset > newest.get(claim.key, -1):
            yield claim
            end = claim.end
            newest[claim.key] = claim.offset
