"""Queue offsets by time (CQ-62), exact whatever the clock did, and a topic's messages of a time.

Where we wrote, storeTimestamps never go back, and none before is later than the first of ours, so a
binary search finds the place. Where another broker wrote, its clock may have been set: there each
message's time counts, one after the other.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from enum import StrEnum
from heapq import merge
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from gantrymq.clients.logfiles import LogFiles
from gantrymq.clients.queries.inner import MISPLACED, offset_in_batches, units
from gantrymq.shm.errors import Corrupt
from gantrymq.shm.lognames import bases_of
from gantrymq.shm.storage import map_still
from gantrymq.shm.storereader import Unit

if TYPE_CHECKING:
    from gantrymq.clients.message import MessageQueue
    from gantrymq.clients.queries.search import Wanted
    from gantrymq.clients.queries.view import Span, StoreView
    from gantrymq.shm.record import Record

#: Units whose times are looked at in one go.
_AT_ONCE: Final = 4096
#: Units that are listed in one go.
_LISTED: Final = 256


class Boundary(StrEnum):
    """Which offset a time means: RocketMQ's BoundaryType."""

    LOWER = "lower"  # of the first message stored then or later; behind the last if none was
    UPPER = "upper"  # of the last message stored then or earlier; the first of all if none was


class _Run(NamedTuple):
    """Offsets [start, end) of a queue that one side wrote."""

    start: int
    end: int
    ours: bool


def offset_at(
    files: LogFiles, queue: MessageQueue, low: int, high: int, time_ms: int,
    boundary: Boundary = Boundary.LOWER,
) -> int:  # fmt: skip
    """The offset in [low, high) that a time (Unix ms) means, within [low, high] (CQ-62)."""
    runs = list(_runs(files, queue, low, high))
    if boundary is Boundary.LOWER:
        return _lower(files, queue, runs, time_ms, high)
    return _upper(files, queue, runs, time_ms, low)


def offset_in(view: StoreView, span: Span, time_ms: int, boundary: Boundary) -> int:
    """The same within a queue of a store, of whatever type."""
    ends = span.first, span.end
    if not span.listed:
        upper = boundary is Boundary.UPPER
        return offset_in_batches(view.storage, span.queue, ends, time_ms, upper=upper)
    return offset_at(
        LogFiles(view.storage.root, view, map_still), span.queue, *ends, time_ms, boundary
    )


def _runs(files: LogFiles, queue: MessageQueue, low: int, high: int) -> Iterator[_Run]:
    while low < high:
        stretch = files.ranges.stretch(files.position(queue, low))
        end = first_at(files, queue, low, high, stretch.end)
        yield _Run(low, end, stretch.ours)
        low = end


def first_at(files: LogFiles, queue: MessageQueue, low: int, high: int, position: int) -> int:
    """First offset in [low, high) whose record is at a log position or above, else `high`."""
    return _first(low, high, lambda at: files.position(queue, at) >= position)


def _lower(files: LogFiles, queue: MessageQueue, runs: list[_Run], time_ms: int, high: int) -> int:
    for number, (start, end, ours) in enumerate(runs):
        if ours:
            if files.store_ms(queue, end - 1) >= time_ms:
                return _first(start, end, lambda at: files.store_ms(queue, at) >= time_ms)
            continue
        following = runs[number + 1 : number + 2]
        if following and following[0].ours and files.store_ms(queue, end) < time_ms:
            continue  # nothing before what we wrote is later
        for at in range(start, end, _AT_ONCE):
            times = files.all_store_ms(queue, at, min(end, at + _AT_ONCE))
            found = (times >= time_ms).nonzero()[0]
            if len(found):
                return at + int(found[0])
    return high


def _upper(files: LogFiles, queue: MessageQueue, runs: list[_Run], time_ms: int, low: int) -> int:
    for start, end, ours in reversed(runs):
        if ours:
            if files.store_ms(queue, start) <= time_ms:
                return _first(start, end, lambda at: files.store_ms(queue, at) > time_ms) - 1
            continue
        for at in reversed(range(start, end, _AT_ONCE)):
            times = files.all_store_ms(queue, at, min(end, at + _AT_ONCE))
            found = (times <= time_ms).nonzero()[0]
            if len(found):
                return at + int(found[-1])
    return low


def _first(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """The first offset from which on it holds, else `high`."""
    return low + bisect_left(range(low, high), True, key=holds)


class TopicSearch:
    """Iterator of a topic's records within times and below a log position, newest first."""

    def __init__(self, view: StoreView, topic: str, wanted: Wanted) -> None:
        """Raises TopicNotFound."""
        self.unsearched: list[tuple[int, int]] = []
        self.reasons: list[str] = []
        self._wanted = wanted
        self._view = view
        self._reader = view.reader
        spans = [span for span in view.spans(topic) if span.listed and span.first < span.end]
        if spans:
            self._files = LogFiles(view.storage.root, view, map_still)
        queues = map(self._of_queue, spans)
        listed = merge(*queues, self._of_batches(topic), reverse=True)
        self._units = (next(same) for _position, same in groupby(listed, attrgetter("position")))

    def __iter__(self) -> Iterator[Record]:
        return self

    def __next__(self) -> Record:
        """The next older record. Raises Corrupt."""
        for unit in self._units:
            record = self._reader.of_unit(unit)
            if record is None:
                continue  # expired
            if self._wanted.has_time(record.store_timestamp) and self._wanted.matches(record):
                return record
        raise StopIteration

    def _of_queue(self, span: Span) -> Iterator[Unit]:
        """Units of a queue's messages that may be wanted, falling."""
        files, queue, wanted = self._files, span.queue, self._wanted
        try:
            low = offset_at(files, queue, span.first, span.end, wanted.begin_ms)
            last = offset_at(files, queue, span.first, span.end, wanted.end_ms, Boundary.UPPER)
            end = first_at(files, queue, low, min(last + 1, span.end), wanted.before)
        except Corrupt:  # where a unit is damaged no search can go by it: all are looked at
            low, end = span.first, span.end
        names = queue.topic, queue.queue_id
        while low < end:
            start = max(low, end - _LISTED)
            before = max(span.first, start - 1)  # of which the first one has to know
            listed = self._reader.units(*names, before, end, self._view.cq_bytes)
            for unit in reversed(listed):
                if unit.offset >= start and unit.position < wanted.before:
                    yield unit
            end = start

    def _leave_out(self, start: int) -> None:
        """Note that a record behind `start` is not found."""
        view = self._view
        bases = bases_of(view.storage) or [0]
        self.unsearched.append((start, min(self._wanted.before, bases[-1] + view.segment_bytes)))
        self.reasons.append(MISPLACED)

    def _of_batches(self, topic: str) -> Iterator[Unit]:
        """The same of its queues of type BatchCQ."""
        view, wanted = self._view, self._wanted
        for unit in units(view.storage, [topic]):
            if unit.is_below(view.low):
                return
            if unit.is_misplaced:
                self._leave_out(max(view.low, unit.place))
            elif unit.position < wanted.before and wanted.has_time(unit.store_ms):
                yield Unit(unit.position, unit.size, unit.first)
