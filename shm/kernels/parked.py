"""Parked records -> their copies in the scheduler's up ring; origins of what the log holds.

A copy is an APPEND entry with all that the parked record has, under its real topic and queue
(DT-14, DT-54), and with the parked record's position as its origin.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shm import machine
from shm.codes import EntryFlag, EntryKind, Stop
from shm.jit import BYTES, BYTES_RO, WORDS, i8, kernel
from shm.kernels import frames, ring, scan
from shm.kernels.dispatch import find_topic
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
from shm.limits import PROPERTIES_BYTES_MAX, TRAILER_BYTES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Words = NDArray[np.int64]
    #: The lane's arena and words; the board, its topics by name and the index's mask.
    Targets = tuple[Bytes, Words, Bytes, Words, int]

DONE = int(Stop.DONE)
LIMIT = int(Stop.LIMIT)
ROLL = int(Stop.ROLL)
BACKPRESSURE = int(Stop.BACKPRESSURE)

# Words of `find_origins`.
FIND_AT = 0  # offset in the view; moved on
FIND_BASE = 1  # log position of the view's first byte
FIND_END_AT = 2  # offset to stop at
FIND_MOST = 3  # records of one call
FIND_COUNT = 4  # out: origins
FIND_WORDS = 5 + scan.ROW_WORDS

# A parked record that is due: DUE_WORDS each.
DUE_POSITION, DUE_SIZE, DUE_STATE, DUE_AGAIN = range(4)
DUE_WORDS = 4

# DUE_AGAIN: a copy for the real topic, or for the timer topic, where it takes the record's place.
# A larger number says at which Unix ms a delay ends: TIMER_DELIVER_MS instead of TIMER_DELAY_MS.
DELIVER, SAME_TIME = range(2)

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
DELAY_AT = 12  # scratch: where the property TIMER_DELAY_MS is, and its length
DELAY_BYTES = 13
ROW_AT = 14  # scratch: a parsed record
FORM_WORDS = ROW_AT + scan.ROW_WORDS

APPEND = int(EntryKind.APPEND)
RECEIPT = int(EntryFlag.RECEIPT)
URGENT = int(EntryFlag.URGENT)
_CHECKS_OWN = scan.CHECK_PLACE | scan.CHECK_TRAILER
_CHECKS_FOREIGN = scan.CHECK_PLACE | scan.CHECK_BODY
_REAL = int.from_bytes(b"REAL_TOP", "little")
_REAL_QID = int.from_bytes(b"REAL_QID", "little")
_IC = int.from_bytes(b"IC\x01", "little")
_DELAY_MS = np.frombuffer(b"TIMER_DELAY_MS\x01", np.uint8)
_DELIVER_MS = np.frombuffer(b"TIMER_DELIVER_MS\x01", np.uint8)
#: DT-15: nothing is delivered there.
_HALF = np.frombuffer(b"RMQ_SYS_TRANS_HALF_TOPIC", np.uint8)


@kernel(i8, BYTES_RO, WORDS, WORDS)
def find_origins(memory: Bytes, form: Words, out: Words) -> int:
    """Positions that records of a segment's view come from, into `out` (HO-92: -1 - position).

    Returns DONE (FIND_END_AT reached), LIMIT (call again), or why `parse_record` stopped.
    """
    raw, words = machine.raw(memory), machine.raw(form)
    row = machine.shift(words, FIND_WORDS - scan.ROW_WORDS)
    return _find_origins(raw, words, machine.raw(out), row, out.size)


@kernel()
def _find_origins(memory: Bytes, form: Words, out: Words, row: Words, room: int) -> int:
    form[FIND_COUNT] = 0
    for _ in range(form[FIND_MOST]):
        at = form[FIND_AT]
        if at >= form[FIND_END_AT]:
            return DONE
        if form[FIND_COUNT] == room:
            return LIMIT
        position = form[FIND_BASE] + at
        stop = scan.parse_record(memory, at, form[FIND_END_AT], position, scan.CHECK_PLACE, row)
        if stop != DONE:
            return stop
        if row[scan.PREPARED] < 0:
            out[form[FIND_COUNT]] = -1 - row[scan.PREPARED]
            form[FIND_COUNT] += 1
        form[FIND_AT] = at + row[scan.SIZE]
    return LIMIT


@kernel()
def find_end(memory: Bytes, at: int, end: int) -> int:
    """Where a property that starts at `at` ends: its separator, or `end`."""
    while at < end and memory[at] != 2:
        at += 1
    return at


@kernel()
def number_of(memory: Bytes, at: int, count: int) -> int:
    """A decimal number of up to 18 digits, or -1."""
    if count <= 0 or count > 18:
        return -1
    value = 0
    for place in range(at, at + count):
        digit = machine.load8(memory, place) - 48
        if digit < 0 or digit > 9:
            return -1
        value = value * 10 + digit
    return value


@kernel()
def _find_real(memory: Bytes, form: Words, row: Words) -> None:
    """REAL_TOPIC and REAL_QID; the last of a key counts (SF-28)."""
    at = row[scan.PROPERTIES_AT]
    end = at + row[scan.PROPERTIES_SIZE]
    form[REAL_BYTES] = 0
    form[REAL_QUEUE] = -1
    while at < end:
        stop = find_end(memory, at, end)
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
def _starts_with(memory: Bytes, at: int, end: int, name: Bytes) -> int:
    if end - at < len(name):
        return 0
    for place in range(len(name)):
        if memory[at + place] != name[place]:
            return 0
    return 1


@kernel()
def _find_delay(memory: Bytes, form: Words, row: Words) -> None:
    """The property TIMER_DELAY_MS with its end mark; no bytes without it."""
    at = row[scan.PROPERTIES_AT]
    end = at + row[scan.PROPERTIES_SIZE]
    form[DELAY_BYTES] = 0
    while at < end:
        stop = find_end(memory, at, end)
        if stop < end and _starts_with(memory, at, stop, _DELAY_MS):
            form[DELAY_AT] = at
            form[DELAY_BYTES] = stop + 1 - at
        at = stop + 1


@kernel()
def _digits_of(number: int) -> int:
    count = 1
    while number >= 10:
        number //= 10
        count += 1
    return count


@kernel()
def _growth(log: Bytes, form: Words, row: Words, again: int) -> int:
    """By how many bytes the properties grow when the delay becomes a time; 0: it stays one."""
    form[DELAY_BYTES] = 0
    if again <= SAME_TIME:
        return 0
    _find_delay(log, form, row)
    if form[DELAY_BYTES] == 0:
        return 0
    growth: int = len(_DELIVER_MS) + _digits_of(again) + 1 - form[DELAY_BYTES]
    if growth < 0 or row[scan.PROPERTIES_SIZE] + growth + TRAILER_BYTES > PROPERTIES_BYTES_MAX:
        form[DELAY_BYTES] = 0
        return 0
    return growth


@kernel()
def _write_time(arena: Bytes, at: int, log: Bytes, form: Words, row: Words, again: int) -> None:
    """The properties at `at`, TIMER_DELIVER_MS in the place of the delay."""
    start = row[scan.PROPERTIES_AT]
    before = form[DELAY_AT] - start
    machine.copy(arena, at, log, start, before)
    at += before
    for place in range(len(_DELIVER_MS)):
        arena[at + place] = _DELIVER_MS[place]
    at += len(_DELIVER_MS) + _digits_of(again)
    arena[at] = 2
    last = at - 1
    while again > 0:
        arena[last] = 48 + again % 10
        again //= 10
        last -= 1
    behind = form[DELAY_AT] + form[DELAY_BYTES]
    rest = start + row[scan.PROPERTIES_SIZE] - behind
    machine.copy(arena, at + 1, log, behind, rest)


@kernel()
def _is_half(memory: Bytes, at: int, count: int) -> int:
    if count != len(_HALF):
        return 0
    for place in range(count):
        if memory[at + place] != _HALF[place]:
            return 0
    return 1


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
    size = entry_bytes(row)
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
def entry_bytes(row: Words) -> int:
    """Length of the entry that `fill_copy` writes."""
    size: int = ENTRY_BYTES + APPEND_BYTES + row[scan.BODY_SIZE] + row[scan.PROPERTIES_SIZE]
    return (size + 7) & ~7


@kernel()
def _aim(log: Bytes, form: Words, row: Words, targets: Targets) -> int:
    """Topic slot of the copy, its queue into form[REAL_QUEUE]; or minus what becomes of it."""
    board, index, mask = targets[2], targets[3], targets[4]
    _find_real(log, form, row)
    if form[REAL_BYTES] <= 0 or _is_half(log, form[REAL_AT], form[REAL_BYTES]):
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
    state = DAMAGED
    topic = -1
    growth = 0
    if scan.parse_record(log, position - form[BASE], limit, position, checks, row) == DONE:
        if row[scan.SIZE] == rows[at + DUE_SIZE]:
            again = rows[at + DUE_AGAIN]
            if again == DELIVER:
                topic = _aim(log, form, row, targets)
            else:
                topic = form[TIMER_SLOT]
                form[REAL_QUEUE] = 0
            growth = _growth(log, form, row, again)
            if topic >= 0 and 2 * (entry_bytes(row) + growth) > lane[frames.UP_MASK] + 1:
                topic = -TOO_LARGE
            state = -topic
    if topic < 0:
        rows[at + DUE_STATE] = state
        form[PASSED] += 1
        return end
    extra = row[scan.PROPERTIES_SIZE]
    row[scan.PROPERTIES_SIZE] = extra + growth
    size = entry_bytes(row)
    row[scan.PROPERTIES_SIZE] = extra
    start = ring.reserve(arena, lane, end, size)
    if start < 0:
        return -1 - BACKPRESSURE
    seq = lane[frames.SEQ] + form[PUTS] + 1
    place = lane[frames.UP] + (start & lane[frames.UP_MASK])
    fill_copy(arena, place, log, row, seq, topic, form[REAL_QUEUE], position)
    if form[DELAY_BYTES]:
        machine.store32(arena, place, size)
        machine.store32(arena, place + ENTRY_EXTRA, extra + growth)
        properties = place + ENTRY_BYTES + APPEND_BYTES + row[scan.BODY_SIZE]
        _write_time(arena, properties, log, form, row, rows[at + DUE_AGAIN])
    end = start + size
    rows[at + DUE_STATE] = PUT
    form[PUTS] += 1
    return end


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
