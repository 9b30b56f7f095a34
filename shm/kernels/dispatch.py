"""Records of the log -> ConsumeQueue units, grouped by queue (SF-59 to SF-65).

One call looks at `appended`, parses the records of one segment up to there, and leaves, for each
queue that they touch, its units side by side: the reader then does one pwrite per queue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gantrymq.shm import atomics, machine
from gantrymq.shm.codes import Stop
from gantrymq.shm.jit import BYTES, BYTES_RO, WORDS, i8, kernel
from gantrymq.shm.kernels.bounds import bound_of
from gantrymq.shm.kernels.bytesearch import is_same
from gantrymq.shm.kernels.scan import (
    DELAY,
    QUEUE_ID,
    QUEUE_OFFSET,
    SIZE,
    STORE_MS,
    SYS_FLAG,
    TAGS_CODE,
    TOPIC_AT,
    TOPIC_SIZE,
    parse_record,
    read_properties,
)
from gantrymq.shm.layout import (
    BOARD_APPENDED,
    BOARD_DISPATCHED,
    BOARD_TOPIC_CHANGES,
    BOARD_TOPIC_COUNT,
    CQ_SIZE,
    CQ_TAGS,
    CQ_UNIT_BYTES,
    PROCESS_HEARTBEAT,
    PROCESS_WORK,
    QUEUE_BYTES,
    QUEUE_STARTS,
    QUEUE_WRITTEN,
    SYS_COMMIT,
    SYS_TRANSACTION,
    TOPIC_BYTES,
    TOPIC_NAME,
    TOPIC_NAME_BYTES,
    TOPIC_QUEUE_BASE,
    TOPIC_QUEUE_COUNT,
    TOPICS_AT,
)
from gantrymq.shm.limits import DISPATCH_RECORDS, DISPATCH_RECORDS_PER_QUEUE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Words = NDArray[np.int64]

DONE = int(Stop.DONE)
LIMIT = int(Stop.LIMIT)
FILLER = int(Stop.FILLER)
INVALID = int(Stop.INVALID)
UNKNOWN_TOPIC = int(Stop.UNKNOWN_TOPIC)

#: `dispatch_log` has not begun: nothing is there, or the caller first has to make something new.
IDLE = -1
NEW_TOPICS = -2  # of the board: `index`, TOPIC_COUNT, TOPIC_CHANGES and COVERED
NEW_SEGMENT = -3  # the view, BASE and SEGMENT_BYTES

# The reader's words for its kernels: indexes into `form`.
AT = 0  # offset in the segment's view of the next record
BASE = 1  # log position of the view's first byte
END_AT = 2  # offset in the view to stop at (`appended`)
CHECKS = 3
SCHEDULE = 4  # topic slot of SCHEDULE_TOPIC_XXXX, or -1
QUEUES_AT = 5  # where the board's queue table is
RECORDS = 6  # out: records passed
UNITS = 7  # out: units made
TOUCHED = 8  # out: queues touched
LAST_MS = 9  # out: storeTimestamp of the last record
CULPRIT = 10  # out: offset in the view of a record that stopped the call
DISPATCHED = 11  # log position that all is dispatched up to
SEGMENT_BYTES = 12
TOPIC_COUNT = 13  # of the board, as `index` has them
TOPIC_CHANGES = 14
ROOM = 15  # records that the next call passes at most
PROCESS = 16  # where the reader's counters are on the board
CYCLES = 17
WORK = 18  # records dispatched ever
HELD = 19  # out: touched queues that show nothing yet
STAMP = 20  # counts what became visible
SLEEPERS = 21  # sessions in the table of arenas
ROOM_MAX = 22  # bounds ROOM; 0: nothing does
COVERED = 23  # log position up to which `index` has the topics of all records
FORM_WORDS = 24

# A touched queue: TOUCH_WORDS in `touched`.
TOUCH_QUEUE, TOUCH_FIRST, TOUCH_COUNT, TOUCH_START = range(4)
TOUCH_WORDS = 4

# A record's note between the two passes: NOTE_WORDS in `notes`.
NOTE_QUEUE, NOTE_POSITION, NOTE_SIZE, NOTE_TAGS = range(4)
NOTE_WORDS = 4


@kernel()
def name_hash(memory: Bytes, at: int, count: int) -> int:
    """Spreads topic names over the index below."""
    value = count
    for place in range(at, at + count):
        value = (value * 31 + machine.load8(memory, place)) & 0xFFFFFFFFFFF
    return value


@kernel()
def find_topic(memory: Bytes, row: Words, board: Bytes, index: Words, mask: int) -> int:
    """Topic slot of a record, or -1. Open addressing over (slot + 1)."""
    size = row[TOPIC_SIZE]
    at = row[TOPIC_AT]
    probe = name_hash(memory, at, size) & mask
    while index[probe]:
        slot: int = index[probe] - 1
        topic_at = TOPICS_AT + slot * TOPIC_BYTES
        if machine.load32(board, topic_at + TOPIC_NAME_BYTES) == size:
            if is_same(memory, at, board, topic_at + TOPIC_NAME, size):
                return slot
        probe = (probe + 1) & mask
    return -1


@kernel()
def _index_topics(board: Bytes, count: int, index: Words, mask: int) -> int:
    for slot in range(count):
        topic_at = TOPICS_AT + slot * TOPIC_BYTES
        size = machine.load32(board, topic_at + TOPIC_NAME_BYTES)
        probe = name_hash(board, topic_at + TOPIC_NAME, size) & mask
        while index[probe]:
            probe = (probe + 1) & mask
        index[probe] = slot + 1
    return count


@kernel(i8, BYTES, i8, WORDS)
def index_topics(board: Bytes, count: int, index: Words) -> int:
    """Index the first `count` topic slots by name; `index` is zero, a power of two long."""
    return _index_topics(machine.raw(board), count, machine.raw(index), index.size - 1)


@kernel()
def _tags_code(row: Words, topic: int, schedule: int, delays: Words, levels: int) -> int:
    """SF-62, and for the schedule topic SF-63: when the message is due."""
    if topic == schedule and row[DELAY] > 0:
        level = min(row[DELAY], levels)
        due: int = row[STORE_MS] + (delays[level - 1] if level > 0 else 1000)
        return due
    code: int = row[TAGS_CODE]
    return code


@kernel()
def _note_unit(
    row: Words, queue: int, tags: int, form: Words, marks: Words, touched: Words, notes: Words,
    written: int,
) -> None:  # fmt: skip
    """Remember a unit and count it for its queue."""
    mark = marks[queue]
    if mark == 0:
        mark = form[TOUCHED] + 1
        marks[queue] = mark
        form[TOUCHED] = mark
        place = (mark - 1) * TOUCH_WORDS
        touched[place + TOUCH_QUEUE] = queue
        touched[place + TOUCH_FIRST] = written
        touched[place + TOUCH_COUNT] = 0
    touched[(mark - 1) * TOUCH_WORDS + TOUCH_COUNT] += 1
    place = form[UNITS] * NOTE_WORDS
    notes[place + NOTE_QUEUE] = mark - 1
    notes[place + NOTE_POSITION] = form[BASE] + form[AT]
    notes[place + NOTE_SIZE] = row[SIZE]
    notes[place + NOTE_TAGS] = tags
    form[UNITS] += 1


@kernel()
def _next_offset(board: Bytes, form: Words, queue: int, marks: Words, touched: Words) -> int:
    """The queue offset that the queue's next unit has."""
    if marks[queue]:
        place = (marks[queue] - 1) * TOUCH_WORDS
        after: int = touched[place + TOUCH_FIRST] + touched[place + TOUCH_COUNT]
        return after
    return machine.load64(board, form[QUEUES_AT] + queue * QUEUE_BYTES + QUEUE_WRITTEN)


