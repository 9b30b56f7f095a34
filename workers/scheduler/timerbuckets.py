"""Bucket files of timers: `gantry/timers/<minute>`, appended to, read when due, then removed.

What is due later than in an hour or so is in files of 64 minutes, `<number>-1`, or of 64 of these,
`<number>-2`, and so on: whatever times there are, there are some hundred files. Such a file is
split into smaller ones before its time comes, a minute of more than `SPLIT_ENTRIES` into files of
seconds, `<minute>.<second>`, before it is read.

A time belongs to the bucket of the millisecond before it, so that a recall, which is a little
earlier than what it names, but in the same slot of RocketMQ's, is in the same bucket. Derived: if
one of these files is missing, or damaged in what the note says of it, the log is read again. So it
is at the next start if what was written there cannot be read any more while the scheduler works.
"""

from __future__ import annotations

import heapq
import re
from collections import OrderedDict
from itertools import pairwise
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from gantrymq.workers.scheduler.timerpool import (
    DELETE_BIT,
    ENTRY,
    KILLERS,
    NEVER,
    each_once,
    in_order,
    joined,
    that_are,
)
from gantrymq.workers.scheduler.timerseals import (
    MS_MAX,
    are_of_records,
    of_nothing,
    sealed,
    unsealed,
)

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    from gantrymq.shm.storage import File, Storage
    from gantrymq.workers.scheduler.timerpool import Entries

DIRECTORY: Final = "gantry/timers"
_BUCKET: Final = re.compile(r"(0|[1-9][0-9]{0,9})(\.[0-5][0-9]|-[1-5])?")
#: What names the note that the files belong to; `of-` in versions whose entries had no seals.
_OWNERS: Final = ("sealed-", "of-")
#: A directory in a file's place gets this before its name, and stays: somebody may miss it.
_ASIDE: Final = "aside-"
#: From where to where a bucket was looked at, in bytes.
Looked: TypeAlias = tuple[int, int]
MINUTE_MS: Final = 60_000
SECOND_MS: Final = 1_000
#: The largest files are of 64 ** LEVELS minutes, two thousand years.
LEVELS: Final = 5
LEVEL_BITS: Final = 6
#: Buckets are opened so long before their time; larger files are split a 32nd of theirs before.
LEAD_MS: Final = 2_000
SPLIT_ENTRIES: Final = 1_000_000
#: Entries that one step moves from a file to smaller ones: up to 64 writes.
PIECE: Final = 16_384
OPEN_MAX: Final = 256
#: Entries that are read from a file at one time.
CHUNK: Final = 250_000
#: To look into another file costs as much as so many of its entries.
FILE_COST: Final = 1_024


