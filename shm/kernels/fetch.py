"""Units of one queue -> columns of a consumer.

One call walks units of one ConsumeQueue file whose records lie in one segment, and in one stretch
that one side wrote. A record is taken only if it is whole and is the one that its unit means:
lengths, magic, physicalOffset, queueOffset and checksum (SF-23, or SF-5 in another's stretch).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gantrymq.shm import machine
from gantrymq.shm.codes import Stop
from gantrymq.shm.jit import BYTES, BYTES_RO, WORDS, WORDS_RO, i8, kernel
from gantrymq.shm.kernels import scan, sql92
from gantrymq.shm.kernels.bits import is_whole, may_be_true
from gantrymq.shm.kernels.bounds import NO_BOUND, bound_of
from gantrymq.shm.kernels.inner import FLAG_BEFORE_BODY, PLACE_WORDS, enter_message, is_inner
from gantrymq.shm.kernels.tags import (
    LOST_CODE,
    TAG_WORDS,
    code_wanted,
    is_lost,
    next_wanted,
    signed32,
    tag_wanted,
)
from gantrymq.shm.layout import (
    CQ_EXT_ADDRESS_MASK,
    CQ_EXT_ADDRESS_MAX,
    CQ_EXT_TAGS,
    CQ_FILLER_SIZE,
    CQ_POSITION,
    CQ_SIZE,
    CQ_TAGS,
    CQ_UNIT_BYTES,
    HOST_BYTES_V4,
    HOST_BYTES_V6,
    RECORD_BORN_HOST,
    RECORD_BORN_MS,
    RECORD_FLAG,
    RECORD_SYS_FLAG,
    SYS_BORN_V6,
    SYS_INNER_BATCH,
    SYS_STORE_V6,
)
from gantrymq.shm.opcodes import ASK, TRUE

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Words = NDArray[np.int64]
    #: Units and how many, a segment and its bytes, tags, how many, and their texts.
    Sources = tuple[Bytes, int, Bytes, int, Words, int, Bytes]
    #: Bodies, their room and offsets; properties, their room and offsets; columns, rows, hosts.
    Targets = tuple[Bytes, int, Words, Bytes, int, Words, Words, int, Bytes]

DONE = int(Stop.DONE)
LIMIT = int(Stop.LIMIT)
ROLL = int(Stop.ROLL)
INVALID = int(Stop.INVALID)
TRUNCATED = int(Stop.TRUNCATED)
REMOVED = int(Stop.REMOVED)
ASKED = int(Stop.ASKED)
EXTENSION = int(Stop.EXTENSION)

# Words of `form`. A call moves OFFSET, ROWS, BODY_USED, PROPERTIES_USED, JUDGED and SPENT on.
OFFSET = 0  # queue offset of the unit to look at next
END_OFFSET = 1  # stop before this one
CQ_BASE = 2  # queue offset of the ConsumeQueue file's first unit
LOG_BASE = 3  # position of the segment's first byte
LOW = 4  # log positions below are gone
QUEUE = 5  # board queue number, for the column
ROWS = 6
BODY_USED = 7
PROPERTIES_USED = 8
STRETCH_FROM = 9  # one side wrote the log positions [from, end): shm.ranges
STRETCH_END = 10
FILTER = 11  # EVERYTHING, the TAGS given, or what the SQL program given is TRUE of
WANTED_POSITION = 12  # out: of the record that stopped the call
WANTED_SIZE = 13
OURS = 14  # 1: GantryMQ wrote the stretch, so trailers are binding; else the bodies' sums decide
VERDICT = 15  # on a record that was ASKED for: 1 + its position to take it, - that to pass it over
ROWS_END = 16  # stop at so many rows; 0: as many as there is room for
JUDGED = 17  # counts records looked at
EXTENSIONS = 18  # address of a file of extensions (SF-71); 0: there is none
EXTENSIONS_FROM = 19  # which addresses are in it, or in the file that is not there
EXTENSIONS_END = 20
BITS = 21  # address of a filter's bits (shm/kernels/bits.py); 0: none are known
WANTED_EXTENSION = 22  # out: address of the extension that stopped the call
WORK_MAX = 23  # stop behind the record with which SPENT comes to this; 0: never
BATCH_AT = 24  # where in an inner batch it is (inner.PLACE_WORDS)
ROW_AT = BATCH_AT + PLACE_WORDS  # scratch: a parsed record (scan.ROW_WORDS)
SCRATCH_AT = ROW_AT + scan.ROW_WORDS  # and a program's
SPENT = SCRATCH_AT + sql92.SPENT  # counts the program's work
FORM_WORDS = SCRATCH_AT + sql92.SCRATCH_WORDS

# Words of FILTER.
EVERYTHING, TAGS, SQL = range(3)

# Columns: each has a word for every row that there is room for.
(
    QUEUE_OFFSET, POSITION, BORN_MS, STORE_MS, RECONSUME_TIMES, SYS_FLAG, FLAG, QUEUE_NUMBER,
) = range(8)  # fmt: skip
COLUMNS = 8

#: Bytes of hosts per row: born host at 0, store host at 20, as stored (8 or 20 bytes count).
HOSTS_BYTES = 40
STORE_HOST_AT = 20

#: Units that the records are asked for ahead of, and how much of each.
AHEAD = 8
AHEAD_BYTES = 512
LINE = 64

_CHECKS_OWN = scan.CHECK_PLACE | scan.CHECK_TRAILER
#: Another broker may have copied a trailer that was true of another record.
_CHECKS_FOREIGN = scan.CHECK_PLACE | scan.CHECK_BODY


@kernel()
def _is_wanted(
    units: Bytes, at: int, log: Bytes, form: Words, row: Words, tags: Words, tag_count: int,
    tag_bytes: Bytes,
) -> int:  # fmt: skip
    """LIMIT if the subscription takes this record, DONE, or ASKED.

    What stands for lost messages is taken only by its tag.
    """
    if form[FILTER] == TAGS:
        return LIMIT if tag_wanted(log, row, tags, tag_bytes, tag_count) else DONE
    if machine.load_be64(units, at + CQ_TAGS) == LOST_CODE and is_lost(log, row):
        return DONE
    return _sql_wanted(log, form, row, tags, tag_bytes) if form[FILTER] else LIMIT


@kernel()
def _sql_wanted(log: Bytes, form: Words, row: Words, program: Words, pool: Bytes) -> int:
    """LIMIT if the program is TRUE of the record, DONE, or ASKED."""
    mark = form[WANTED_POSITION] + 1
    if abs(form[VERDICT]) == mark:
        wanted = form[VERDICT] > 0
        form[VERDICT] = 0  # another message of an inner batch has the same position
        return LIMIT if wanted else DONE
    at = row[scan.PROPERTIES_AT]
    size = row[scan.PROPERTIES_SIZE]
    scratch = machine.shift(form, SCRATCH_AT)
    result = sql92.run_program(program, pool, log, at, size, scratch, NO_BOUND)
    if result == ASK:
        return ASKED
    return LIMIT if result == TRUE else DONE


@kernel()
def _pass_over(units: Bytes, at: int, form: Words, tags: Words, tag_count: int) -> int:
    """DONE if the unit alone says that its record is not wanted, LIMIT if not, or EXTENSION.

    An extension has the tag code, and the bits of all filters that were TRUE of the record.
    """
    if form[FILTER] == EVERYTHING or (form[FILTER] == SQL and form[BITS] == 0):
        return LIMIT
    code = machine.load_be64(units, at + CQ_TAGS)
    if code <= CQ_EXT_ADDRESS_MAX:
        return _ask_extension(units, at, code & CQ_EXT_ADDRESS_MASK, form, tags, tag_count)
    return DONE if form[FILTER] == TAGS and not code_wanted(code, tags, tag_count) else LIMIT


@kernel()
def _ask_extension(
    units: Bytes, at: int, address: int, form: Words, tags: Words, tag_count: int
) -> int:
    place = address - form[EXTENSIONS_FROM]
    if place < 0 or address >= form[EXTENSIONS_END]:
        form[WANTED_EXTENSION] = address
        return EXTENSION
    extension = machine.bytes_at(form[EXTENSIONS])
    if not form[EXTENSIONS] or not is_whole(extension, place, form[EXTENSIONS_END] - address):
        return LIMIT
    if form[FILTER] == TAGS:
        code = machine.load_be64(extension, place + CQ_EXT_TAGS)
        return LIMIT if code_wanted(code, tags, tag_count) else DONE
    position = machine.load_be64(units, at + CQ_POSITION)
    return LIMIT if may_be_true(extension, place, position, machine.words_at(form[BITS])) else DONE


@kernel()
def _judge(log: Bytes, limit: int, form: Words, row: Words, position: int) -> int:
    """Parse and check the record at a log position; DONE or INVALID."""
    at = position - form[LOG_BASE]
    checks = _CHECKS_OWN
    if not form[OURS]:  # who alone stores inner batches
        checks = scan.CHECK_PLACE if form[BATCH_AT] == position + 1 else _CHECKS_FOREIGN
    return scan.parse_record(log, at, limit, position, checks, row)


@kernel()
def _is_meant(log: Bytes, form: Words, row: Words) -> int:
    """1 if a sound record is the unit's; an inner batch's row becomes its message's (RD-73)."""
    number = form[OFFSET] - row[scan.QUEUE_OFFSET]
    if row[scan.SIZE] != form[WANTED_SIZE]:
        return 0
    if not is_inner(row[scan.SYS_FLAG]):
        return 1 if number == 0 else 0
    place = machine.shift(form, BATCH_AT)
    if not enter_message(log, row, place, form[WANTED_POSITION] + 1, number):
        return 0
    form[WANTED_SIZE] = row[scan.BODY_SIZE] + row[scan.PROPERTIES_SIZE]
    return 1


