"""RocketMQ's own units of topics of type BatchCQ (`batchconsumequeue/`), completed for its start.

A RocketMQ that was killed may have left them behind its log, and we append single messages without
any (RD-72). Its own recovery would find some of that and lose the rest (SF-89), so a start and a
clean stop of ours write what lacks, byte for byte as it does, and drop units of records that a
crash took. Units are told from what the member queues list (shm/queuenames.py).
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from gantrymq.brokerd.dump.queues import BatchQueue
from gantrymq.brokerd.queuefiles import QueueKey, write_units
from gantrymq.shm import layout
from gantrymq.shm.errors import Corrupt
from gantrymq.shm.innerbatch import is_inner_batch, span_of
from gantrymq.shm.lognames import positions_in, segment_name
from gantrymq.shm.properties import tags_code
from gantrymq.shm.queuenames import MEMBERS, has_members
from gantrymq.shm.record_columns import read_records
from gantrymq.shm.storage import lengths_below, map_still, usual_length
from gantrymq.workers.logviews import LogViews

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from gantrymq.brokerd.config import Settings
    from gantrymq.brokerd.recovered import Recovered
    from gantrymq.shm.board import Board
    from gantrymq.shm.storage import Storage

DIRECTORY: Final = BatchQueue.directory
#: RocketMQ's default length of a file, for a store that has none (mapperFileSizeBatchConsumeQueue).
FILE_BYTES: Final = 300_000 * layout.BATCH_CQ_UNIT.size
_UNIT: Final = layout.BATCH_CQ_UNIT.size
#: Messages that are looked at in one go.
_AT_ONCE: Final = 1 << 16


class _Sizes(NamedTuple):
    """Of a segment, of a ConsumeQueue file, and of one of ours below."""

    segment_bytes: int
    cq_bytes: int
    batch_bytes: int


def complete(storage: Storage, settings: Settings, found: Recovered) -> None:
    """At a start: units of all records of a recovered log, and of no others.

    Raises Corrupt, OSError.
    """
    if not storage.list(MEMBERS):
        return
    sizes = _Sizes(
        settings.mapped_file_size_commit_log,
        settings.mapped_file_size_consume_queue,
        file_bytes_of(storage) or FILE_BYTES,
    )
    for key, (_next, written, _first) in sorted(found.queues.items()):
        if has_members(storage, key[0]):
            _Completion(storage, sizes, key, (found.low, found.appended)).run(written)


def complete_of_board(storage: Storage, board: Board) -> None:
    """At a clean stop: the same of what was appended since. Raises as `complete` does."""
    if not storage.list(MEMBERS):
        return
    sizes = _Sizes(board.segment_bytes, board.cq_bytes, file_bytes_of(storage) or FILE_BYTES)
    ends = board.word(layout.BOARD_LOW), board.word(layout.BOARD_DURABLE)
    for topic in board.topics():
        if has_members(storage, topic.name):
            for queue_id in range(topic.queue_count):
                at = board.queue_at(topic.queue_base + queue_id)
                written = board.word(at + layout.QUEUE_WRITTEN)
                _Completion(storage, sizes, (topic.name, queue_id), ends).run(written)


def file_bytes_of(storage: Storage) -> int:
    """Length of the files that there are; 0 if there is none."""
    return usual_length(lengths_below(storage, DIRECTORY, 2), _UNIT)


class _Completion:
    """One queue's files."""

    def __init__(
        self, storage: Storage, sizes: _Sizes, key: QueueKey, ends: tuple[int, int]
    ) -> None:
        self._storage = storage
        self._sizes = sizes
        self._views = LogViews(storage, sizes)
        self._key = key
        self._low, self._end = ends
        self._bytes = sizes.batch_bytes
        self._folder = f"{DIRECTORY}/{key[0]}/{key[1]}"

    def run(self, written: int) -> None:
        """Cut what lies behind, write what lacks; `written` units are in the member queue."""
        self._remove_unfit()
        queue = BatchQueue(*self._key, self._bytes)
        queue.load(self._storage)
        if queue.max_physical >= self._end:
            queue.cut(self._end)
        self._cut(queue)
        # Whoever wrote the last one may have died before it was synced.
        for last in [file for file in queue.files if file.count][-1:]:
            self._write_again(f"{self._folder}/{last.base:020d}", last.count * _UNIT)
        at = queue.end * _UNIT
        for units in self._lacking(self._behind(queue.max_physical, written), written):
            data = memoryview(units.tobytes())
            # Each is synced before the next: a start trusts what lies before the last file.
            write_units(self._storage, self._folder, self._bytes, at, data, self._sync_file)
            at += len(units) * _UNIT
        self._drop_expired()

    def _behind(self, position: int, written: int) -> int:
        """The first of `written` messages whose record lies behind a log position.

        Looked for from the end, where nearly always all is.
        """
        end, per_file = written, self._sizes.cq_bytes // layout.CQ_UNIT_BYTES
        while end > 0:
            start = max((end - 1) // per_file * per_file, end - _AT_ONCE)
            try:
                listed = self._views.units(*self._key, start, end)
            except FileNotFoundError:  # expired
                return end
            known = np.flatnonzero(_is_unit(listed) & (listed["position"] <= position))
            if len(known):
                return start + int(known[-1]) + 1
            end = start
        return 0

    # ----------------------------------------------------------------------------------- units

    def _lacking(self, start: int, written: int) -> Iterator[NDArray[Any]]:
        """Units of the records of messages [start, written), in order."""
        last = -1
        while start < written:
            try:
                listed = self._views.units(*self._key, start, min(written, start + _AT_ONCE))
            except FileNotFoundError:  # expired
                per_file = self._sizes.cq_bytes // layout.CQ_UNIT_BYTES
                start = (start // per_file + 1) * per_file
                continue
            offsets = np.arange(start, start + len(listed))
            start += len(listed)
            position = listed["position"].astype(np.int64)
            new = (position != np.concatenate([[last], position[:-1]])) & (position >= self._low)
            new &= _is_unit(listed)
            last = int(position[-1])
            if new.any():
                yield self._units(offsets[new], listed[new])

    def _units(self, offsets: NDArray[np.int64], listed: NDArray[Any]) -> NDArray[Any]:
        units = np.zeros(len(listed), layout.BATCH_CQ_UNIT.dtype)
        units["physical_offset"], units["size"] = listed["position"], listed["size"]
        units["tags_code"], units["base_offset"] = listed["code"], offsets
        units["batch_size"], units["compacted_offset"] = 1, -1
        flags = np.zeros(len(units), np.int64)
        positions = listed["position"].astype(np.int64)
        sizes = listed["size"].astype(np.int64)
        bases = positions // self._sizes.segment_bytes * self._sizes.segment_bytes
        for base in np.unique(bases).tolist():
            mine = bases == base
            view = self._views.segment(base)[1]
            records = read_records(view, positions[mine] - base, sizes[mine], base)
            units["store_timestamp"][mine] = records.store_timestamp
            flags[mine] = records.sys_flag
        inner = is_inner_batch(flags)
        inner |= units["tags_code"] <= layout.CQ_EXT_ADDRESS_MAX
        for unit in np.flatnonzero(inner).tolist():
            self._look_at(units, unit, int(positions[unit]))
        return units

    def _look_at(self, units: NDArray[Any], unit: int, position: int) -> None:
        """What the member queue does not say of a record: its batch's tag and size (SF-75)."""
        record = self._views.record(position)
        if record is None:
            raise Corrupt(
                f"no record at log position {position}, which {self._key} lists",
                path=segment_name(
                    position // self._sizes.segment_bytes * self._sizes.segment_bytes
                ),
                position=position,
            )
        properties = record.property_map()
        base, count = span_of(record)
        units["base_offset"][unit] = base
        units["batch_size"][unit] = (count + 0x8000 & 0xFFFF) - 0x8000  # as Java's (short)
        units["tags_code"][unit] = tags_code(record.topic, properties, 0, ())

    # ----------------------------------------------------------------------------------- files

    def _remove_unfit(self) -> None:
        """Files from the first one on that is no other's next, or has another length.

        They are derived, and made again: no RocketMQ starts with what is behind a gap.
        """
        names = positions_in(self._storage, self._folder)
        following = int(names[0]) if names else 0
        for name in names:
            path = f"{self._folder}/{name}"
            if int(name) == following and self._storage.size_of(path) == self._bytes:
                following += self._bytes
                continue
            following = -1  # nor does any behind it fit
            self._storage.unlink(path)
            self._storage.sync_directory(self._folder)

    def _cut(self, queue: BatchQueue) -> None:
        """Zeroes behind the last unit that counts, and no file behind its own."""
        end = queue.end * _UNIT
        for name in reversed(positions_in(self._storage, self._folder)):
            path, base = f"{self._folder}/{name}", int(name)
            if base >= end and base > queue.first * _UNIT:
                self._storage.unlink(path)
                self._storage.sync_directory(self._folder)
                continue
            kept = min(max(0, end - base), self._bytes)
            with closing(self._storage.open(path, write=True)) as file:
                # Also what was zeroed before: after a failed sync the disk may not have it so.
                written = file.extents(kept, self._bytes)
                if written:
                    file.punch(kept, self._bytes - kept)
            if written:
                self._sync_file(path)
            if base < end:
                return

    def _drop_expired(self) -> None:
        """Files all of whose records are gone, never the last one (SF-70)."""
        for name in self._storage.list(self._folder)[:-1]:
            path = f"{self._folder}/{name}"
            last = layout.BATCH_CQ_UNIT.unpack(map_still(self._storage, path)[-_UNIT:].tobytes())
            if last["physical_offset"] >= self._low:
                return
            self._storage.unlink(path)
            self._storage.sync_directory(self._folder)

    def _write_again(self, path: str, size: int) -> None:
        """Make a file's units durable, also those that a failed sync has dropped.

        Their pages count as clean since, and another sync would not write them.
        """
        units = bytearray(size)
        file = self._storage.open(path, write=True)
        file.read_into(units, 0)
        file.write_at(units, 0)
        file.close()
        self._sync_file(path)

    def _sync_file(self, path: str) -> None:
        """Make a file durable, its name included."""
        file = self._storage.open(path, write=True)
        file.sync()
        file.close()
        for folder in (self._folder, f"{DIRECTORY}/{self._key[0]}", DIRECTORY, ""):
            self._storage.sync_directory(folder)


def _is_unit(listed: NDArray[Any]) -> NDArray[np.bool_]:
    """Which are no filler (SF-65)."""
    found: NDArray[np.bool_] = (listed["size"] > 0) & (listed["size"] != layout.CQ_FILLER_SIZE)
    return found
