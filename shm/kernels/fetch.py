"""Units of one queue -> columns of a consumer.

One call walks units of one ConsumeQueue file whose records lie in one segment, and in one stretch
that one side wrote. A record is taken only if it is whole and is the one that its unit means:
lengths, magic, physicalOffset, queueOffset and checksum (SF-23, or SF-5 in another's stretch).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shm import machine
from shm.codes import Stop
from shm.jit import BYTES, BYTES_RO, WORDS, WORDS_RO, i8, kernel
from shm.kernels import scan, sql92
from shm.layout import (
    CQ_EXT_ADDRESS_MAX,
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
    SYS_STORE_V6,
)
from shm.opcodes import ASK, TRUE
from shm.properties import LOST_TAG, java_hash

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

# Words of `form`. A call moves OFFSET, ROWS, BODY_USED and PROPERTIES_USED on.
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
ROW_AT = 16  # scratch: a parsed record (scan.ROW_WORDS)
SCRATCH_AT = ROW_AT + scan.ROW_WORDS  # and a program's
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

# Words per tag of `tags`, by rising hash.
TAG_HASH, TAG_AT, TAG_END = range(3)
TAG_WORDS = 3

_CHECKS_OWN = scan.CHECK_PLACE | scan.CHECK_TRAILER
#: Another broker may have copied a trailer that was true of another record.
_CHECKS_FOREIGN = scan.CHECK_PLACE | scan.CHECK_BODY
_TAGS_WORD = int.from_bytes(b"TAGS", "little")
#: Tag code of a unit, and the two words, 3 bytes on each other, of the 11 bytes of the tag.
_LOST_CODE = java_hash(LOST_TAG)
_LOST_HEAD = int.from_bytes(LOST_TAG.encode()[:8], "little")
_LOST_TAIL = int.from_bytes(LOST_TAG.encode()[3:], "little")
_LOST_BYTES = len(LOST_TAG)


@kernel()
def _signed32(value: int) -> int:
    return value - 0x100000000 if value > 0x7FFFFFFF else value


@kernel()
def _first_of_hash(tags: Words, count: int, code: int) -> int:
    """Index of the first tag with this hash, or -1 (binary search)."""
    low = 0
    high = count
    while low < high:
        middle = (low + high) // 2
        if tags[middle * TAG_WORDS + TAG_HASH] < code:
            low = middle + 1
        else:
            high = middle
    if low < count and tags[low * TAG_WORDS + TAG_HASH] == code:
        return low
    return -1


@kernel()
def _hash_wanted(units: Bytes, at: int, tags: Words, count: int) -> int:
    """1 if a unit's tag code is one of those wanted (FL-3), or is an address of something else."""
    code = machine.load_be64(units, at + CQ_TAGS)
    if code <= CQ_EXT_ADDRESS_MAX:
        return 1
    return 1 if _first_of_hash(tags, count, _signed32(code & 0xFFFFFFFF)) >= 0 else 0


@kernel()
def _equal(memory: Bytes, at: int, other: Bytes, other_at: int, count: int) -> int:
    for step in range(count):
        if memory[at + step] != other[other_at + step]:
            return 0
    return 1


@kernel()
def _find_tag(log: Bytes, row: Words) -> int:
    """Where the record's TAGS begins, -1 without one; the last one counts (SF-28)."""
    at = row[scan.PROPERTIES_AT]
    end = at + row[scan.PROPERTIES_SIZE]
    found = -1
    while at < end:
        stop = at
        while stop < end and log[stop] != 2:
            stop += 1
        if stop - at > 5 and machine.load32(log, at) == _TAGS_WORD and log[at + 4] == 1:
            found = at + 5
        at = stop + 1
    return found


@kernel()
def _tag_bytes(log: Bytes, row: Words, found: int) -> int:
    """How long the tag is that begins there."""
    end = row[scan.PROPERTIES_AT] + row[scan.PROPERTIES_SIZE]
    stop = found
    while stop < end and log[stop] != 2:
        stop += 1
    return stop - found


@kernel()
def _is_lost(log: Bytes, row: Words) -> int:
    """1 if the record only stands for one that was lost (ADR 0014)."""
    found = _find_tag(log, row)
    if found < 0 or _tag_bytes(log, row, found) != _LOST_BYTES:
        return 0
    same = (
        machine.load64(log, found) == _LOST_HEAD
        and machine.load64(log, found + _LOST_BYTES - 8) == _LOST_TAIL
    )
    return 1 if same else 0


