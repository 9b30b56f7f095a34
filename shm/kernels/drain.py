"""Up ring of one session -> records in the writer's staging buffer: the writer's inner loop.

Copy first, then check: bytes are copied out of the ring once, straight to where they belong in the
record; header words are read by one load each; everything is judged on the private copy. A ring
that breaks the rules stops the call with Stop.HOSTILE and has changed nothing outside staging.
Nothing is published here: the caller writes staging to the log first, then calls `settle_lane`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shm import atomics, machine
from shm.codes import EntryFlag, Status, Stop
from shm.jit import BYTES, WORDS, i8, kernel
from shm.kernels import frames
from shm.kernels.batch import take_batch, whole_batch
from shm.kernels.complete import answer_stored, complete, completion_room
from shm.kernels.encode import admit
from shm.kernels.entry import (
    BATCH,
    COUNT,
    CURSOR,
    FLAGS,
    HEAD_WORDS,
    KIND,
    LENGTH,
    PAD,
    RESULT_FLAGS,
    SEQ,
    read_head,
)
from shm.layout import FILLER_MAGIC, LANE_UP_TAIL

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Words = NDArray[np.int64]

RECEIPT = int(EntryFlag.RECEIPT)
OK = int(Status.OK)
DONE = int(Stop.DONE)
LIMIT = int(Stop.LIMIT)
ROLL = int(Stop.ROLL)
ROUTE = int(Stop.ROUTE)
HOSTILE = int(Stop.HOSTILE)
BACKPRESSURE = int(Stop.BACKPRESSURE)

SCRATCH_WORDS = 2 * HEAD_WORDS + 8


@kernel()
def _store_filler(staging: Bytes, batch: Words) -> None:
    """Close the segment (SF-20): the caller rolls, and the next record starts the next file."""
    at = batch[frames.FILLED]
    left = batch[frames.SEGMENT_END] - batch[frames.POSITION] - at
    machine.store_be32(staging, at, left)
    machine.store_be32(staging, at + 4, FILLER_MAGIC)
    batch[frames.FILLED] = at + 8


@kernel()
def _take_single(
    arena: Bytes, lane: Words, head: Words, tables: tuple[Bytes, Words, Bytes, Bytes],
    stored: Words, staging: Bytes, batch: Words, result: Words,
) -> int:  # fmt: skip
    """Take one entry that is not in a batch; DONE, or the Stop with which the call ends."""
    result[RESULT_FLAGS] = head[FLAGS]
    batch[frames.FLAGS_SEEN] |= head[FLAGS]
    if head[SEQ] <= lane[frames.SEQ]:
        answer_stored(arena, lane, head[SEQ], stored, batch[frames.STORED_COUNT], result)
        return DONE
    status = admit(arena, lane, head, tables, staging, batch, result)
    if status < 0:
        return -status
    lane[frames.SEQ] = head[SEQ]
    if status != OK:
        batch[frames.REFUSED] += 1
    if status != OK or head[FLAGS] & RECEIPT:
        complete(arena, lane, head[SEQ], status, result)
    return DONE


@kernel()
def _take_entry(
    arena: Bytes, lane: Words, tables: tuple[Bytes, Words, Bytes, Bytes], stored: Words,
    staging: Bytes, batch: Words, scratch: tuple[Words, Words, Words],
) -> int:  # fmt: skip
    """Take the entry or the batch that starts at `head`, if its completions have room."""
    head, probe, result = scratch
    in_batch = head[FLAGS] & BATCH
    room = completion_room(arena, lane, head[COUNT] if in_batch else 1)
    if room != 1:
        lane[frames.BLOCKED] = 1
        return HOSTILE if room == HOSTILE else BACKPRESSURE
    if in_batch and head[SEQ] > lane[frames.SEQ]:
        if head[COUNT] < 1 or not whole_batch(arena, lane, lane[frames.UP_SEEN], head, probe):
            return HOSTILE
        return take_batch(arena, lane, head, tables, staging, batch, result)
    return _take_single(arena, lane, head, tables, stored, staging, batch, result)


@kernel()
def _drain(
    arena: Bytes, lane: Words, tables: tuple[Bytes, Words, Bytes, Bytes], stored: Words,
    staging: Bytes, batch: Words, scratch: tuple[Words, Words, Words],
) -> int:  # fmt: skip
    """The loop of `drain_lane`, over raw memory."""
    head = scratch[0]
    # SYNC POINT: up tail (other end: `put`)
    tail = atomics.load_acquire(arena, lane[frames.CONTROL] + LANE_UP_TAIL)
    cursor: int = lane[frames.UP_CURSOR]
    if tail < cursor or tail - cursor > lane[frames.UP_MASK] + 1 or tail & 7:
        return HOSTILE
    lane[frames.UP_SEEN] = tail
    lane[frames.BLOCKED] = 0
    taken = 0
    while cursor < tail:
        if (
            taken >= batch[frames.TAKEN_LIMIT]
            or batch[frames.FILLED] >= batch[frames.STAGING_LIMIT]
        ):
            return LIMIT
        if not read_head(arena, lane, cursor, tail, head):
            return HOSTILE
        head[CURSOR] = cursor
        if head[KIND] != PAD:
            stop = _take_entry(arena, lane, tables, stored, staging, batch, scratch)
            if stop != DONE:
                if stop == ROLL:
                    _store_filler(staging, batch)
                return stop
            lane[frames.DONE] += 1
            taken += 1
        cursor = head[CURSOR] + head[LENGTH]
        lane[frames.UP_CURSOR] = cursor
    return DONE


@kernel(i8, BYTES, WORDS, BYTES, WORDS, BYTES, BYTES, WORDS, BYTES, WORDS, WORDS)
def drain_lane(
    arena: Bytes, lane: Words, board: Bytes, routes: Words, blocks: Bytes, identity: Bytes,
    stored: Words, staging: Bytes, batch: Words, scratch: Words,
) -> int:  # fmt: skip
    """Take entries of one session's up ring into staging. Single reader: the writer.

    Moves the lane's private cursors and `batch`; gives queue offsets (board's `next_offset`).
    Returns a Stop: DONE (ring empty), LIMIT (staging full: write it, call again), ROLL (a filler
    closes staging: write it, roll, call again), ROUTE (load route of the next entry, call again),
    BACKPRESSURE (down ring full), HOSTILE (cut the session off; what was taken before counts).
    `scratch` has SCRATCH_WORDS; `stored` rows are sorted by seq.
    """
    batch[frames.STAGING_BYTES] = staging.size
    batch[frames.ROUTES_SIZE] = routes.size
    batch[frames.STORED_COUNT] = stored.size // frames.STORED_WORDS
    tables = (machine.raw(board), machine.raw(routes), machine.raw(blocks), machine.raw(identity))
    parts = (
        machine.raw(scratch[:HEAD_WORDS]),
        machine.raw(scratch[HEAD_WORDS : 2 * HEAD_WORDS]),
        machine.raw(scratch[2 * HEAD_WORDS :]),
    )
    return _drain(
        machine.raw(arena), machine.raw(lane), tables, machine.raw(stored), machine.raw(staging),
        machine.raw(batch), parts,
    )  # fmt: skip
