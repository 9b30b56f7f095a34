"""Parked records -> their copies in the scheduler's up ring.

A copy is an APPEND entry with all that the parked record has, under its real topic and queue
(DT-14, DT-54), and with the parked record's position as its origin.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gantrymq.shm import machine
from gantrymq.shm.codes import EntryFlag, Stop
from gantrymq.shm.jit import BYTES, BYTES_RO, WORDS, i8, kernel
from gantrymq.shm.kernels import again, frames, ring, scan
from gantrymq.shm.kernels.bytesearch import find_byte
from gantrymq.shm.kernels.copyentry import (
    DURABLE,
    RECEIPT,
    choose_queue,
    fill_entry,
    find_named,
    is_durable,
)
from gantrymq.shm.kernels.decimals import number_of
from gantrymq.shm.kernels.halfform import is_half_topic
from gantrymq.shm.kernels.stretch import COUNT, NEXT, STRETCH_WORDS, is_shown, parse_shown
from gantrymq.shm.layout import (
    APPEND_BYTES,
    ENTRY_BYTES,
    ENTRY_EXTRA,
    ENTRY_FLAGS,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gantrymq.shm.kernels.copyentry import Targets

    Bytes = NDArray[np.uint8]
    Words = NDArray[np.int64]

DONE = int(Stop.DONE)
ROLL = int(Stop.ROLL)
BACKPRESSURE = int(Stop.BACKPRESSURE)

# A parked record that is due: DUE_WORDS each. DUE_MS is for whoever counts how late it is.
DUE_POSITION, DUE_SIZE, DUE_STATE, DUE_AGAIN, DUE_MS = range(5)
DUE_WORDS = 5

# DUE_AGAIN: a copy for the real topic, or for the timer topic, where it takes the record's place.
# A larger number is when a delay ends, by the time of FILED_MS: TIMER_DELAY_MS gets what is left.
DELIVER, SAME_TIME = 0, 1

# What became of it.
WAITS, PUT, NO_TOPIC, DAMAGED, DROPPED, TOO_LARGE = range(6)

# Words of `put_copies`, behind those of shm.kernels.stretch.
PUTS = STRETCH_WORDS  # out: copies put
PASSED = PUTS + 1  # out: rows that were not put for another reason than want of room
REAL_AT = PUTS + 2  # scratch: where REAL_TOPIC's value is, its length, and REAL_QID's number
REAL_BYTES = PUTS + 3
REAL_QUEUE = PUTS + 4
TIMER_SLOT = PUTS + 5  # topic slot of timers
FILED_MS = PUTS + 6  # in: the time by which delays are filed, now
TIME_AT = PUTS + 7  # scratch of shm.kernels.again
ROW_AT = TIME_AT + again.TIME_WORDS  # scratch: a parsed record
FORM_WORDS = ROW_AT + scan.ROW_WORDS

URGENT = int(EntryFlag.URGENT)
_REAL = int.from_bytes(b"REAL_TOP", "little")
_REAL_QID = int.from_bytes(b"REAL_QID", "little")
_IC = int.from_bytes(b"IC\x01", "little")


@kernel()
def _find_real(memory: Bytes, form: Words, row: Words) -> None:
    """REAL_TOPIC and REAL_QID; the last of a key counts (SF-28)."""
    at = row[scan.PROPERTIES_AT]
    end = at + row[scan.PROPERTIES_SIZE]
    form[REAL_BYTES] = 0
    form[REAL_QUEUE] = -1
    while at < end:
        stop = find_byte(memory, at, end, 2)
        size = stop - at
        if size > 9:
            head = machine.load64(memory, at)
            if head == _REAL_QID and memory[at + 8] == 1:
                form[REAL_QUEUE] = number_of(memory, at + 9, size - 9)
            elif head == _REAL and size > 11 and machine.load16(memory, at + 8) == _IC & 0xFFFF:
                if memory[at + 10] == 1:
                    form[REAL_AT] = at + 11
                    form[REAL_BYTES] = size - 11
        at = stop + 1


@kernel()
def entry_bytes(row: Words, growth: int) -> int:
    """Length of the entry of a record's copy, with so many bytes more of properties."""
    properties = row[scan.PROPERTIES_SIZE] + growth
    size: int = ENTRY_BYTES + APPEND_BYTES + row[scan.BODY_SIZE] + properties
    return (size + 7) & ~7


@kernel()
def _aim(log: Bytes, form: Words, row: Words, targets: Targets) -> int:
    """Topic slot of the copy, its queue into form[REAL_QUEUE]; or minus what becomes of it."""
    _find_real(log, form, row)
    # DT-15: nothing is delivered into the half topic.
    if form[REAL_BYTES] <= 0 or is_half_topic(log, form[REAL_AT], form[REAL_BYTES]):
        return -DROPPED
    topic: int = find_named(log, form[REAL_AT], form[REAL_BYTES], row, targets)
    if topic < 0:
        return -NO_TOPIC
    form[REAL_QUEUE] = choose_queue(targets[2], topic, form[REAL_QUEUE])
    return topic if form[REAL_QUEUE] >= 0 else -NO_TOPIC


