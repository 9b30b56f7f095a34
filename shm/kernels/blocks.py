"""What a segment's sidecar says: where its records are, of which topics, CRCs of its bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gantrymq.shm import machine
from gantrymq.shm.jit import BYTES, BYTES_RO, WORDS, i8, kernel
from gantrymq.shm.kernels.dispatch import DONE, LIMIT, UNKNOWN_TOPIC, find_topic
from gantrymq.shm.kernels.scan import CHECK_PLACE, SIZE, STORE_MS, parse_record

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Words = NDArray[np.int64]

# The words of `note_records`: indexes into `form`.
AT = 0  # offset in the view of the next record; moved on
BASE = 1  # log position of the view's first byte
NOTED = 2  # out: records of this call
FIRST_MS = 3  # out: storeTimestamp of the first record of the segment
LAST_MS = 4  # out: of the last one so far
FORM_WORDS = 5


@kernel()
def _note_records(
    memory: Bytes, limit: int, form: Words, tables: tuple[Bytes, Words, int], passed: Words,
    room: int, row: Words,
) -> int:  # fmt: skip
    board, index, mask = tables
    form[NOTED] = 0
    while form[NOTED] < room:
        at = form[AT]
        stop = parse_record(memory, at, limit, form[BASE] + at, CHECK_PLACE, row)
        if stop != DONE:
            return stop
        topic = find_topic(memory, row, board, index, mask)
        if topic < 0:
            return UNKNOWN_TOPIC
        if at == 0:
            form[FIRST_MS] = row[STORE_MS]
        form[LAST_MS] = row[STORE_MS]
        passed[form[NOTED]] = at << 16 | topic
        form[NOTED] += 1
        form[AT] = at + row[SIZE]
    return LIMIT


@kernel(i8, BYTES_RO, WORDS, BYTES, WORDS, WORDS, WORDS)
def note_records(
    memory: Bytes, form: Words, board: Bytes, index: Words, passed: Words, row: Words
) -> int:  # fmt: skip
    """Note offset << 16 | topic slot of a full segment's records, as many as fit into `passed`.

    Goes on at form[AT]. `index` as `index_topics` makes it. Returns LIMIT, or why it stopped before
    the record at form[AT]: FILLER, END, TRUNCATED, INVALID, UNKNOWN_TOPIC.
    """
    tables = (machine.raw(board), machine.raw(index), index.size - 1)
    return _note_records(
        machine.raw(memory), memory.size, machine.raw(form), tables, machine.raw(passed),
        passed.size, machine.raw(row),
    )  # fmt: skip


@kernel(i8, BYTES_RO, i8, WORDS)
def crc_blocks(memory: Bytes, block: int, out: Words) -> int:
    """Fill `out` with the CRC-32 of each `block` bytes (the last may be shorter); how many."""
    count = 0
    at = 0
    while at < memory.size:
        out[count] = machine.crc32(memory, at, min(block, memory.size - at))
        at += block
        count += 1
    return count
