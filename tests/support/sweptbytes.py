"""Files of bytes with a layout and a checksum, sound ones, with whoever reads them."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gantrymq.brokerd.checkpoint import CheckpointFile, read_checkpoint
from gantrymq.brokerd.producers import FILE as PRODUCERS
from gantrymq.brokerd.producers import Producers, load_producers
from gantrymq.shm import layout, sidecar
from gantrymq.shm.checkpoint import FILE as CHECKPOINT
from gantrymq.shm.storage import PosixStorage
from gantrymq.shm.structs import Field, Struct
from gantrymq.workers.groups.ledgerentries import Kind, pack_entry
from tests.support.extremes import words_of

SLOT = layout.GANTRY_CHECKPOINT_SLOT_BYTES
CRC = "crc"


def numbers_in(struct: Struct) -> list[Field]:
    """Fields of a layout that are numbers, but for the checksum."""
    return [field for field in struct.fields if isinstance(field.type, str) and field.name != CRC]


def with_field(data: bytes, at: int, struct: Struct, field: Field, word: bytes) -> bytearray:
    """The bytes with another value, which is as `words_of` gives it, in a struct of a file."""
    found = bytearray(data)
    place = at + struct.offset(field.name)
    found[place : place + field.size] = word[::-1] if struct.order == ">" else word
    return found


def summed(data: bytearray, at: int, first: int = 0, end: int | None = None) -> bytes:
    """The same with a right checksum of [first, end) at a place in it."""
    data[at : at + 4] = bytes(4)
    return bytes(data[:at]) + zlib.crc32(data[first:end]).to_bytes(4, "big") + bytes(data[at + 4 :])


@dataclass(frozen=True, slots=True)
class SweptBytes:
    """`structs`: layouts, and where each is; `seal` puts the checksum right of a struct there."""

    path: str
    make: Callable[[PosixStorage], None]
    read: Callable[[PosixStorage], object]
    structs: tuple[tuple[Struct, int], ...]
    seal: Callable[[bytearray, int], bytes]

    def changed(self, sound: bytes) -> Iterator[tuple[str, bytes]]:
        """The file with each number extreme, and which it was."""
        for struct, at in self.structs:
            for field in numbers_in(struct):
                for word in words_of(field):
                    data = with_field(sound, at, struct, field, word)
                    yield f"{struct.name}.{field.name} {word.hex()}", self.seal(data, at)


def _make_checkpoint(storage: PosixStorage) -> None:
    file = CheckpointFile(storage, bytes(16), 1)
    file.write(300, 5, 200)
    file.keep()
    file.write(400, 6, 300, clean=True)
    file.close()


def _read_checkpoint(storage: PosixStorage) -> object:
    """As a start does, which then goes on with it."""
    found = read_checkpoint(storage)
    file = CheckpointFile(storage, bytes(16), 2)
    file.write(500, 7, 400)
    file.close()
    return found


def _make_producers(storage: PosixStorage) -> None:
    table = Producers()
    table.last = {bytes([number] * 10): (number, number * 100) for number in (1, 2)}
    table.save(storage, 400, 200)


def _read_producers(storage: PosixStorage) -> object:
    found = load_producers(storage)
    rows = list(found.last.items())
    found.save(storage, found.position, 200)
    return found.position, rows


def _sidecar() -> sidecar.Sidecar:
    step = layout.SIDECAR_BLOCK_BYTES
    return sidecar.Sidecar(
        base=step, segment_bytes=step, end=step + 400, first_ms=5, last_ms=9,
        positions=np.array([0, 200], np.uint32), topic_numbers=np.array([1, 0], np.uint16),
        names=("audit", "orders"), block_crcs=np.array([7], np.uint32),
    )  # fmt: skip


_SIDECAR = f"{sidecar.DIRECTORY}/{layout.SIDECAR_BLOCK_BYTES:020d}"


def _make_sidecar(storage: PosixStorage) -> None:
    path = Path(storage.root, _SIDECAR)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(_sidecar().encode())


def _read_sidecar(storage: PosixStorage) -> object:
    found = sidecar.parse(Path(storage.root, _SIDECAR).read_bytes(), _SIDECAR)
    assert found.bounds().dtype == np.int64
    return found.base, found.segment_bytes, found.end, found.first_ms, found.last_ms


FILES = (
    SweptBytes(
        CHECKPOINT, _make_checkpoint, _read_checkpoint,
        tuple((layout.GANTRY_CHECKPOINT, number * SLOT) for number in range(3)),
        lambda data, at: summed(data, at + layout.GANTRY_CHECKPOINT.offset(CRC), at,
                                at + layout.GANTRY_CHECKPOINT.offset(CRC)),
    ),
    SweptBytes(
        PRODUCERS, _make_producers, _read_producers,
        (
            (layout.PRODUCERS_HEAD, 0),
            *((layout.PRODUCER, layout.PRODUCERS_HEAD.size + n * layout.PRODUCER.size)
              for n in range(2)),
        ),
        lambda data, _at: summed(data, layout.PRODUCERS_HEAD.offset(CRC)),
    ),
    SweptBytes(
        _SIDECAR, _make_sidecar, _read_sidecar, ((layout.SIDECAR, 0),),
        lambda data, _at: summed(data, layout.SIDECAR.offset(CRC)),
    ),
)  # fmt: skip


# ----------------------------------------------------------------------------------------- ledger

_QUEUE = {"group": 0, "topic": 1, "queue_id": 0}
#: One of each kind, in an order in which a ledger may have them.
ENTRIES: tuple[tuple[Kind, bytes, dict[str, int]], ...] = (
    (Kind.EPOCH, b"", {"value": 1, "offset": 2}),
    (Kind.GROUP, b"g", {"group": 0}),
    (Kind.TOPIC, b"orders", {"topic": 1}),
    (Kind.SUBSCRIBED, b"", {"group": 0, "topic": 1, "queue_id": 2}),
    (Kind.COMMIT, b"", {**_QUEUE, "offset": 1, "session": 5}),
    (Kind.GRANT, b"", {**_QUEUE, "value": 3, "session": 5}),
    (Kind.START, b"", {**_QUEUE, "offset": 6, "session": 5}),
    (Kind.DONE, b"", {**_QUEUE, "offset": 3, "value": 4}),
    (Kind.SENDING, b"", {**_QUEUE, "offset": 4, "attempt": 1}),
    (Kind.FAILED, b"", {**_QUEUE, "offset": 2, "attempt": 1}),
    (Kind.ATTEMPTS, b"", {**_QUEUE, "offset": 5, "value": 6, "attempt": 2}),
    (Kind.EXPORTED, b"", {"value": 77}),
    (Kind.SYNCED, b"", {"value": 48}),
    (Kind.END, b"", {**_QUEUE, "value": 1}),
    (Kind.CLAMP, b"", {**_QUEUE, "offset": 0, "value": 10}),
    (Kind.RESET, b"", {**_QUEUE, "offset": 2}),
    (Kind.GRANT, b"", {**_QUEUE, "value": 2, "offset": 1}),
    (Kind.SHORTENED, b"", {"value": 1000}),
    (Kind.FORGOTTEN, b"", {"group": 0, "topic": 1}),
    (Kind.COMMIT, b"", {**_QUEUE, "offset": 1, "session": 5}),
    (Kind.GROUP, b"h", {"group": 2}),
    (Kind.DELETED, b"", {"group": 2}),
    (Kind.CLOSED, b"", {"value": 1}),
)


def ledgers() -> Iterator[tuple[str, bytes]]:
    """The ledger with each number of each of its entries extreme, and which it was."""
    sound = [pack_entry(kind, name, **values) for kind, name, values in ENTRIES]
    for number, (kind, name, _values) in enumerate(ENTRIES):
        before, behind = b"".join(sound[:number]), b"".join(sound[number + 1 :])
        for entry, what in _entries(sound[number], len(name)):
            yield f"{number} {kind.name}.{what}", before + entry + behind


def _entries(sound: bytes, name_bytes: int) -> Iterator[tuple[bytes, str]]:
    crc_at = layout.LEDGER.offset(CRC)
    for field in numbers_in(layout.LEDGER):
        for word in words_of(field):
            data = with_field(sound, 0, layout.LEDGER, field, word)
            yield summed(data, crc_at), f"{field.name} {word.hex()}"
    if name_bytes:
        data = bytearray(sound)
        data[layout.LEDGER.size] = 0xFF
        yield summed(data, crc_at), "a name that is no UTF-8"
