"""`gantry/schedule.json`: how far delays and timers have come, as of a log position.

Derived: without it all parked records are looked at again, and the log says which have their copy.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from gantrymq.shm.configfile import by_number, map_in, read_config, write_config
from gantrymq.shm.notefile import SCAN_BYTES, read_content, write_content
from gantrymq.shm.valueranges import (
    id_of,
    is_offset,
    is_small,
    is_store_ms,
    is_time_ms,
    store_ms_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gantrymq.shm.storage import Storage

FILE: Final = "gantry/schedule.json"
OFFSETS_FILE: Final = "delayOffset.json"
VERSION: Final = 1
_TIMES: Final = (
    "wall_ms",
    "timers_ms",
    "delays_ms",
    "shift_ms",
    "filed_ms",
    "ahead_ms",
)


@dataclass(frozen=True, slots=True)
class Note:
    """What was answered, and was durable, when it was written.

    All that it does not count has its copy at or behind `scanned`, if it has one.
    """

    scanned: int = 0
    levels: dict[int, int] = field(default_factory=dict)  # level -> next queue offset
    absent: list[list[int]] = field(default_factory=list)  # passed over: (position, size)
    boot_id: str = ""  # of the machine, when this was counted
    base_ns: int = 0  # workers.scheduler.timeline: from CLOCK_BOOTTIME to its even wall
    wall_ms: int = 0  # largest wall clock seen

    made: str = ""  # which buckets hold the timers that wait
    buckets: dict[str, int] = field(default_factory=dict)  # and how many bytes each of them had
    timers_ms: int = 0  # all points in time up to here, of units below `timers_next`, are done
    delays_ms: int = 0  # likewise delays, by the even wall
    timers_next: int = 0
    timers_position: int = -1  # of the last of these units' records
    timers_floor: int = 0  # no timer below this log position counts: ADR 0018
    clock_boot_id: str = ""  # of the machine, when `base_ns` held: known before anything is counted
    frozen: list[int] = field(default_factory=list)  # storeTimestamps that have stood still
    shift_ms: int = 0  # workers.scheduler.timeline: from its even wall to the buckets' time
    filed_ms: int = 0  # the buckets' time, when this was written
    ahead_ms: int = 0  # the machine's wall less the buckets' time then
    # Of the wall clock in the boot of `clock_boot_id`: workers.scheduler.timeline.Steps.
    paces: list[list[int]] = field(default_factory=list)
    unsure: list[list[int]] = field(default_factory=list)
    stamped_ms: int = 0

    @property
    def counted_ms(self) -> int:
        """Buckets up to here are done with."""
        return min(self.timers_ms, self.delays_ms)

    def says_more_than(self, other: Note) -> bool:
        """Whether it is worth writing: progress, or much less to read at a start."""
        if self.scanned - other.scanned >= SCAN_BYTES:
            return True
        ours, others = (
            (note.levels, note.absent, note.made, note.timers_next, note.timers_floor)
            for note in (self, other)
        )
        return ours != others


def read_note(storage: Storage) -> Note | None:
    """The note; None if it is gone or damaged."""
    content = read_content(storage, FILE, VERSION)
    if content is None or not all(is_time_ms(content.get(name, 0)) for name in _TIMES):
        return None
    try:
        stamped_ms = store_ms_of(content.get("stamped_ms", 0))
        return Note(
            int(content["scanned"]),
            {id_of(level): int(offset) for level, offset in content["levels"].items()},
            [[int(position), int(size)] for position, size in content["absent"]],
            str(content["boot_id"]),
            int(content["base_ns"]),
            int(content["wall_ms"]),
            str(content["made"]),
            _sizes(content.get("buckets", {})),
            int(content["timers_ms"]),
            int(content["delays_ms"]),
            int(content["timers_next"]),
            int(content["timers_position"]),
            int(content.get("timers_floor", 0)),
            str(content.get("clock_boot_id", content["boot_id"])),
            [int(stamp) for stamp in content.get("frozen", [])],
            int(content.get("shift_ms", 0)),
            int(content.get("filed_ms", 0)),
            int(content.get("ahead_ms", 0)),
            _rows_of_times(content, "paces", is_time_ms),
            _rows_of_times(content, "unsure", is_store_ms),
            stamped_ms,
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _sizes(content: Mapping[str, Any]) -> dict[str, int]:
    """Bytes of files. Raises ValueError."""
    if not all(map(is_offset, content.values())):
        raise ValueError("buckets")
    return dict(content)


def _rows_of_times(
    content: Mapping[str, Any], name: str, is_possible: Callable[[object], bool]
) -> list[list[int]]:
    """Three times each. Raises ValueError."""
    rows = [list(row) for row in content.get(name, [])]
    if not all(len(row) == 3 and all(map(is_possible, row)) for row in rows):
        raise ValueError(name)
    return rows


def write_note(storage: Storage, note: Note) -> None:
    """Replace the note, durably. Raises OSError."""
    write_content(storage, FILE, VERSION, asdict(note))


def read_level_offsets(storage: Storage) -> dict[int, int]:
    """Level -> next queue offset of `config/delayOffset.json`, ours or RocketMQ's (DT-17)."""
    table = by_number(map_in(read_config(storage, OFFSETS_FILE), "offsetTable"))
    return {n: o for n, o in table.items() if is_small(n) and is_offset(o)}


def write_level_offsets(storage: Storage, offsets: Mapping[int, int], now_ms: int) -> None:
    """Save `config/delayOffset.json` as RocketMQ does. Raises OSError."""
    version = {"counter": 0, "stateVersion": 0, "timestamp": now_ms}
    write_config(
        storage,
        OFFSETS_FILE,
        {"dataVersion": version, "offsetTable": dict(sorted(offsets.items()))},
    )
