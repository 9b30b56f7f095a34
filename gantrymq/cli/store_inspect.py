"""`gantrymq store inspect`: a record as its fields and bytes."""

from __future__ import annotations

import sys
from pathlib import Path

from gantrymq.cli.options import print_json
from gantrymq.cli.records import fields_of, print_bytes, print_fields
from gantrymq.shm.codes import ExitCode
from gantrymq.shm.record import Filler, Invalid


def inspect(text: str, directory: Path, *, as_json: bool) -> int:
    """Print what lies there; returns the exit code."""
    from gantrymq.shm.storage import PosixStorage
    from gantrymq.shm.storeplace import require_store
    from gantrymq.shm.storereader import StoreReader, position_of

    position = position_of(text)
    require_store(directory)
    reader = StoreReader(PosixStorage(str(directory)))
    found = reader.place(position)
    shown: dict[str, object] = {"position": position, "file": found.file, "ours": found.ours}
    if isinstance(found.item, Invalid):
        shown |= {"kind": "invalid", "fault": found.item.fault, "detail": found.item.detail}
        shown["record_around"] = reader.around(position)
    elif isinstance(found.item, Filler):
        shown |= {"kind": "filler", "size": found.item.size}
    else:
        shown |= {"kind": "record", "fields": fields_of(found.item)}
    if as_json:
        print_json({**shown, "bytes": found.data.hex()})
    else:
        fields = shown.pop("fields", {})
        print_fields(shown | fields if isinstance(fields, dict) else shown)
        sys.stdout.write("\n")
        print_bytes(found.data, position)
    return ExitCode.DOES_NOT_HOLD if isinstance(found.item, Invalid) else ExitCode.OK
