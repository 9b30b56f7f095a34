"""A sealed segment's sidecar: where its records are, of which topics, and CRCs of its bytes.

`gantry/segments/<20 digits>`, layout.SIDECAR. It is derived: a missing one is built from its
segment. Bytes and numbers only; files are the caller's. Nothing here imports numba.
"""

from __future__ import annotations

import zlib
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gantrymq.shm import layout
from gantrymq.shm.errors import Corrupt
from gantrymq.shm.record import Filler
from gantrymq.shm.record_columns import RecordColumns, number_topics, read_records
from gantrymq.shm.segment import Segment
from gantrymq.shm.valueranges import is_offset

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Buffer

DIRECTORY: Final = "gantry/segments"
VERSION: Final = 1
TOPICS_MAX: Final = 1 << 16  # a topic's number is a u2
_CHUNK_RECORDS: Final = 1 << 17
_CRC_AT: Final = layout.SIDECAR.offset("crc")


@dataclass(frozen=True, slots=True)
class Sidecar:
    """What a sidecar says. `positions` are bytes from the segment's start, times are Unix ms.

    `end` is the log position behind the last record; `names[topic_numbers[i]]` is the topic of
    record i; `block_crcs` are CRC-32s of each MiB of the segment, the last one maybe shorter.
    """

    base: int
    segment_bytes: int
    end: int
    first_ms: int
    last_ms: int
    positions: NDArray[np.uint32]
    topic_numbers: NDArray[np.uint16]
    names: tuple[str, ...]
    block_crcs: NDArray[np.uint32]

    def bounds(self) -> NDArray[np.int64]:
        """Bytes from the segment's start where records begin, and where the last one ends."""
        return np.append(self.positions.astype(np.int64), self.end - self.base)

    def encode(self) -> bytes:
        """The file's bytes. Raises ValueError with too many topics."""
        if len(self.names) > TOPICS_MAX:
            raise ValueError(f"{len(self.names)} topics in one segment")
        head, tail = ends(self, len(self.positions))
        payload = b"".join(
            (
                self.positions.astype(">u4").tobytes(),
                self.topic_numbers.astype(">u2").tobytes(),
                tail,
            )
        )
        return with_crc(head, zlib.crc32(payload, zlib.crc32(head))) + payload


def ends(about: Sidecar, records: int) -> tuple[bytes, bytes]:
    """A file's first bytes, with a CRC of 0, and those behind positions and topic numbers.

    For who writes a file of so many `records` piece by piece: the arrays of `about` may be empty.
    The CRC is that of the first bytes and of all that follows.
    """
    raw = [name.encode(errors="surrogateescape") for name in about.names]
    dictionary = b"".join(len(name).to_bytes(2, "big") + name for name in raw)
    head = layout.SIDECAR.pack(
        magic=layout.SIDECAR_MAGIC,
        version=VERSION,
        records=records,
        base=about.base,
        segment_bytes=about.segment_bytes,
        end=about.end,
        first_ms=about.first_ms,
        last_ms=about.last_ms,
        topics=len(raw),
        blocks=len(about.block_crcs),
        dictionary_bytes=len(dictionary),
    )
    return head, dictionary + about.block_crcs.astype(">u4").tobytes()


def with_crc(head: bytes, crc: int) -> bytes:
    """A file's first bytes with their CRC."""
    return head[:_CRC_AT] + crc.to_bytes(4, "big")


# ---------------------------------------------------------------------------------------- reading


def parse(data: bytes, name: str = "sidecar") -> Sidecar:
    """The sidecar in a file's bytes. Raises Corrupt, naming the file, if anything is wrong."""
    size = layout.SIDECAR.size
    if len(data) < size:
        raise _corrupt(name, f"{len(data)} bytes are no header")
    head = layout.SIDECAR.unpack(data)
    if (head["magic"], head["version"]) != (layout.SIDECAR_MAGIC, VERSION):
        raise _corrupt(name, f"magic {head['magic']:#x}, version {head['version']}")
    zeroed = data[:_CRC_AT] + bytes(4)
    if zlib.crc32(memoryview(data)[size:], zlib.crc32(zeroed)) != head["crc"]:
        raise _corrupt(name, "its CRC differs")
    _require_possible(head, name)
    records, blocks = head["records"], head["blocks"]
    numbers_at = size + 4 * records
    names_at = numbers_at + 2 * records
    blocks_at = names_at + head["dictionary_bytes"]
    if len(data) != blocks_at + 4 * blocks:
        raise _corrupt(name, f"{len(data)} bytes, its counts say {blocks_at + 4 * blocks}")
    found = Sidecar(
        **{key: head[key] for key in ("base", "segment_bytes", "end", "first_ms", "last_ms")},
        positions=np.frombuffer(data, ">u4", records, size).astype(np.uint32),
        topic_numbers=np.frombuffer(data, ">u2", records, numbers_at).astype(np.uint16),
        names=tuple(_names(data[names_at:blocks_at])),
        block_crcs=np.frombuffer(data, ">u4", blocks, blocks_at).astype(np.uint32),
    )
    _require_consistent(found, head["topics"], name)
    return found


def _require_possible(head: Mapping[str, Any], name: str) -> None:
    """Times may be any: another broker's records have what its host's clock said."""
    for field in ("base", "segment_bytes", "end"):
        if not is_offset(head[field]):
            raise _corrupt(name, f"{field} {head[field]}")


def _names(dictionary: bytes) -> Iterator[str]:
    at = 0
    while at < len(dictionary):
        count = int.from_bytes(dictionary[at : at + 2], "big")
        yield dictionary[at + 2 : at + 2 + count].decode(errors="replace")
        at += 2 + count


