"""Notes of agents: a JSON object in a small file, of a version and with its checksum.

Loads no kernels, for commands that only look.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from gantrymq.shm.fromhandlers import require_ours
from gantrymq.shm.jsonsum import sum_holds, with_sum
from gantrymq.shm.jsontext import parse_json
from gantrymq.shm.storage import read_file, replace_file
from gantrymq.shm.valueranges import is_storable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gantrymq.shm.storage import Storage

#: So much more of the log to read at a start is worth a note.
SCAN_BYTES: Final = 64 * 1024 * 1024


def read_content(storage: Storage, path: str, version: int) -> dict[str, Any] | None:
    """What a note says; None if it is gone or damaged, or of another version.

    A number that no note has is damage, too.
    """
    try:
        data = read_file(storage, path)
    except FileNotFoundError as error:
        require_ours(error)
        return None
    try:
        content = parse_json(data) if sum_holds(data) else None
    except ValueError as error:
        require_ours(error)
        return None
    if not isinstance(content, dict) or content.get("version") != version:
        return None
    if not is_storable(content):
        return None
    return content


def write_content(storage: Storage, path: str, version: int, content: Mapping[str, Any]) -> None:
    """Replace a note, durably. Raises OSError."""
    text = json.dumps({"version": version, **content})
    replace_file(storage, path, with_sum(text).encode())
