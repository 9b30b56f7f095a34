"""Half records -> commit copies and op records in the txn-checker's up ring.

What is put here is seen by the writer only once `publish_decisions` has put the op record behind
it: commit copies and the op record that names their halves go up by one store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gantrymq.shm import machine
from gantrymq.shm.codes import EntryFlag, Stop
from gantrymq.shm.jit import BYTES, BYTES_RO, WORDS, WORDS_RO, i8, kernel
from gantrymq.shm.kernels import frames, ring, scan
from gantrymq.shm.kernels.bytesearch import find_byte, is_same
from gantrymq.shm.kernels.copyentry import choose_queue, fill_entry, find_named, store_head
from gantrymq.shm.kernels.decimals import number_of
from gantrymq.shm.kernels.halfform import (
    COMMIT,
    DELAY,
    DELAYED,
    DROPPED,
    FOREIGN,
    GOOD,
    GROUP_BYTES,
    HALF_WORDS,
    LOOK,
    NEW,
    NO_HALF,
    NO_TOPIC,
    OFFSET,
    OP_ROOM,
    PGROUP,
    POSITION,
    PUT,
    PUTS,
    REAL_QID,
    REAL_QUEUE,
    REAL_TOPIC,
    ROW_AT,
    SIZE,
    STATE,
    TOO_LARGE,
    TOPIC,
    TX,
    TX_BYTES,
    VALUES,
    is_half_topic,
    name_of,
    read_properties,
)
from gantrymq.shm.kernels.stretch import BASE, COUNT, NEXT, is_shown, parse_shown
from gantrymq.shm.layout import (
    APPEND_BORN_HOST,
    APPEND_BYTES,
    APPEND_PREPARED,
    APPEND_RECONSUME,
    APPEND_STORE_HOST,
    APPEND_SYS_FLAG,
    ENTRY_APP_FLAG,
    ENTRY_BODY,
    ENTRY_BYTES,
    ENTRY_EXTRA,
    ENTRY_FLAGS,
    ENTRY_SEQ,
    SYS_COMMIT,
    SYS_TRANSACTION,
    TELL_BYTES,
    TELL_SERIAL,
    TELL_SESSION,
    TELL_SINCE,
)
from gantrymq.shm.limits import BODY_BYTES_MAX

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gantrymq.shm.kernels.copyentry import Targets

    Bytes = NDArray[np.uint8]
    Words = NDArray[np.int64]

DONE = int(Stop.DONE)
ROLL = int(Stop.ROLL)
BACKPRESSURE = int(Stop.BACKPRESSURE)
URGENT = int(EntryFlag.URGENT)
TELLS = int(EntryFlag.TELL)

# Words of `publish_decisions`.
# Session and serial that the writer is to tell, 0: nobody; the first seq of what goes up with it.
OP_TOPIC, OP_BORN_MS, OP_FLAG, OP_FLAGS, OP_SESSION, OP_SERIAL, OP_SINCE = range(7)
OP_WORDS = 7

#: Bytes that an op record takes in the ring at most: for each offset with its comma, for the rest.
OP_NAME_BYTES = 20
OP_REST_BYTES = 256

#: What the copy of a delayed message has more than its half, at most.
PARKING_BYTES = 128

_OP_EXTRAS = np.frombuffer(b"TAGS\x01d\x02WAIT\x01true\x02", np.uint8)  # TX-21


@kernel()
def _is_expected(memory: Bytes, form: Words, expected: Bytes) -> int:
    """GOOD if group and transaction of a half are those that somebody names."""
    group = form[GROUP_BYTES]
    if group >= 0:
        at = form[VALUES + 2 * PGROUP]
        if form[VALUES + 2 * PGROUP + 1] != group or not is_same(memory, at, expected, 0, group):
            return FOREIGN
    size = form[TX_BYTES]
    if size:
        at = form[VALUES + 2 * TX]
        if form[VALUES + 2 * TX + 1] <= size or memory[at + size] != 44:  # a comma
            return NO_HALF
        if not is_same(memory, at, expected, max(group, 0), size):
            return NO_HALF
    return GOOD


@kernel()
def judge_half(log: Bytes, limit: int, form: Words, rows: Words, at: int, expected: Bytes) -> int:
    """Whether the record of a row is the half that it is said to be."""
    row = machine.shift(form, ROW_AT)
    if parse_shown(log, limit, form, rows[at + POSITION], row) != DONE:
        return NO_HALF
    rows[at + SIZE] = row[scan.SIZE]
    if not is_half_topic(log, row[scan.TOPIC_AT], row[scan.TOPIC_SIZE]):
        return NO_HALF
    if row[scan.QUEUE_OFFSET] != rows[at + OFFSET]:
        return NO_HALF
    read_properties(log, form, row)
    if not form[VALUES + 2 * REAL_TOPIC + 1]:
        return NO_HALF
    return _is_expected(log, form, expected)


@kernel()
def _aim(log: Bytes, form: Words, targets: Targets) -> int:
    """Topic slot of the copy, or -1; its queue into form[REAL_QUEUE]."""
    row = machine.shift(form, ROW_AT)
    name, number = VALUES + 2 * REAL_TOPIC, VALUES + 2 * REAL_QID
    topic: int = find_named(log, form[name], form[name + 1], row, targets)
    if topic < 0:
        return -1
    wanted = number_of(log, form[number], form[number + 1])
    form[REAL_QUEUE] = choose_queue(targets[2], topic, wanted)
    return topic if form[REAL_QUEUE] >= 0 else -1


@kernel()
def _copy_properties(arena: Bytes, at: int, log: Bytes, row: Words) -> int:
    """A half's properties without those that a commit copy has no more; how many bytes."""
    place = row[scan.PROPERTIES_AT]
    end = place + row[scan.PROPERTIES_SIZE]
    start = at
    while place < end:
        stop = find_byte(log, place, end, 2)
        number = name_of(log, place, stop)
        if number < 0 or not DROPPED[number]:
            size = min(stop + 1, end) - place
            machine.copy(arena, at, log, place, size)
            at += size
        place = stop + 1
    return at - start