@kernel()
def _take_hosts(log: Bytes, at: int, sys_flag: int, hosts: Bytes, place: int) -> int:
    """Copy both hosts; returns where the words behind them are."""
    born = HOST_BYTES_V6 if sys_flag & SYS_BORN_V6 else HOST_BYTES_V4
    store = HOST_BYTES_V6 if sys_flag & SYS_STORE_V6 else HOST_BYTES_V4
    born_at = at + RECORD_BORN_HOST
    store_at = born_at + born + 8
    if born + store == 2 * HOST_BYTES_V4:
        machine.store64(hosts, place, machine.load64(log, born_at))
        machine.store64(hosts, place + STORE_HOST_AT, machine.load64(log, store_at))
    else:
        machine.copy(hosts, place, log, born_at, born)
        machine.copy(hosts, place + STORE_HOST_AT, log, store_at, store)
    return store_at + store


@kernel()
def _take_numbers(
    log: Bytes, form: Words, row: Words, columns: Words, room: int, hosts: Bytes
) -> None:
    """Fill the row's words of all columns."""
    at = row[scan.AT]
    rows = form[ROWS]
    sys_flag = machine.load_be32(log, at + RECORD_SYS_FLAG)
    behind = _take_hosts(log, at, sys_flag, hosts, rows * HOSTS_BYTES)
    flag_at = at + RECORD_FLAG
    if is_inner(sys_flag):
        sys_flag &= ~SYS_INNER_BATCH
        flag_at = row[scan.BODY_AT] - FLAG_BEFORE_BODY
    columns[QUEUE_OFFSET * room + rows] = form[OFFSET]
    columns[POSITION * room + rows] = form[LOG_BASE] + at
    columns[BORN_MS * room + rows] = machine.load_be64(log, at + RECORD_BORN_MS)
    columns[STORE_MS * room + rows] = row[scan.STORE_MS]
    columns[RECONSUME_TIMES * room + rows] = signed32(machine.load_be32(log, behind))
    columns[SYS_FLAG * room + rows] = signed32(sys_flag)
    columns[FLAG * room + rows] = signed32(machine.load_be32(log, flag_at))
    columns[QUEUE_NUMBER * room + rows] = form[QUEUE]


