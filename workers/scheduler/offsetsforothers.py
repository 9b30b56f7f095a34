"""`config/delayOffset.json`, by which another broker goes on with the levels; we only write it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gantrymq.shm.kernels.parked import DUE_POSITION
from gantrymq.shm.properties import SCHEDULE_TOPIC
from gantrymq.workers.scheduler.note import read_level_offsets, write_level_offsets

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gantrymq.shm.storage import Storage
    from gantrymq.workers.scheduler.delivery import Delivery

#: Level and queue offset of what is in no level.
_NOWHERE = (0, 0)


class OffsetsForOthers:
    """The file. Another broker believes it, and asks no log which records have their copies.

    So a level stands at its first record that has none, be it due or without a topic, though some
    behind that may have theirs: they come twice, none is lost.
    """

    def __init__(self, storage: Storage, delivery: Delivery) -> None:
        self._storage = storage
        self._delivery = delivery
        self._written = read_level_offsets(storage)
        self._places: dict[int, tuple[int, int]] = {}  # of what has no topic, by log position

    def now(self, levels: Mapping[int, int]) -> dict[int, int]:
        """What the file is to say, where these are the offsets up to which records were put."""
        known = self._places
        positions = self._delivery.absent[:, DUE_POSITION].tolist()
        self._places = {at: known.get(at) or self._place_of(at) for at in positions}
        offsets = dict(levels)
        for level, offset in self._places.values():
            if level in offsets:
                offsets[level] = min(offsets[level], offset)
        return offsets

    def _place_of(self, position: int) -> tuple[int, int]:
        record = self._delivery.record(position)
        if record is None or record.topic != SCHEDULE_TOPIC:
            return _NOWHERE
        return record.queue_id + 1, record.queue_offset

    def write(self, offsets: dict[int, int], now_ms: int) -> None:
        """Replace the file if it says something else. Raises OSError."""
        if offsets != self._written:
            write_level_offsets(self._storage, offsets, now_ms)
            self._written = offsets