@kernel()
def _fill_commit(arena: Bytes, at: int, log: Bytes, form: Words, seq: int, topic: int) -> int:
    """Write the APPEND entry of a half's commit copy (TX-15); returns its length."""
    row = machine.shift(form, ROW_AT)
    sys_flag = (row[scan.SYS_FLAG] & ~SYS_TRANSACTION) | SYS_COMMIT
    route = (seq, topic, form[REAL_QUEUE])
    place = fill_entry(arena, at, log, row, route, (sys_flag, form[BASE] + row[scan.AT]))
    extra = _copy_properties(arena, place, log, row)
    machine.store32(arena, at + ENTRY_EXTRA, extra)
    size: int = (place - at + extra + 7) & ~7
    machine.store32(arena, at, size)
    return size


@kernel()
def _has_room(arena: Bytes, lane: Words, size: int) -> int:
    """1 if entries of together `size` bytes can be put behind what was put."""
    return 1 if ring.reserve(arena, lane, lane[frames.UP_CURSOR], size) >= 0 else 0


@kernel(i8, BYTES, WORDS, i8)
def has_room(arena: Bytes, lane: Words, size: int) -> int:
    """1 if entries of together `size` bytes can be put behind what was put."""
    return _has_room(machine.raw(arena), machine.raw(lane), size)


@kernel()
def _entry_bytes(form: Words) -> int:
    """Length of a half's commit copy as an entry, at most."""
    row = machine.shift(form, ROW_AT)
    most: int = ENTRY_BYTES + APPEND_BYTES + row[scan.BODY_SIZE] + row[scan.PROPERTIES_SIZE] + 7
    return most & ~7


@kernel()
def _put_commit(log: Bytes, form: Words, targets: Targets, topic: int) -> int:
    """PUT; NEW where the ring has no room now for it and an op record."""
    arena, lane = targets[0], targets[1]
    most = _entry_bytes(form)
    if not _has_room(arena, lane, most + form[OP_ROOM]):
        return NEW
    start = ring.reserve(arena, lane, lane[frames.UP_CURSOR], most)
    seq = lane[frames.SEQ] + 1
    at = lane[frames.UP] + (start & lane[frames.UP_MASK])
    lane[frames.UP_CURSOR] = start + _fill_commit(arena, at, log, form, seq, topic)
    lane[frames.SEQ] = seq
    return PUT


@kernel()
def decide_half(log: Bytes, form: Words, rows: Words, at: int, targets: Targets) -> int:
    """What becomes of a half that is as expected: its state, NEW without room in the ring."""
    topic = _aim(log, form, targets)
    rows[at + TOPIC] = topic
    if form[COMMIT] == LOOK:
        return GOOD
    if topic < 0:
        return NO_TOPIC
    is_delayed = form[VALUES + 2 * DELAY + 1] > 0
    if machine.shift(form, ROW_AT)[scan.BODY_SIZE] > BODY_BYTES_MAX:
        return TOO_LARGE
    if 2 * (_entry_bytes(form) + is_delayed * PARKING_BYTES) > targets[1][frames.UP_MASK] + 1:
        return TOO_LARGE
    if is_delayed:
        return DELAYED
    return _put_commit(log, form, targets, topic) if form[COMMIT] == PUTS else GOOD


@kernel()
def _put_commits(
    log: Bytes, limit: int, form: Words, rows: Words, targets: Targets, expected: Bytes
) -> int:
    while form[NEXT] < form[COUNT]:
        at = form[NEXT] * HALF_WORDS
        if not is_shown(form, limit, rows[at + POSITION]):
            return ROLL
        state = judge_half(log, limit, form, rows, at, expected)
        if state == GOOD:
            state = decide_half(log, form, rows, at, targets)
            if state == NEW:
                return BACKPRESSURE
        rows[at + STATE] = state
        form[NEXT] += 1
        if state == DELAYED and form[COMMIT] == PUTS:
            return DONE  # its copy comes first: they go up in order
    return DONE