@kernel()
def _take_bytes(
    log: Bytes, form: Words, row: Words, bodies: Bytes, body_offsets: Words,
    properties: Bytes, property_offsets: Words,
) -> None:  # fmt: skip
    """Copy body and properties behind those of the row before."""
    rows = form[ROWS]
    size = row[scan.BODY_SIZE]
    machine.copy(bodies, form[BODY_USED], log, row[scan.BODY_AT], size)
    form[BODY_USED] += size
    body_offsets[rows + 1] = form[BODY_USED]
    size = row[scan.PROPERTIES_SIZE]
    machine.copy(properties, form[PROPERTIES_USED], log, row[scan.PROPERTIES_AT], size)
    form[PROPERTIES_USED] += size
    property_offsets[rows + 1] = form[PROPERTIES_USED]


@kernel(
    i8, BYTES_RO, BYTES_RO, WORDS, WORDS_RO, BYTES_RO, BYTES, WORDS, BYTES, WORDS, WORDS, BYTES,
    nogil=True,
)  # fmt: skip
def fetch(
    units: Bytes,
    log: Bytes,
    form: Words,
    tags: Words,
    tag_bytes: Bytes,
    bodies: Bytes,
    body_offsets: Words,
    properties: Bytes,
    property_offsets: Words,
    columns: Words,
    hosts: Bytes,
) -> int:
    """Copy messages into columns, from unit `form[OFFSET]` on; `form` says how far it came.

    Rows are added behind `form[ROWS]`. Units whose tag is not wanted are passed over. Returns
    DONE (END_OFFSET, ROWS_END or WORK_MAX reached), LIMIT (no room for the next row: WANTED_SIZE
    is its record's size), TRUNCATED (the next unit is in another ConsumeQueue file), ROLL (the next
    record is in another segment or stretch: WANTED_POSITION), REMOVED (it is below LOW), INVALID
    (it is not what its unit says), ASKED (call again with a VERDICT on the record that the row
    scratch has) or EXTENSION (that of the next unit is not among EXTENSIONS).

    `tags` and `tag_bytes` are rows of TAG_WORDS and their texts, or a filter's program and its
    pool (shm/opcodes.py).
    """
    sources = (
        machine.raw(units), units.size // CQ_UNIT_BYTES, machine.raw(log), log.size,
        machine.raw(tags), tags.size // TAG_WORDS, machine.raw(tag_bytes),
    )  # fmt: skip
    targets = (
        machine.raw(bodies), bodies.size, machine.raw(body_offsets),
        machine.raw(properties), properties.size, machine.raw(property_offsets),
        machine.raw(columns), hosts.size // HOSTS_BYTES, machine.raw(hosts),
    )  # fmt: skip
    return fetch_run(machine.raw(form), sources, targets)


