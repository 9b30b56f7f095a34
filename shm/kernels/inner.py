"""Inner batches (RD-70): one record of a topic of type BatchCQ whose body is many messages.

A message's row is its batch's, with body and properties of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gantrymq.shm import machine
from gantrymq.shm.jit import BYTES_RO, WORDS, WORDS_RO, i8, kernel
from gantrymq.shm.kernels.scan import (
    BODY_AT,
    BODY_SIZE,
    PROPERTIES_AT,
    PROPERTIES_SIZE,
    QUEUE_OFFSET,
    ROW_WORDS,
    SYS_FLAG,
    TAGS_CODE,
    read_properties,
)
from gantrymq.shm.layout import SYS_COMPRESSED, SYS_INNER_BATCH

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Words = NDArray[np.int64]

# A message of an inner batch: size, magic, CRC (all three ignored: RD-60), flag, body length, body;
# length of its properties, properties.
BODY_LENGTH = 16
HEAD_BYTES = 20
#: Where the flag is, from the body backwards.
FLAG_BEFORE_BODY = 8

# Words of the form of `list_messages`, which move on; all 0 in the beginning.
ROW = 0  # the row to go on with
PASSED = 1  # bytes of its body that are passed
NUMBER = 2  # messages of it that are passed
FORM_WORDS = 3

# Where in a batch somebody is: 1 + position of the batch whose sums hold, the first of its messages
# that was not passed, and where in the map that is.
PLACE_BATCH, PLACE_NUMBER, PLACE_AT = range(3)
PLACE_WORDS = 3

# A message that was listed: MESSAGE_WORDS each.
MESSAGE_OFFSET, MESSAGE_ROW, MESSAGE_TAGS = range(3)
MESSAGE_WORDS = 3


@kernel()
def is_inner(sys_flag: int) -> int:
    """1 if a body is messages, one behind the other; compressed ones are none (RD-61)."""
    return 1 if sys_flag & (SYS_INNER_BATCH | SYS_COMPRESSED) == SYS_INNER_BATCH else 0


@kernel()
def _next_message(memory: Bytes, at: int, end: int, row: Words) -> int:
    """Give a row body and properties of the message at `at`; where the next is, -1: it is none."""
    body_at = at + HEAD_BYTES
    if body_at + 2 > end:
        return -1
    size = machine.load_be32(memory, at + BODY_LENGTH)
    if size > end - body_at - 2:
        return -1
    row[BODY_AT] = body_at
    row[BODY_SIZE] = size
    at = body_at + size
    size = machine.load_be16(memory, at)
    at += 2
    if size > 0x7FFF or size > end - at:
        return -1
    row[PROPERTIES_AT] = at
    row[PROPERTIES_SIZE] = size
    return at + size


@kernel()
def enter_message(memory: Bytes, row: Words, place: Words, batch: int, number: int) -> int:
    """Make the row of a sound batch that of its message of this number; 0 if there is none.

    `batch` is 1 + its position; `place` (PLACE_WORDS) is moved on: in order each costs one step.
    """
    if place[PLACE_BATCH] != batch or number < place[PLACE_NUMBER]:
        place[PLACE_BATCH] = batch
        place[PLACE_NUMBER] = 0
        place[PLACE_AT] = row[BODY_AT]
    at = place[PLACE_AT]
    end = row[BODY_AT] + row[BODY_SIZE]
    for passed in range(place[PLACE_NUMBER], number + 1):
        place[PLACE_NUMBER] = passed
        place[PLACE_AT] = at
        at = _next_message(memory, at, end, row) if at < end else -1
        if at < 0:
            return 0
    return 1 if number >= 0 else 0


@kernel()
def _list(
    memory: Bytes, rows: Words, count: int, form: Words, scratch: Words, out: Words, room: int
) -> int:
    listed = 0
    while listed < room and form[ROW] < count:
        row = machine.shift(rows, form[ROW] * ROW_WORDS)
        tags = row[TAGS_CODE]
        inner = is_inner(row[SYS_FLAG])
        if inner:
            begin = row[BODY_AT]
            end = begin + row[BODY_SIZE]
            at = begin + form[PASSED]
            at = _next_message(memory, at, end, scratch) if at < end else -1
            if at < 0:  # all are listed, or what follows is none
                form[ROW] += 1
                form[PASSED] = 0
                form[NUMBER] = 0
                continue
            read_properties(memory, scratch)
            tags = scratch[TAGS_CODE]
            form[PASSED] = at - begin
        place = listed * MESSAGE_WORDS
        out[place + MESSAGE_OFFSET] = row[QUEUE_OFFSET] + form[NUMBER]
        out[place + MESSAGE_ROW] = form[ROW]
        out[place + MESSAGE_TAGS] = tags
        listed += 1
        if inner:
            form[NUMBER] += 1
        else:
            form[ROW] += 1
    return listed


@kernel(i8, BYTES_RO, WORDS_RO, WORDS, WORDS, WORDS)
def list_messages(memory: Bytes, rows: Words, form: Words, scratch: Words, out: Words) -> int:
    """List the messages of rows of `scan_log`, in order; returns how many, 0 at the end.

    Each with its queue offset, its row, and the code of its own tag. `out` has room for so many as
    one call lists, `scratch` for a row.
    """
    raw = machine.raw
    count, room = rows.size // ROW_WORDS, out.size // MESSAGE_WORDS
    return _list(raw(memory), raw(rows), count, raw(form), raw(scratch), raw(out), room)
