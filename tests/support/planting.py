"""Plants one fault at a time in a store's files, and takes it back.

KINDS is a table: kind -> (how many of a thousand, function). A function chooses a place by the
planter's random numbers, damages it through the planter and returns what has to be found there. A
new kind of file gets its faults by a row.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gantrymq.brokerd import reserve
from gantrymq.shm import layout
from gantrymq.workers.scheduler import note as schedulenote
from gantrymq.workers.transactions import note as transactionnote

CQ_UNIT: Final = 20
FILLER: Final = layout.FILLER_MAGIC.to_bytes(4, "big")
RECORD: Final = layout.RECORD_MAGIC_V1.to_bytes(4, "big")
#: Derived by RocketMQ alone, or without content.
_NO_CONTENT: Final = frozenset({"lock"})


@dataclass(frozen=True)
class Fault:
    """What was planted: one of `paths` must be named, at one of `positions` (None: anywhere)."""

    paths: frozenset[str]
    positions: frozenset[int] | None
    what: str


def at(path: str, what: str, *positions: int) -> Fault:
    """A fault of one file."""
    return Fault(frozenset({path}), frozenset(positions) or None, f"{what} of {path} {positions}")


class Planter:
    """The files of one store, kept to be put back."""

    def __init__(self, root: Path, seed: int) -> None:
        self.root = root
        self.random = random.Random(seed)
        self.kept = {
            str(path.relative_to(root)): path.read_bytes()
            for path in sorted(root.rglob("*"))
            if path.is_file()
        }
        self.segments = self.below("commitlog/")
        self.records = {name: _records(self.kept[name]) for name in self.segments}
        self._changed: set[str] = set()
        self._made: list[Path] = []

    def below(self, folder: str) -> list[str]:
        """Paths of the files in a folder."""
        return [name for name in self.kept if name.startswith(folder)]

    def contents(self) -> list[str]:
        """Files whose content means anything."""
        return [name for name in self.kept if name not in _NO_CONTENT]

    # ---------------------------------------------------------------------------------- damage

    def write(self, path: str, data: bytes) -> None:
        """Give a file another content."""
        self._changed.add(path)
        (self.root / path).write_bytes(data)

    def patch(self, path: str, position: int, data: bytes) -> None:
        """Overwrite bytes of a file."""
        self._changed.add(path)
        with (self.root / path).open("r+b") as file:
            file.seek(position)
            file.write(data)

    def flip(self, path: str, position: int) -> None:
        """Change one bit of a byte."""
        bit = 1 << self.random.randrange(8)
        self.patch(path, position, bytes([self.kept[path][position] ^ bit]))

    def remove(self, path: str) -> None:
        """Delete a file."""
        self._changed.add(path)
        (self.root / path).unlink()

    def add(self, path: str, data: bytes) -> None:
        """Make a file that was not there."""
        target = self.root / path
        target.write_bytes(data)
        self._made.append(target)

    def take_back(self) -> None:
        """Make the store what it was."""
        for path in self._changed:
            (self.root / path).write_bytes(self.kept[path])
        for made in self._made:
            made.unlink()
        self._changed.clear()
        self._made.clear()


def _records(data: bytes) -> list[tuple[int, int]]:
    """Where a segment's records begin, and their sizes; the last row is what follows."""
    place, found = 0, []
    while data[place + 4 : place + 8] == RECORD:
        size = int.from_bytes(data[place : place + 4], "big")
        found.append((place, size))
        place += size
    return [*found, (place, 0)]


# --------------------------------------------------------------------------------------------- log


def _some_record(planter: Planter) -> tuple[str, int, int]:
    name = planter.random.choice(planter.segments)
    place, size = planter.random.choice(planter.records[name][:-1])
    return name, place, size


def bit_of_a_record(planter: Planter) -> Fault:
    """Any bit of any record, by the walk or its trailer."""
    name, place, size = _some_record(planter)
    planter.flip(name, place + planter.random.randrange(size))
    return at(name, "bit of a record", place)


def zeroes_in_a_record(planter: Planter) -> Fault:
    """A sector, or a part of one, that was never written."""
    name, place, size = _some_record(planter)
    start = planter.random.randrange(size - 20)
    count = planter.random.randrange(20, size - start + 1)
    planter.patch(name, place + start, bytes(count))
    return at(name, "zeroes in a record", place)


def records_swapped(planter: Planter) -> Fault:
    """Sound records at each other's place (LW-2)."""
    name = planter.random.choice(planter.segments)
    sizes: dict[int, list[int]] = {}
    for place, size in planter.records[name][:-1]:
        sizes.setdefault(size, []).append(place)
    size, places = max(sizes.items(), key=lambda item: len(item[1]))
    first, second = planter.random.sample(places, 2)
    data = planter.kept[name]
    planter.patch(name, first, data[second : second + size])
    planter.patch(name, second, data[first : first + size])
    return at(name, "records swapped", first, second)