@kernel()
def fetch_run(form: Words, sources: Sources, targets: Targets) -> int:
    """`fetch` over raw memory."""
    units, held, log, limit, tags, tag_count, tag_bytes = sources
    bodies, body_room, body_offsets = targets[0], targets[1], targets[2]
    properties, property_room, property_offsets = targets[3], targets[4], targets[5]
    columns, room, hosts = targets[6], targets[7], targets[8]
    base = form[CQ_BASE]
    rows_end = bound_of(form[ROWS_END])
    work_max = bound_of(form[WORK_MAX])
    stop = DONE
    within = True
    while stop == DONE and within and form[OFFSET] < form[END_OFFSET] and form[ROWS] < rows_end:
        index = form[OFFSET] - base
        if index < 0 or index >= held:
            return TRUNCATED
        last = min(held, form[END_OFFSET] - base)
        if form[FILTER] == TAGS:
            index = next_wanted(units, index, last, tags, tag_count)
            form[OFFSET] = base + index
            if index == last:
                continue
        at = index * CQ_UNIT_BYTES
        _ask_ahead(units, at, last - index, log, limit, form, tags, tag_count)
        stop = _fetch_one(units, at, log, limit, form, tags, tag_count, tag_bytes)
        if stop == LIMIT:
            if form[ROWS] >= room or not _fits(form, body_room, property_room, form[WANTED_SIZE]):
                return LIMIT
            row = machine.shift(form, ROW_AT)
            _take_numbers(log, form, row, columns, room, hosts)
            _take_bytes(log, form, row, bodies, body_offsets, properties, property_offsets)
            form[ROWS] += 1
            stop = DONE
        if stop == DONE:
            form[OFFSET] += 1
            within = form[SPENT] < work_max
    return stop


@kernel()
def _ask_ahead(
    units: Bytes, at: int, left: int, log: Bytes, limit: int, form: Words, tags: Words, count: int
) -> None:
    """Have the record of a unit further on brought near: a queue's records lie scattered."""
    if left <= AHEAD:
        return
    at += AHEAD * CQ_UNIT_BYTES
    if _pass_over(units, at, form, tags, count) == DONE:
        return
    place = machine.load_be64(units, at + CQ_POSITION) - form[LOG_BASE]
    size = min(machine.load_be32(units, at + CQ_SIZE), AHEAD_BYTES)
    if place < 0 or place + size > limit:
        return
    for line in range(place, place + size, LINE):
        machine.prefetch(log, line)


@kernel()
def _fits(form: Words, bodies: int, properties: int, size: int) -> int:
    """1 if a record of `size` bytes certainly has room."""
    return (
        1 if form[BODY_USED] + size <= bodies and form[PROPERTIES_USED] + size <= properties else 0
    )


@kernel()
def _fetch_one(
    units: Bytes, at: int, log: Bytes, limit: int, form: Words, tags: Words, tag_count: int,
    tag_bytes: Bytes,
) -> int:  # fmt: skip
    """Judge one unit and its record: DONE = pass it over, LIMIT = take it, else why to stop."""
    position = machine.load_be64(units, at + CQ_POSITION)
    size = machine.load_be32(units, at + CQ_SIZE)
    if size == CQ_FILLER_SIZE and position == 0:  # SF-65: there never was a message
        return DONE
    stop = _pass_over(units, at, form, tags, tag_count)
    if stop != LIMIT:
        return stop
    form[JUDGED] += 1
    form[WANTED_POSITION] = position
    form[WANTED_SIZE] = size
    if position < form[LOW]:
        return REMOVED
    offset = position - form[LOG_BASE]
    outside = position < form[STRETCH_FROM] or position >= form[STRETCH_END]
    if offset < 0 or offset >= limit or outside:
        return ROLL
    row = machine.shift(form, ROW_AT)
    if _judge(log, limit, form, row, position) != DONE or not _is_meant(log, form, row):
        return INVALID
    return _is_wanted(units, at, log, form, row, tags, tag_count, tag_bytes)
