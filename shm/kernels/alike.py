"""A member of a batch, encoded from the record of the one before it: most of it is the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gantrymq.shm import machine
from gantrymq.shm.jit import kernel
from gantrymq.shm.kernels import frames
from gantrymq.shm.kernels.admit import DURABLE, OK
from gantrymq.shm.kernels.encode import finish
from gantrymq.shm.kernels.entry import APP_FLAG, BODY, BORN, CURSOR, FLAGS, SEQ, TOPIC
from gantrymq.shm.kernels.record import store_flags, store_hex48
from gantrymq.shm.layout import (
    ENTRY_BYTES,
    RECORD_BORN_MS,
    RECORD_HEAD_BYTES,
    TOPIC_BYTES,
    TOPIC_NAME_BYTES,
    TOPICS_AT,
)
from gantrymq.shm.limits import RECORD_OVERHEAD_BYTES_MAX, TOPIC_BYTES_MAX

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Words = NDArray[np.int64]


@kernel()
def _fits(head: Words, batch: Words, size: int) -> int:
    """1 if a record of `size` bytes is legal and has room in staging and segment."""
    at = batch[frames.FILLED]
    if head[BODY] > batch[frames.BODY_MAX]:
        return 0
    if size > batch[frames.BODY_MAX] + RECORD_OVERHEAD_BYTES_MAX:
        return 0
    if at + size + 8 > batch[frames.STAGING_BYTES]:
        return 0
    return 1 if batch[frames.POSITION] + at + size + 8 <= batch[frames.SEGMENT_END] else 0


@kernel()
def admit_alike(
    arena: Bytes, lane: Words, head: Words, board: Bytes,
    staging: Bytes, batch: Words, result: Words, body_before: int,
) -> int:  # fmt: skip
    """Encode a SEND entry as the record before it, but for seq, body, times and flag; OK or -1.

    `result` is that record's, `head[TOPIC]` and `head[QUEUE]` too; both have one route and no extra
    properties. -1 (and nothing done): the entry is for `admit` to judge.
    """
    body = head[BODY]
    size = result[3] - result[2] - body_before + body
    if not _fits(head, batch, size):
        return -1
    at = batch[frames.FILLED]
    before = result[2] - batch[frames.POSITION]
    tail = at + RECORD_HEAD_BYTES + body
    machine.copy(staging, at, staging, before, RECORD_HEAD_BYTES)
    ring_at = lane[frames.UP] + (head[CURSOR] & lane[frames.UP_MASK])
    machine.copy(staging, at + RECORD_HEAD_BYTES, arena, ring_at + ENTRY_BYTES, body)
    rest = size - RECORD_HEAD_BYTES - body
    machine.copy(staging, tail, staging, before + RECORD_HEAD_BYTES + body_before, rest)
    topic_at = TOPICS_AT + head[TOPIC] * TOPIC_BYTES
    name = machine.load32(board, topic_at + TOPIC_NAME_BYTES)
    wide = name > TOPIC_BYTES_MAX
    place = tail + 1 + (1 if wide else 0) + name + 2 + frames.IDENTITY_PREFIX_BYTES
    store_hex48(staging, place, head[SEQ])
    store_flags(staging, at, head[APP_FLAG], 0)
    machine.store_be64(staging, at + RECORD_BORN_MS, head[BORN])
    result[1] = finish(staging, batch, head, board, size)
    result[2] = batch[frames.POSITION] + at
    result[3] = result[2] + size
    batch[frames.FILLED] += size
    batch[frames.RECORDS] += 1
    if head[FLAGS] & DURABLE and result[3] > batch[frames.WANTED]:
        batch[frames.WANTED] = result[3]
    return OK
