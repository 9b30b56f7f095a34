"""The filters whose bits the reader puts into extensions, as `config/consumerFilter.json` has them.

A filter counts from the record that is dispatched next when it is met first; what lies before gets
its bits in spare time (workers/reader/catchup.py), and `gantry/bitmaps.json` says how far that is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from gantrymq.shm import layout
from gantrymq.shm.bitmapnote import Covered, read_covered, write_covered
from gantrymq.shm.errors import FilterSyntaxError
from gantrymq.shm.filter import parse_sql
from gantrymq.shm.kernels import extend
from gantrymq.shm.sql92.dialect import Dialect
from gantrymq.shm.sql92.program import compile_program
from gantrymq.shm.storage import is_disk_full
from gantrymq.workers.filterfile import FilterEntry, bloom_form, read_filters

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from gantrymq.shm.board import Board
    from gantrymq.shm.storage import Storage

#: Filters in all that get bits; a topic has twice those at most that bitmaps are made for: with
#: more, hardly a bit is left unset. The others' records are all read.
FILTERS_MAX: Final = 1024
PER_TOPIC: Final = 2
#: Characters of texts that are compiled at one time, about 100 ms, and when the reader starts.
CHARACTERS: Final = 20_000
CHARACTERS_AT_START: Final = 200_000
#: Without room for the note of them, other filters are tried again after.
RETRY_NS: Final = 1_000_000_000

_Key = tuple[str, str, str, str]


@dataclass(frozen=True, slots=True)
class Bound:
    """A filter that compiles, and a kernel's list with it alone; what it points to is held here."""

    covered: Covered
    words: NDArray[np.int64]
    pool: NDArray[np.uint8]
    bits: NDArray[np.int64]
    alone: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Listed:
    """A topic's filters as a kernel's list; who gives it `address` holds this as long."""

    words: NDArray[np.int64]
    filters: tuple[Bound, ...]  # what the list points to

    @property
    def address(self) -> int:
        """Of the list."""
        return int(self.words.ctypes.data)


class Filters:
    """Knows which filters there are and of which records they have bits; see the module."""

    def __init__(self, storage: Storage, board: Board, settings: Any) -> None:  # noqa: ANN401
        self.form = bloom_form(settings)
        #: By topic. Never changed: others take its place.
        self.lists: Mapping[str, Listed] = {}
        self.bound: dict[_Key, Bound] = {}
        self._storage = storage
        self._board = board
        self._per_topic = PER_TOPIC * settings.expect_consumer_num_use_filter
        self._has_begun = False
        self._seen = -1
        self._retry_ns = 0
        self._entries: list[FilterEntry] = []
        self._refused: set[FilterEntry] = set()  # of those: what does not compile
        self._waiting = False

    def refresh(self, position: int, now_ns: int = 0) -> bool:
        """Look at the file if it was changed; the record at `position` is dispatched next.

        True if the filters are others. Without room for the note of these, the former ones stay
        for a while, and get their bits; at a start there are none. Raises OSError.
        """
        try:
            return now_ns >= self._retry_ns and self._refresh(position)
        except OSError as error:
            self._waiting = True
            if not (self._has_begun and is_disk_full(error)):
                raise
            self._retry_ns = now_ns + RETRY_NS
            return False

    def _refresh(self, position: int) -> bool:
        changes = self._board.half(layout.BOARD_FILTER_CHANGES)
        known = self._has_begun
        if changes != self._seen:
            self._entries = self._chosen()
            self._seen = changes
            self._refused.intersection_update(self._entries)
        elif not self._waiting:
            return False
        noted = read_covered(self._storage)
        before = {(item.key, item.bits, item.positions): item.start for item in noted}
        bound: dict[_Key, Bound] = {}
        for made in self._bind_some(position, CHARACTERS if known else CHARACTERS_AT_START):
            key = made.covered.key
            same = (key, made.covered.bits, made.covered.positions)
            is_noted = key not in self.bound and same in before
            bound[key] = moved(made, before[same]) if is_noted else made
        if known and bound.keys() == self.bound.keys():
            return False
        self._save(bound, noted)  # first: consumers go by it as soon as they have bits
        self.bound, self.lists = bound, _lists_of(bound.values())
        self._has_begun = True
        return True

    def _bind_some(self, position: int, room: int) -> Iterator[Bound]:
        """Filters that are bound, and others as far as there is room for their texts.

        The rest waits for the next `refresh`, and counts from there on.
        """
        self._waiting = False
        for entry in self._entries:
            covered = self._covered(entry, position)
            made = self.bound.get(covered.key)
            if made is None and entry not in self._refused:
                if room <= 0:
                    self._waiting = True
                    continue
                room -= len(entry.expression)
                made = _bind(covered)
            if made is None:
                self._refused.add(entry)
            else:
                yield made

    def lower(self, done: Iterable[Covered]) -> None:
        """Bits of these are in all older bitmaps as well, and that is durable. Raises OSError.

        What is bound anew since then is not meant.
        """
        lowered = dict(self.bound)
        for covered in done:
            bound = lowered.get(covered.key)
            if bound is not None and bound.covered == covered:
                lowered[covered.key] = moved(bound, 0)
        self._save(lowered)
        self.bound = lowered

    def _save(self, bound: Mapping[_Key, Bound], noted: Sequence[Covered] | None = None) -> None:
        """Tell consumers. `noted`: what the file says."""
        found = [item.covered for item in bound.values()]
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

    def _covered(self, entry: FilterEntry, position: int) -> Covered:
        positions = tuple(self.form.positions(entry.group, entry.topic))
        text = (entry.dialect, entry.expression)
        return Covered(entry.topic, entry.group, *text, self.form.bits, positions, position)


def _lists_of(bound: Iterable[Bound]) -> dict[str, Listed]:
    topics: dict[str, list[Bound]] = {}
    for item in bound:
        topics.setdefault(item.covered.topic, []).append(item)
    return {topic: _listed(tuple(items)) for topic, items in topics.items()}


def _listed(items: tuple[Bound, ...]) -> Listed:
    rows = [item.alone[1 : 1 + extend.LIST_WORDS] for item in items]
    return Listed(np.concatenate([np.array([len(items)], np.int64), *rows]), items)


def _bind(covered: Covered) -> Bound | None:
    """None if it does not compile: then it has no bits, and no consumer either."""
    try:
        dialect = Dialect(covered.dialect)
        program = compile_program(parse_sql(covered.expression, dialect).node, dialect)
    except (FilterSyntaxError, ValueError):
        return None
    bits = np.array([len(covered.positions), *covered.positions], np.int64)
    row = (program.words.ctypes.data, program.pool.ctypes.data, bits.ctypes.data)
    alone = np.array([1, *row], np.int64)
    return Bound(covered, program.words, program.pool, bits, alone)


def moved(bound: Bound, start: int) -> Bound:
    """The same with bits from another log position on."""
    return replace(bound, covered=replace(bound.covered, start=start))