@kernel()
def _tag_wanted(log: Bytes, row: Words, tags: Words, tag_bytes: Bytes, count: int) -> int:
    """1 if the record's TAGS is exactly one of the tags (FL-4)."""
    found = _find_tag(log, row)
    if found < 0:
        return 0
    size = _tag_bytes(log, row, found)
    for index in range(count):
        place = tags[index * TAG_WORDS + TAG_AT]
        if tags[index * TAG_WORDS + TAG_END] - place == size:
            if _equal(log, found, tag_bytes, place, size):
                return 1
    return 0


@kernel()
def _is_wanted(
    units: Bytes, at: int, log: Bytes, form: Words, row: Words, tags: Words, tag_count: int,
    tag_bytes: Bytes,
) -> int:  # fmt: skip
    """LIMIT if the subscription takes this record, DONE, or ASKED.

    What stands for lost messages is taken only by its tag.
    """
    if form[FILTER] == TAGS:
        return LIMIT if _tag_wanted(log, row, tags, tag_bytes, tag_count) else DONE
    if machine.load_be64(units, at + CQ_TAGS) == _LOST_CODE and _is_lost(log, row):
        return DONE
    return _sql_wanted(log, form, row, tags, tag_bytes) if form[FILTER] else LIMIT


@kernel()
def _sql_wanted(log: Bytes, form: Words, row: Words, program: Words, pool: Bytes) -> int:
    """LIMIT if the program is TRUE of the record, DONE, or ASKED."""
    mark = form[WANTED_POSITION] + 1
    if abs(form[VERDICT]) == mark:
        return LIMIT if form[VERDICT] > 0 else DONE
    at = row[scan.PROPERTIES_AT]
    size = row[scan.PROPERTIES_SIZE]
    scratch = machine.shift(form, SCRATCH_AT)
    result = sql92.run_program(program, pool, log, at, size, scratch)
    if result == ASK:
        return ASKED
    return LIMIT if result == TRUE else DONE


@kernel()
def _judge(log: Bytes, limit: int, form: Words, row: Words, position: int) -> int:
    """Parse and check the record at a log position; DONE or INVALID."""
    at = position - form[LOG_BASE]
    checks = _CHECKS_OWN if form[OURS] else _CHECKS_FOREIGN
    return scan.parse_record(log, at, limit, position, checks, row)


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
    columns[QUEUE_OFFSET * room + rows] = form[OFFSET]
    columns[POSITION * room + rows] = form[LOG_BASE] + at
    columns[BORN_MS * room + rows] = machine.load_be64(log, at + RECORD_BORN_MS)
    columns[STORE_MS * room + rows] = row[scan.STORE_MS]
    columns[RECONSUME_TIMES * room + rows] = _signed32(machine.load_be32(log, behind))
    columns[SYS_FLAG * room + rows] = _signed32(sys_flag)
    columns[FLAG * room + rows] = _signed32(machine.load_be32(log, at + RECORD_FLAG))
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
    DONE (END_OFFSET reached), LIMIT (no room for the next row: WANTED_SIZE is its record's size),
    TRUNCATED (the next unit is in another ConsumeQueue file), ROLL (the next record is in another
    segment or stretch: WANTED_POSITION), REMOVED (it is below LOW), INVALID (it is not what its
    unit says) or ASKED (call again with a VERDICT on the record that the row scratch has).

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
    stop = DONE
    while stop == DONE and form[OFFSET] < form[END_OFFSET]:
        index = form[OFFSET] - base
        if index < 0 or index >= held:
            return TRUNCATED
        at = index * CQ_UNIT_BYTES
        left = min(held, form[END_OFFSET] - base) - index
        _ask_ahead(units, at, left, log, limit, form[LOG_BASE])
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
    return stop


@kernel()
def _ask_ahead(units: Bytes, at: int, left: int, log: Bytes, limit: int, base: int) -> None:
    """Have the record of a unit further on brought near: a queue's records lie scattered."""
    if left <= AHEAD:
        return
    at += AHEAD * CQ_UNIT_BYTES
    place = machine.load_be64(units, at + CQ_POSITION) - base
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
    if form[FILTER] == TAGS and not _hash_wanted(units, at, tags, tag_count):
        return DONE
    form[WANTED_POSITION] = position
    form[WANTED_SIZE] = size
    if position < form[LOW]:
        return REMOVED
    offset = position - form[LOG_BASE]
    outside = position < form[STRETCH_FROM] or position >= form[STRETCH_END]
    if offset < 0 or offset >= limit or outside:
        return ROLL
    row = machine.shift(form, ROW_AT)
    if _judge(log, limit, form, row, position) != DONE:
        return INVALID
    if row[scan.SIZE] != size or row[scan.QUEUE_OFFSET] != form[OFFSET]:
        return INVALID
    return _is_wanted(units, at, log, form, row, tags, tag_count, tag_bytes)
