"""Units of rmq_sys_wheel_timer -> rows that say when each record is due, and what it is.

The exact time is what the sender has asked for (TIMER_DELIVER_MS; storeTimestamp and a delay), as
long as it agrees with the rounded TIMER_OUT_MS (DT-33), or the record is one that we have made of
another; a record that a RocketMQ has rolled has a later storeTimestamp, and only the rounded time
tells. What we have appended again says itself what is left of a delay: it ends at another time of
the wall clock than at first, where that was set. Whoever makes retries and commits has rounded by
an earlier look at the wall than the writer's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gantrymq.shm import machine
from gantrymq.shm.codes import Stop
from gantrymq.shm.jit import BYTES_RO, WORDS, WORDS_RO, i8, kernel
from gantrymq.shm.kernels import scan
from gantrymq.shm.kernels.bytesearch import find_byte, which_name
from gantrymq.shm.kernels.decimals import number_of
from gantrymq.shm.layout import CQ_FILLER_SIZE, SYS_COMMIT, SYS_TRANSACTION

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Words = NDArray[np.int64]

DONE = int(Stop.DONE)
ROLL = int(Stop.ROLL)

# Columns of a row: TIMER_WORDS each.
DUE_MS, POSITION, SIZE, KEY_HASH, KIND, OUT_MS, STORED_MS = range(7)
TIMER_WORDS = 7

# KIND: bits.
AFTER = 1  # a delay, which passes by CLOCK_BOOTTIME; else a point in time
DELETE = 2  # a recall: it is never delivered, nor is what it names
ROLLED = 4  # a RocketMQ has appended it again; the record before is done
NOTHING = 8  # unreadable, or nothing says when: passed over

# Words of `read_timers`.
NEXT = 0  # unit to go on with; moved on
COUNT = 1
BASE = 2  # log position of the view's first byte
PRECISION_MS = 3  # RocketMQ's
DELIVER_MS = 4  # scratch: numbers of the record's properties, -1 without
DELAY_MS = 5
DELAY_SEC = 6
ROUNDED_MS = 7
ROLLS = 8
KEY_AT = 9  # where UNIQ_KEY's value is, and its length
KEY_BYTES = 10
DELETES = 11
ROW_AT = 12
FORM_WORDS = ROW_AT + scan.ROW_WORDS

#: Longest span of DT-33's rounding.
PRECISION_MAX_MS = 1000
_TIMER = int.from_bytes(b"TIMER_", "little")
_TIMER_MASK = (1 << 48) - 1
_UNIQ_KEY = int.from_bytes(b"UNIQ_KEY", "little")
#: What follows TIMER_, in the order of the words that get the numbers, then a recall's mark.
_KINDS = (b"DELIVER_MS", b"DELAY_MS", b"DELAY_SEC", b"OUT_MS", b"ROLL_TIMES", b"DEL_UNIQKEY")
_DEL_UNIQKEY = len(_KINDS) - 1
assert DELIVER_MS + _DEL_UNIQKEY == KEY_AT
_NAMES = np.frombuffer(b"".join(_KINDS), np.uint8)
_LENGTHS = np.array([len(name) for name in _KINDS], np.int64)


@kernel()
def _take_timer(memory: Bytes, at: int, end: int, form: Words) -> None:
    """A property TIMER_...; `at` is behind that."""
    mid = find_byte(memory, at, end, 1)
    if mid == at or mid + 1 >= end:  # half an entry: it drops out (SF-28)
        return
    name = which_name(memory, at, mid - at, _NAMES, _LENGTHS)
    if name == _DEL_UNIQKEY:
        form[DELETES] = 1
        start = mid + 1
        for place in range(mid + 1, end):  # DT-76: either form
            if memory[place] == 43:
                start = place + 1
        form[KEY_AT] = start
        form[KEY_BYTES] = end - start
    elif name >= 0:
        form[DELIVER_MS + name] = number_of(memory, mid + 1, end - mid - 1)


@kernel()
def _read_times(memory: Bytes, form: Words, row: Words) -> None:
    at = row[scan.PROPERTIES_AT]
    end = at + row[scan.PROPERTIES_SIZE]
    for field in range(DELIVER_MS, KEY_AT):
        form[field] = -1
    form[KEY_BYTES] = 0
    form[DELETES] = 0
    while at < end:
        stop = find_byte(memory, at, end, 2)
        if stop - at > 9:
            head = machine.load64(memory, at)
            if head & _TIMER_MASK == _TIMER:
                _take_timer(memory, at + 6, stop, form)
            elif head == _UNIQ_KEY and memory[at + 8] == 1 and not form[DELETES]:
                form[KEY_AT] = at + 9
                form[KEY_BYTES] = stop - at - 9
        at = stop + 1


@kernel()
def _is_derived(row: Words) -> bool:
    """Whether we have made it of another record, unless a RocketMQ has rolled it since.

    A commit names its half as a RocketMQ's does; but no RocketMQ parks one here (TX-7).
    """
    return bool(row[scan.PREPARED] < 0 or row[scan.SYS_FLAG] & SYS_TRANSACTION == SYS_COMMIT)


@kernel()
def _choose(form: Words, row: Words, out: Words, at: int) -> None:
    """DUE_MS, OUT_MS and KIND of a row."""
    kind = (DELETE if form[DELETES] else 0) | (ROLLED if form[ROLLS] > 0 else 0)
    rounded = form[ROUNDED_MS]
    due = form[DELIVER_MS]
    if form[DELAY_MS] >= 0:
        due = row[scan.STORE_MS] + form[DELAY_MS]
        kind |= AFTER
    if form[DELAY_SEC] >= 0:  # DT-30: the first that is there
        due = row[scan.STORE_MS] + 1000 * form[DELAY_SEC]
        kind |= AFTER
    # A recall of ours says in whose bucket it has to be, though the target's time is another.
    is_exact = form[DELAY_SEC] < 0 and not kind & ROLLED
    ours = _is_derived(row) and due >= 0 and (is_exact or form[DELETES])
    if not ours and rounded >= 0 and not rounded < due <= rounded + PRECISION_MAX_MS:
        due = rounded + form[PRECISION_MS]
        kind &= ~AFTER
    if rounded < 0 and due >= 0:
        precision = form[PRECISION_MS]
        rounded = (due - 1) // precision * precision
    out[at + DUE_MS] = due
    out[at + OUT_MS] = rounded
    out[at + STORED_MS] = row[scan.STORE_MS]
    out[at + KIND] = kind if due >= 0 else NOTHING


_CHECKS = scan.CHECK_PLACE | scan.CHECK_TRAILER_IF_THERE


@kernel()
def _read_timers(
    log: Bytes, limit: int, form: Words, positions: Words, sizes: Words, out: Words
) -> int:
    row = machine.shift(form, ROW_AT)
    while form[NEXT] < form[COUNT]:
        unit = form[NEXT]
        position = positions[unit]
        at = unit * TIMER_WORDS
        out[at + POSITION] = position
        out[at + SIZE] = sizes[unit]
        out[at + KEY_HASH] = 0
        out[at + KIND] = NOTHING
        out[at + DUE_MS] = 0
        out[at + OUT_MS] = -1
        out[at + STORED_MS] = 0
        form[NEXT] = unit + 1
        if sizes[unit] == CQ_FILLER_SIZE:  # SF-65: there never was a message
            continue
        place = position - form[BASE]
        if place < 0 or place >= limit:
            form[NEXT] = unit
            return ROLL
        found = scan.parse_record(log, place, limit, position, _CHECKS, row)
        if found != DONE or row[scan.SIZE] != sizes[unit]:
            continue
        _read_times(log, form, row)
        _choose(form, row, out, at)
        hashed = scan.hash_on(0, log, form[KEY_AT], form[KEY_BYTES]) if form[KEY_BYTES] else 0
        out[at + KEY_HASH] = hashed
    return DONE


@kernel(i8, BYTES_RO, WORDS, WORDS_RO, WORDS_RO, WORDS)
def read_timers(log: Bytes, form: Words, positions: Words, sizes: Words, out: Words) -> int:
    """Rows of units from form[NEXT] to before form[COUNT], into the same places of `out`.

    Returns DONE, or ROLL: the next record is not in this segment's view.
    """
    raw = machine.raw
    return _read_timers(raw(log), log.size, raw(form), raw(positions), raw(sizes), raw(out))
