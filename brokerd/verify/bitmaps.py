"""Bits of filters against the log: a record that a filter is TRUE of has all of its bits (FL-64).

A bit that is missing hides a message from its consumers; one too many costs a look at the record.
From which log position on a filter's bits are complete is said by `gantry/bitmaps.json`; after a
hand-over a RocketMQ believes those alone, too. Bits that another broker has set are not judged:
nobody here believes them.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gantrymq.shm import configfile, layout, topicfiles
from gantrymq.shm.bitmapnote import Covered, extension_directory, read_covered
from gantrymq.shm.codes import Stop
from gantrymq.shm.errors import Corrupt, FilterSyntaxError
from gantrymq.shm.filter import parse_sql
from gantrymq.shm.kernels import extend
from gantrymq.shm.lognames import segment_name
from gantrymq.shm.ranges import OPEN
from gantrymq.shm.sql92.dialect import Dialect
from gantrymq.shm.sql92.program import compile_program
from gantrymq.shm.storage import map_still

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray

    from gantrymq.brokerd.verify.queues import Queue
    from gantrymq.brokerd.verify.report import Report
    from gantrymq.shm.storage import Storage

#: Extensions that are looked at in one go.
_FOUND: Final = 4096
_LISTED_PER_CALL: Final = 20
_HEAD: Final = layout.CQ_EXT_UNIT_BYTES


@dataclass(frozen=True, slots=True)
class _Claim:
    """A filter whose bits are there, of records from a position on."""

    covered: Covered
    addresses: NDArray[np.int64]  # a kernel's list of this filter alone
    held: tuple[NDArray[Any], ...]  # what it points to

    @property
    def bits(self) -> NDArray[np.uint8]:
        """The bitmap with its bits alone (FL-62)."""
        number = sum(1 << position for position in set(self.covered.positions))
        return np.frombuffer(number.to_bytes(self.covered.bits // 8, "little"), np.uint8)


class BitmapCheck:
    """Asks each filter of all records that it has bits of."""

    def __init__(
        self, storage: Storage, report: Report, sizes: tuple[int, int], end: int,
        low: Callable[[], int],
    ) -> None:  # fmt: skip
        """`sizes`: of a segment and a queue file; `end`: of our records; `low`: as Scope's."""
        self._storage = storage
        self._report = report
        self._segment_bytes, self._queue_bytes = sizes
        self._end = end
        self._low = low
        self._form = np.zeros(extend.FORM_WORDS, np.int64)
        self._found = np.zeros(_FOUND, np.int64)
        self._log = (-1, np.empty(0, np.uint8))
        self._begins: dict[str, list[int]] = {}  # of topics that there are
        # Whoever wrote a record, its sums are others' matter here.
        self._form[extend.STRETCH_END] = self._form[extend.LOG_END] = OPEN

    def run(self, queues: Iterable[Queue]) -> None:
        """Look at all claims. Raises OSError."""
        claims: dict[str, list[_Claim]] = {}
        for covered in read_covered(self._storage):
            claims.setdefault(covered.topic, []).extend(_claimed(covered))
        self._begins = _begins(self._storage)  # who is deleted later hides more
        for queue in queues if claims else ():
            for claim in claims.get(queue.topic, ()):
                self._check(claim, queue)

    # ------------------------------------------------------------------------------------ a queue

    def _check(self, claim: _Claim, queue: Queue) -> None:
        shown = self._first_shown(queue)
        extensions = _Extensions(self._storage, queue, claim.covered.bits // 8)
        per_file = self._queue_bytes // layout.CQ_UNIT_BYTES
        for name in self._storage.list(queue.folder) if queue.first >= 0 else ():
            view = self._view(f"{queue.folder}/{name}") if name.isdecimal() else None
            if view is None:
                continue
            first = int(name) // layout.CQ_UNIT_BYTES
            begin, end = max(shown - first, 0), min(queue.next - first, per_file)
            if begin >= end:
                continue
            positions = view.view(layout.CQ_UNIT.dtype)["physical_offset"][begin:end]
            start = max(claim.covered.start, self._low())
            begin += int(np.searchsorted(positions.astype(np.int64), start))
            for addresses in self._addresses(claim, view, (begin, end)):
                self._judge(claim, extensions, addresses)

    def _first_shown(self, queue: Queue) -> int:
        """Of a topic that was made again nobody gets older messages, or bits of them."""
        begins = self._begins.get(queue.topic)
        if begins is None:
            return queue.next  # it is deleted
        return max(queue.first, topicfiles.begin_in(begins, queue.queue_id))

    def _view(self, path: str) -> NDArray[np.uint8] | None:
        """A queue file's bytes; None if it has another length, as others tell, or has expired."""
        try:
            view = map_still(self._storage, path)
        except FileNotFoundError:
            return None
        return view if len(view) == self._queue_bytes else None

    def _addresses(
        self, claim: _Claim, units: NDArray[np.uint8], span: tuple[int, int]
    ) -> Iterator[NDArray[np.int64]]:
        """Of the extensions of records that the filter may be TRUE of."""
        form = self._form
        form[extend.INDEX], form[extend.END_INDEX] = span
        form[extend.END_POSITION] = self._end
        while form[extend.INDEX] < form[extend.END_INDEX]:
            address = claim.addresses.ctypes.data
            stop = Stop(extend.match_units(units, self._log[1], form, address, self._found))
            if not self._has_expired():
                yield self._found[: int(form[extend.FOUND])]
            if stop is Stop.ROLL and not self._enter(units, int(form[extend.INDEX])):
                form[extend.INDEX] += 1  # it leads to no record, and that is told

    def _enter(self, units: NDArray[np.uint8], index: int) -> bool:
        position = layout.CQ_UNIT.unpack(units, index * layout.CQ_UNIT_BYTES)["physical_offset"]
        base = position // self._segment_bytes * self._segment_bytes
        if base == self._log[0] or base < 0:
            return False
        try:
            self._log = (base, map_still(self._storage, segment_name(base)))
        except FileNotFoundError:
            return False
        self._form[extend.BASE] = base
        return True

    def _has_expired(self) -> bool:
        """Whether the segment that was read may have been emptied meanwhile."""
        return 0 <= self._log[0] < self._low()

    def _judge(self, claim: _Claim, extensions: _Extensions, addresses: NDArray[np.int64]) -> None:
        listed = 0
        for path, places, bitmaps in extensions.of(addresses):
            missing = ((bitmaps & claim.bits) != claim.bits).any(axis=1)
            for index in np.flatnonzero(missing).tolist():
                if listed < _LISTED_PER_CALL:
                    what = f"bits of group {claim.covered.group} are missing"
                    found = bytes(bitmaps[index]).hex()
                    place = int(places[index])
                    self._report.add(path, place, what, claim.bits.tobytes().hex(), found)
                else:
                    self._report.more += 1
                listed += 1


def _begins(storage: Storage) -> dict[str, list[int]]:
    """Where each queue of a topic begins. What is wrong with the file is told by others."""
    with suppress(Corrupt):
        table = topicfiles.topic_table(configfile.read_config(storage, "topics.json"))
        rows = {name: entry.get("attributes") or {} for name, entry in table.items()}
        return {name: topicfiles.begins_of(row) for name, row in rows.items()}
    return {}


class _Extensions:
    """The extensions of a queue with bitmaps of one length."""

    def __init__(self, storage: Storage, queue: Queue, bitmap_bytes: int) -> None:
        self._bytes = bitmap_bytes
        self._files = []
        folder = extension_directory(queue.topic, queue.queue_id)
        for name in storage.list(folder):
            path = f"{folder}/{name}"
            with suppress(FileNotFoundError):  # one of records that have expired
                view = map_still(storage, path)
                if name.isdecimal() and len(view):
                    self._files.append((int(name), path, view))

    def of(
        self, addresses: NDArray[np.int64]
    ) -> Iterator[tuple[str, NDArray[np.int64], NDArray[np.uint8]]]:
        """By file: its path, places in it, and bitmaps of what is at these addresses.

        What has no bitmap of the right length is left out: nobody passes over its record.
        """
        whole = _HEAD + self._bytes
        for base, path, view in self._files:
            places = addresses[(addresses >= base) & (addresses <= base + len(view) - whole)] - base
            units = view[places[:, None] + np.arange(whole)]
            heads = np.ascontiguousarray(units[:, :_HEAD])
            rows: Any = heads.view(layout.CQ_EXT_UNIT.dtype).reshape(-1)
            sound = (rows["size"] == whole) & (rows["bitmap_bytes"] == self._bytes)
            yield path, places[sound], units[sound, layout.CQ_EXT_BITMAP :]


def _claimed(covered: Covered) -> Iterator[_Claim]:
    """The claim, if there is one: what does not compile has no bits, and no consumers."""
    try:
        dialect = Dialect(covered.dialect)
        program = compile_program(parse_sql(covered.expression, dialect).node, dialect)
    except (FilterSyntaxError, ValueError):
        return
    addresses = np.array([1, program.words.ctypes.data, program.pool.ctypes.data, 0], np.int64)
    yield _Claim(covered, addresses, (program.words, program.pool))
