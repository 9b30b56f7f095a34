"""Records that failed -> APPEND entries of their copies: parked for a retry, or dead letters.

Twin of `workers/groups/retrycopy.py` for what is usual; whatever else a record says is left to it.
retry-dlq-batch.md RD-16 to RD-23.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gantrymq.shm import machine
from gantrymq.shm.codes import Stop
from gantrymq.shm.jit import BYTES, BYTES_RO, WORDS, i8, kernel
from gantrymq.shm.kernels import scan
from gantrymq.shm.kernels.bytesearch import find_byte, is_same, which_name
from gantrymq.shm.kernels.copyentry import fill_entry
from gantrymq.shm.kernels.decimals import store_decimal
from gantrymq.shm.kernels.inner import is_inner
from gantrymq.shm.kernels.park import out_ms
from gantrymq.shm.layout import (
    APPEND_BORN_HOST,
    APPEND_RECONSUME,
    CQ_FILLER_SIZE,
    CQ_POSITION,
    CQ_SIZE,
    CQ_UNIT_BYTES,
    ENTRY_BYTES,
    ENTRY_EXTRA,
    HOST_BYTES_V4,
    HOST_BYTES_V6,
    RECORD_BORN_HOST,
    RECORD_PHYSICAL_OFFSET,
    SYS_BORN_V6,
    SYS_STORE_V6,
)
from gantrymq.shm.limits import DELIVERIES_MAX, PROPERTIES_BYTES_MAX, TRAILER_BYTES
from gantrymq.shm.properties import RETRY_DROPPED

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Words = NDArray[np.int64]

DONE = int(Stop.DONE)
LIMIT = int(Stop.LIMIT)
ROLL = int(Stop.ROLL)

#: As shm/groupwire.py has them.
LADDER, DEAD_LETTER = 0, -1

# A message that failed: FAILED_WORDS each. What is asked:
OFFSET = 0  # in its queue
DIED = 1  # deliveries that ended with their consumers
WAIT = 2  # LADDER, DEAD_LETTER or ms
WHY_AT = 3  # in `texts`: DLQ_REASON as a property, and its length
WHY_BYTES = 4
ASKED_WORDS = 5
# What was found: whether there is a copy, its attempt, whether it is a dead letter, its entry's
# place, its record's position.
MADE, ATTEMPT, DEAD, ENTRY_AT, ENTRY_END, POSITION = range(ASKED_WORDS, 11)
FAILED_WORDS = 11

# Words of `make_copies`.
NEXT = 0  # row to go on with; moved on
FILLED = 1  # bytes of `out`
BASE = 2  # log position of the view's first byte
COUNT = 3  # rows
FIRST = 4  # offset of the first unit
MOST = 5  # attempts of a message, above 0
FIRST_LEVEL, LEVELS = 6, 7
NOW_MS = 8
PRECISION_MS = 9
RETRY_QUEUES = 10
RETRY_BYTES = 11  # of the retry topic's name, at the start of `texts`
SCHEDULE_SLOT, TIMER_SLOT, DEAD_SLOT = 12, 13, 14  # topics on the board, -1: there is none
GIVEN_WORDS = 15
PLACE = GIVEN_WORDS  # scratch: where the next property goes
TOPIC_AT, TOPIC_BYTES = PLACE + 1, PLACE + 2  # scratch, in `out`: RETRY_TOPIC's value
ID_AT, ID_BYTES = PLACE + 3, PLACE + 4  # ORIGIN_MESSAGE_ID's
KEYS = PLACE + 5  # how many keys there are, then where each is and its length
KEYS_MAX = 32
ROW_AT = KEYS + 1 + 2 * KEYS_MAX  # a parsed record
FORM_WORDS = ROW_AT + scan.ROW_WORDS

#: What a copy takes beyond twice its record, the retry topic's name and the reason, at most.
MORE_BYTES = 1280

_PUT = (
    b"RETRY_TOPIC\x01", b"ORIGIN_MESSAGE_ID\x01", b"WAIT\x01false\x02", b"REAL_TOPIC\x01",
    b"\x02REAL_QID\x01", b"\x02DELAY\x01", b"\x02TIMER_DELAY_MS\x01", b"\x02TIMER_OUT_MS\x01",
    b"DELAY\x010\x02DLQ_ORIGIN_TOPIC\x01", b"\x02DLQ_ORIGIN_MESSAGE_ID\x01",
)  # fmt: skip
(
    _RETRY_TOPIC, _ORIGIN_ID, _WAIT_FALSE, _REAL_TOPIC, _REAL_QID, _DELAY, _DELAY_MS, _OUT_MS,
    _DEAD_TOPIC, _DEAD_ID,
) = range(len(_PUT))  # fmt: skip
_TEXT = np.frombuffer(b"".join(_PUT), np.uint8)
_TEXT_BYTES = np.array([len(text) for text in _PUT], np.int64)
_TEXT_AT = np.cumsum(_TEXT_BYTES) - _TEXT_BYTES

#: Keys that are looked for: first those that a copy takes over, then those that it does without.
_KEYS = ("RETRY_TOPIC", "ORIGIN_MESSAGE_ID", "DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID")
_FIRST_DROPPED = len(_KEYS)
_NAMES = [name.encode() for name in (*_KEYS, *sorted(RETRY_DROPPED))]
_NAME = np.frombuffer(b"".join(_NAMES), np.uint8)
_NAME_BYTES = np.array([len(name) for name in _NAMES], np.int64)


@kernel()
def _is_new(log: Bytes, form: Words, at: int, count: int) -> int:
    """1 if no key before reads so; it is one of them from now on. 0 also if they are many."""
    known = form[KEYS]
    if known == KEYS_MAX:
        return 0
    for number in range(known):
        place = KEYS + 1 + 2 * number
        if form[place + 1] == count and is_same(log, at, log, form[place], count):
            return 0
    form[KEYS + 1 + 2 * known] = at
    form[KEYS + 2 + 2 * known] = count
    form[KEYS] = known + 1
    return 1


@kernel()
def _put(out: Bytes, form: Words, memory: Bytes, at: int, count: int) -> None:
    machine.copy(out, form[PLACE], memory, at, count)
    form[PLACE] += count


@kernel()
def _put_text(out: Bytes, form: Words, text: int) -> None:
    at = _TEXT_AT[text]
    for step in range(_TEXT_BYTES[text]):
        out[form[PLACE] + step] = _TEXT[at + step]
    form[PLACE] += _TEXT_BYTES[text]


@kernel()
def _put_number(out: Bytes, form: Words, value: int) -> None:
    """A number of 0 or more."""
    form[PLACE] = store_decimal(out, form[PLACE], value)


@kernel()
def _put_byte(out: Bytes, form: Words, value: int) -> None:
    out[form[PLACE]] = value
    form[PLACE] += 1


@kernel()
def _put_hex(out: Bytes, form: Words, log: Bytes, at: int, count: int) -> None:
    for step in range(at, at + count):
        value = machine.load8(log, step)
        for digit in (value >> 4, value & 15):
            _put_byte(out, form, digit + (48 if digit < 10 else 55))


@kernel()
def _keep(log: Bytes, form: Words, row: Words, out: Bytes) -> int:
    """Properties that a copy has as well, in stored form; 0 if they are unusual.

    Half entries drop out (SF-28).
    """
    form[KEYS] = 0
    form[TOPIC_BYTES] = 0
    form[ID_BYTES] = 0
    at = row[scan.PROPERTIES_AT]
    end = at + row[scan.PROPERTIES_SIZE]
    while at < end:
        stop = find_byte(log, at, end, 2)
        mid = find_byte(log, at, stop, 1)
        if at < mid and mid + 1 < stop:
            key = which_name(log, at, mid - at, _NAME, _NAME_BYTES)
            if key < _FIRST_DROPPED and not _keep_one(log, form, out, (key, at, mid, stop)):
                return 0
        at = stop + 1
    return 1


@kernel()
def _keep_one(log: Bytes, form: Words, out: Bytes, entry: tuple[int, int, int, int]) -> int:
    key, at, mid, stop = entry
    if key > _ORIGIN_ID or not _is_new(log, form, at, mid - at):
        return 0  # of a dead letter that has failed again, or a key that comes twice
    value = form[PLACE] + mid + 1 - at
    if key >= 0:
        place = TOPIC_AT if key == _RETRY_TOPIC else ID_AT
        form[place] = value
        form[place + 1] = stop - mid - 1
    _put(out, form, log, at, stop - at)
    _put_byte(out, form, 2)
    return 1


@kernel()
def _add_origin(log: Bytes, form: Words, row: Words, out: Bytes) -> None:
    """RETRY_TOPIC (RD-16) and ORIGIN_MESSAGE_ID (RD-20) of what has failed for the first time."""
    if not form[TOPIC_BYTES]:
        _put_text(out, form, _RETRY_TOPIC)
        form[TOPIC_AT] = form[PLACE]
        form[TOPIC_BYTES] = row[scan.TOPIC_SIZE]
        _put(out, form, log, row[scan.TOPIC_AT], row[scan.TOPIC_SIZE])
        _put_byte(out, form, 2)
    if not form[ID_BYTES]:
        _put_text(out, form, _ORIGIN_ID)
        form[ID_AT] = form[PLACE]
        flags, record = row[scan.SYS_FLAG], row[scan.AT]
        host = record + RECORD_BORN_HOST + 8
        host += HOST_BYTES_V6 if flags & SYS_BORN_V6 else HOST_BYTES_V4
        _put_hex(out, form, log, host, HOST_BYTES_V6 if flags & SYS_STORE_V6 else HOST_BYTES_V4)
        _put_hex(out, form, log, record + RECORD_PHYSICAL_OFFSET, 8)
        form[ID_BYTES] = form[PLACE] - form[ID_AT]
        _put_byte(out, form, 2)
    _put_text(out, form, _WAIT_FALSE)


@kernel()
def _add_death(form: Words, failed: Words, texts: Bytes, out: Bytes) -> None:
    """RD-18, RD-23, and why."""
    _put_text(out, form, _DEAD_TOPIC)
    _put(out, form, out, form[TOPIC_AT], form[TOPIC_BYTES])
    _put_text(out, form, _DEAD_ID)
    _put(out, form, out, form[ID_AT], form[ID_BYTES])
    _put_byte(out, form, 2)
    _put(out, form, texts, failed[WHY_AT], failed[WHY_BYTES])


@kernel()
def _level(form: Words, attempt: int) -> int:
    """RD-19, DT-10."""
    level: int = max(1, min(form[FIRST_LEVEL] + attempt - 1, form[LEVELS]))
    return level


@kernel()
def _add_parking(form: Words, row: Words, failed: Words, texts: Bytes, out: Bytes) -> None:
    attempt = failed[ATTEMPT]
    _put_text(out, form, _REAL_TOPIC)
    _put(out, form, texts, 0, form[RETRY_BYTES])
    _put_text(out, form, _REAL_QID)
    turn = row[scan.QUEUE_OFFSET] + row[scan.QUEUE_ID] + attempt
    _put_number(out, form, turn % form[RETRY_QUEUES])
    if failed[WAIT] == LADDER:
        _put_text(out, form, _DELAY)
        _put_number(out, form, _level(form, attempt))
    else:
        _put_text(out, form, _DELAY_MS)  # no point in time: the wall may be set while it waits
        _put_number(out, form, failed[WAIT])
        _put_text(out, form, _OUT_MS)
        _put_number(out, form, out_ms(form[NOW_MS] + failed[WAIT], form[PRECISION_MS]))
    _put_byte(out, form, 2)


@kernel()
def _count(log: Bytes, form: Words, row: Words, failed: Words) -> int:
    """Which attempt has failed, and whether it was the last; 0 if that is unusual."""
    times = machine.load_be32(log, row[scan.BODY_AT] - 16)
    attempt = times + failed[DIED] + 1
    if form[MOST] < attempt:  # used up before: this was no delivery more
        attempt = max(times, form[MOST])
    failed[ATTEMPT] = attempt
    failed[DEAD] = 1 if failed[WAIT] <= DEAD_LETTER or attempt >= form[MOST] else 0
    return 1 if 0 < attempt <= DELIVERIES_MAX else 0


@kernel()
def _aim(form: Words, failed: Words) -> int:
    """Topic slot of the copy, -1: there is none."""
    if failed[DEAD]:
        slot: int = form[DEAD_SLOT]
    elif form[RETRY_QUEUES] <= 0:
        slot = -1
    else:
        slot = form[SCHEDULE_SLOT] if failed[WAIT] == LADDER else form[TIMER_SLOT]
    return slot


@kernel()
def _fill(log: Bytes, form: Words, row: Words, failed: Words, texts: Bytes, out: Bytes) -> int:
    """The entry of a parsed record's copy behind those that are there; 0 if it is unusual."""
    topic = _aim(form, failed) if _count(log, form, row, failed) else -1
    if topic < 0:
        return 0
    start = form[FILLED]
    queue = 0
    if not failed[DEAD] and failed[WAIT] == LADDER:
        queue = _level(form, failed[ATTEMPT]) - 1
    for word in range(5):  # both hosts, which may be shorter
        machine.store64(out, start + ENTRY_BYTES + APPEND_BORN_HOST + 8 * word, 0)
    marks = (row[scan.SYS_FLAG], -1 - (form[BASE] + row[scan.AT]))
    first = fill_entry(out, start, log, row, (0, topic, queue), marks)
    machine.store32(out, start + ENTRY_BYTES + APPEND_RECONSUME, failed[ATTEMPT])
    form[PLACE] = first
    if not _keep(log, form, row, out):
        return 0
    _add_origin(log, form, row, out)
    if failed[DEAD]:
        _add_death(form, failed, texts, out)
    else:
        _add_parking(form, row, failed, texts, out)
    extra = form[PLACE] - first
    if extra + TRAILER_BYTES > PROPERTIES_BYTES_MAX:
        return 0
    machine.store64(out, form[PLACE], 0)
    end = start + ((form[PLACE] - start + 7) & ~7)
    machine.store32(out, start, end - start)
    machine.store32(out, start + ENTRY_EXTRA, extra)
    failed[ENTRY_AT] = start
    failed[ENTRY_END] = end
    form[FILLED] = end
    return 1


