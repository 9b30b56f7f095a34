"""Copies what is sound of a store: ranges of segments, config/, and the truth in gantry/."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

from gantrymq.brokerd import storefiles
from gantrymq.brokerd.checkpoint import CheckpointFile, read_checkpoint
from gantrymq.brokerd.epoch import STORE_FILE, VERSION
from gantrymq.brokerd.queuestarts import FILE as STARTS
from gantrymq.brokerd.verify.config import read_object
from gantrymq.brokerd.verify.report import Report
from gantrymq.shm.configfile import BACKUP_SUFFIX, parse_config, write_config
from gantrymq.shm.errors import Corrupt
from gantrymq.shm.jsonsum import with_sum
from gantrymq.shm.lognames import segment_name
from gantrymq.shm.ranges import EVERYTHING, Ranges, read_ranges, write_ranges
from gantrymq.shm.storage import read_file, replace_file
from gantrymq.shm.topicfiles import DELETED
from gantrymq.workers.groups import deadletternote
from gantrymq.workers.groups.ledger import Ledger
from gantrymq.workers.groups.ledgerentries import NAME as LEDGER
from gantrymq.workers.groups.ledgerentries import Names
from gantrymq.workers.groups.offsetfile import Exports, import_offsets

if TYPE_CHECKING:
    from gantrymq.brokerd.salvage import Salvaged
    from gantrymq.shm.storage import Storage

_BLOCK: Final = 1 << 20
#: Files of RocketMQ's timer: they name records by positions, which are kept (SF-114).
_TIMER: Final = ("timerlog", "timerwheel")
#: What a store is like without a file of its truth.
_WITHOUT: Final = {
    DELETED: "its topics are there again",
    deadletternote.FILE: "what was purged is shown again",
    STARTS: "queues whose messages have all expired begin at 0 again",
}


def copy_range(source: Storage, target: Storage, base: int, start: int, end: int) -> None:
    """Copy log positions [start, end) of a segment; both files are there."""
    with (
        closing(source.open(segment_name(base))) as old,
        closing(target.open(segment_name(base), write=True)) as new,
    ):
        for begin, stop in old.extents(start - base, end - base):
            for at in range(begin, stop, _BLOCK):
                block = bytearray(min(_BLOCK, stop - at))
                count = old.read_into(block, at)
                new.write_at(memoryview(block)[:count], at)


def copy_config(source: Storage, target: Storage, done: Salvaged) -> None:
    """Copy `config/`; of a damaged file its backup, or what can be read of it."""
    for name in source.list("config"):
        path = f"config/{name}"
        if source.is_directory(path) or name.endswith(BACKUP_SUFFIX):
            continue
        if not name.endswith(".json") or _is_sound(source, path):
            _copy_file(source, target, path)
            continue
        content = _readable(source, path + BACKUP_SUFFIX) or _readable(source, path)
        took = "its backup" if _is_sound(source, path + BACKUP_SUFFIX) else "what can be read"
        done.files[path] = f"damaged: {took} was taken" if content else "damaged: left out"
        if content:
            write_config(target, name, content)
    for name in source.list("config"):  # files of which only the backup is left
        plain = name.removesuffix(BACKUP_SUFFIX)
        content = _readable(source, f"config/{name}") if plain != name else None
        if content and not source.exists(f"config/{plain}"):
            write_config(target, plain, content)


def _is_sound(source: Storage, path: str) -> bool:
    return source.exists(path) and read_object(source, path, Report("")) is not None


def _readable(source: Storage, path: str) -> Any:  # noqa: ANN401 - JSON
    if not source.exists(path):
        return None
    try:
        return parse_config(read_file(source, path).decode())
    except ValueError:
        return None


def copy_timer(source: Storage, target: Storage) -> None:
    """Copy the files of RocketMQ's timer, if there are any."""
    for name in _TIMER:
        for inner in source.list(name) if source.is_directory(name) else ():
            _copy_file(source, target, f"{name}/{inner}")
        if source.exists(name) and not source.is_directory(name):
            _copy_file(source, target, name)


def _copy_file(source: Storage, target: Storage, path: str) -> None:
    with closing(source.open(path)) as old, closing(target.create(path)) as new:
        size = old.size()
        new.truncate(size)
        for begin, stop in old.extents(0, size):
            for at in range(begin, stop, _BLOCK):
                block = bytearray(min(_BLOCK, stop - at))
                old.read_into(block, at)
                new.write_at(block, at)
        new.sync()


def write_own_files(
    source: Storage, target: Storage, kept: Mapping[str, int | str], end: tuple[int, int],
    done: Salvaged,
) -> None:  # fmt: skip
    """The truth of `gantry/` for a log that ends at position `end[0]`, last stored at `end[1]` ms.

    `kept`: sizes and delay levels, as `gantry/store.json` has them.
    """
    content = {"version": VERSION, "starts": 1, **kept}
    replace_file(target, STORE_FILE, with_sum(json.dumps(content)).encode())
    write_ranges(target, _ranges(source, done).ended(end[0]))
    for path in map(storefiles.path_of, storefiles.TRUTH):
        if path == LEDGER or not source.exists(path):
            continue
        if _holds(source, path):
            _copy_file(source, target, path)
        else:
            done.files[path] = f"damaged: left out; {_WITHOUT[path]}"
    epoch = write_ledger(source, target, done)
    file = CheckpointFile(target, bytes(16), epoch)
    with closing(file):
        file.write(end[0], end[1], end[0], clean=True)


def _holds(source: Storage, path: str) -> bool:
    if path != deadletternote.FILE:
        return _is_sound(source, path)
    try:
        deadletternote.read_note(source)
    except Corrupt:
        return False
    return True


def _ranges(source: Storage, done: Salvaged) -> Ranges:
    try:
        return read_ranges(source) or EVERYTHING
    except Corrupt as error:
        done.files[str(error.fields.get("path"))] = "damaged: the whole log counts as ours"
        return EVERYTHING


def _sound_bytes(target: Storage, data: bytes) -> int:
    """How much of a ledger makes sense, up to a torn entry or one that none can be."""
    try:
        return Ledger(target).replay(data, Names())
    except Corrupt as error:
        return int(str(error.fields["position"]))


def write_ledger(source: Storage, target: Storage, done: Salvaged) -> int:
    """The ledger as far as it is sound, with the offsets of consumerOffset.json; its epoch."""
    data = read_file(source, LEDGER) if source.exists(LEDGER) else b""
    kept = _sound_bytes(target, data)
    replace_file(target, LEDGER, data[:kept])
    ledger = Ledger(target)
    ledger.load()
    try:
        if kept < len(data):
            done.files[LEDGER] = f"damaged at byte {kept}: {len(data) - kept} bytes left out"
        import_offsets(ledger)
        ledger.flush()
        Exports(ledger).write()
        checkpoint = read_checkpoint(source)
        epoch = checkpoint.epoch if checkpoint else 1
        ledger.begin_epoch(epoch)
        ledger.end()
    finally:
        ledger.close()
    return epoch
