"""The simulator's oracle of IndexFiles: each key of each record, no entry besides (P14).

From the rules alone (tests/support/index_oracle.py), over the records that the log holds.
"""

from __future__ import annotations

import json
import struct
from collections import Counter
from collections.abc import Iterator
from typing import Any

from gantrymq.shm.storage import Storage, read_file
from tests.support import cq_oracle, index_oracle
from tests.support.index_oracle import ENTRY, HEADER
from tests.support.storedlog import require

_MAGICS = cq_oracle.RECORD_MAGICS


def _note_of(storage: Storage, end: int, settled: int) -> dict[str, Any] | None:
    """`gantry/index.json`, as far as that goes; None without one."""
    if not storage.exists("gantry/index.json"):
        require(settled <= 0, "P14", "a clean stop left no note of the index")
        return None
    note: dict[str, Any] = json.loads(read_file(storage, "gantry/index.json"))
    require(note["position"] <= end, "P14", f"the index goes to {note['position']} of {end}")
    require(settled in (-1, note["position"]), "P14", f"indexed {note['position']} of {settled}")
    return note


def check_index(storage: Storage, end: int, settled: int, tally: Counter[str]) -> None:
    """What `gantry/index.json` calls sure is there. `settled` >= 0: all below it is indexed.

    `end` is the log's, as recovery left it.
    """
    note = _note_of(storage, end, settled)
    if note is None:
        return
    slots, entries = note["slots"], note["entries"]
    records = list(_records(storage, note["position"]))
    wanted = index_oracle.index_files(records, slots, entries, tags=note["tags"])
    while len(wanted) > len(note["files"]) and wanted[-1].count == 1:
        wanted.pop()  # made for a record without keys, behind the note
    if settled < 0 and len(wanted) + 1 == len(note["files"]) and wanted and wanted[-1].full:
        wanted.append(wanted[-1].following())  # made for the record that the note ends before
    require(len(wanted) == len(note["files"]), "P14", f"index files {note['files']}")
    for number, (name, header) in enumerate(note["files"].items()):
        require(storage.exists(f"index/{name}"), "P14", f"{name} is called sure and is not there")
        data, file = read_file(storage, f"index/{name}"), wanted[number]
        rule = [
            file.begin_ms, file.end_ms, file.begin_position, file.end_position, file.used_slots,
            file.count,
        ]  # fmt: skip
        require(header == rule, "P14", f"{name} is noted as {header}, not {rule}")
        last = number == len(wanted) - 1
        if settled >= 0 or (file.full and not last):
            require(data == file.encode(), "P14", f"index file {name} is not what the log says")
        start = HEADER + 4 * slots + ENTRY.size
        there = data[start : start + ENTRY.size * len(file.entries)]
        require(there == b"".join(file.entries), "P14", f"sure entries of {name} are not there")
        tally["index files"] += 1
    if settled >= 0:
        require(storage.list("index") == list(note["files"]), "P14", "stray index files")
        _look_up(storage, note, records, tally)


def check_kept_index(storage: Storage, end: int, settled: int, tally: Counter[str]) -> None:
    """The same of a log whose first segments have gone: each key of a record that is there.

    Files begin where retention and the indexer met, which no rule says; so entries are looked for
    wherever they are. A power cut may bring segments back of which keys have gone: a note says so,
    and is not gone on with.
    """
    note = _note_of(storage, end, settled)
    if note is None:
        return
    low = int(storage.list("commitlog")[0])
    if note.get("low", 0) > low:
        require(settled < 0, "P14", f"indexed from {note.get('low')}, the log begins at {low}")
        return
    there: set[tuple[int, int]] = set()
    for name, header in note["files"].items():
        if storage.exists(f"index/{name}"):
            there |= _entries(read_file(storage, f"index/{name}"), note["slots"], header[5])
        else:
            require(header[3] < low, "P14", f"{name} is called sure and is not there")
    for record in _records(storage, note["position"]):
        for key in index_oracle.keys_of(record, tags=note["tags"]):
            entry = index_oracle.key_hash(key), record.position
            require(entry in there, "P14", f"{key} of {record.position} is not in the index")
            tally["keys of a cut log"] += 1


def _entries(data: bytes, slots: int, count: int) -> set[tuple[int, int]]:
    """Hash and position of a file's first entries; `count` is the header's, one more."""
    start = HEADER + 4 * slots + ENTRY.size
    rows = ENTRY.iter_unpack(data[start : start + ENTRY.size * (count - 1)])
    return {(key_hash, position) for key_hash, position, *_ in rows}


def _look_up(storage: Storage, note: dict[str, object], records: object, tally: object) -> None:
    """SF-82: by its chain each key leads to its record."""
    assert isinstance(records, list)
    assert isinstance(tally, Counter)
    slots, names = note["slots"], note["files"]
    assert isinstance(slots, int)
    assert isinstance(names, dict)
    files = [read_file(storage, f"index/{name}") for name in names]
    for record in records[-20:]:
        for key in index_oracle.keys_of(record, tags=bool(note["tags"])):
            found = [at for data in files for at in index_oracle.find(data, key, slots)]
            require(record.position in found, "P14", f"{key} is not found by the index")
            tally["keys looked up"] += 1


def _records(storage: Storage, end: int) -> Iterator[cq_oracle.Stored]:
    """Records below a position, oldest first."""
    for name in storage.list("commitlog"):
        data, base, at = read_file(storage, f"commitlog/{name}"), int(name), 0
        while base + at < end and at + 8 <= len(data):
            size, magic = struct.unpack_from(">iI", data, at)
            if magic not in _MAGICS:
                break
            yield cq_oracle.parse(data[at : at + size], magic, base + at)
            at += size