@kernel()
def _find_target(log: Bytes, form: Words, row: Words, targets: Targets, end_ms: int) -> int:
    """`_aim` for a copy of a parsed record, of either kind; readies its scratch."""
    time = machine.shift(form, TIME_AT)
    time[again.DELAY_BYTES] = 0
    time[again.GROWTH] = 0
    if end_ms == DELIVER:
        topic: int = _aim(log, form, row, targets)
    else:
        topic = form[TIMER_SLOT]
        form[REAL_QUEUE] = 0
        if end_ms != SAME_TIME:
            again.find_growth(log, time, row, end_ms - form[FILED_MS])
    size = entry_bytes(row, time[again.GROWTH])
    return -TOO_LARGE if topic >= 0 and 2 * size > targets[1][frames.UP_MASK] + 1 else topic


@kernel()
def _put_one(log: Bytes, limit: int, form: Words, rows: Words, targets: Targets, end: int) -> int:
    """Put the copy of one row behind `end`; the new end, or minus (1 + Stop)."""
    arena, lane = targets[0], targets[1]
    at = form[NEXT] * DUE_WORDS
    position = rows[at + DUE_POSITION]
    if not is_shown(form, limit, position):
        return -1 - ROLL
    row = machine.shift(form, ROW_AT)
    topic = -DAMAGED
    if parse_shown(log, limit, form, position, row) == DONE:
        if row[scan.SIZE] == rows[at + DUE_SIZE]:
            topic = _find_target(log, form, row, targets, rows[at + DUE_AGAIN])
    if topic < 0:
        rows[at + DUE_STATE] = -topic
        form[PASSED] += 1
        return end
    time = machine.shift(form, TIME_AT)
    size = entry_bytes(row, time[again.GROWTH])
    # Recalls find room whatever is due.
    start = ring.reserve_leaving(arena, lane, end, size, (lane[frames.UP_MASK] + 1) >> 3)
    if start < 0:
        return -1 - BACKPRESSURE
    seq = lane[frames.SEQ] + form[PUTS] + 1
    place = lane[frames.UP] + (start & lane[frames.UP_MASK])
    route = (seq, topic, form[REAL_QUEUE])
    behind = fill_entry(arena, place, log, row, route, (row[scan.SYS_FLAG], -1 - position))
    if rows[at + DUE_AGAIN] == DELIVER and is_durable(targets[2], topic):
        # It is late for as long as the flusher waits.
        machine.store16(arena, place + ENTRY_FLAGS, RECEIPT | DURABLE)
    machine.store32(arena, place, size)
    machine.store32(arena, place + ENTRY_EXTRA, row[scan.PROPERTIES_SIZE] + time[again.GROWTH])
    if time[again.DELAY_BYTES]:
        again.write_time(arena, behind, log, time, row)
    else:
        extra = row[scan.PROPERTIES_SIZE]
        machine.copy(arena, behind, log, row[scan.PROPERTIES_AT], extra)
    rows[at + DUE_STATE] = PUT
    form[PUTS] += 1
    return start + size


@kernel()
def _put_copies(log: Bytes, limit: int, form: Words, rows: Words, targets: Targets) -> int:
    arena, lane = targets[0], targets[1]
    form[PUTS] = 0
    form[PASSED] = 0
    end = lane[frames.UP_CURSOR]
    stop = DONE
    while form[NEXT] < form[COUNT]:
        found = _put_one(log, limit, form, rows, targets, end)
        if found < 0:
            stop = -1 - found
            break
        end = found
        form[NEXT] += 1
    lane[frames.RING] = 0
    if form[PUTS]:
        ring.publish_entries(arena, lane, end, lane[frames.SEQ] + form[PUTS], URGENT)
    return stop


@kernel(i8, BYTES_RO, WORDS, WORDS, BYTES, WORDS, BYTES, WORDS)
def put_copies(
    log: Bytes, form: Words, rows: Words, board: Bytes, index: Words, arena: Bytes, lane: Words
) -> int:
    """Put copies of due records, from row form[NEXT] on, and publish them by one store.

    `rows` get their DUE_STATE; `index` is dispatch's, of all topics. Returns DONE, BACKPRESSURE
    (the ring is full) or ROLL (the next record is in another segment or stretch).
    """
    raw = machine.raw
    targets = (raw(arena), raw(lane), raw(board), raw(index), index.size - 1)
    return _put_copies(raw(log), log.size, raw(form), raw(rows), targets)
