"""RocketMQ's files in `config/`: read what it and we wrote, write as it does (SF-103 to SF-105).

The text is JSON but for one thing: fastjson writes integer keys of maps without quotes.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left, insort
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from gantrymq.shm.errors import Corrupt, shown
from gantrymq.shm.fromhandlers import require_ours
from gantrymq.shm.jsonsum import sum_holds, with_sum, without_sum
from gantrymq.shm.jsontext import parse_json
from gantrymq.shm.storage import is_disk_full, made_anew, read_file
from gantrymq.shm.valueranges import is_offset

if TYPE_CHECKING:
    from gantrymq.shm.storage import Storage

BACKUP_SUFFIX: Final = ".bak"

#: `json.dumps` would make an encoder for each value of a file with thousands of groups.
_encode: Final = json.JSONEncoder(ensure_ascii=False).encode

#: How far the entries of a `TableText` are indented.
_IN_TABLE: Final = "\t\t"

_INTEGER: Final = re.compile(r"-?[0-9]{1,19}")

# A string, or a bare integer in a key's place. Strings come first, so that none is looked into.
_STRING_OR_KEY: Final = re.compile(r'"(?:[^"\\]|\\.)*"|(?<=[{,])(\s*)(-?\d+)(\s*:)')


def parse_config(text: str) -> Any:  # noqa: ANN401 - JSON
    """Value of a config file's text; keys are strings, integer ones too (SF-104).

    Raises ValueError where the text is no JSON even with its integer keys quoted.
    """
    try:
        return parse_json(text)  # ten times as fast, and most files have no such keys
    except ValueError as error:
        require_ours(error)
        return parse_json(_STRING_OR_KEY.sub(_quote_key, text))


def _quote_key(match: re.Match[str]) -> str:
    if match[2] is None:
        return match[0]
    return f'{match[1]}"{match[2]}"{match[3]}'


def fault_in(data: bytes) -> tuple[int, str] | None:
    """At which byte a file's text ceases to be one, and what is there; None: all of it is."""
    text = ""
    try:
        text = data.decode()
        parse_config(text)
    except UnicodeDecodeError as error:
        require_ours(error)
        return error.start, f"byte {data[error.start]:#04x}, which is no UTF-8"
    except json.JSONDecodeError as error:
        require_ours(error)
        at = _place_in(text, error.pos)
        return len(text[:at].encode()), _told_at(text, at, error.msg)
    except ValueError as error:
        require_ours(error)
        return 0, "values nested too deeply, or a number that is none or too long"
    return None


def _place_in(text: str, at: int) -> int:
    """A place in a text, by that in the same one with its integer keys quoted."""
    shift = 0
    for match in _STRING_OR_KEY.finditer(text):
        quotes = 0 if match[2] is None else 2
        if match.end() + shift + quotes > at:
            break
        shift += quotes
    return at - shift


def _told_at(text: str, at: int, why: str) -> str:
    if not text[at:].strip():
        return "the end of the file amid a value"
    if why.startswith("Unterminated"):
        return "a string that does not end"
    return f"{text[at]!r}, which does not belong there"


def by_number(table: Mapping[str, Any]) -> dict[int, Any]:
    """Return a map with its integer keys as integers, for example queue id -> offset.

    What has another key is left out.
    """
    return {int(key): value for key, value in table.items() if _INTEGER.fullmatch(key)}


def map_in(content: Any, name: str) -> dict[str, Any]:  # noqa: ANN401 - JSON
    """A map in a file's object; empty where it is none, for a file that need not be believed."""
    found = content.get(name) if isinstance(content, dict) else None
    return found if isinstance(found, dict) else {}


def table_in(content: Any, name: str, path: str) -> dict[str, dict[str, Any]]:  # noqa: ANN401
    """A map of objects in a file's object, those that are null left out; empty without it.

    Raises Corrupt where one of these is something else.
    """
    known = {} if content is None else content
    table = known.get(name, {}) if isinstance(known, dict) else known
    table = {} if table is None else table
    entries = table.values() if isinstance(table, dict) else (table,)
    for found in entries:
        if found is not None and not isinstance(found, dict):
            raise Corrupt(
                f"{path} is damaged: {name} is to be an object of objects, and has"
                f" {shown(found)}: put the file back from a back-up",
                path=path,
            )
    return {key: entry for key, entry in table.items() if entry is not None}


def changes_of(content: Any) -> int:  # noqa: ANN401 - JSON
    """How often a file was written, as its `dataVersion` says; 0 if it does not."""
    counter: Any = map_in(content, "dataVersion").get("counter")
    return counter if is_offset(counter) else 0


def format_config(value: Any) -> str:  # noqa: ANN401 - JSON
    """Text as RocketMQ writes it: tabs, sorted fields, bare integer keys, no nulls (SF-104)."""
    return _format(value, "")


class Formatted(str):
    """A value that is formatted already, for its depth in the file."""

    __slots__ = ()


class TableText:
    """The text of a large map inside a file's object: only an entry that changes is formatted."""

    def __init__(self) -> None:
        self._names: list[str] = []  # sorted
        self._lines: dict[str, str] = {}

    def put(self, name: str, value: Any) -> None:  # noqa: ANN401 - JSON
        """Add an entry, or replace it."""
        if name not in self._lines:
            insort(self._names, name)
        self._lines[name] = f"{_encode(name)}:{_format(value, _IN_TABLE)}"

    def remove(self, name: str) -> None:
        """Take an entry out if it is there."""
        if self._lines.pop(name, None) is not None:
            del self._names[bisect_left(self._names, name)]

    def text(self) -> Formatted:
        """All entries."""
        lines = f",\n{_IN_TABLE}".join(map(self._lines.__getitem__, self._names))
        return Formatted(f"{{\n{_IN_TABLE}{lines}\n\t}}")