class TimerBuckets:
    """The files; which of them have to be synced; which comes next."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._open: OrderedDict[str, File] = OrderedDict()
        self._sizes: dict[str, int] = {}  # bytes of whole entries: so many must be there
        self._dirty: set[str] = set()
        self._names_dirty = False
        self._known: set[str] = set()  # buckets not yet opened
        self.changes = 0  # how often one has come to these
        self.shifts = 0  # how often entries have left their file for memory, or for another
        self._order: list[tuple[int, str]] = []  # minutes and seconds of these, by their first ms
        self._later: list[tuple[int, str]] = []  # the larger ones, by when they are to be split
        self._now_ms = 0  # files that are to be split by then get no more entries
        self._split: set[str] = set()  # nor do these
        self._splitting: dict[str, int] = {}  # files that are being split: up to which byte
        self._retired: list[str] = []  # that were: until what they held is durable elsewhere
        self._unread: dict[str, Looked] = {}  # not to be read at the start: noted bytes, and all
        self._last_position = -1
        self._passed: dict[str, int] = {}  # those that were opened: the last ms of each
        self._counts: dict[str, int] = {}  # timers of those that were not
        self.waiting = 0  # all of these
        self._damaged: set[str] = set()
        self._untold: list[str] = []  # of these

    def begin(self, made: str, position: int, noted: Mapping[str, int]) -> bool:
        """Take over what is there; False, and all is removed, if it is not what a note speaks of.

        `noted`: bytes that files had then, all of them whole; it belongs to `made`. Entries of
        records behind `position` do not count: their units are read again, and may be due at
        another time. They are overwritten, or they would count again once a note has passed them.
        It asks for no room: a minute that is half split is split on when it is opened or looked
        into. Raises OSError: then it was not taken over, and may be again.
        """
        found = self._storage.list(DIRECTORY)
        names, self._last_position = bucket_names(found), position
        is_owned = bool(made) and owner_name(made) in found
        if not is_owned or not self._take_over_all(names, noted):
            for name in [*names, *(name for name in found if name.startswith(_OWNERS))]:
                self._remove(name)
            self._damaged.clear()  # what gets these names now is whole, until it is damaged again
            return False
        self._names_dirty = bool(names)  # whoever made them may have died before making them so
        return True

    def _take_over_all(self, names: list[str], noted: Mapping[str, int]) -> bool:
        """Whether each file has what a note speaks of; which have not is told."""
        counts = {name: self._take_over(name, noted.get(name, 0)) for name in names}
        for name in sorted(noted.keys() | counts.keys()):
            if counts.get(name) is None:
                self._tell_of(name)
        if self._damaged:
            return False
        for name, count in counts.items():
            self._count(name, count or 0)
            self._know(name)
        return True

    def _take_over(self, name: str, noted: int) -> int | None:
        """How many timers there are in a file; those twice that are in smaller ones already.

        Of one that cannot be read, as many as have room there: its bucket says so when it is
        opened. None: something of the first `noted` bytes is damaged, or it is no file.
        """
        if is_obstructed(self._storage, name):
            return None
        size, timers = self._storage.size_of(f"{DIRECTORY}/{name}"), 0
        if size < noted:
            return None
        self._sizes[name] = size // ENTRY.itemsize * ENTRY.itemsize
        for at in range(0, size, SPLIT_ENTRIES * ENTRY.itemsize):
            end = min(size, at + SPLIT_ENTRIES * ENTRY.itemsize)
            try:
                stored = self._stored(name, at, end)
            except OSError:
                self._unread[name] = noted, size
                return size // ENTRY.itemsize
            entries, whole = unsealed(stored, span_of(name))
            if not whole[: max(0, noted - at) // ENTRY.itemsize].all():
                return None
            kept = whole & (entries["position"] <= self._last_position)
            stored[~kept] = of_nothing(int(np.count_nonzero(~kept)))
            stale = ~kept | ~are_of_records(entries)  # also of nothing since the note
            stale[max(0, noted - at) // ENTRY.itemsize :] = True
            self._write_again(name, at, stored, stale)
            # Lives before may have filed some of them twice.
            timers += _timers_in(each_once(entries[kept & are_of_records(entries)]))
        return timers

    def _write_again(self, name: str, at: int, entries: Entries, stale: NDArray[np.bool_]) -> None:
        """Entries that a life has filed behind its last note, less those that do not count.

        All of them, also those that are so already: a sync may have failed since.
        """
        file = self._file(name)[0]
        for first, end in _stretches(stale):
            part = entries[first:end].view(np.uint8).data
            file.write_at(part, at + first * ENTRY.itemsize)
            self._dirty.add(name)

    def belong_to(self, made: str) -> None:
        """From now on the files are those that this note speaks of. Raises OSError.

        Not if one is damaged: then the next start is to read the log again.
        """
        if self._damaged:
            return
        path = f"{DIRECTORY}/{owner_name(made)}"
        if not self._storage.exists(path):
            self._storage.create(path).close()
        self._storage.sync_directory(DIRECTORY)

    def _know(self, name: str) -> None:
        if name not in self._known and name not in self._passed:
            # A move takes a file for all of its time, unless it is being split.
            self._split.update(_around(name))
            self._known.add(name)
            self.changes += 1
            start = span_of(name)[0]
            if _is_large(name):
                lead_ms = _lead_of(_parts_of(name)[1]) * MINUTE_MS
                heapq.heappush(self._later, (start - lead_ms, name))
            else:
                heapq.heappush(self._order, (start, name))

    def _count(self, name: str, more: int) -> None:
        self._counts[name] = self._counts.get(name, 0) + more
        self.waiting += more

    def discount(self, name: str, gone: int) -> None:
        """So many timers of a bucket do not count there any more."""
        if name in self._counts:
            self._count(name, -gone)

    # ------------------------------------------------------------------------------------ writing

    def append(self, entries: Entries) -> None:
        """Put entries where they belong: one write for each bucket. Raises OSError."""
        keys = self.keys(entries)
        order = np.argsort(keys, kind="stable")
        for part in _parts_by(keys[order], entries[order]):
            self.write(part)

    def parts(self, entries: Entries) -> Iterator[tuple[str, Entries]]:
        """Entries as they are, cut where one belongs into another bucket than that before it."""
        return _parts_by(self.keys(entries), entries)

    def write(self, part: tuple[str, Entries]) -> None:
        """Put one of `parts` into its bucket, by one write. Raises OSError."""
        name, entries = part
        file, size = self._file(name)
        file.write_at(sealed(entries).view(np.uint8).data, size)
        self._sizes[name] = size + entries.nbytes
        self._dirty.add(name)
        self._know(name)
        if name not in self._passed:
            self._count(name, _timers_in(entries))

    def follow(self, now_ms: int) -> None:
        """So late it is: what is to be split by now gets no more entries. It never goes back."""
        self._now_ms = max(self._now_ms, now_ms)

    def keys(self, entries: Entries) -> NDArray[np.int64]:
        """For each entry what tells its bucket; in the order of their times, as a rule."""
        seconds = (entries["ms"] - 1) // SECOND_MS
        minutes = seconds // 60
        keys: NDArray[np.int64] = minutes * MINUTE_MS * _KINDS + _MINUTES
        split = self._are_split(minutes, 0)
        keys[split] = seconds[split] * SECOND_MS * _KINDS
        for level in range(1, LEVELS + 1):
            numbers = minutes >> LEVEL_BITS * level
            now = self._now_ms // MINUTE_MS + _lead_of(level)
            later = numbers > now >> LEVEL_BITS * level
            if not later.any():
                break
            later &= ~self._are_split(numbers, level)
            starts = numbers[later] * _minutes_of(level) * MINUTE_MS
            keys[later] = starts * _KINDS + _MINUTES + level
        return keys

    def _are_split(self, numbers: NDArray[np.int64], level: int) -> NDArray[np.bool_]:
        """Which files of a level get no more entries."""
        return that_are(numbers, lambda number: _numbered(number, level) in self._split)

    def _file(self, name: str) -> tuple[File, int]:
        """The file, and where its entries end: a torn one is written over."""
        if name not in self._open:
            path = f"{DIRECTORY}/{name}"
            try:
                file = self._storage.open(path, write=True)
            except FileNotFoundError:
                file = self._create(path)
            except OSError:
                if not is_obstructed(self._storage, name):
                    raise
                self._tell_of(name)
                self._clear(path)
                file = self._create(path)
            self._sizes.setdefault(name, file.size() // ENTRY.itemsize * ENTRY.itemsize)
            self._open[name] = file
            if len(self._open) > OPEN_MAX:
                self._open.popitem(last=False)[1].close()
        self._open.move_to_end(name)
        return self._open[name], self._sizes[name]

    def _create(self, path: str) -> File:
        self._names_dirty = True
        return self._storage.create(path)

    def sizes(self, done_ms: int) -> dict[str, int]:
        """Bytes of the files that a note needs by which all is done up to a time."""
        needed = [name for name, end in self._passed.items() if end > done_ms]
        return {name: self._sizes.get(name, 0) for name in sorted([*self._known, *needed])}

    def sync_some(self, most: int) -> bool:
        """Make some of what was written durable; True if all of it is. Raises OSError."""
        for name in sorted(self._dirty)[:most]:
            self._file(name)[0].sync()
            self._dirty.discard(name)
        if not self._dirty and self._names_dirty:
            self._storage.sync_directory(DIRECTORY)
            self._names_dirty = False
        return not self._dirty

    # ------------------------------------------------------------------------------------ reading

    def next_ms(self) -> int:
        """Entries of buckets that were not opened are later than this; very large without any."""
        return min((span_of(name)[0] for name in self._known), default=NEVER)

    def opens_ms(self) -> int:
        """When the next bucket is to be opened, or split; very large without any."""
        return min(self._first(self._order) - LEAD_MS, self._first(self._later))

    def _first(self, order: list[tuple[int, str]]) -> int:
        while order and order[0][1] not in self._known:
            heapq.heappop(order)
        return order[0][0] if order else NEVER

    def open_next(self) -> tuple[Entries, tuple[int, int]] | None:
        """Entries of the first bucket, and its span; None: something was split. Raises OSError.

        Where minutes are to be opened no larger file is split before, unless it has their time:
        whoever is opened gets nothing from others any more.
        """
        name = self._next()
        if _is_large(name) or self._is_crowded(name):
            self._split_some(name)
            return None
        size = self._file(name)[1]
        self._known.discard(name)
        self.shifts += 1
        self.waiting -= self._counts.pop(name, 0)
        span = span_of(name)
        self._passed[name] = span[1]
        return in_order(self._read(name, 0, size)), span

    def _next(self) -> str:
        start = self._first(self._order)
        if start - LEAD_MS >= self._now_ms and self._first(self._later) < NEVER:
            return self._later[0][1]
        larger = [name for name in _larger_of(start + 1) if name in self._known]
        return larger[-1] if larger else self._order[0][1]

    def unopened(self) -> list[str]:
        """Names of buckets that were not opened, by their times; larger ones first."""
        return sorted(self._known, key=_place_of)

    def is_unopened(self, name: str) -> bool:
        """Whether a bucket was not opened."""
        return name in self._known

    def look_into(self, name: str) -> Entries | None:
        """Entries of a bucket that stays unopened; None: it is being split. Raises OSError."""
        if self._is_crowded(name):
            self._split_some(name)
            return None
        return in_order(self._read(name, 0, self._file(name)[1]))

    def _is_crowded(self, name: str) -> bool:
        """Whether a bucket has too many entries, or somebody has begun to split it."""
        if "." in name:
            return False  # there are no smaller ones
        return name in self._split or self._file(name)[1] > SPLIT_ENTRIES * ENTRY.itemsize

    def is_open(self, ms: int) -> bool:
        """Whether the bucket of a time was opened."""
        minute, second = _names_of(ms)
        return second in self._passed or (minute in self._passed and second not in self._known)

    def are_open(self, entries: Entries) -> NDArray[np.bool_]:
        """Which entries belong to buckets that were opened."""
        open_: NDArray[np.bool_] = entries["ms"] <= max(self._passed.values(), default=-1)
        if open_.any():
            seconds = (entries["ms"][open_] - 1) // SECOND_MS
            open_[open_] = that_are(seconds, lambda one: self.is_open((one + 1) * SECOND_MS))
        return open_

    def has_all(self, names: Iterable[str]) -> bool:
        """Whether all of these files are there, and none is done with or split."""
        return all(name in self._known or name in self._passed for name in names)

    def look_on(
        self, ms: int, places: dict[str, Looked], most: int, *, back: bool = True
    ) -> tuple[Entries, bool]:
        """Up to `most` entries of a time's bucket, opened or not, that were not looked at yet.

        Those that were filed last come first: what is looked for is seldom old, and what takes it
        out was filed behind it. Not `back`: after the first look only what was filed since.
        `places` says by file what was looked at, and is kept up. Whether that was all.
        """
        parts: list[Entries] = []
        for name in (*_names_of(ms), *_larger_of(ms)):
            if name not in self._known and name not in self._passed:
                continue
            size = self._file(name)[1]
            first, end = places.get(name, (size, size))
            if end > size:  # made anew
                first = end = size
            last = min(size, end + most * ENTRY.itemsize)
            most -= (last - end) // ENTRY.itemsize
            begin = max(0, first - most * ENTRY.itemsize) if back or name not in places else first
            most -= (first - begin) // ENTRY.itemsize
            parts += self._read(name, end, last), self._read(name, begin, first)
            places[name] = begin, last
            if begin > 0 or last < size:
                return joined(*parts), False
        return joined(*parts), True

    def seek(self, position: int, most: int) -> Generator[None, None, Entries]:
        """The entry of a record, in whatever bucket that is not opened; none: it is in none.

        Each step looks at `most` entries or so. What leaves its file meanwhile may be missed.
        """
        left = most
        for name in self.unopened():
            at = 0
            while name in self._known and at < (size := self._file(name)[1]):
                end = min(size, at + max(1, left) * ENTRY.itemsize)
                entries = self._read(name, at, end)
                hit: Entries = entries[entries["position"] == position][:1]
                if len(hit):
                    return hit
                left -= (end - at) // ENTRY.itemsize
                at = end
                if at < size:
                    yield
                    left = most
            left -= FILE_COST
            if left <= 0:
                yield
                left = most
        return np.zeros(0, ENTRY)

    def times_of(self, positions: NDArray[np.int64]) -> dict[int, int]:
        """When records are due by buckets that are not opened; those that are in one. For a start.

        Raises OSError.
        """
        found: dict[int, int] = {}
        for name in self.unopened():
            if len(found) == len(positions):
                break
            size = self._file(name)[1]
            for at in range(0, size, CHUNK * ENTRY.itemsize):
                entries = self._read(name, at, min(size, at + CHUNK * ENTRY.itemsize))
                hits = entries[np.isin(entries["position"], positions)]
                found.update(zip(hits["position"].tolist(), hits["ms"].tolist(), strict=True))
        return found

    def _stored(self, name: str, at: int, end: int) -> Entries:
        """What lies between two bytes, which was there; zeroes, and told of, if it is not now."""
        stored = np.zeros((end - at) // ENTRY.itemsize, ENTRY)
        if len(stored):
            count = self._file(name)[0].read_into(stored.view(np.uint8).data, at)
            if count < stored.nbytes:
                self._tell_of(name)
                stored[count // ENTRY.itemsize :] = np.zeros((), ENTRY)
        return stored

    def _read(self, name: str, at: int, end: int) -> Entries:
        """What is whole; what is not, where all was whole at the start or since, is told of."""
        entries, whole = unsealed(self._stored(name, at, end), span_of(name))
        counts = whole & are_of_records(entries)
        if name in self._unread:  # nothing was taken out of it
            noted, old = (max(0, (edge - at) // ENTRY.itemsize) for edge in self._unread[name])
            counts[:old] &= entries["position"][:old] <= self._last_position
            whole[noted:old] = True  # a life before may have left it torn
        if not whole.all():
            self._tell_of(name)
        return entries[counts]

    def _tell_of(self, name: str) -> None:
        if name not in self._damaged:
            self._damaged.add(name)
            self._untold.append(f"{DIRECTORY}/{name}")

    @property
    def is_damaged_anew(self) -> bool:
        """Whether `take_damage` has something to tell."""
        return bool(self._untold)

    def take_damage(self) -> list[str]:
        """Files that are damaged, or missing, each once."""
        untold, self._untold = self._untold, []
        return untold

    def disown(self, made: str) -> None:
        """Have the next start read the log again. Raises OSError."""
        path = f"{DIRECTORY}/{owner_name(made)}"
        if self._storage.exists(path):
            self._storage.unlink(path)
            # Before a note counts what was left out: the next one is not to believe it.
            self._storage.sync_directory(DIRECTORY)

    def _split_some(self, name: str) -> None:
        """Some more of the same entries into smaller files. This one goes when these are durable.

        Who comes next begins again: entries may be there twice.
        """
        self._split.add(name)
        at, size = self._splitting.get(name, 0), self._file(name)[1]
        end = min(size, at + PIECE * ENTRY.itemsize)
        entries = self._read(name, at, end)
        self.append(entries)
        self._count(name, -_timers_in(entries))
        self._splitting[name] = end
        if end < size:
            return
        del self._splitting[name]
        self.shifts += 1
        self._known.discard(name)
        self.waiting -= self._counts.pop(name, 0)
        self._retired.append(name)

    def put_back(self, entries: Entries) -> None:
        """Entries that were opened too early: their minutes go on in files of seconds."""
        self._split |= set(map(str, ((entries["ms"] - 1) // MINUTE_MS).tolist()))
        # Such a file may have been opened, for a time before: what it holds is in memory.
        for name in [name for name in self._passed if "." in name]:
            if self._passed[name] > int(entries["ms"].min()):
                raise AssertionError(f"second {name} is given back")
        self.shifts += 1
        self.append(entries)

    def has_passed(self, done_ms: int) -> bool:
        """Whether `forget_passed` would remove a file."""
        return bool(self._retired) or any(end <= done_ms for end in self._passed.values())

    def forget_passed(self, done_ms: int) -> int:
        """Remove files all of whose entries are done and counted; how many. Raises OSError.

        Likewise those that were split: all that was written is durable.
        """
        gone = [name for name, end in self._passed.items() if end <= done_ms]
        for name in gone:
            del self._passed[name]
            self._remove(name)
        while self._retired:
            self._remove(self._retired[-1])
            self._retired.pop()
        self._split = {name for name in self._split if span_of(name)[1] > done_ms}
        return len(gone)

    def _remove(self, name: str) -> None:
        if name in self._open:
            self._open.pop(name).close()
        self._sizes.pop(name, None)
        self._dirty.discard(name)
        self._unread.pop(name, None)
        self._clear(f"{DIRECTORY}/{name}")

    def _clear(self, path: str) -> None:
        """Have nothing of that name: a directory is moved aside, all else is removed."""
        if not self._storage.is_directory(path):
            if self._storage.exists(path):
                self._storage.unlink(path)
            return
        aside = f"{DIRECTORY}/{_ASIDE}{path.rpartition('/')[2]}"
        while self._storage.exists(aside):
            aside += "-"
        self._storage.rename(path, aside)

    def close(self) -> None:
        """Give the files back."""
        for file in self._open.values():
            file.close()
        self._open.clear()


def bucket_names(found: list[str]) -> list[str]:
    """Which files of DIRECTORY are buckets: what has another name is nobody's, or an owner's."""
    return [name for name in found if _BUCKET.fullmatch(name) and span_of(name)[0] <= MS_MAX]


def strangers(storage: Storage) -> list[str]:
    """Paths in DIRECTORY that no scheduler makes; none of them is ever read."""
    found = storage.list(DIRECTORY)
    own = {*bucket_names(found), *(name for name in found if name.startswith(_OWNERS))}
    return [f"{DIRECTORY}/{name}" for name in found if name not in own]


def is_obstructed(storage: Storage, name: str) -> bool:
    """Whether a directory, a link or the like stands in a bucket's place."""
    path = f"{DIRECTORY}/{name}"
    return not storage.is_file(path) and storage.exists(path)