@kernel(i8, BYTES_RO, WORDS, WORDS, BYTES_RO, WORDS_RO, BYTES, WORDS, BYTES_RO)
def put_commits(
    log: Bytes, form: Words, rows: Words, board: Bytes, index: Words, arena: Bytes, lane: Words,
    expected: Bytes,
) -> int:  # fmt: skip
    """Judge halves from row form[NEXT] on and, if form[COMMIT] says so, put their commit copies.

    Nothing is published. It stops behind a half with a delay, whose copy the caller puts.
    `expected` holds group and transaction id that they must have. Returns DONE, BACKPRESSURE (the
    ring is full, but for an op record of form[OP_ROOM]) or ROLL (the next is in another segment or
    stretch).
    """
    raw = machine.raw
    targets = (raw(arena), raw(lane), raw(board), raw(index), index.size - 1)
    return _put_commits(raw(log), log.size, raw(form), raw(rows), targets, raw(expected))


@kernel()
def _put_tell(arena: Bytes, end: int, form: Words) -> int:
    """Say whom the writer is to tell, in the last bytes of an entry; its flag, 0 for nobody."""
    if not form[OP_SESSION]:
        return 0
    machine.store64(arena, end - TELL_BYTES + TELL_SESSION, form[OP_SESSION])
    machine.store64(arena, end - TELL_BYTES + TELL_SERIAL, form[OP_SERIAL])
    machine.store64(arena, end - TELL_BYTES + TELL_SINCE, form[OP_SINCE])
    return TELLS


@kernel()
def put_op(arena: Bytes, lane: Words, form: Words, body: Bytes, count: int) -> int:
    """Put an op record unpublished: its entry's seq, 0 without a body, or FULL."""
    if count == 0:
        return 0
    extra = len(_OP_EXTRAS)
    size = (ENTRY_BYTES + APPEND_BYTES + count + extra + 7) & ~7
    size += TELL_BYTES if form[OP_SESSION] else 0
    start = ring.reserve(arena, lane, lane[frames.UP_CURSOR], size)
    if start < 0:
        return ring.FULL
    seq: int = lane[frames.SEQ] + 1
    at = lane[frames.UP] + (start & lane[frames.UP_MASK])
    store_head(arena, at, (seq, form[OP_TOPIC], 0), form[OP_BORN_MS])
    machine.store32(arena, at, size)
    machine.store16(arena, at + ENTRY_FLAGS, form[OP_FLAGS] | _put_tell(arena, at + size, form))
    machine.store32(arena, at + ENTRY_BODY, count)
    machine.store32(arena, at + ENTRY_EXTRA, extra)
    machine.store32(arena, at + ENTRY_APP_FLAG, form[OP_FLAG])
    extension = at + ENTRY_BYTES
    machine.store32(arena, extension + APPEND_SYS_FLAG, 0)
    machine.store32(arena, extension + APPEND_RECONSUME, 0)
    machine.store64(arena, extension + APPEND_PREPARED, 0)
    for host in (APPEND_BORN_HOST, APPEND_STORE_HOST):
        machine.store32(arena, extension + host, 0x0100007F)  # 127.0.0.1
        machine.store32(arena, extension + host + 4, 0)
    machine.copy(arena, extension + APPEND_BYTES, body, 0, count)
    for place in range(extra):
        arena[extension + APPEND_BYTES + count + place] = _OP_EXTRAS[place]
    lane[frames.SEQ] = seq
    lane[frames.UP_CURSOR] = start + size
    return seq


@kernel(i8, BYTES, WORDS, WORDS_RO, BYTES_RO)
def publish_decisions(arena: Bytes, lane: Words, form: Words, body: Bytes) -> int:
    """Put an op record with this body, unless it is empty, and publish all that was put.

    Returns the op entry's seq (0 without one), or FULL: then nothing is published.
    """
    ends, words = machine.raw(arena), machine.raw(lane)
    seq: int = put_op(ends, words, machine.raw(form), machine.raw(body), body.size)
    if seq < 0:
        return seq
    ring.publish_entries(ends, words, lane[frames.UP_CURSOR], lane[frames.SEQ], URGENT)
    return seq


@kernel(i8, BYTES, WORDS, BYTES_RO, i8)
def stage_entry(arena: Bytes, lane: Words, entry: Bytes, op_room: int) -> int:
    """Put an entry whose bytes are ready but for its seq, unpublished.

    Its seq; FULL unless `op_room` bytes are left behind it, TOO_LARGE if they never are.
    """
    ends, words = machine.raw(arena), machine.raw(lane)
    if 2 * entry.size > words[frames.UP_MASK] + 1:
        return ring.TOO_LARGE
    if not _has_room(ends, words, entry.size + op_room):
        return ring.FULL
    start = ring.reserve(ends, words, lane[frames.UP_CURSOR], entry.size)
    seq: int = lane[frames.SEQ] + 1
    at = lane[frames.UP] + (start & lane[frames.UP_MASK])
    machine.copy(ends, at, machine.raw(entry), 0, entry.size)
    machine.store64(ends, at + ENTRY_SEQ, seq)
    lane[frames.SEQ] = seq
    lane[frames.UP_CURSOR] = start + entry.size
    return seq
