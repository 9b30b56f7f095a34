"""Units of ConsumeQueueExt: filters' bits beside a unit, so that records need not be read (FL-64).

The reader makes them of what `dispatch_log` has left; a filter that is told of later gets its bits
into units that are there already by what `match_units` finds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gantrymq.shm import machine
from gantrymq.shm.codes import Stop
from gantrymq.shm.jit import BYTES, BYTES_RO, WORDS, WORDS_RO, i8, kernel
from gantrymq.shm.kernels import scan, sql92
from gantrymq.shm.kernels.bounds import bound_of
from gantrymq.shm.kernels.dispatch import TOUCH_COUNT, TOUCH_QUEUE, TOUCH_START, TOUCH_WORDS
from gantrymq.shm.layout import (
    CQ_EXT_ADDRESS_BASE,
    CQ_EXT_ADDRESS_MASK,
    CQ_EXT_ADDRESS_MAX,
    CQ_EXT_BITMAP,
    CQ_EXT_BITMAP_BYTES,
    CQ_EXT_STORE_MS,
    CQ_EXT_TAGS,
    CQ_EXT_UNIT_BYTES,
    CQ_POSITION,
    CQ_SIZE,
    CQ_TAGS,
    CQ_UNIT_BYTES,
)
from gantrymq.shm.opcodes import ASK, TRUE

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Words = NDArray[np.int64]

DONE = int(Stop.DONE)
LIMIT = int(Stop.LIMIT)
ROLL = int(Stop.ROLL)

# Words of `form`.
BASE = 0  # log position of the segment's first byte
TOUCHED = 1  # extend_units: queues touched
FILE_BYTES = 2  # length of a file of extensions
BITMAP_BYTES = 3
USED = 4  # out: bytes of `out`
INDEX = 5  # match_units: the next unit of the view; moved on
END_INDEX = 6
END_POSITION = 7  # units of records from this log position to LOG_END have the filter's bits
FOUND = 8  # out
WORK_MAX = 9  # bounds the programs' work; 0: no bound
ROW_AT = 10  # scratch: a parsed record, and a program's
SCRATCH_AT = ROW_AT + scan.ROW_WORDS
SPENT = SCRATCH_AT + sql92.SPENT  # that work; match_units: moved on
# match_units: log positions [from, end) that one side wrote, the checks of its records; where the
# log ends.
STRETCH_FROM = SCRATCH_AT + sql92.SCRATCH_WORDS
STRETCH_END = STRETCH_FROM + 1
CHECKS = STRETCH_FROM + 2
LOG_END = STRETCH_FROM + 3
FORM_WORDS = STRETCH_FROM + 4

# A piece: bytes [from, to) of `out` go into a queue's extensions at an address.
PIECE_QUEUE, PIECE_ADDRESS, PIECE_FROM, PIECE_TO = range(4)
PIECE_WORDS = 4

#: A unit leaves so much room in its file (SF-72), where the mark of its end goes.
_END_BYTES = 4
_END_MARK = 0xFFFF

# A topic's filters: how many, then of each the addresses of program, pool, and of its bits' numbers
# behind their count.
LIST_PROGRAM, LIST_POOL, LIST_BITS = range(3)
LIST_WORDS = 3


@kernel()
def _is_true(log: Bytes, form: Words, program: int, pool: int, limit: int) -> int:
    """1 if a filter may be TRUE of the record in the row.

    Also where it asks for its reference, or SPENT has come to a limit.
    """
    if form[SPENT] >= limit:
        return 1
    row = machine.shift(form, ROW_AT)
    result = sql92.run_program(
        machine.words_at(program), machine.bytes_at(pool), log,
        row[scan.PROPERTIES_AT], row[scan.PROPERTIES_SIZE], machine.shift(form, SCRATCH_AT),
        limit,
    )  # fmt: skip
    return 1 if result in (TRUE, ASK) else 0


@kernel()
def _set_bits(out: Bytes, at: int, bits: Words) -> None:
    for number in range(1, bits[0] + 1):
        out[at + bits[number] // 8] |= 1 << bits[number] % 8  # FL-62


@kernel()
def _write_unit(
    log: Bytes, form: Words, filters: int, units: Bytes, at: int, out: Bytes, sound: bool
) -> None:  # fmt: skip
    """One extension at `out[USED]`, of the unit at `at`; the record is in the row, if it is sound.

    Else each filter has its bits: who reads the record is told that it is damaged.
    """
    place = form[USED]
    row = machine.shift(form, ROW_AT)
    bitmap = form[BITMAP_BYTES]
    machine.store_be16(out, place, CQ_EXT_UNIT_BYTES + bitmap)
    machine.store_be64(out, place + CQ_EXT_TAGS, machine.load_be64(units, at + CQ_TAGS))
    machine.store_be64(out, place + CQ_EXT_STORE_MS, row[scan.STORE_MS] if sound else 0)
    machine.store_be16(out, place + CQ_EXT_BITMAP_BYTES, bitmap)
    place += CQ_EXT_BITMAP
    form[USED] = place + bitmap
    for index in range(bitmap):
        out[place + index] = 0
    if bitmap == 0 or filters == 0:
        return
    listed = machine.words_at(filters)
    limit = bound_of(form[WORK_MAX])
    for number in range(listed[0]):
        entry = 1 + number * LIST_WORDS
        if not sound or _is_true(
            log, form, listed[entry + LIST_PROGRAM], listed[entry + LIST_POOL], limit
        ):
            _set_bits(out, place, machine.words_at(listed[entry + LIST_BITS]))


@kernel()
def _put_piece(pieces: Words, count: int, queue: int, address: int, start: int, end: int) -> int:
    at = count * PIECE_WORDS
    pieces[at + PIECE_QUEUE] = queue
    pieces[at + PIECE_ADDRESS] = address
    pieces[at + PIECE_FROM] = start
    pieces[at + PIECE_TO] = end
    return count + 1


@kernel()
def _extend_queue(
    sources: tuple[Bytes, Words], touch: Words, address: int, filters: int,
    targets: tuple[Bytes, Bytes, Words], count: int,
) -> int:  # fmt: skip
    """Extensions of one queue's new units from `address` on; how many pieces there are by then."""
    log, form = sources
    units, out, pieces = targets
    begun = address
    start = form[USED]
    at = touch[TOUCH_START] - touch[TOUCH_COUNT] * CQ_UNIT_BYTES
    row = machine.shift(form, ROW_AT)
    size = CQ_EXT_UNIT_BYTES + form[BITMAP_BYTES]
    for _ in range(touch[TOUCH_COUNT]):
        position = machine.load_be64(units, at + CQ_POSITION)
        limit = position - form[BASE] + machine.load_be32(units, at + CQ_SIZE)
        sound = scan.parse_record(log, position - form[BASE], limit, position, 0, row) == DONE
        left = form[FILE_BYTES] - address % form[FILE_BYTES]
        if size > left - _END_BYTES:
            machine.store_be16(out, form[USED], _END_MARK)
            form[USED] += 2
            count = _put_piece(pieces, count, touch[TOUCH_QUEUE], begun, start, form[USED])
            start = form[USED]
            address += left
            begun = address
        _write_unit(log, form, filters, units, at, out, sound)
        machine.store_be64(units, at + CQ_TAGS, address + CQ_EXT_ADDRESS_BASE)
        address += size
        at += CQ_UNIT_BYTES
    return _put_piece(pieces, count, touch[TOUCH_QUEUE], begun, start, form[USED])


