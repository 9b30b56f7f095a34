"""Parked records -> their copies in the scheduler's up ring.

A copy is an APPEND entry with all that the parked record has, under its real topic and queue
(DT-14, DT-54), and with the parked record's position as its origin.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shm import machine
from shm.codes import EntryFlag, EntryKind, Stop
from shm.jit import BYTES, BYTES_RO, WORDS, i8, kernel
from shm.kernels import again, frames, ring, scan
from shm.kernels.again import number_of
from shm.kernels.bytesearch import find_byte
from shm.kernels.dispatch import find_topic
from shm.kernels.halfform import is_half_topic
from shm.layout import (
    APPEND_BORN_HOST,
    APPEND_BYTES,
    APPEND_PREPARED,
    APPEND_RECONSUME,
    APPEND_STORE_HOST,
    APPEND_SYS_FLAG,
    ENTRY_APP_FLAG,
    ENTRY_BATCH,
    ENTRY_BODY,
    ENTRY_BORN,
    ENTRY_BYTES,
    ENTRY_EXTRA,
    ENTRY_FLAGS,
    ENTRY_KIND,
    ENTRY_QUEUE,
    ENTRY_ROUTE,
    ENTRY_SEQ,
    HOST_BYTES_V4,
    HOST_BYTES_V6,
    RECORD_BORN_HOST,
    RECORD_BORN_MS,
    RECORD_FLAG,
    SYS_BORN_V6,
    SYS_STORE_V6,
    TOPIC_BYTES,
    TOPIC_QUEUE_COUNT,
    TOPICS_AT,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Words = NDArray[np.int64]
    #: The lane's arena and words; the board, its topics by name and the index's mask.
    Targets = tuple[Bytes, Words, Bytes, Words, int]

DONE = int(Stop.DONE)
ROLL = int(Stop.ROLL)
BACKPRESSURE = int(Stop.BACKPRESSURE)

# A parked record that is due: DUE_WORDS each.
DUE_POSITION, DUE_SIZE, DUE_STATE, DUE_AGAIN = range(4)
DUE_WORDS = 4

# DUE_AGAIN: a copy for the real topic, or for the timer topic, where it takes the record's place.
# A larger number says at which Unix ms a delay ends: TIMER_DELIVER_MS instead of TIMER_DELAY_MS.
DELIVER, SAME_TIME = 0, again.SAME_TIME

# What became of it.
WAITS, PUT, NO_TOPIC, DAMAGED, DROPPED, TOO_LARGE = range(6)

# Words of `put_copies`.
NEXT = 0  # row to go on with; moved on
COUNT = 1  # rows
BASE = 2  # log position of the view's first byte
STRETCH_FROM = 3  # one side wrote the log positions [from, end): shm.ranges
STRETCH_END = 4
OURS = 5  # 1: we did
PUTS = 6  # out: copies put
PASSED = 7  # out: rows that were not put for another reason than want of room
REAL_AT = 8  # scratch: where REAL_TOPIC's value is, its length, and REAL_QID's number
REAL_BYTES = 9
REAL_QUEUE = 10
TIMER_SLOT = 11  # topic slot of timers
TIME_AT = 12  # scratch of shm.kernels.again
ROW_AT = TIME_AT + again.TIME_WORDS  # scratch: a parsed record
FORM_WORDS = ROW_AT + scan.ROW_WORDS

APPEND = int(EntryKind.APPEND)
RECEIPT = int(EntryFlag.RECEIPT)
URGENT = int(EntryFlag.URGENT)
_CHECKS_OWN = scan.CHECK_PLACE | scan.CHECK_TRAILER
_CHECKS_FOREIGN = scan.CHECK_PLACE | scan.CHECK_BODY
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
def fill_copy(
    arena: Bytes, at: int, log: Bytes, row: Words, seq: int, topic: int, queue: int, origin: int
) -> int:
    """Write an APPEND entry of a parsed record at an arena offset; returns its length."""
    record = row[scan.AT]
    flags = row[scan.SYS_FLAG]
    born = HOST_BYTES_V6 if flags & SYS_BORN_V6 else HOST_BYTES_V4
    store = HOST_BYTES_V6 if flags & SYS_STORE_V6 else HOST_BYTES_V4
    body, extra = row[scan.BODY_SIZE], row[scan.PROPERTIES_SIZE]
    size = entry_bytes(row, 0)
    machine.store32(arena, at, size)
    machine.store16(arena, at + ENTRY_KIND, APPEND)
    machine.store16(arena, at + ENTRY_FLAGS, RECEIPT)
    machine.store64(arena, at + ENTRY_SEQ, seq)
    machine.store64(arena, at + ENTRY_BORN, machine.load_be64(log, record + RECORD_BORN_MS))
    machine.store32(arena, at + ENTRY_ROUTE, topic)
    machine.store32(arena, at + ENTRY_QUEUE, queue)
    machine.store32(arena, at + ENTRY_BODY, body)
    machine.store32(arena, at + ENTRY_EXTRA, extra)
    machine.store32(arena, at + ENTRY_APP_FLAG, machine.load_be32(log, record + RECORD_FLAG))
    machine.store32(arena, at + ENTRY_BATCH, 0)
    form = at + ENTRY_BYTES
    hosts = record + RECORD_BORN_HOST
    behind = hosts + born + 8 + store
    machine.store32(arena, form + APPEND_SYS_FLAG, flags)
    machine.store32(arena, form + APPEND_RECONSUME, machine.load_be32(log, behind))
    machine.store64(arena, form + APPEND_PREPARED, -1 - origin)
    machine.copy(arena, form + APPEND_BORN_HOST, log, hosts, born)
    machine.copy(arena, form + APPEND_STORE_HOST, log, hosts + born + 8, store)
    machine.copy(arena, form + APPEND_BYTES, log, row[scan.BODY_AT], body)
    machine.copy(arena, form + APPEND_BYTES + body, log, row[scan.PROPERTIES_AT], extra)
    return size


@kernel()
def entry_bytes(row: Words, growth: int) -> int:
    """Length of the entry that `fill_copy` writes, with so many bytes more of properties."""
    properties = row[scan.PROPERTIES_SIZE] + growth
    size: int = ENTRY_BYTES + APPEND_BYTES + row[scan.BODY_SIZE] + properties
    return (size + 7) & ~7


@kernel()
def _aim(log: Bytes, form: Words, row: Words, targets: Targets) -> int:
    """Topic slot of the copy, its queue into form[REAL_QUEUE]; or minus what becomes of it."""
    board, index, mask = targets[2], targets[3], targets[4]
    _find_real(log, form, row)
    # DT-15: nothing is delivered into the half topic.
    if form[REAL_BYTES] <= 0 or is_half_topic(log, form[REAL_AT], form[REAL_BYTES]):
        return -DROPPED
    row[scan.TOPIC_AT] = form[REAL_AT]
    row[scan.TOPIC_SIZE] = form[REAL_BYTES]
    topic = find_topic(log, row, board, index, mask)
    if topic < 0:
        return -NO_TOPIC
    count = machine.load32(board, TOPICS_AT + topic * TOPIC_BYTES + TOPIC_QUEUE_COUNT)
    if count <= 0:
        return -NO_TOPIC
    if form[REAL_QUEUE] < 0 or form[REAL_QUEUE] >= count:  # it has fewer queues than it had
        form[REAL_QUEUE] = max(form[REAL_QUEUE], 0) % count
    found: int = topic
    return found


@kernel()
def _find_target(log: Bytes, form: Words, row: Words, targets: Targets, due_ms: int) -> int:
    """`_aim` for a copy of a parsed record, of either kind; readies its scratch."""
    time = machine.shift(form, TIME_AT)
    time[again.DELAY_BYTES] = 0
    time[again.GROWTH] = 0
    if due_ms == DELIVER:
        topic: int = _aim(log, form, row, targets)
    else:
        topic = form[TIMER_SLOT]
        form[REAL_QUEUE] = 0
        again.find_growth(log, time, row, due_ms)
    size = entry_bytes(row, time[again.GROWTH])
    return -TOO_LARGE if topic >= 0 and 2 * size > targets[1][frames.UP_MASK] + 1 else topic


@kernel()
def _put_one(log: Bytes, limit: int, form: Words, rows: Words, targets: Targets, end: int) -> int:
    """Put the copy of one row behind `end`; the new end, or minus (1 + Stop)."""
    arena, lane = targets[0], targets[1]
    at = form[NEXT] * DUE_WORDS
    position = rows[at + DUE_POSITION]
    if position < form[STRETCH_FROM] or position >= form[STRETCH_END]:
        return -1 - ROLL
    if position < form[BASE] or position >= form[BASE] + limit:
        return -1 - ROLL
    row = machine.shift(form, ROW_AT)
    checks = _CHECKS_OWN if form[OURS] else _CHECKS_FOREIGN
    topic = -DAMAGED
    if scan.parse_record(log, position - form[BASE], limit, position, checks, row) == DONE:
        if row[scan.SIZE] == rows[at + DUE_SIZE]:
            topic = _find_target(log, form, row, targets, rows[at + DUE_AGAIN])
    if topic < 0:
        rows[at + DUE_STATE] = -topic
        form[PASSED] += 1
        return end
    time = machine.shift(form, TIME_AT)
    size = entry_bytes(row, time[again.GROWTH])
    start = ring.reserve(arena, lane, end, size)
    if start < 0:
        return -1 - BACKPRESSURE
    seq = lane[frames.SEQ] + form[PUTS] + 1
    place = lane[frames.UP] + (start & lane[frames.UP_MASK])
    fill_copy(arena, place, log, row, seq, topic, form[REAL_QUEUE], position)
    if time[again.DELAY_BYTES]:
        machine.store32(arena, place, size)
        machine.store32(arena, place + ENTRY_EXTRA, row[scan.PROPERTIES_SIZE] + time[again.GROWTH])
        properties = place + ENTRY_BYTES + APPEND_BYTES + row[scan.BODY_SIZE]
        again.write_time(arena, properties, log, time, row, rows[at + DUE_AGAIN])
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
