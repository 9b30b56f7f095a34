"""The writer's answers: completions in the down ring of one session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shm import atomics, machine
from shm.codes import EntryFlag, EntryKind, Status, Stop
from shm.jit import BYTES, WORDS, i8, kernel
from shm.kernels import frames
from shm.kernels.entry import PAD, RESULT_FLAGS
from shm.layout import (
    COMPLETION_BYTES,
    COMPLETION_END,
    COMPLETION_POSITION,
    COMPLETION_QUEUE,
    COMPLETION_QUEUE_OFFSET,
    COMPLETION_SEQ,
    COMPLETION_STATUS,
    COMPLETION_STORE_MS,
    ENTRY_FLAGS,
    ENTRY_KIND,
    LANE_CLIENT_ARMED,
    LANE_DOWN_HEAD,
    LANE_DOWN_TAIL,
    LANE_UP_HEAD,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Words = NDArray[np.int64]

COMPLETION = int(EntryKind.COMPLETION)
RECEIPT = int(EntryFlag.RECEIPT)
DUPLICATE = int(Status.DUPLICATE)
UNKNOWN_POSITION = int(Status.UNKNOWN_POSITION)
NOT_STORED = int(Status.NOT_STORED)
HOSTILE = int(Stop.HOSTILE)


@kernel()
def complete(arena: Bytes, lane: Words, seq: int, status: int, result: Words) -> None:
    """Write a completion behind the down ring's tail; room has been checked. Publishes nothing.

    `result`: queue id, queue offset, position, end, store ms, the entry's flags.
    """
    if lane[frames.SILENT]:
        return
    cursor = lane[frames.DOWN_CURSOR]
    offset = cursor & lane[frames.DOWN_MASK]
    left = lane[frames.DOWN_MASK] + 1 - offset
    if left < COMPLETION_BYTES:
        at = lane[frames.DOWN] + offset
        machine.store32(arena, at, left)
        machine.store16(arena, at + ENTRY_KIND, PAD)
        cursor += left
    at = lane[frames.DOWN] + (cursor & lane[frames.DOWN_MASK])
    machine.store32(arena, at, COMPLETION_BYTES)
    machine.store16(arena, at + ENTRY_KIND, COMPLETION)
    machine.store16(arena, at + ENTRY_FLAGS, result[RESULT_FLAGS] & RECEIPT)
    machine.store64(arena, at + COMPLETION_SEQ, seq)
    machine.store64(arena, at + COMPLETION_QUEUE_OFFSET, result[1])
    machine.store64(arena, at + COMPLETION_POSITION, result[2])
    machine.store64(arena, at + COMPLETION_END, result[3])
    machine.store32(arena, at + COMPLETION_QUEUE, result[0])
    machine.store32(arena, at + COMPLETION_STATUS, status)
    machine.store64(arena, at + COMPLETION_STORE_MS, result[4])
    lane[frames.DOWN_CURSOR] = cursor + COMPLETION_BYTES


@kernel()
def completion_room(arena: Bytes, lane: Words, count: int) -> int:
    """1 if `count` completions fit in the down ring, 0 if not, HOSTILE if its head can't be."""
    need = (count + 1) * COMPLETION_BYTES
    if lane[frames.SILENT]:
        return 1
    if need > lane[frames.DOWN_MASK] + 1:
        return HOSTILE  # it would never fit
    used = lane[frames.DOWN_CURSOR] - lane[frames.DOWN_SEEN]
    if used + need <= lane[frames.DOWN_MASK] + 1:
        return 1
    # SYNC POINT: down head (other end: `take_completions`)
    head = atomics.load_acquire(arena, lane[frames.CONTROL] + LANE_DOWN_HEAD)
    if head < lane[frames.DOWN_SEEN] or head > lane[frames.DOWN_CURSOR]:
        return HOSTILE
    lane[frames.DOWN_SEEN] = head
    return 1 if lane[frames.DOWN_CURSOR] - head + need <= lane[frames.DOWN_MASK] + 1 else 0


@kernel()
def answer_stored(
    arena: Bytes, lane: Words, seq: int, stored: Words, count: int, result: Words
) -> None:
    """Complete an entry that was taken before, from its record if that is still known."""
    for field in range(5):
        result[field] = -1
    known = lane[frames.KNOWN_FROM]
    status = NOT_STORED if known and seq >= known else UNKNOWN_POSITION
    low = 0
    high = count
    while low < high:
        middle = (low + high) // 2
        if stored[middle * frames.STORED_WORDS] < seq:
            low = middle + 1
        else:
            high = middle
    row = low * frames.STORED_WORDS
    if low < count and stored[row] == seq:
        status = DUPLICATE
        result[0] = stored[row + frames.STORED_QUEUE]
        result[1] = stored[row + frames.STORED_OFFSET]
        result[2] = stored[row + frames.STORED_POSITION]
        result[3] = stored[row + frames.STORED_END]
        result[4] = stored[row + frames.STORED_MS]
    complete(arena, lane, seq, status, result)


@kernel(i8, BYTES, WORDS)
def settle_lane(arena: Bytes, lane: Words) -> int:
    """Publish what `drain_lane` has done once it is in the log; returns the client's sleep flag."""
    # SYNC POINT: down tail (other end: `take_completions`)
    atomics.store_release(arena, lane[frames.CONTROL] + LANE_DOWN_TAIL, lane[frames.DOWN_CURSOR])
    # SYNC POINT: up head (other end: `reserve`)
    atomics.store_release(arena, lane[frames.CONTROL] + LANE_UP_HEAD, lane[frames.UP_CURSOR])
    # SYNC POINT: sleep (other end: `arm`)
    atomics.fence()
    return atomics.load_acquire32(arena, lane[frames.CONTROL] + LANE_CLIENT_ARMED)
