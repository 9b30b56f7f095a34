"""The filters whose bits the reader puts into extensions, as `config/consumerFilter.json` has them.

A filter counts from the record that is dispatched next when it is met first; what lies before gets
its bits in spare time (workers/reader/catchup.py), and `gantry/bitmaps.json` says how far that is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from shm import layout
from shm.bitmapnote import Covered, read_covered, write_covered
from shm.errors import FilterSyntaxError
from shm.filter import parse_sql
from shm.kernels import extend
from shm.sql92.dialect import Dialect
from shm.sql92.program import compile_program
from workers.filterfile import FilterEntry, bloom_form, read_filters

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shm.board import Board
    from shm.storage import Storage

#: Filters in all that get bits; a topic has twice those at most that bitmaps are made for: with
#: more, hardly a bit is left unset. The others' records are all read.
FILTERS_MAX: Final = 1024
PER_TOPIC: Final = 2


@dataclass(frozen=True, slots=True)
class Bound:
    """A filter that compiles, and a kernel's list with it alone; what it points to is held here."""

    covered: Covered
    words: NDArray[np.int64]
    pool: NDArray[np.uint8]
    bits: NDArray[np.int64]
    alone: NDArray[np.int64]


class Filters:
    """Knows which filters there are and of which records they have bits; see the module."""

    def __init__(self, storage: Storage, board: Board, settings: Any) -> None:  # noqa: ANN401
        self.form = bloom_form(settings)
        #: By topic: the address of a kernel's list.
        self.lists: dict[str, int] = {}
        self.bound: dict[tuple[str, str, str, str], Bound] = {}
        self._storage = storage
        self._board = board
        self._per_topic = PER_TOPIC * settings.expect_consumer_num_use_filter
        self._held: list[NDArray[np.int64]] = []
        self._seen = -1

    def refresh(self, position: int) -> bool:
        """Look at the file if it was changed; the record at `position` is dispatched next.

        True if the filters are others. Raises OSError.
        """
        changes = self._board.half(layout.BOARD_FILTER_CHANGES)
        if changes == self._seen:
            return False
        known = self._seen >= 0
        self._seen = changes
        noted = read_covered(self._storage)
        before = {(item.key, item.bits, item.positions): item.start for item in noted}
        bound = {}
        for entry in self._chosen():
            made = self._bind(entry, position)
            if made is not None:
                key = made.covered.key
                same = (key, made.covered.bits, made.covered.positions)
                if key not in self.bound and same in before:
                    made = moved(made, before[same])
                bound[key] = made
        if known and bound.keys() == self.bound.keys():
            return False
        self.bound = bound
        self._list()
        self.save(noted)
        return True

    def lower(self, key: tuple[str, str, str, str], start: int) -> None:
        """Bits of a filter are in older bitmaps as well, and that is durable. Raises OSError."""
        if key in self.bound:
            self.bound[key] = moved(self.bound[key], start)
            self.save()

    def save(self, noted: Sequence[Covered] | None = None) -> None:
        """Tell consumers. `noted`: what the file says."""
        found = [item.covered for item in self.bound.values()]
        if noted is None or found != list(noted):
            write_covered(self._storage, found)
        self._board.count_change(layout.BOARD_BITMAP_CHANGES)

    def _chosen(self) -> list[FilterEntry]:
        """The entries that get bits: of each topic the oldest."""
        count: dict[str, int] = {}
        chosen = []
        entries = sorted(read_filters(self._storage, self.form), key=lambda entry: entry.born_ms)
        for entry in entries[:FILTERS_MAX]:
            count[entry.topic] = count.get(entry.topic, 0) + 1
            if count[entry.topic] <= self._per_topic:
                chosen.append(entry)
        return chosen

    def _bind(self, entry: FilterEntry, position: int) -> Bound | None:
        """None if it does not compile: then it has no bits, and no consumer either."""
        positions = self.form.positions(entry.group, entry.topic)
        covered = Covered(
            entry.topic, entry.group, entry.dialect, entry.expression, self.form.bits,
            tuple(positions), position,
        )  # fmt: skip
        known = self.bound.get(covered.key)
        if known is not None:
            return known
        try:
            dialect = Dialect(entry.dialect)
            program = compile_program(parse_sql(entry.expression, dialect).node, dialect)
        except (FilterSyntaxError, ValueError):
            return None
        bits = np.array([len(positions), *positions], np.int64)
        row = (program.words.ctypes.data, program.pool.ctypes.data, bits.ctypes.data)
        alone = np.array([1, *row], np.int64)
        return Bound(covered, program.words, program.pool, bits, alone)

    def _list(self) -> None:
        topics: dict[str, list[Bound]] = {}
        for item in self.bound.values():
            topics.setdefault(item.covered.topic, []).append(item)
        lists = {}
        held = []
        for topic, items in topics.items():
            rows = np.concatenate([item.alone[1 : 1 + extend.LIST_WORDS] for item in items])
            listed = np.concatenate([np.array([len(items)], np.int64), rows])
            held.append(listed)
            lists[topic] = listed.ctypes.data
        self.lists, self._held = lists, held


def moved(bound: Bound, start: int) -> Bound:
    """The same with bits from another log position on."""
    return replace(bound, covered=replace(bound.covered, start=start))
