"""Dump of a store directory as JSON lines: what lies there, or what a start would make of it.

Reads files through read-only maps and changes none of them. Kinds and fields of the objects are
those of the golden sets (tests/golden/data), plus kind `invalid`: bytes before the log's end that
are neither record nor filler, with `physicalOffset`, `reason` and `detail`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Literal, TextIO

from gantrymq.brokerd.dump import lines
from gantrymq.brokerd.dump.recovered import open_store, recover
from gantrymq.brokerd.dump.settings import load_settings
from gantrymq.shm.storage import PosixStorage
from gantrymq.shm.storeplace import require_store

Stage = Literal["recovered", "disk"]

# The standard library's short escapes, written as \\uXXXX like every other control character.
_SHORT_ESCAPE: Final = re.compile(r"\\(.)")
_LONG: Final = {"n": r"\u000a", "t": r"\u0009", "r": r"\u000d", "b": r"\u0008", "f": r"\u000c"}


def dump_objects(
    root: Path,
    settings_file: Path | None = None,
    stage: Stage = "recovered",
    now_ms: int | None = None,
) -> Iterator[dict[str, Any]]:
    """Objects of the dump, in order; `now_ms` (Unix ms, default the clock) names new index files.

    Raises FileNotFoundError if there is no store, Incompatible or SettingIllegal if its files do
    not fit the settings.
    """
    require_store(root)
    storage = PosixStorage(str(root))
    store = open_store(storage, load_settings(storage, settings_file), now_ms)
    yield lines.meta_line(store, stage)
    records, end = 0, store.log.min_position
    if stage == "recovered":
        recover(store)
    log = lines.recovered_log_lines if stage == "recovered" else lines.disk_log_lines
    for line in log(store):
        if line["kind"] == "record":
            records += 1
            end = line["physicalOffset"] + line["size"]
        yield line
    if stage == "recovered":
        yield from lines.queue_lines(store)
    yield from lines.index_lines(store)
    if stage == "recovered":
        yield from lines.index_query_lines(store)
    yield from lines.file_lines(store)
    yield from lines.rest_lines(store)
    if stage == "recovered":
        yield lines.recovered_summary(store, records)
    else:
        yield lines.disk_summary(store, records, end)


def encode_line(line: dict[str, Any]) -> str:
    """One object as a line of ASCII text, without its end."""
    text = json.dumps(line, separators=(",", ":"))
    if "\\" not in text:
        return text
    return _SHORT_ESCAPE.sub(lambda match: _LONG.get(match[1], match[0]), text)


def dump_store(
    root: Path, out: TextIO, settings_file: Path | None = None, stage: Stage = "recovered"
) -> None:
    """Write a store's dump to a text file. Raises what `dump_objects` raises."""
    for line in dump_objects(root, settings_file, stage):
        out.write(encode_line(line) + "\n")
