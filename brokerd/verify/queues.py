"""ConsumeQueues against the log: each record's unit, and nothing besides.

Records are gathered by the hundred thousand, sorted by queue, laid out as units and compared with
the files' bytes: no loop over records.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gantrymq.brokerd.logscan import starts_in
from gantrymq.brokerd.verify.batches import BatchCheck
from gantrymq.brokerd.verify.extensions import ExtensionCheck
from gantrymq.brokerd.verify.holes import first_nonzero
from gantrymq.shm import layout
from gantrymq.shm.kernels import scan
from gantrymq.shm.kernels import units as unit_kernels
from gantrymq.shm.lognames import bases_of, is_position, segment_name
from gantrymq.shm.properties import SCHEDULE_TOPIC
from gantrymq.shm.queuenames import DIRECTORY, MEMBERS
from gantrymq.shm.storage import map_still

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gantrymq.brokerd.dump.settings import StoreSettings
    from gantrymq.brokerd.verify.log import LogCheck, Records
    from gantrymq.brokerd.verify.report import Report
    from gantrymq.brokerd.verify.scope import Scope
    from gantrymq.shm.storage import Storage

UNIT: Final = layout.CQ_UNIT_BYTES
#: Records that are compared at one time.
GATHERED: Final = 1 << 19
_LISTED_PER_CALL: Final = 20
_FILES_OPEN: Final = 1024
_QUEUE_BITS: Final = 32


@dataclass(slots=True)
class Queue:
    """What the log says of one queue: its first queue offset and the next one."""

    topic: str
    queue_id: int
    first: int = -1
    next: int = 0
    root: str = DIRECTORY

    @property
    def folder(self) -> str:
        """Folder of its files."""
        return f"{self.root}/{self.topic}/{self.queue_id}"


class QueueCheck:
    """Takes the log's records and compares each queue's units."""

    def __init__(
        self, storage: Storage, settings: StoreSettings, scope: Scope, report: Report,
        log: LogCheck, batch_topics: frozenset[str],
    ) -> None:  # fmt: skip
        self._storage = storage
        self._bytes = settings.queue_file_bytes
        self._delays = np.array((0, *settings.delays_ms), np.int64)
        self._earlier = settings.earlier_delays_ms
        self._scope = scope
        self._report = report
        self._log = log
        self._batches = BatchCheck(storage, scope, report, log, batch_topics)
        self._table = np.empty((unit_kernels.COLUMNS, GATHERED), np.int64)
        self._form = np.zeros(unit_kernels.FORM_WORDS, np.int64)
        bound = scope.units_end
        self._form[unit_kernels.UNITS_END] = np.iinfo(np.int64).max if bound is None else bound
        self._extensions = ExtensionCheck(storage, report)
        self._starts = _starts(storage, scope, log.segment_bytes)
        self._views: OrderedDict[str, NDArray[np.uint8] | None] = OrderedDict()
        #: By topic number << 32 | queue id.
        self.queues: dict[int, Queue] = {}

    # ------------------------------------------------------------------------------------ records

    def take(self, records: Records) -> None:
        """Remember the records that have units (SF-61)."""
        records, batches = self._batches.split(records)
        for topic, queue_id, offsets, units in batches:
            self._compare_queue(self._queue(topic << _QUEUE_BITS | queue_id), offsets, units)
        rows, names, form = records.rows.reshape(-1), self._log.names, self._form
        step = scan.ROW_WORDS
        form[unit_kernels.BASE] = records.base
        form[unit_kernels.SCHEDULE] = names.index(SCHEDULE_TOPIC) if SCHEDULE_TOPIC in names else -1
        done = 0
        while done < len(records.topics):
            room = self._table.shape[1] - int(form[unit_kernels.COUNT])
            topics = records.topics[done : done + room]
            part = rows[done * step : (done + len(topics)) * step]
            unit_kernels.unit_columns(part, topics, self._delays, form, self._table.reshape(-1))
            done += len(topics)
            if form[unit_kernels.COUNT] == self._table.shape[1]:
                self.compare()

    def compare(self) -> None:
        """Compare what was gathered, one queue after the other."""
        table = self._table[:, : self._form[unit_kernels.COUNT]]
        if not table.size:
            return
        self._form[unit_kernels.COUNT] = 0
        order = np.argsort(table[0], kind="stable")
        key, offset, position, size, tags = (column[order] for column in table)
        units = np.empty(len(key), layout.CQ_UNIT.dtype)
        units["physical_offset"], units["size"], units["tags_code"] = position, size, tags
        cuts = [0, *(np.flatnonzero(np.diff(key)) + 1).tolist(), len(key)]
        for start, end in pairwise(cuts):
            self._compare_queue(self._queue(int(key[start])), offset[start:end], units[start:end])

    def begin_anew(self) -> None:
        """Forget all records: they have expired."""
        self.queues.clear()
        self._form[unit_kernels.COUNT] = 0
        self._views.clear()  # what is told of them is told again

    def _queue(self, key: int) -> Queue:
        queue = self.queues.get(key)
        if queue is None:
            queue_id = key & 0xFFFFFFFF
            topic = self._log.names[key >> _QUEUE_BITS]
            queue = self.queues[key] = Queue(topic, queue_id - (queue_id >> 31 << 32))
            queue.root = self._batches.root_of(topic)
        return queue

    def _compare_queue(
        self, queue: Queue, offsets: NDArray[np.int64], units: NDArray[np.void]
    ) -> None:
        """One queue's records in the order of the log: dense offsets (SF-42), equal units."""
        if start := self._starts.get((queue.topic, queue.queue_id)):
            theirs = units["physical_offset"] >= start
            offsets, units = offsets[theirs], units[theirs]
            if not len(offsets):
                return
        wanted = queue.next if queue.first >= 0 else self._first_offset(int(offsets[0]))
        before = np.concatenate([[wanted], offsets[:-1] + 1])
        jumps = np.flatnonzero(offsets != before)
        if not self._log.lost and queue.root == DIRECTORY:  # else salvage leaves gaps
            for index in jumps[:_LISTED_PER_CALL].tolist():
                self._add_offset(queue, units[index], int(before[index]), int(offsets[index]))
        if queue.first < 0:
            queue.first = int(offsets[0])
        queue.next = max(queue.next, int(offsets.max()) + 1)
        self._report.units += len(offsets)
        cuts = [0, *(index for index in jumps.tolist() if index), len(offsets)]
        for start, end in pairwise(cuts):
            self._compare_run(queue, int(offsets[start]), units[start:end])

    def _first_offset(self, found: int) -> int:
        """A queue starts at 0 unless older segments are gone."""
        return 0 if self._report.log_start == 0 else found

    def _add_offset(self, queue: Queue, unit: Any, wanted: int, found: int) -> None:  # noqa: ANN401
        position = int(unit["physical_offset"])
        base = position // self._log.segment_bytes * self._log.segment_bytes
        name = f"{queue.topic} queue {queue.queue_id}"
        self._report.add(
            segment_name(base), position - base, f"wrong queue offset in {name}",
            str(wanted), str(found),
        )  # fmt: skip

    # -------------------------------------------------------------------------------------- units

    def _compare_run(self, queue: Queue, first: int, units: NDArray[np.void]) -> None:
        """Units of queue offsets from `first` on against the files that hold them."""
        per_file = self._bytes // UNIT
        done = 0
        while done < len(units):
            number, at = divmod(first + done, per_file)
            count = min(len(units) - done, per_file - at)
            path = f"{queue.folder}/{number * self._bytes:020d}"
            view = self._view(path, int(units["physical_offset"][done + count - 1]))
            if view is not None:
                wanted = units[done : done + count].view(np.uint8).reshape(-1, UNIT)
                found = view[at * UNIT : (at + count) * UNIT].reshape(-1, UNIT)
                if not np.array_equal(wanted, found):
                    self._add_units(queue, path, at, wanted, found)
            done += count

    def _add_units(
        self, queue: Queue, path: str, first: int,
        wanted: NDArray[np.uint8], found: NDArray[np.uint8],
    ) -> None:  # fmt: skip
        """Report the units of one file that differ; `first` is the number of the first one."""
        bad = (wanted != found).any(axis=1)
        left, right = _columns(wanted), _columns(found)
        # SF-71: the address of an extension that has the tagsCode stands for it.
        tags = left["tags_code"].astype(np.int64)
        fine = self._extensions.fits(queue.topic, queue.queue_id, right, tags)
        if queue.topic == SCHEDULE_TOPIC:
            fine |= self._is_earlier(queue.queue_id + 1, left["tags_code"], right["tags_code"])
        bad &= ~(fine & (wanted[:, :12] == found[:, :12]).all(axis=1))
        bad &= left["physical_offset"].astype(np.int64) >= self._scope.low()
        places = np.flatnonzero(bad)
        for index in places[:_LISTED_PER_CALL].tolist():
            what = "missing unit" if not found[index].any() else "wrong unit"
            if right["tags_code"][index] <= layout.CQ_EXT_ADDRESS_MAX:
                what = "unit whose extension is not the record's"
            self._report.add(
                path, (first + index) * UNIT, what, _told(left[index]), _told(right[index])
            )
        self._report.more += max(0, len(places) - _LISTED_PER_CALL)

    def _is_earlier(
        self, level: int, wanted: NDArray[np.int64], found: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Whether times of delivery were made by delay levels that the store had before (SF-63)."""
        now = int(self._delays[min(level, len(self._delays) - 1)])
        moved = [delays[min(level, len(delays)) - 1] - now for delays in self._earlier]
        return np.isin(found.astype(np.int64) - wanted.astype(np.int64), moved)

    def _view(self, path: str, position: int) -> NDArray[np.uint8] | None:
        """A queue file's bytes; None, told once, if it is not there or has another length.

        `position`: of a record whose unit is in it. If that has expired, so may have the file.
        """
        if path in self._views:
            self._views.move_to_end(path)
            return self._views[path]
        view: NDArray[np.uint8] | None = None
        try:
            view = map_still(self._storage, path)
        except FileNotFoundError:
            if position < self._scope.low():
                return None
            self._report.add(path, None, "missing file")
        if view is not None and len(view) != self._bytes:
            found = f"{len(view)} bytes"
            self._report.add(path, None, "wrong length", f"{self._bytes}", found)
            view = None
        self._views[path] = view
        while len(self._views) > _FILES_OPEN:
            self._views.popitem(last=False)
        return view

    # ---------------------------------------------------------------------- what the log knows not

    def finish(self) -> None:
        """Look at all queue files there are for what no record of the log accounts for."""
        self.compare()
        self._extensions.check_names()
        self._batches.finish(self._starts)
        self._views.clear()
        self._report.queues = len(self.queues)
        known = {(queue.topic, str(queue.queue_id)): queue for queue in self.queues.values()}
        for root in (DIRECTORY, MEMBERS):
            for topic in self._storage.list(root):
                if self._batches.root_of(topic) != root:
                    what = "queue of a kind that is not its topic's"
                    self._report.add(f"{root}/{topic}", None, what)
                    continue
                for folder in self._listed(f"{root}/{topic}"):
                    path = f"{root}/{topic}/{folder}"
                    if not folder.isdecimal() or not self._storage.is_directory(path):
                        self._report.add(path, None, "stray file", "a folder per queue id")
                        continue
                    queue = known.get((topic, folder)) or Queue(topic, int(folder), 0, root=root)
                    self._check_files(queue)

    def _listed(self, folder: str) -> list[str]:
        if self._storage.is_directory(folder):
            return self._storage.list(folder)
        self._report.add(folder, None, "stray file", "a folder per topic")
        return []

    def _check_files(self, queue: Queue) -> None:
        for name in self._storage.list(queue.folder):
            path = f"{queue.folder}/{name}"
            if not is_position(name) or int(name) % self._bytes:
                self._report.add(path, None, "stray file", f"multiples of {self._bytes} as names")
                continue
            # What has expired since it was listed accounts for no record that is there.
            with suppress(FileNotFoundError):
                self._check_file(queue, path, int(name))

    def _check_file(self, queue: Queue, path: str, base: int) -> None:
        if base + self._bytes <= queue.next * UNIT:
            self._check_front(queue, path, base)
        elif self._scope.whole:
            self._check_rest(queue, path, base)

    def _check_rest(self, queue: Queue, path: str, base: int) -> None:
        """Behind a queue's last unit everything is zero."""
        self._check_front(queue, path, base)
        size = self._storage.size_of(path)
        if size != self._bytes:
            if base >= queue.next * UNIT:  # else told by the comparison
                self._report.add(path, None, "wrong length", f"{self._bytes}", f"{size} bytes")
            return
        start = max(0, queue.next * UNIT - base)
        nonzero = first_nonzero(os.path.join(self._storage.root, path), start, self._bytes)
        while nonzero is not None:
            unit = _columns(self._read(path, nonzero // UNIT * UNIT))[0]
            position = int(unit["physical_offset"])
            if not self._is_lost(position) and not 0 <= position < self._report.log_start:
                break
            start = (nonzero // UNIT + 1) * UNIT
            nonzero = first_nonzero(os.path.join(self._storage.root, path), start, self._bytes)
        else:
            return
        self._report.add(
            path, nonzero // UNIT * UNIT, "unit without a record", "zeroes", _told(unit)
        )

    def _check_front(self, queue: Queue, path: str, base: int) -> None:
        """Units in front of the first record are fillers (SF-65), or their records are gone."""
        count = min(queue.first - base // UNIT, self._bytes // UNIT)
        if count <= 0 or self._storage.size_of(path) != self._bytes or self._log.lost:
            return
        file = self._storage.open(path)
        units = _columns(file.still_view()[: count * UNIT].reshape(-1, UNIT))
        file.close()
        fillers = units["size"] == layout.CQ_FILLER_SIZE
        positions = units["physical_offset"]
        gone = (positions >= 0) & (positions < self._report.log_start)
        for index in np.flatnonzero(~(fillers | gone))[:_LISTED_PER_CALL].tolist():
            self._report.add(
                path, index * UNIT, "unit without a record", "a filler", _told(units[index])
            )

    def _read(self, path: str, at: int) -> NDArray[np.uint8]:
        file = self._storage.open(path)
        unit = bytearray(UNIT)
        file.read_into(unit, at)
        file.close()
        return np.frombuffer(unit, np.uint8).reshape(1, UNIT)

    def _is_lost(self, position: int) -> bool:
        """Whether damage of the log has taken the record of a unit: that is told already."""
        return any(start <= position < end for start, end in self._log.lost)


def _columns(units: NDArray[np.uint8]) -> Any:  # noqa: ANN401 - a structured array
    return np.ascontiguousarray(units).view(layout.CQ_UNIT.dtype).reshape(-1)


def _told(unit: Any) -> str:  # noqa: ANN401 - a row of a structured array
    position, size, tags = (int(unit[name]) for name in ("physical_offset", "size", "tags_code"))
    if not position and not size and not tags:
        return "zeroes"
    return f"position {position} size {size} tags {tags}"


def _starts(storage: Storage, scope: Scope, segment_bytes: int) -> dict[tuple[str, int], int]:
    """Log positions of what begins queues that another broker has made, or made again."""
    bases = bases_of(storage)
    if not bases:
        return {}
    end = bases[-1] + segment_bytes if scope.log_end is None else scope.log_end
    return starts_in(storage, segment_bytes, scope.written, bases[0], end)