def bit_behind_the_records(planter: Planter) -> Fault:
    """The filler, what follows it, and what lies behind the log's end (P13)."""
    name = planter.random.choice(planter.segments)
    data, end = planter.kept[name], planter.records[name][-1][0]
    has_filler = data[end + 4 : end + 8] == FILLER
    place = planter.random.randrange(end, len(data))
    if has_filler and planter.random.random() < 0.5:
        place = end + planter.random.randrange(layout.FILLER.size)
    planter.flip(name, place)
    # Behind the last record of an unfinished segment its first four bytes would be a record's size.
    begins = end + (layout.FILLER.size if has_filler else 4)
    return at(name, "bit behind the records", end if place < begins else place)


# ------------------------------------------------------------------------------------------ queues


def bit_of_a_queue(planter: Planter) -> Fault:
    """A unit, or the zeroes behind the last one (SF-68)."""
    name = planter.random.choice(planter.below("consumequeue/"))
    place = planter.random.randrange(len(planter.kept[name]))
    planter.flip(name, place)
    return at(name, "bit of a queue", place // CQ_UNIT * CQ_UNIT)


def units_swapped(planter: Planter) -> Fault:
    """Two units of one file, or of two queues."""
    first, second = (planter.random.choice(planter.below("consumequeue/")) for _ in range(2))
    places = [planter.random.randrange(len(planter.kept[f]) // CQ_UNIT) for f in (first, second)]
    one, other = (
        planter.kept[name][place * CQ_UNIT : (place + 1) * CQ_UNIT]
        for name, place in zip((first, second), places, strict=True)
    )
    if one == other:
        return units_swapped(planter)
    planter.patch(first, places[0] * CQ_UNIT, other)
    planter.patch(second, places[1] * CQ_UNIT, one)
    return at(first, f"unit swapped with {places[1]} of {second}", places[0] * CQ_UNIT)


# ------------------------------------------------------------------------------------------- index


def _shape(planter: Planter) -> tuple[int, int]:
    """Slots of an index file, and where entry 0 lies (SF-78)."""
    slots = int(json.loads(planter.kept["gantry/index.json"])["slots"])
    return slots, layout.INDEX_HEADER_BYTES + layout.INDEX_SLOT_BYTES * slots


def bit_of_an_index_file(planter: Planter) -> Fault:
    """A field of the header, a slot, an entry, or the zeroes where none is."""
    name = planter.random.choice(planter.below("index/"))
    _slots, entries_at = _shape(planter)
    head, size = layout.INDEX_HEADER_BYTES, layout.INDEX_ENTRY_BYTES
    part = planter.random.choice(
        [range(head), range(head, entries_at), range(entries_at, len(planter.kept[name]))]
    )
    place = planter.random.choice(part)
    planter.flip(name, place)
    if place < head:
        fields = [layout.INDEX_HEADER.offset(field.name) for field in layout.INDEX_HEADER.fields]
        return at(name, "bit of a header", max(start for start in fields if start <= place))
    unit, first = (4, head) if place < entries_at else (size, entries_at)
    return at(name, "bit of an index", first + (place - first) // unit * unit, place)


def index_entries_swapped(planter: Planter) -> Fault:
    """Sound entries at each other's place."""
    name = planter.random.choice(planter.below("index/"))
    data, size = planter.kept[name], layout.INDEX_ENTRY_BYTES
    entries_at = _shape(planter)[1]
    count = int.from_bytes(data[36:40], "big")
    first, second = (entries_at + size * n for n in planter.random.sample(range(1, count), 2))
    planter.patch(name, first, data[second : second + size])
    planter.patch(name, second, data[first : first + size])
    return at(name, "entries swapped", first, second)


# ------------------------------------------------------------------------------- bits of filters


def missing_bit_of_a_filter(planter: Planter) -> Fault:
    """A message would be hidden from a group that has to get it (FL-64)."""
    bits = json.loads(planter.kept["gantry/bitmaps.json"])["filters"][0]["positions"]
    name = planter.random.choice(planter.below("consumequeue_ext/"))
    data, places = planter.kept[name], []
    place = 0
    while size := int.from_bytes(data[place : place + 2], "big", signed=True):
        if size < 0:
            break  # the mark of the file's end (SF-72)
        bitmap = data[place + layout.CQ_EXT_BITMAP : place + size]
        if all(bitmap[bit // 8] >> bit % 8 & 1 for bit in bits):
            places.append(place)
        place += size
    bit, place = planter.random.choice(bits), planter.random.choice(places)
    at_byte = place + layout.CQ_EXT_BITMAP + bit // 8
    planter.patch(name, at_byte, bytes([data[at_byte] & ~(1 << bit % 8)]))
    return at(name, f"missing bit {bit}", place)


# ------------------------------------------------------------------------------------- other files


def bit_of_a_sidecar(planter: Planter) -> Fault:
    """Found by the sidecar's own CRC."""
    name = planter.random.choice(planter.below("gantry/segments/"))
    planter.flip(name, planter.random.randrange(len(planter.kept[name])))
    return at(name, "bit of a sidecar")


def bit_of_a_config(planter: Planter) -> Fault:
    """JSON of `config/`, backups too."""
    name = planter.random.choice(planter.below("config/"))
    place = planter.random.randrange(len(planter.kept[name]))
    planter.flip(name, place)
    return at(name, f"bit of byte {place}")


def bit_of_our_files(planter: Planter) -> Fault:
    """The small files of `gantry/`, and RocketMQ's checkpoint."""
    names = [n for n in planter.below("gantry/") if not n.startswith("gantry/segments/")]
    name = planter.random.choice([*names, "checkpoint"])
    data = planter.kept[name]
    place = planter.random.randrange(len(data))
    if len(data) == layout.CHECKPOINT_FILE_BYTES and planter.random.random() < 0.5:
        place = planter.random.randrange(40)  # mostly zeroes follow
    planter.flip(name, place)
    return at(name, f"bit of byte {place}")


def file_cut(planter: Planter) -> Fault:
    """Any file, to any shorter length; a text without the end of its last line is whole."""
    name = planter.random.choice([name for name in planter.contents() if planter.kept[name]])
    length = planter.random.randrange(len(planter.kept[name].removesuffix(b"\n")))
    planter.write(name, planter.kept[name][:length])
    return at(name, f"cut to {length} bytes")


def file_lengthened(planter: Planter) -> Fault:
    """Any file, by bytes that are not its own."""
    name = planter.random.choice(planter.contents())
    more = planter.random.randbytes(planter.random.randrange(1, 100))
    planter.write(name, planter.kept[name] + more)
    return at(name, f"lengthened by {len(more)} bytes")


def file_missing(planter: Planter) -> Fault:
    """Any file but those that a sound store may lack.

    These are backups, the blocks that a full disk takes, and the notes of how far scheduler and
    txn-checker have come: without one the log is looked at again, and `store rebuild` leaves them
    out.
    """
    optional = (schedulenote.FILE, transactionnote.FILE, reserve.NAME)
    names = [n for n in planter.contents() if not n.endswith(".bak") and n not in optional]
    name = planter.random.choice(names)
    planter.remove(name)
    # Of the first segment its sidecar tells, of a deleted topic the log.
    tells = {"gantry/deleted_topics.json": "config/topics.json"}
    return Fault(frozenset({name, tells.get(name, name)}), None, f"missing {name}")


def files_swapped(planter: Planter) -> Fault:
    """Two files of one kind under each other's name."""
    groups: dict[str, list[str]] = {}
    for name in planter.contents():
        groups.setdefault(name.partition("/")[0], []).append(name)
    folder = planter.random.choice([folder for folder, names in groups.items() if len(names) > 1])
    first, second = planter.random.sample(groups[folder], 2)
    if planter.kept[first] == planter.kept[second] or {first + ".bak", second + ".bak"} & {
        first,
        second,
    }:
        return files_swapped(planter)
    planter.write(first, planter.kept[second])
    planter.write(second, planter.kept[first])
    return at(first, f"swapped with {second}")


def foreign_file(planter: Planter) -> Fault:
    """A file that nobody needs (SF-11)."""
    folders = [str(p.relative_to(planter.root)) for p in planter.root.rglob("*") if p.is_dir()]
    folder = planter.random.choice([".", *sorted(folders)])
    name = planter.random.choice(
        ["notes.txt", "core", ".swp", "x.tmp", f"{planter.random.randrange(10**9):020d}", "a b"]
    )
    path = str(Path(folder) / name)
    if path in planter.kept:
        return foreign_file(planter)
    planter.add(path, planter.random.randbytes(planter.random.randrange(50)))
    return at(path, "foreign file")


Plant = Callable[[Planter], Fault]
#: A kind for a store with bitmaps.
FILTERED: Final = "missing bit of a filter"
#: How many of a thousand, and what.
KINDS: Final[dict[str, tuple[int, Plant]]] = {
    "bit of a record": (220, bit_of_a_record),
    "zeroes in a record": (50, zeroes_in_a_record),
    "records swapped": (30, records_swapped),
    "bit behind the records": (60, bit_behind_the_records),
    "bit of a queue": (120, bit_of_a_queue),
    "units swapped": (50, units_swapped),
    "bit of an index file": (60, bit_of_an_index_file),
    "index entries swapped": (10, index_entries_swapped),
    "bit of a sidecar": (60, bit_of_a_sidecar),
    "bit of a config": (80, bit_of_a_config),
    "bit of our files": (90, bit_of_our_files),
    "file cut": (60, file_cut),
    "file lengthened": (30, file_lengthened),
    "file missing": (30, file_missing),
    "files swapped": (20, files_swapped),
    "foreign file": (20, foreign_file),
    FILTERED: (10, missing_bit_of_a_filter),
}