def entries_at(storage: Storage, name: str, at: int) -> Iterator[tuple[Entries, int]]:
    """Whole entries of a bucket from a byte on, some at a time, for those who only look.

    With each lot the byte behind it. Raises FileNotFoundError, OSError.
    """
    for entries, whole, start in _lots(storage, name, at):
        yield entries[whole & are_of_records(entries)], start + entries.nbytes


def damage_in(storage: Storage, name: str, noted: int) -> int:
    """Where the first `noted` bytes of a bucket are damaged, or end too early; -1: nowhere.

    Raises FileNotFoundError, OSError.
    """
    end = 0
    for entries, whole, start in _lots(storage, name, 0):
        wrong = np.flatnonzero(~whole[: (noted - start) // ENTRY.itemsize])
        if len(wrong):
            return start + int(wrong[0]) * ENTRY.itemsize
        end = start + entries.nbytes
        if end >= noted:
            break
    return -1 if end >= noted else end


def _lots(storage: Storage, name: str, at: int) -> Iterator[tuple[Entries, NDArray[np.bool_], int]]:
    """Entries of a bucket from a byte on, which of them are whole, and where they begin."""
    file = storage.open(f"{DIRECTORY}/{name}")
    try:
        while True:
            stored = np.zeros(CHUNK, ENTRY)
            count = file.read_into(stored.view(np.uint8).data, at) // ENTRY.itemsize
            if not count:
                return
            yield (*unsealed(stored[:count], span_of(name)), at)
            at += count * ENTRY.itemsize
    finally:
        file.close()


def _stretches(wanted: NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """Where values that are true begin and end, one behind the other."""
    edges = np.flatnonzero(np.diff(wanted, prepend=False, append=False))
    yield from zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)


def owner_name(made: str) -> str:
    """Name of the empty file that says which note the files belong to.

    Versions whose entries had no seals called it otherwise, and make such files anew.
    """
    return f"{_OWNERS[0]}{made}"


def are_together(one_ms: int, two_ms: int) -> bool:
    """Whether two times have one bucket, however minutes are split."""
    return _names_of(one_ms) == _names_of(two_ms)


def _timers_in(entries: Entries) -> int:
    """A recall ends a timer of its bucket, and what was rolled takes another one's place there."""
    deletes = int(np.count_nonzero(entries["size"] & DELETE_BIT))
    rolled = int(np.count_nonzero(entries["size"] & KILLERS)) - deletes
    return len(entries) - 2 * deletes - rolled


def _names_of(ms: int) -> tuple[str, str]:
    """Names of the minute and of the second that a time is in."""
    minute = (ms - 1) // MINUTE_MS
    return str(minute), f"{minute}.{(ms - 1) % MINUTE_MS // SECOND_MS:02d}"


def span_of(name: str) -> tuple[int, int]:
    """A bucket's entries are later than the first ms, and not later than the second."""
    number, level = _parts_of(name)
    start = number * _minutes_of(level) * MINUTE_MS
    second = name.partition(".")[2]
    if second:
        start += int(second) * SECOND_MS
        return start, start + SECOND_MS
    return start, start + _minutes_of(level) * MINUTE_MS


def span_at(ms: int) -> tuple[int, int]:
    """The same of the minute that a time is in."""
    start = (ms - 1) // MINUTE_MS * MINUTE_MS
    return start, start + MINUTE_MS


#: A key is the first ms of a bucket, times this, and its kind: of a second, of minutes, of a level.
_KINDS: Final = 8
_MINUTES: Final = 1


def _parts_by(keys: NDArray[np.int64], entries: Entries) -> Iterator[tuple[str, Entries]]:
    starts = np.flatnonzero(np.diff(keys, prepend=keys[:1] - 1)).tolist()
    for first, end in pairwise([*starts, len(keys)]):
        yield _name_of(int(keys[first])), entries[first:end]


def _name_of(key: int) -> str:
    start, kind = divmod(key, _KINDS)
    minute, level = start // MINUTE_MS, kind - _MINUTES
    if level < 0:
        return f"{minute}.{start % MINUTE_MS // SECOND_MS:02d}"
    return _numbered(minute // _minutes_of(level), level)


def _numbered(number: int, level: int) -> str:
    return f"{number}-{level}" if level else str(number)


def _parts_of(name: str) -> tuple[int, int]:
    """Number and level of a bucket; of a second its minute's."""
    number, _, level = name.partition(".")[0].partition("-")
    return int(number), int(level or "0")


def _minutes_of(level: int) -> int:
    return 1 << LEVEL_BITS * level


def _is_large(name: str) -> bool:
    """Whether it is split in any case."""
    return "-" in name


def _lead_of(level: int) -> int:
    """How many minutes before its time a large bucket is split."""
    return _minutes_of(level) >> 5


def _larger_of(ms: int) -> list[str]:
    """Names of the large buckets that a time may be in, the smallest first."""
    minute = (ms - 1) // MINUTE_MS
    return [_numbered(minute >> LEVEL_BITS * level, level) for level in range(1, LEVELS + 1)]


def _around(name: str) -> list[str]:
    """Names of all buckets that a bucket is part of."""
    larger = _larger_of(span_of(name)[0] + 1)[_parts_of(name)[1] :]
    minute, _, second = name.partition(".")
    return [minute, *larger] if second else larger


def _place_of(name: str) -> tuple[int, int]:
    start, end = span_of(name)
    return start, start - end
