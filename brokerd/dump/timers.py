"""Dump of the timer's files: `config/timercheck`, `timerlog/`, `timerwheel`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from gantrymq.shm import layout
from gantrymq.shm.segment import columns, open_files
from gantrymq.shm.storage import map_still, read_file

if TYPE_CHECKING:
    from gantrymq.shm.storage import Storage

Line = dict[str, Any]


def timer_lines(storage: Storage) -> Iterator[Line]:
    """Lines of kinds timerCheckpoint, timerLog, timerLogEnd and timerSlot."""
    if storage.exists("config/timercheck"):
        yield _checkpoint_line(read_file(storage, "config/timercheck"))
    for base, view in open_files(storage, "timerlog"):
        yield from _log_lines(base, view)
    if storage.exists("timerwheel"):
        yield from _slot_lines(storage)


def _checkpoint_line(data: bytes) -> Line:
    fields = layout.TIMER_CHECKPOINT.unpack(data.ljust(layout.TIMER_CHECKPOINT.size, b"\0"))
    return {
        "kind": "timerCheckpoint",
        "lastReadTimeMs": fields["last_read_time_ms"],
        "lastTimerLogFlushPos": fields["last_timer_log_flush_pos"],
        "lastTimerQueueOffset": fields["last_timer_queue_offset"],
        "masterTimerQueueOffset": fields["master_timer_queue_offset"],
        "stateVersion": fields["state_version"],
        "timestamp": fields["timestamp"],
        "counter": fields["counter"],
    }


def _log_lines(base: int, view: np.ndarray[Any, np.dtype[np.uint8]]) -> Iterator[Line]:
    """Units of one file up to its end mark or to bytes that are no unit (DT-42)."""
    at = 0
    while at + layout.TIMER_LOG_UNIT.size <= len(view):
        unit = layout.TIMER_LOG_UNIT.unpack(view.data, at)
        if unit["size"] != layout.TIMER_LOG_UNIT.size:
            break
        yield {
            "kind": "timerLog",
            "position": base + at,
            "size": unit["size"],
            "prev": unit["prev"],
            "magic": unit["magic"],
            "writeTime": unit["write_time"],
            "delay": unit["delay"],
            "physicalOffset": unit["physical_offset"],
            "recordSize": unit["record_size"],
            "topicHash": unit["topic_hash"],
            "reserved": unit["reserved"],
        }
        at += layout.TIMER_LOG_UNIT.size
    if at + layout.TIMER_LOG_END.size <= len(view):
        mark = layout.TIMER_LOG_END.unpack(view.data, at)
        if mark["magic"] == layout.FILLER_MAGIC:
            end = {"size": mark["size"], "zero": mark["zero"], "magic": f"{mark['magic']:08x}"}
            yield {"kind": "timerLogEnd", "position": base + at, **end}


def _slot_lines(storage: Storage) -> Iterator[Line]:
    """Slots of the wheel that are not all zero; holes of the sparse file are not looked into."""
    view = map_still(storage, "timerwheel")
    slots = columns(view, layout.TIMER_SLOT)
    words = view[: len(slots) * layout.TIMER_SLOT.size].view(np.uint64)
    used = np.unique(np.flatnonzero(words) // (layout.TIMER_SLOT.size // words.itemsize))
    for number in used.tolist():
        slot_time, first, last, count, magic = slots[number].item()
        yield {
            "kind": "timerSlot",
            "slot": number,
            "time": slot_time,
            "firstPos": first,
            "lastPos": last,
            "num": count,
            "magic": magic,
        }