@kernel()
def _fits(form: Words, row: Words, failed: Words, room: int) -> int:
    size = 2 * row[scan.SIZE] + form[RETRY_BYTES] + failed[WHY_BYTES] + MORE_BYTES
    return 1 if form[FILLED] + size <= room else 0


@kernel()
def _find(form: Words, failed: Words, units: Bytes, room: int) -> int:
    """The size of a message's record, its place into failed[POSITION]; 0: there is none."""
    unit = (failed[OFFSET] - form[FIRST]) * CQ_UNIT_BYTES
    if unit < 0 or unit + CQ_UNIT_BYTES > room:
        return 0
    failed[POSITION] = machine.load_be64(units, unit + CQ_POSITION)
    size = machine.load_be32(units, unit + CQ_SIZE)
    return size if size < CQ_FILLER_SIZE else 0


@kernel()
def _make_copies(
    log: tuple[Bytes, int], units: tuple[Bytes, int], form: Words, rows: Words, texts: Bytes,
    out: tuple[Bytes, int],
) -> int:  # fmt: skip
    memory, limit = log
    row = machine.shift(form, ROW_AT)
    checks = scan.CHECK_PLACE | scan.CHECK_TRAILER
    while form[NEXT] < form[COUNT]:
        failed = machine.shift(rows, form[NEXT] * FAILED_WORDS)
        failed[MADE] = 0
        size = _find(form, failed, units[0], units[1])
        if size > 0:
            at = failed[POSITION] - form[BASE]
            if at < 0 or at >= limit:
                return ROLL
            done = scan.parse_record(memory, at, limit, failed[POSITION], checks, row)
            meant = row[scan.SIZE] == size and row[scan.QUEUE_OFFSET] == failed[OFFSET]
            if done == DONE and meant and not is_inner(row[scan.SYS_FLAG]):
                if not _fits(form, row, failed, out[1]):
                    return LIMIT
                failed[MADE] = _fill(memory, form, row, failed, texts, out[0])
        form[NEXT] += 1
    return DONE


@kernel(i8, BYTES_RO, BYTES_RO, WORDS, WORDS, BYTES_RO, BYTES)
def make_copies(
    log: Bytes, units: Bytes, form: Words, rows: Words, texts: Bytes, out: Bytes
) -> int:
    """Copies of what failed, from row form[NEXT] on, as entries in `out` whose seq is 0.

    A row without MADE is left to the caller. `units`: of the queue, from form[FIRST] on; `texts`:
    the retry topic's name, reasons behind it. Returns DONE, LIMIT (`out` is full) or ROLL (the next
    record, whose POSITION is known, is in another segment).
    """
    raw = machine.raw
    return _make_copies(
        (raw(log), log.size), (raw(units), units.size), raw(form), raw(rows), raw(texts),
        (raw(out), out.size),
    )  # fmt: skip