@kernel(i8, BYTES_RO, WORDS, WORDS_RO, WORDS_RO, WORDS_RO, BYTES, BYTES, WORDS)
def extend_units(
    log: Bytes, form: Words, touched: Words, ends: Words, filters: Words, units: Bytes,
    out: Bytes, pieces: Words,
) -> int:  # fmt: skip
    """Make extensions of the units that `dispatch_log` has made; their addresses go into `units`.

    `ends` and `filters` have a word for each queue of the board: the address of its next extension
    (-1: it gets none), and the address of its topic's list (0: no filter). Returns the count of
    `pieces`. The caller sees to room for all. Once form[SPENT] has come to WORK_MAX, filters are
    not asked any more, and each has its bits set: it may be TRUE.
    """
    raw_form = machine.raw(form)
    sources = (machine.raw(log), raw_form)
    targets = (machine.raw(units), machine.raw(out), machine.raw(pieces))
    raw_touched = machine.raw(touched)
    raw_form[USED] = 0
    raw_form[SPENT] = 0
    count = 0
    for number in range(raw_form[TOUCHED]):
        touch = machine.shift(raw_touched, number * TOUCH_WORDS)
        address = ends[touch[TOUCH_QUEUE]]
        if address >= 0:
            listed = filters[touch[TOUCH_QUEUE]]
            count = _extend_queue(sources, touch, address, listed, targets, count)
    return count


@kernel()
def _is_sound(log: Bytes, limit: int, form: Words, position: int, size: int) -> bool:
    """Whether a record of that size is at a log position; it is in the row then."""
    row = machine.shift(form, ROW_AT)
    at = position - form[BASE]
    done = scan.parse_record(log, at, limit, position, form[CHECKS], row)
    return done == DONE and row[scan.SIZE] == size


@kernel()
def _match(
    units: Bytes, log: Bytes, limit: int, form: Words, filters: int, found: Words, room: int
) -> int:
    listed = machine.words_at(filters)
    work_max = bound_of(form[WORK_MAX])
    while form[INDEX] < form[END_INDEX]:
        at = form[INDEX] * CQ_UNIT_BYTES
        position = machine.load_be64(units, at + CQ_POSITION)
        code = machine.load_be64(units, at + CQ_TAGS)
        has_bits = form[END_POSITION] <= position < form[LOG_END]
        if code <= CQ_EXT_ADDRESS_MAX and not has_bits:
            place = position - form[BASE]
            outside = position < form[STRETCH_FROM] or position >= form[STRETCH_END]
            if place < 0 or place >= limit or outside:
                return ROLL
            most = form[SPENT] + work_max
            damaged = not _is_sound(
                log, limit, form, position, machine.load_be32(units, at + CQ_SIZE)
            )
            if damaged or _is_true(
                log, form, listed[1 + LIST_PROGRAM], listed[1 + LIST_POOL], most
            ):
                found[form[FOUND]] = code & CQ_EXT_ADDRESS_MASK
                form[FOUND] += 1
        form[INDEX] += 1
        if form[FOUND] >= room or form[SPENT] >= work_max:
            return LIMIT
    return DONE


@kernel(i8, BYTES_RO, BYTES_RO, WORDS, i8, WORDS)
def match_units(units: Bytes, log: Bytes, form: Words, filters: int, found: Words) -> int:
    """Addresses of extensions whose records the one filter of a list may be TRUE of.

    Damaged ones as well: they are for their consumers to meet. From unit form[INDEX] of a
    ConsumeQueue file's view on. Returns DONE, LIMIT (`found` is full, or form[SPENT] has come to
    WORK_MAX; a record that alone takes as much may be TRUE) or ROLL (the record of unit form[INDEX]
    is in another segment or stretch).
    """
    raw_form = machine.raw(form)
    raw_form[FOUND] = 0
    return _match(
        machine.raw(units), machine.raw(log), log.size, raw_form, filters, machine.raw(found),
        found.size,
    )  # fmt: skip
