"""`timerlog/` and `config/timercheck`, written anew for a RocketMQ that goes on (HO-10 to HO-18).

Units in the order of parking, each in the slot of its time; an overdue timer goes in the slot of R,
the time of the hand-over, and comes out at once. Where the newest record of the timer queue is no
pending one, a last unit in a slot that was read already says how far the queue has been read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gantrymq.shm import layout
from gantrymq.shm.properties import java_hash, timer_out_ms

if TYPE_CHECKING:
    from gantrymq.shm.storage import Storage

DIRECTORY: Final = "timerlog"
CHECKPOINT_FILE: Final = "config/timercheck"
CHECKPOINT_BYTES: Final = 4096
FILE_BYTES: Final = 100 << 20  # RocketMQ's mappedFileSizeTimerLog
WINDOW_SLOTS: Final = 172_800  # RocketMQ's timerRollWindowSlot
PRECISION_MS: Final = 1000
#: RocketMQ looks no further back than seven days less a minute, in slots of a second (HO-18).
SLOTS_READ: Final = 604_740
_UNIT: Final = layout.TIMER_LOG_UNIT.size
_END: Final = layout.TIMER_LOG_END.size
_NORMAL, _ROLLED = 1, 2
_UNITS_PER_WRITE: Final = 1 << 14


@dataclass(frozen=True, slots=True)
class Timer:
    """A parked timer: `out_ms` is TIMER_OUT_MS, `due_ms` the exact time, if anything tells it."""

    position: int
    size: int
    out_ms: int
    due_ms: int
    topic: str


@dataclass(frozen=True, slots=True)
class TimerForm:
    """What the RocketMQ's settings make of the files. `now_ms` is floored to the precision: R."""

    now_ms: int
    precision_ms: int = PRECISION_MS
    file_bytes: int = FILE_BYTES
    window_slots: int = WINDOW_SLOTS

    @property
    def read_ms(self) -> int:
        """R: where RocketMQ goes on reading slots."""
        return self.now_ms // self.precision_ms * self.precision_ms

    @property
    def window_ms(self) -> int:
        """What lies further ahead is rolled."""
        return self.window_slots * self.precision_ms

    @property
    def start_before_ms(self) -> int:
        """When the RocketMQ must have been started."""
        return self.read_ms + SLOTS_READ * self.precision_ms


def timer_of(properties: Mapping[str, str], record: tuple[int, int, int]) -> Timer:
    """A timer by its properties and the record's (position, size, storeTimestamp)."""
    position, size, store_ms = record
    out_ms = _number(properties, "TIMER_OUT_MS")
    deliver, delay = _number(properties, "TIMER_DELIVER_MS"), _number(properties, "TIMER_DELAY_MS")
    seconds = _number(properties, "TIMER_DELAY_SEC")
    if seconds:  # in RocketMQ's order (DT-30)
        due_ms = store_ms + 1000 * seconds
    elif delay:
        due_ms = store_ms + delay
    else:
        due_ms = deliver
    return Timer(position, size, out_ms, due_ms, properties.get("REAL_TOPIC", ""))