@kernel()
def _collect(
    memory: Bytes, form: Words, tables: tuple[Bytes, Words, Words, Words, Words],
    sizes: tuple[int, int], notes: Words, row: Words,
) -> int:  # fmt: skip
    """First pass: parse records, note their units. Returns a Stop."""
    board, index, delays, marks, touched = tables
    mask, levels = sizes
    room = min(form[ROOM], bound_of(form[ROOM_MAX]))
    while form[RECORDS] < room:
        at = form[AT]
        if at >= form[END_AT]:
            return DONE
        stop = parse_record(memory, at, form[END_AT], form[BASE] + at, form[CHECKS], row)
        if stop != DONE:
            form[CULPRIT] = at
            return stop
        topic = find_topic(memory, row, board, index, mask)
        base = machine.load32(board, TOPICS_AT + topic * TOPIC_BYTES + TOPIC_QUEUE_BASE)
        count = machine.load32(board, TOPICS_AT + topic * TOPIC_BYTES + TOPIC_QUEUE_COUNT)
        if topic < 0 or row[QUEUE_ID] >= count or row[QUEUE_ID] < 0:
            form[CULPRIT] = at
            return UNKNOWN_TOPIC
        kind = row[SYS_FLAG] & SYS_TRANSACTION
        if kind == 0 or kind == SYS_COMMIT:  # SF-61
            queue = base + row[QUEUE_ID]
            expected = _next_offset(board, form, queue, marks, touched)
            starts = machine.load64(board, form[QUEUES_AT] + queue * QUEUE_BYTES + QUEUE_STARTS)
            is_of_queue = form[BASE] + at >= starts
            if row[QUEUE_OFFSET] > expected and is_of_queue:
                form[CULPRIT] = at
                return INVALID
            if row[QUEUE_OFFSET] == expected and is_of_queue:
                read_properties(memory, row)
                tags = _tags_code(row, topic, form[SCHEDULE], delays, levels)
                _note_unit(row, queue, tags, form, marks, touched, notes, expected)
        form[RECORDS] += 1
        form[LAST_MS] = row[STORE_MS]
        form[AT] = at + row[SIZE]
    return LIMIT


