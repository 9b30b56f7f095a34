"""One entry of an up ring: its header, each word read once and judged on the copy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gantrymq.shm import atomics, machine
from gantrymq.shm.codes import EntryFlag, EntryKind
from gantrymq.shm.jit import kernel
from gantrymq.shm.kernels import frames
from gantrymq.shm.layout import (
    APPEND_BYTES,
    ENTRY_APP_FLAG,
    ENTRY_BATCH,
    ENTRY_BODY,
    ENTRY_BORN,
    ENTRY_BYTES,
    ENTRY_EXTRA,
    ENTRY_FLAGS,
    ENTRY_KIND,
    ENTRY_QUEUE,
    ENTRY_ROUTE,
    ENTRY_SEQ,
    PAD_BYTES_MIN,
    PARK_BYTES,
    PARK_MODE,
    PARK_VALUE,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Words = NDArray[np.int64]

PAD = int(EntryKind.PAD)
SEND = int(EntryKind.SEND)
APPEND = int(EntryKind.APPEND)
PARK = int(EntryKind.PARK)
BATCH = int(EntryFlag.BATCH)

# One entry's header, read once: indexes into `head`.
(
    KIND, FLAGS, LENGTH, SEQ, BORN, ROUTE_ID, QUEUE, BODY, EXTRA, APP_FLAG, COUNT, TOPIC, CURSOR,
    MODE, VALUE, OUT_MS, REAL_TOPIC, REAL_QUEUE,
) = range(18)  # fmt: skip
HEAD_WORDS = 24

#: The entry's flags in `result`, behind the five words that a completion takes from there.
RESULT_FLAGS = 5
#: Instead of an extension's length.
UNKNOWN = -ENTRY_BYTES - 1
#: Of a seq in a UNIQ_KEY.
SEQ_BITS = 48


@kernel()
def _read_extension(arena: Bytes, at: int, length: int, head: Words) -> int:
    """Bytes between header and body of an entry that is no SEND; UNKNOWN for other kinds.

    Notes when a PARK entry is due.
    """
    if head[KIND] == APPEND:
        return APPEND_BYTES
    if head[KIND] != PARK or length < ENTRY_BYTES + PARK_BYTES:
        return UNKNOWN
    head[MODE] = machine.load32(arena, at + ENTRY_BYTES + PARK_MODE)
    head[VALUE] = machine.load64(arena, at + ENTRY_BYTES + PARK_VALUE)
    return PARK_BYTES


@kernel()
def read_head(arena: Bytes, lane: Words, cursor: int, tail: int, head: Words) -> int:
    """Read an entry's header words, each once; 0 if they break the ring's rules."""
    offset = cursor & lane[frames.UP_MASK]
    at = lane[frames.UP] + offset
    length = atomics.load_acquire32(arena, at)
    if length < PAD_BYTES_MIN or length & 7 or length > tail - cursor:
        return 0
    if offset + length > lane[frames.UP_MASK] + 1:
        return 0
    head[LENGTH] = length
    head[KIND] = machine.load16(arena, at + ENTRY_KIND)
    head[FLAGS] = machine.load16(arena, at + ENTRY_FLAGS)
    if head[KIND] == PAD:
        return 1
    fixed = ENTRY_BYTES
    if head[KIND] != SEND:
        fixed += _read_extension(arena, at, length, head)
    if length < fixed or fixed < 0:
        return 0
    head[SEQ] = atomics.load_acquire(arena, at + ENTRY_SEQ)
    head[BORN] = machine.load64(arena, at + ENTRY_BORN)
    head[ROUTE_ID] = machine.load32(arena, at + ENTRY_ROUTE)
    queue = machine.load32(arena, at + ENTRY_QUEUE)
    head[QUEUE] = queue - ((queue & 0x80000000) << 1)  # signed
    head[BODY] = atomics.load_acquire32(arena, at + ENTRY_BODY)
    head[EXTRA] = atomics.load_acquire32(arena, at + ENTRY_EXTRA)
    head[APP_FLAG] = machine.load32(arena, at + ENTRY_APP_FLAG)
    head[COUNT] = machine.load32(arena, at + ENTRY_BATCH) if head[FLAGS] & BATCH else 0
    if head[SEQ] <= 0 or head[SEQ] >> SEQ_BITS:
        return 0
    return 1 if fixed + head[BODY] + head[EXTRA] <= length else 0