def slot_of(timer: Timer, form: TimerForm) -> tuple[int, bool]:
    """Time of the slot, and whether it is a stop on the way (HO-13, DT-51)."""
    precision, window = form.precision_ms, form.window_ms
    slot = timer.out_ms // precision * precision
    if timer.due_ms > slot + precision:  # parked with a coarser precision: it must not come early
        slot = timer_out_ms(timer.due_ms, precision)
    ahead = slot - form.read_ms
    if ahead < window:
        return max(slot, form.read_ms), False
    half = (ahead - window) * 3 < window
    return form.read_ms + (window // 2 if half else window), True


def units(
    timers: Iterable[Timer], closing: tuple[int, int] | None, form: TimerForm
) -> Iterator[bytes]:
    """The units; `closing` is (position, size) of a record that only says how far the queue is."""
    slots: dict[int, int] = {}
    number = 0
    for timer in timers:
        slot, rolled = slot_of(timer, form)
        yield _unit(slots.get(slot, -1), _NORMAL | (_ROLLED if rolled else 0), form,
                    (slot, timer.position, timer.size, java_hash(timer.topic)))  # fmt: skip
        slots[slot] = place_of(number, form.file_bytes)
        number += 1
    if number and closing:
        position, size = closing
        yield _unit(-1, _NORMAL, form, (form.read_ms - form.precision_ms, position, size, 0))


def write_timer_log(storage: Storage, stream: Iterator[bytes], form: TimerForm) -> int:
    """Replace all of `timerlog/`; how many units. Raises OSError."""
    for name in storage.list(DIRECTORY):
        storage.unlink(f"{DIRECTORY}/{name}")
    total = 0
    pending = next(stream, None)
    while pending is not None:
        base = total // units_per_file(form.file_bytes) * form.file_bytes
        written, pending = _write_file(storage, base, pending, stream, form.file_bytes)
        total += written
    if storage.exists(DIRECTORY):
        storage.sync_directory(DIRECTORY)
        storage.sync_directory("")
    return total


def write_timer_checkpoint(storage: Storage, queue_offset: int, form: TimerForm) -> None:
    """`config/timercheck`: read up to R, the queue up to `queue_offset` (HO-11). Raises OSError."""
    data = layout.TIMER_CHECKPOINT.pack(
        last_read_time_ms=form.read_ms,
        last_timer_queue_offset=queue_offset,
        master_timer_queue_offset=queue_offset,
    )
    if storage.exists(CHECKPOINT_FILE):
        storage.unlink(CHECKPOINT_FILE)
    file = storage.create(CHECKPOINT_FILE)
    try:
        file.write_at(data.ljust(CHECKPOINT_BYTES, b"\0"), 0)
        file.sync()
    finally:
        file.close()
    storage.sync_directory("config")


def _write_file(
    storage: Storage, base: int, first: bytes, stream: Iterator[bytes], file_bytes: int
) -> tuple[int, bytes | None]:
    """Fill one file; how many units it took, and the one that found no room."""
    file = storage.create(f"{DIRECTORY}/{base:020d}")
    try:
        file.truncate(file_bytes)
        at, unit = 0, bytearray(first)
        buffer, following = unit, next(stream, None)
        done = 1
        while following is not None and done < units_per_file(file_bytes):
            if len(buffer) >= _UNITS_PER_WRITE * _UNIT:
                file.write_at(bytes(buffer), at)
                at += len(buffer)
                buffer = bytearray()
            buffer += following
            done += 1
            following = next(stream, None)
        if following is not None:  # DT-42
            left = file_bytes - done * _UNIT
            buffer += layout.TIMER_LOG_END.pack(size=left, magic=layout.FILLER_MAGIC)
        file.write_at(bytes(buffer), at)
        file.sync()
    finally:
        file.close()
    return done, following


def _unit(prev: int, magic: int, form: TimerForm, what: tuple[int, int, int, int]) -> bytes:
    slot, position, size, topic_hash = what
    return layout.TIMER_LOG_UNIT.pack(
        size=_UNIT,
        prev=prev,
        magic=magic,
        write_time=form.read_ms,
        delay=slot - form.read_ms,
        physical_offset=position,
        record_size=size,
        topic_hash=topic_hash,
    )


def units_per_file(file_bytes: int) -> int:
    """Units that a file holds with room for its end mark (DT-42)."""
    return (file_bytes - _UNIT - _END) // _UNIT + 1


def place_of(number: int, file_bytes: int) -> int:
    """Position of the unit of a number."""
    file, at = divmod(number, units_per_file(file_bytes))
    return file * file_bytes + at * _UNIT


def _number(properties: Mapping[str, str], name: str) -> int:
    text = properties.get(name, "")
    return int(text) if text.removeprefix("-").isdecimal() and text.isascii() else 0
