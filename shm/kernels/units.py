"""What `store verify` compares: rows of the scan kernel as columns of ConsumeQueue units."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gantrymq.shm import machine
from gantrymq.shm.jit import BYTES_RO, WORDS, WORDS_RO, i8, kernel
from gantrymq.shm.kernels.scan import (
    AT,
    DELAY,
    QUEUE_ID,
    QUEUE_OFFSET,
    ROW_WORDS,
    SIZE,
    STORE_MS,
    SYS_FLAG,
    TAGS_CODE,
    TOPIC_AT,
    TOPIC_SIZE,
)
from gantrymq.shm.layout import SYS_COMMIT, SYS_TRANSACTION

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Words = NDArray[np.int64]

# Words of the form of `unit_columns`.
BASE = 0  # log position of the segment
UNITS_END = 1  # records from this log position on are left out
SCHEDULE = 2  # number of the topic whose units hold the time of delivery (SF-63), or -1
COUNT = 3  # columns filled so far, moved on
FORM_WORDS = 4

KEY, OFFSET, POSITION, UNIT_SIZE, TAGS = range(5)
COLUMNS = 5


@kernel(i8, BYTES_RO, WORDS_RO, BYTES_RO)
def rows_of_topic(memory: Bytes, rows: Words, name: Bytes) -> int:
    """How many rows, from the first on, have a topic of these bytes."""
    count = rows.size // ROW_WORDS
    for number in range(count):
        row = number * ROW_WORDS
        if rows[row + TOPIC_SIZE] != name.size:
            return number
        at = rows[row + TOPIC_AT]
        for place in range(name.size):
            if machine.load8(memory, at + place) != machine.load8(name, place):
                return number
    return count


@kernel(i8, WORDS_RO, WORDS_RO, WORDS_RO, WORDS, WORDS)
def unit_columns(rows: Words, topics: Words, delays: Words, form: Words, out: Words) -> int:
    """Add the unit of each row that has one (SF-61) to five columns; returns how many.

    `out` is COLUMNS columns one behind the other: topic number << 32 | queue id, queue offset, log
    position, size, tags code. `topics` has a topic number per row, `delays` milliseconds per
    level; there must be room.
    """
    room = out.size // COLUMNS
    count = form[COUNT]
    for number in range(topics.size):
        row = number * ROW_WORDS
        kind = rows[row + SYS_FLAG] & SYS_TRANSACTION
        position = form[BASE] + rows[row + AT]
        if (kind != 0 and kind != SYS_COMMIT) or position >= form[UNITS_END]:
            continue
        tags = rows[row + TAGS_CODE]
        if topics[number] == form[SCHEDULE] and rows[row + DELAY] > 0:
            level = min(rows[row + DELAY], delays.size - 1)
            tags = rows[row + STORE_MS] + delays[level]
        out[KEY * room + count] = topics[number] << 32 | (rows[row + QUEUE_ID] & 0xFFFFFFFF)
        out[OFFSET * room + count] = rows[row + QUEUE_OFFSET]
        out[POSITION * room + count] = position
        out[UNIT_SIZE * room + count] = rows[row + SIZE]
        out[TAGS * room + count] = tags
        count += 1
    added: int = count - form[COUNT]
    form[COUNT] = count
    return added
