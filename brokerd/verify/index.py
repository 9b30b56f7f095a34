"""IndexFiles: header, every chain, every entry against the record it names, and none missing.

Of a store of ours `gantry/index.json` says which files there are and what of them is sure: that
much has to be there, entry by entry; after a clean stop nothing else may be. Of another broker's
files each entry has to belong to a key of its record; it may have lost some (LW-7).
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gantrymq.brokerd.verify.holes import first_nonzero
from gantrymq.shm import layout
from gantrymq.shm.indexnote import (
    DIRECTORY,
    NOTE_FILE,
    Header,
    Note,
    Shape,
    parse_header,
    read_note,
)
from gantrymq.shm.kernels import index as kernels
from gantrymq.shm.kernels import scan
from gantrymq.shm.lognames import segment_name
from gantrymq.shm.segment import columns
from gantrymq.shm.storage import map_still

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gantrymq.brokerd.dump.settings import StoreSettings
    from gantrymq.brokerd.verify.log import LogCheck, Records
    from gantrymq.brokerd.verify.report import Report
    from gantrymq.brokerd.verify.scope import Scope
    from gantrymq.shm.storage import Storage

_LINKED: Final = 1 << 18
_LISTED: Final = 20
_SIZES: Final = frozenset({"maxHashSlotNum", "maxIndexNum"})


@dataclass(slots=True)
class _File:
    """A file whose entries are compared: `count` is the number behind the last that is judged."""

    path: str
    shape: Shape
    entries: NDArray[Any]
    header: Header
    count: int
    before: Header  # of the file before it

    def place(self, number: int) -> int:
        return self.shape.entry_at(number)

    def seconds(self, first: int, times: NDArray[np.int64]) -> NDArray[np.int64]:
        """What `time_diff` is for records of these storeTimestamps (SF-79, SF-80)."""
        begin = np.full(len(times), self.header.begin_ms, np.int64)
        if first == 1 and len(times):
            begin[0] = self.before.end_ms or times[0]
        seconds: NDArray[np.int64] = np.clip((times - begin) // 1000, 0, kernels.HASH_MAX)
        return seconds


class IndexCheck:
    """Takes the log's records and compares their keys with the entries, in their order."""

    def __init__(
        self, storage: Storage, settings: StoreSettings, scope: Scope, report: Report,
        log: LogCheck,
    ) -> None:  # fmt: skip
        self._storage = storage
        self._scope = scope
        self._report = report
        self._log = log
        known = read_note(storage) if scope.ours else None
        #: A RocketMQ that has gone on may have dropped files of ours and begun others.
        gone_on = scope.passed_on and _goes_on(storage, log.segment_bytes, scope.written.end)
        self._strict = known is not None and not gone_on
        shape = Shape(settings.number("maxHashSlotNum"), settings.number("maxIndexNum"))
        self._shape, self._note = known or (shape, Note(0))
        self._given = not settings.given.keys().isdisjoint(_SIZES)
        #: Nothing but what was noted may be there.
        self._whole = scope.whole
        self._until = self._note.position if self._strict else np.iinfo(np.int64).max
        if scope.log_end is not None:
            self._until = min(self._until, scope.log_end)
        self._tags = int(self._shape.tags)
        self._files = self._open()
        self._at = (0, 1)  # number of a file, of an entry
        self._view_base = -1
        self._view: NDArray[np.uint8] = np.empty(0, np.uint8)
        self._out = np.empty(2 * 4 * 16_384, np.int64)
        #: Entries of records below are not there to be compared with.
        self._gone = -1

    # ------------------------------------------------------------------------------------ files

    def _open(self) -> list[_File]:
        names = self._storage.list(DIRECTORY)
        if not self._strict:
            return self._open_foreign(names)
        if self._whole:
            for name in sorted(set(names) - {name for name, _ in self._note.files}):
                self._report.add(f"{DIRECTORY}/{name}", None, "stray file", f"none in {NOTE_FILE}")
        found: list[_File] = []
        before = Header()
        for name, header in self._note.files:
            path = f"{DIRECTORY}/{name}"
            view = self._view_of(path, header.end_position)
            if view is None:
                continue
            full = header.count >= self._shape.entries
            settled = full or self._whole
            if settled:
                self._compare_header(path, header, parse_header(bytes(view[:40])))
            found.append(self._add(path, view, header, before, settled))
            before = header
        self._check_note()
        return found

    def _open_foreign(self, names: list[str]) -> list[_File]:
        found: list[_File] = []
        before = Header()
        for name in names:
            path = f"{DIRECTORY}/{name}"
            view = self._view_of(path, -1, told=self._given)
            if view is None:
                return []  # the sizes are not known
            header = parse_header(bytes(view[:40]))
            if header.count > self._shape.entries:
                at = layout.INDEX_HEADER.offset("index_count")
                most = f"at most {self._shape.entries}"
                self._report.add(path, at, "wrong index_count", most, str(header.count))
                continue
            found.append(self._add(path, view, header, before, self._scope.whole))
            before = header
        return found

    def _view_of(self, path: str, end: int, *, told: bool = True) -> NDArray[np.uint8] | None:
        """A file's bytes; None, told, if it is not there or has another length.

        Once its last record, at log position `end`, has expired, so may have the file.
        """
        try:
            view = map_still(self._storage, path)
        except FileNotFoundError:
            if end >= self._scope.low():
                self._report.add(path, None, "missing file")
            return None
        if len(view) == self._shape.file_bytes:
            return view
        if told:
            wanted = str(self._shape.file_bytes)
            self._report.add(path, None, "wrong length", wanted, f"{len(view)} bytes")
        return None

    def _add(
        self, path: str, view: NDArray[np.uint8], header: Header, before: Header, settled: bool
    ) -> _File:
        """Check what the file says of itself."""
        shape = self._shape
        self._report.index_files += 1
        entries = columns(view[shape.front_bytes :], layout.INDEX_ENTRY)
        self._check_chains(path, view, header, settled)
        if settled:
            outside = [(shape.entry_at(0), shape.entry_at(1))]
            outside.append((shape.entry_at(max(header.count, 1)), shape.file_bytes))
            with suppress(FileNotFoundError):  # it has expired since it was mapped
                self._check_empty(path, outside)
        return _File(path, shape, entries, header, header.count, before)

    def _check_empty(self, path: str, parts: list[tuple[int, int]]) -> None:
        for start, stop in parts:
            place = first_nonzero(os.path.join(self._storage.root, path), start, stop)
            if place is not None:
                self._report.add(path, place, "bytes where no entry is", "zeroes")

    def _compare_header(self, path: str, wanted: Header, found: Header) -> None:
        for field, left, right in zip(
            layout.INDEX_HEADER.fields, astuple(wanted), astuple(found), strict=True
        ):
            if left != right:
                at = layout.INDEX_HEADER.offset(field.name)
                self._report.add(path, at, f"wrong {field.name}", str(left), str(right))

    def _check_note(self) -> None:
        full = [h for _, h in self._note.files if h.count >= self._shape.entries]
        wanted = full[-1].end_ms if full else 0
        if self._note.full_ms != wanted:
            told = str(self._note.full_ms)
            self._report.add(NOTE_FILE, None, "wrong full_ms", str(wanted), told)

    def _check_chains(
        self, path: str, view: NDArray[np.uint8], header: Header, settled: bool
    ) -> None:
        """Entries in their order give the slots and each entry's predecessor (SF-79)."""
        shape, size = self._shape, layout.INDEX_ENTRY_BYTES
        front = np.zeros(shape.front_bytes, np.uint8)
        links = np.zeros(kernels.LINK_WORDS, np.int64)
        links[kernels.FIRST], links[kernels.LINK_SLOTS] = 1, shape.slots
        for first in range(1, header.count, _LINKED):
            last = min(header.count, first + _LINKED)
            entries = view[shape.entry_at(first) : shape.entry_at(last)]
            kernels.relink(entries, links, front)
            self._report.index_entries += last - first
            if links[kernels.FIRST] != last:
                culprit = int(links[kernels.FIRST])
                row = layout.INDEX_ENTRY.unpack(bytes(entries[(culprit - first) * size :][:size]))
                at = shape.entry_at(culprit)
                self._report.add(path, at, "entry out of its chain", found=str(row))
                return
        if not settled:
            return
        self._compare_slots(path, front, view)
        used = int(links[kernels.USED])
        if used != header.used_slots:
            at = layout.INDEX_HEADER.offset("hash_slot_count")
            self._report.add(path, at, "wrong hash_slot_count", str(used), str(header.used_slots))

    def _compare_slots(self, path: str, front: NDArray[np.uint8], view: NDArray[np.uint8]) -> None:
        start, stop = layout.INDEX_HEADER_BYTES, self._shape.front_bytes
        wanted, found = (part[start:stop].view(">i4") for part in (front, view))
        for slot in np.flatnonzero(wanted != found)[:_LISTED].tolist():
            at = start + layout.INDEX_SLOT_BYTES * slot
            self._report.add(path, at, "wrong slot", str(int(wanted[slot])), str(int(found[slot])))

    # ---------------------------------------------------------------------------------- records

    def take(self, records: Records) -> None:
        """Compare the entries of these records with what is in the files."""
        if not self._files or not len(records.rows):
            return
        self._map(records.base)
        hashes, places = self._keys(records.rows)
        positions = records.base + records.rows[places, scan.AT]
        times = records.rows[places, scan.STORE_MS]
        if self._strict:
            sure = int(np.searchsorted(positions, self._until))
            self._compare(hashes[:sure], positions[:sure], times[:sure])
        else:
            last = records.rows[-1]
            end = records.base + int(last[scan.AT] + last[scan.SIZE])
            self._look_up(set(zip(positions.tolist(), hashes.tolist(), strict=True)), end)

    def _keys(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Hash and row of every key, in the order of the entries."""
        padded = np.zeros((len(rows) + 1, scan.ROW_WORDS), np.int64)
        padded[:-1] = rows
        while True:
            made = kernels.hash_keys(self._view, padded.reshape(-1), self._tags, self._out)
            room = len(self._out) // 2
            if made <= room:
                return self._out[:made].copy(), self._out[room : room + made].copy()
            self._out = np.empty(2 * made, np.int64)

    def _map(self, base: int) -> None:
        if base != self._view_base:
            self._view = map_still(self._storage, segment_name(base))
            self._view_base = base

    def _next(self, most: int) -> tuple[_File, int, NDArray[Any]] | None:
        """The next entries of one file; None behind the last."""
        while self._at[0] < len(self._files):
            file = self._files[self._at[0]]
            first = self._at[1]
            if first < file.count:
                return file, first, file.entries[first : min(file.count, first + most)]
            self._at = (self._at[0] + 1, 1)
        return None

    def _skip_below(self, first: int) -> None:
        """Entries of records that are not in the log any more, or can't be read."""
        while (part := self._next(_LINKED)) is not None:
            _file, number, rows = part
            gone = int(np.searchsorted(rows["physical_offset"], first))
            self._at = (self._at[0], number + gone)
            if gone < len(rows):
                return

    def _compare(
        self, hashes: NDArray[np.int64], positions: NDArray[np.int64], times: NDArray[np.int64]
    ) -> None:
        """Entry by entry, through as many files as it takes."""
        if not len(positions):
            return
        first = int(positions[0])
        gone = max([end for _, end in self._log.lost if end <= first] + [self._report.log_start])
        if gone > self._gone:
            self._gone = gone
            self._skip_below(gone)
        done = 0
        while done < len(hashes):
            part = self._next(len(hashes) - done)
            if part is None:
                file = self._files[-1]
                what = f"of the record at {int(positions[done])}"
                self._report.add(file.path, file.place(file.count), "missing entry", what)
                self._files = []
                return
            file, first, rows = part
            stop = done + len(rows)
            wanted = np.zeros(len(rows), layout.INDEX_ENTRY.dtype)
            wanted["key_hash"], wanted["physical_offset"] = hashes[done:stop], positions[done:stop]
            wanted["time_diff"] = file.seconds(first, times[done:stop])
            self._compare_rows(file, first, wanted, rows)
            self._at = (self._at[0], first + len(rows))
            done = stop

    def _compare_rows(
        self, file: _File, first: int, wanted: NDArray[Any], rows: NDArray[Any]
    ) -> None:
        names = ["key_hash", "physical_offset", "time_diff"]
        if first == 1 and file is self._files[0] and self._report.log_start:
            wanted["time_diff"][0] = rows["time_diff"][0]  # the file before it may be gone
        wrong = np.zeros(len(rows), bool)
        for name in names:
            wrong |= wanted[name] != rows[name]
        for place in np.flatnonzero(wrong)[:_LISTED].tolist():
            left, right = (", ".join(f"{n} {r[place][n]}" for n in names) for r in (wanted, rows))
            self._report.add(file.path, file.place(first + place), "wrong entry", left, right)

    def _look_up(self, keys: set[tuple[int, int]], end: int) -> None:
        """Entries of records below `end` have to belong to a key."""
        while (part := self._next(_LINKED)) is not None:
            file, first, rows = part
            count = int(np.searchsorted(rows["physical_offset"], end))
            pairs = zip(
                rows["physical_offset"][:count].tolist(), rows["key_hash"][:count].tolist(),
                strict=True,
            )  # fmt: skip
            for number, pair in enumerate(pairs, first):
                if pair not in keys and not self._is_lost(pair[0]):
                    told = f"hash {pair[1]} of the record at {pair[0]}"
                    self._report.add(file.path, file.place(number), "entry of no key", found=told)
            self._at = (self._at[0], first + count)
            if count < len(rows):
                return

    def _is_lost(self, position: int) -> bool:
        """Whether the log has no record there that could be asked for its keys."""
        lost = any(start <= position < end for start, end in self._log.lost)
        return lost or position < self._report.log_start

    def finish(self) -> None:
        """Nothing may be left of what was noted."""
        if not self._strict or self._log.lost:
            return
        if self._whole and self._note.position > self._report.log_end:
            wanted = f"at most {self._report.log_end}"
            told = str(self._note.position)
            self._report.add(NOTE_FILE, None, "position behind the log", wanted, told)
        bounded = self._until < self._note.position
        self._skip_below(self._report.log_start)  # all that a note knows of may have expired
        part = self._next(1)
        if part is not None and not bounded:
            file, first, _rows = part
            self._report.add(file.path, file.place(first), "entry without a record")


def _goes_on(storage: Storage, segment_bytes: int, end: int) -> bool:
    """Whether something stands in the log at a position behind what we wrote."""
    base = end // segment_bytes * segment_bytes
    if not storage.exists(segment_name(base)):
        return False
    head = bytearray(layout.FILLER.size)
    file = storage.open(segment_name(base))
    file.read_into(head, end - base)
    file.close()
    return any(head)