def _require_consistent(found: Sidecar, topics: int, name: str) -> None:
    """Readers index the segment with these numbers without looking at them again."""
    sizes = np.diff(found.bounds())
    blocks = -(-found.segment_bytes // layout.SIDECAR_BLOCK_BYTES)
    rules = {
        "records overlap": bool((sizes < layout.RECORD_BYTES_MIN).any()),
        "its end is outside": not found.base <= found.end <= found.base + found.segment_bytes,
        "a topic has no name": bool((found.topic_numbers >= len(found.names)).any()),
        "names are missing": len(found.names) != topics,
        "blocks are missing": len(found.block_crcs) != blocks,
    }
    broken = [text for text, is_broken in rules.items() if is_broken]
    if broken:
        raise _corrupt(name, ", ".join(broken))


def _corrupt(name: str, what: str) -> Corrupt:
    return Corrupt(f"{name}: {what}; delete it, it is built again from its segment", path=name)


# ---------------------------------------------------------------------------------------- building


def build_from_segment(view: NDArray[np.uint8], base: int) -> Sidecar:
    """The sidecar of a segment's bytes, by walking them; a foreign store's, or a lost one.

    Raises Corrupt where a record's lengths or position are wrong, or where neither a filler nor
    the log's end (zeroes) follows the last record. Checksums are not looked at.
    """
    steps = build_in_steps(view, base, len(view))
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: Sidecar = end.value
            return found


def build_in_steps(
    view: NDArray[np.uint8], base: int, piece_bytes: int
) -> Generator[int, None, Sidecar]:
    """`build_from_segment`, some bytes of the segment at a time; yields 0 between."""
    known: dict[str, int] = {}
    places: list[NDArray[np.uint32]] = []
    numbers: list[NDArray[np.uint16]] = []
    times: list[int] = []
    at = end = 0
    while end < len(view):
        end = min(len(view), max(at, end) + piece_bytes)
        bounds = walk(view, base, at, end)
        for columns in _chunks(view, base, bounds):
            local, names = number_topics(view, columns)
            shared = np.array([known.setdefault(name, len(known)) for name in names], np.uint16)
            numbers.append(shared[local])
            times += [int(columns.store_timestamp[0]), int(columns.store_timestamp[-1])]
        places.append(bounds[:-1].astype(np.uint32))
        at = int(bounds[-1])
        yield 0
    _require_end(Segment(base, view), at)
    crcs = []
    for block in range(-(-len(view) // layout.SIDECAR_BLOCK_BYTES)):
        crcs.append(block_crcs(view.data, block, 1))
        yield 0
    topic_numbers, sorted_names = by_name(
        np.concatenate(numbers) if numbers else np.empty(0, np.uint16), list(known)
    )
    return Sidecar(
        base=base,
        segment_bytes=len(view),
        end=base + at,
        first_ms=times[0] if times else 0,
        last_ms=times[-1] if times else 0,
        positions=np.concatenate(places),
        topic_numbers=topic_numbers,
        names=sorted_names,
        block_crcs=np.concatenate(crcs),
    )


def by_name(
    numbers: NDArray[np.uint16], names: list[str]
) -> tuple[NDArray[np.uint16], tuple[str, ...]]:
    """Topic numbers for names in order: a sidecar is the same whoever built it."""
    order = sorted(range(len(names)), key=names.__getitem__)
    ranks = np.empty(len(order), np.uint16)
    ranks[order] = np.arange(len(order))
    return ranks[numbers], tuple(names[number] for number in order)


def block_crcs(view: Buffer, first: int = 0, count: int | None = None) -> NDArray[np.uint32]:
    """CRC-32 of MiB blocks of a segment, from block `first` on; the last block may be shorter."""
    data = memoryview(view).cast("B")
    step = layout.SIDECAR_BLOCK_BYTES
    total = -(-len(data) // step)
    last = total if count is None else min(total, first + count)
    found = [zlib.crc32(data[at * step : (at + 1) * step]) for at in range(first, last)]
    return np.array(found, np.uint32)


def walk(
    view: NDArray[np.uint8], base: int, start: int = 0, end: int | None = None
) -> NDArray[np.int64]:
    """Bytes from the segment's start where the records from `start` on begin, and where they end.

    By sizes and magics only; records that begin at or behind `end` are left out. The last number
    is where something else than a whole record begins: `start` itself if there is none.
    """
    limit = len(view) if end is None else end
    starts = Segment(base, view).record_starts(base + start, base + limit) - base
    if not len(starts):
        return np.array([start], np.int64)
    last = int(starts[-1])
    behind = last + int.from_bytes(view[last : last + 4].tobytes(), "big")
    return starts if behind > limit else np.append(starts, behind)


def _require_end(segment: Segment, at: int) -> None:
    """A chain of records ends at a filler, at zeroes, or at the file's end."""
    head = segment.view[at : at + layout.FILLER.size].tobytes()
    if any(head) and not isinstance(segment.item_at(segment.base + at), Filler):
        position = segment.base + at
        raise Corrupt(f"no record, filler or end of the log at {position}", position=position)


def _chunks(
    view: NDArray[np.uint8], base: int, bounds: NDArray[np.int64]
) -> Iterator[RecordColumns]:
    for first in range(0, len(bounds) - 1, _CHUNK_RECORDS):
        part = bounds[first : first + _CHUNK_RECORDS + 1]
        columns = read_records(view, part[:-1], np.diff(part), base)
        if not columns.intact.all():
            position = base + int(columns.at[~columns.intact][0])
            raise Corrupt(
                f"the record at {position} is damaged: its lengths or position are wrong",
                position=position,
            )
        yield columns