def _format(value: Any, indent: str) -> str:  # noqa: ANN401 - JSON
    if isinstance(value, Formatted):
        return value
    if isinstance(value, Mapping):
        return _format_map(value, indent)
    if isinstance(value, list | tuple):
        return _format_list(value, indent)
    return _encode(value)


def _format_map(value: Mapping[Any, Any], indent: str) -> str:
    inner = indent + "\t"
    kept = {key: item for key, item in value.items() if item is not None}
    lines = [
        f"{key if isinstance(key, int) else _encode(key)}:{_format(kept[key], inner)}"
        for key in sorted(kept, key=lambda key: (isinstance(key, str), key))
    ]
    return f"{{\n{inner}" + f",\n{inner}".join(lines) + f"\n{indent}}}"


def _format_list(value: list[Any] | tuple[Any, ...], indent: str) -> str:
    if not any(isinstance(item, str | Mapping | list | tuple) for item in value):
        return json.dumps(value, separators=(",", ":"))
    inner = indent + "\t"
    return f"[\n{inner}" + f",\n{inner}".join(_format(v, inner) for v in value) + f"\n{indent}]"


def read_config(storage: Storage, name: str) -> Any:  # noqa: ANN401 - JSON
    """Value of `config/<name>`, else of its backup, else None (SF-103). Changes nothing."""
    for path in (name, name + BACKUP_SUFFIX):
        found = _read_whole(storage, f"config/{path}")
        if found is not None:
            return found
    return None


def what_is_wrong(storage: Storage, name: str) -> dict[str, str] | None:
    """What is `found` in place of a file that we or a RocketMQ wrote, and what is `used`; or None.

    A RocketMQ's has no checksum. A kill amid `write_config` leaves a file like that, too.
    """
    path, found = f"config/{name}", "no file"
    if storage.exists(path):
        holds = sum_holds(read_file(storage, path))
        if holds:  # most are so, and parsing takes long
            return None
        if _read_whole(storage, path) is not None:
            changed = {"found": "a file that was changed since it was written", "used": path}
            return None if holds is None else changed
        found = "no JSON"
    if _read_whole(storage, path + BACKUP_SUFFIX) is not None:
        return {"found": found, "used": path + BACKUP_SUFFIX}
    return None if found == "no file" else {"found": found, "used": "nothing"}


def is_of_another(storage: Storage, name: str) -> bool:
    """Whether the file that `read_config` reads has no checksum of ours: RocketMQ writes none."""
    for path in (name, name + BACKUP_SUFFIX):
        if _read_whole(storage, f"config/{path}") is not None:
            return sum_holds(read_file(storage, f"config/{path}")) is None
    return False


def _read_whole(storage: Storage, path: str) -> Any:  # noqa: ANN401 - JSON
    try:
        text = read_file(storage, path).decode()
    except (FileNotFoundError, UnicodeDecodeError) as error:
        require_ours(error)
        return None
    try:
        return without_sum(parse_config(text))
    except ValueError as error:  # half written, or empty
        require_ours(error)
        return None


def restore_config(storage: Storage, name: str, value: Any) -> None:  # noqa: ANN401 - JSON
    """Write a value that was read from the backup because the file itself was gone, or damaged.

    A full disk is no reason not to start: the backup is still there.
    """
    if value and _read_whole(storage, f"config/{name}") is None:
        try:
            write_config(storage, name, value)
        except OSError as error:
            require_ours(error)
            if not is_disk_full(error):
                raise


def write_config(
    storage: Storage,
    name: str,
    value: Any,  # noqa: ANN401 - JSON
    *,
    sound: bool = False,
) -> None:
    """Save a value as `config/<name>` in RocketMQ's steps (SF-103).

    Rename to the backup, sync the directory, write in place, sync file and directory. A file that
    does not parse is removed instead of renamed, so it never replaces a good backup. The last field
    is the text's checksum (shm.jsonsum). What finds no room on a full disk leaves the file as it
    was. `sound`: the caller has read or written what is there, so that it surely parses.
    """
    if not storage.exists("config"):
        storage.make_directory("config")
        storage.sync_directory("")
    _replace(storage, f"config/{name}", value, sound=sound)


@made_anew()
def _replace(storage: Storage, path: str, value: Any, *, sound: bool) -> None:  # noqa: ANN401
    renamed = False
    if storage.exists(path):
        renamed = sound or _parses(storage, path)
        if renamed:
            storage.rename(path, path + BACKUP_SUFFIX)
        else:
            storage.unlink(path)
        storage.sync_directory("config")
    try:
        _write_whole(storage, path, with_sum(format_config(without_sum(value))).encode())
    except OSError as error:
        require_ours(error)
        if is_disk_full(error):
            _take_back(storage, path, renamed)
        raise
    storage.sync_directory("config")


def _parses(storage: Storage, path: str) -> bool:
    """Whether a file is whole; one with its own checksum need not be parsed, which takes long."""
    return sum_holds(read_file(storage, path)) is True or _read_whole(storage, path) is not None


@made_anew()
def _write_whole(storage: Storage, path: str, data: bytes) -> None:
    file = storage.create(path)
    try:
        file.write_at(data, 0)
        file.sync()
    finally:
        file.close()


def _take_back(storage: Storage, path: str, renamed: bool) -> None:
    """A file of which only a part was written is worse than the one before, or none."""
    if storage.exists(path):
        storage.unlink(path)
    if renamed:
        storage.rename(path + BACKUP_SUFFIX, path)
    storage.sync_directory("config")
