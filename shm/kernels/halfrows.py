"""Halves and op records of queues as rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gantrymq.shm import machine
from gantrymq.shm.codes import Stop
from gantrymq.shm.jit import BYTES_RO, WORDS, WORDS_RO, i8, kernel
from gantrymq.shm.kernels import scan
from gantrymq.shm.kernels.bytesearch import find_byte
from gantrymq.shm.kernels.decimals import number_of
from gantrymq.shm.kernels.halfform import (
    COMMIT,
    DAMAGED,
    GOOD,
    ID_DIGITS,
    IMMUNITY,
    NO_HALF,
    PGROUP,
    ROW_AT,
    TX,
    UNIQ,
    VALUES,
    is_first,
    read_properties,
)
from gantrymq.shm.kernels.stretch import COUNT, NEXT, is_shown, parse_shown
from gantrymq.shm.layout import CQ_FILLER_SIZE, RECORD_BORN_MS, RECORD_FLAG

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Words = NDArray[np.int64]

DONE = int(Stop.DONE)
LIMIT = int(Stop.LIMIT)
ROLL = int(Stop.ROLL)

# A row of `read_halves`: READ_WORDS each.
READ_STATE, READ_OFFSET, STORE_MS, BORN_MS, PREPARED, TX_HASH, KEY_HASH, GROUP_AT, GROUP_SIZE = (
    range(9)
)
IMMUNE_S, GROUP_HASH = 9, 10
IS_LATER = 11  # 1: not the first half of its transaction
_HASH_SEED, _HASH_PRIME = 0x1F83D9ABFB41BD6B, 0x7FEB352D
READ_WORDS = 12


@kernel()
def _hash(memory: Bytes, at: int, count: int) -> int:
    """63 bits that tell values apart; 0 for none."""
    value = _HASH_SEED if count else 0
    for place in range(count):
        # 32 bits times a number of 31: the same with the JIT off, where nothing wraps.
        low = (value & 0xFFFFFFFF) ^ machine.load8(memory, at + place)
        value = (low * _HASH_PRIME + (value >> 32)) & 0x7FFFFFFFFFFFFFFF
    return value


@kernel(i8, BYTES_RO)
def hash_id(text: Bytes) -> int:
    """What a row has of the id of a transaction."""
    return _hash(machine.raw(text), 0, min(text.size, ID_DIGITS))


@kernel()
def _read_half(log: Bytes, form: Words, out: Words, at: int) -> None:
    row = machine.shift(form, ROW_AT)
    read_properties(log, form, row)
    out[at + READ_OFFSET] = row[scan.QUEUE_OFFSET]
    out[at + STORE_MS] = row[scan.STORE_MS]
    out[at + BORN_MS] = machine.load_be64(log, row[scan.AT] + RECORD_BORN_MS)
    out[at + PREPARED] = row[scan.PREPARED]
    size = form[VALUES + 2 * TX + 1]
    out[at + TX_HASH] = _hash(log, form[VALUES + 2 * TX], min(size, ID_DIGITS))
    out[at + KEY_HASH] = _hash(log, form[VALUES + 2 * UNIQ], form[VALUES + 2 * UNIQ + 1])
    out[at + GROUP_AT] = form[VALUES + 2 * PGROUP]
    out[at + GROUP_SIZE] = form[VALUES + 2 * PGROUP + 1]
    immune = VALUES + 2 * IMMUNITY
    out[at + IMMUNE_S] = number_of(log, form[immune], form[immune + 1])
    out[at + GROUP_HASH] = _hash(log, out[at + GROUP_AT], out[at + GROUP_SIZE])
    is_ours = out[at + TX_HASH] != 0
    out[at + IS_LATER] = 1 if is_ours and not is_first(log, form, ID_DIGITS) else 0


@kernel(i8, BYTES_RO, WORDS, WORDS_RO, WORDS)
def read_halves(log: Bytes, form: Words, units: Words, out: Words) -> int:
    """Halves of units (position and size each, from form[NEXT] to form[COUNT]) as rows of `out`.

    A row's READ_STATE is GOOD, DAMAGED, or NO_HALF (there never was one). Returns DONE or ROLL.
    """
    memory, words = machine.raw(log), machine.raw(form)
    while form[NEXT] < form[COUNT]:
        position = units[2 * form[NEXT]]
        size = units[2 * form[NEXT] + 1]
        if not is_shown(words, log.size, position):
            return ROLL
        at = form[NEXT] * READ_WORDS
        row = machine.shift(words, ROW_AT)
        out[at + READ_STATE] = NO_HALF
        if size != CQ_FILLER_SIZE:
            out[at + READ_STATE] = DAMAGED
            if parse_shown(memory, log.size, words, position, row) == DONE:
                _read_half(memory, words, machine.raw(out), at)
                out[at + READ_STATE] = GOOD
        form[NEXT] += 1
    return DONE


@kernel()
def _add_name(form: Words, name: tuple[int, int, int], out: Words, room: int) -> int:
    """One row of `read_ops`; 0 if there is no room."""
    at = 3 * form[COMMIT]
    if at + 3 > room:
        return 0
    out[at], out[at + 1], out[at + 2] = name
    form[COMMIT] += 1
    return 1


@kernel()
def _read_op(log: Bytes, form: Words, number: int, out: Words, room: int) -> int:
    """Offsets of an op record's body (TX-21, TX-22) into `out`; 0 if there is no room."""
    row = machine.shift(form, ROW_AT)
    at = row[scan.BODY_AT]
    end = at + row[scan.BODY_SIZE]
    flag = machine.load_be32(log, row[scan.AT] + RECORD_FLAG)
    first = form[COMMIT]
    while at < end:
        stop = find_byte(log, at, end, 44)
        offset = number_of(log, at, stop - at)
        if offset >= 0:
            done = (1 if form[COMMIT] - first < flag - 1 else 0) if flag > 0 else -1
            if not _add_name(form, (offset, number, done), out, room):
                form[COMMIT] = first
                return 0
        at = stop + 1
    return 1


@kernel(i8, BYTES_RO, WORDS, WORDS_RO, WORDS)
def read_ops(log: Bytes, form: Words, units: Words, out: Words) -> int:
    """What op records of units name: half offset, number of the unit, 1 = committed in `out`.

    The third is 0 where it was not, -1 where another broker's record does not tell. A damaged one
    names -1. form[COMMIT] counts rows, the caller sets it to 0. Returns DONE, ROLL or LIMIT (`out`
    is full).
    """
    memory, words = machine.raw(log), machine.raw(form)
    while form[NEXT] < form[COUNT]:
        position = units[2 * form[NEXT]]
        if not is_shown(words, log.size, position):
            return ROLL
        row = machine.shift(words, ROW_AT)
        if parse_shown(memory, log.size, words, position, row) == DONE:
            if not _read_op(memory, words, form[NEXT], machine.raw(out), out.size):
                return LIMIT
        elif not _add_name(words, (-1, form[NEXT], -1), machine.raw(out), out.size):
            return LIMIT
        form[NEXT] += 1
    return DONE