@kernel()
def _lay_out(form: Words, marks: Words, touched: Words, notes: Words, units: Bytes) -> None:
    """Second pass: each queue's units side by side. TOUCH_START becomes its end in `units`."""
    start = 0
    for place in range(form[TOUCHED]):
        at = place * TOUCH_WORDS
        touched[at + TOUCH_START] = start
        start += touched[at + TOUCH_COUNT] * CQ_UNIT_BYTES
        marks[touched[at + TOUCH_QUEUE]] = 0
    for unit in range(form[UNITS]):
        note = unit * NOTE_WORDS
        place = notes[note + NOTE_QUEUE] * TOUCH_WORDS + TOUCH_START
        at = touched[place]
        machine.store_be64(units, at, notes[note + NOTE_POSITION])
        machine.store_be32(units, at + CQ_SIZE, notes[note + NOTE_SIZE])
        machine.store_be64(units, at + CQ_TAGS, notes[note + NOTE_TAGS])
        touched[place] = at + CQ_UNIT_BYTES


@kernel()
def _begin(board: Bytes, form: Words) -> int:
    """Look at `appended`; DONE if there is something and all is at hand for it."""
    form[RECORDS] = 0
    form[UNITS] = 0
    form[TOUCHED] = 0
    form[CYCLES] += 1
    machine.store64(board, form[PROCESS] + PROCESS_HEARTBEAT, form[CYCLES])
    appended = atomics.load_acquire(board, BOARD_APPENDED)
    at = form[DISPATCHED] - form[BASE]
    if form[DISPATCHED] >= appended:
        return IDLE
    # A topic is on the board before any record of it is appended. Topics may come faster than they
    # are read: what was appended before they were read last does not wait for that.
    if (
        machine.load32(board, BOARD_TOPIC_COUNT) != form[TOPIC_COUNT]
        or machine.load32(board, BOARD_TOPIC_CHANGES) != form[TOPIC_CHANGES]
    ):
        if form[DISPATCHED] >= form[COVERED]:
            return NEW_TOPICS
        appended = form[COVERED]
    if at < 0 or at >= form[SEGMENT_BYTES]:
        return NEW_SEGMENT
    form[AT] = at
    form[END_AT] = min(appended - form[BASE], form[SEGMENT_BYTES])
    return DONE


@kernel(i8, BYTES_RO, WORDS, BYTES, WORDS, WORDS, WORDS, WORDS, WORDS, BYTES, WORDS)
def dispatch_log(
    memory: Bytes, form: Words, board: Bytes, index: Words, delays: Words, marks: Words,
    touched: Words, notes: Words, units: Bytes, row: Words,
) -> int:  # fmt: skip
    """Make the units of what was appended behind form[DISPATCHED], in one segment's view.

    Units that a queue has already (queue offset below its `written`) are passed over, as are the
    records below its `starts`. `marks` is zero, a word per queue of the board, and is left zero.
    form[ROOM] and ROOM_MAX bound the call; `touched`, `notes` and `units` have room for as many as
    ROOM. Returns IDLE, NEW_TOPICS or NEW_SEGMENT before anything is done, and else DONE, LIMIT,
    FILLER, END, TRUNCATED, INVALID (form[CULPRIT] says where) or UNKNOWN_TOPIC.
    """
    raw_form = machine.raw(form)
    raw_board = machine.raw(board)
    begun = _begin(raw_board, raw_form)
    if begun != DONE:
        return begun
    raw_marks = machine.raw(marks)
    raw_touched = machine.raw(touched)
    raw_notes = machine.raw(notes)
    tables = (raw_board, machine.raw(index), machine.raw(delays), raw_marks, raw_touched)
    sizes = (index.size - 1, delays.size)
    stop = _collect(machine.raw(memory), raw_form, tables, sizes, raw_notes, machine.raw(row))
    _lay_out(raw_form, raw_marks, raw_touched, raw_notes, machine.raw(units))
    if form[UNITS]:
        wide = min(form[TOUCHED] * DISPATCH_RECORDS_PER_QUEUE, notes.size // NOTE_WORDS)
        form[ROOM] = max(DISPATCH_RECORDS, wide)
    return stop


@kernel(i8, BYTES, WORDS, i8)
def advance(board: Bytes, form: Words, following: int) -> int:
    """What the last call passed is dispatched, and the log up to `following`; say so."""
    form[DISPATCHED] = following
    form[WORK] += form[RECORDS]
    atomics.store_release(board, BOARD_DISPATCHED, following)
    machine.store64(board, form[PROCESS] + PROCESS_WORK, form[WORK])
    return following
