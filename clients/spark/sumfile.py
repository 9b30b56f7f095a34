"""Small files of an ingest or a write: one JSON object with a checksum, replaced whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import msgspec

from gantrymq.shm.errors import Corrupt
from gantrymq.shm.jsonsum import sum_holds, with_sum
from gantrymq.shm.packed import decode_json
from gantrymq.shm.storage import read_file, replace_file

if TYPE_CHECKING:
    from gantrymq.shm.storage import Storage

_Kind = TypeVar("_Kind", bound=msgspec.Struct)


def load(storage: Storage, name: str, kind: type[_Kind], remedy: str = "") -> _Kind | None:
    """What a file says; None if there is none. Raises Corrupt, whose text ends with `remedy`."""
    try:
        data = read_file(storage, name)
    except FileNotFoundError:
        return None
    if not sum_holds(data):
        raise Corrupt(
            f"{name} of {storage.root} is damaged: its checksum differs{remedy}", path=name
        )
    try:
        return decode_json(msgspec.json.Decoder(kind), data)
    except msgspec.DecodeError as error:
        raise Corrupt(f"{name} of {storage.root} is damaged: {error}{remedy}", path=name) from None


def save(storage: Storage, name: str, value: msgspec.Struct) -> None:
    """Replace the file, durably. Raises OSError."""
    replace_file(storage, name, with_sum(msgspec.json.encode(value).decode()).encode())
