"""Up rings of all sessions -> records in the writer's staging buffer: the writer's inner loop.

Copy first, then check: bytes are copied out of the ring once, straight to where they belong in the
record; header words are read by one load each; everything is judged on the private copy. A ring
that breaks the rules stops the call with Stop.HOSTILE and has changed nothing outside staging.
Nothing is published here: the caller writes staging to the log first, then calls `tell_lanes`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gantrymq.shm import atomics, machine
from gantrymq.shm.codes import BrokerState, EntryFlag, Status, Stop
from gantrymq.shm.jit import BYTES, WORDS, i8, kernel
from gantrymq.shm.kernels import frames
from gantrymq.shm.kernels.admit import admit
from gantrymq.shm.kernels.batch import take_batch, whole_batch
from gantrymq.shm.kernels.complete import (
    answer_stored,
    complete,
    completion_room,
    publish_counters,
)
from gantrymq.shm.kernels.entry import (
    BATCH,
    COUNT,
    CURSOR,
    FLAGS,
    HEAD_WORDS,
    KIND,
    LENGTH,
    PAD,
    QUEUE,
    RESULT_FLAGS,
    ROUTE_ID,
    SEQ,
    read_head,
)
from gantrymq.shm.kernels.lanes import wake_lanes
from gantrymq.shm.layout import (
    BOARD_STATE,
    FILLER_MAGIC,
    LANE_UP_TAIL,
    TELL_BYTES,
    TELL_SERIAL,
    TELL_SESSION,
    TELL_SINCE,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Words = NDArray[np.int64]

RECEIPT = int(EntryFlag.RECEIPT)
TELL = int(EntryFlag.TELL)
TELLS_MAX = frames.TELLS_MAX
OK = int(Status.OK)
DONE = int(Stop.DONE)
LIMIT = int(Stop.LIMIT)
ROLL = int(Stop.ROLL)
ROUTE = int(Stop.ROUTE)
HOSTILE = int(Stop.HOSTILE)
BACKPRESSURE = int(Stop.BACKPRESSURE)
FAILED = int(Stop.FAILED)
STORE_FAILED = int(BrokerState.FAILED)

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
def _note_tell(arena: Bytes, lane: Words, head: Words, batch: Words) -> None:
    """Remember whom an entry tells of a decision, unless a part of that was refused.

    Beyond TELLS_MAX in one batch they hear it from the txn-checker alone.
    """
    at = lane[frames.UP] + (head[CURSOR] & lane[frames.UP_MASK]) + head[LENGTH] - TELL_BYTES
    count = batch[frames.TELLS]
    if machine.load64(arena, at + TELL_SINCE) <= lane[frames.REFUSED_SEQ] or count == TELLS_MAX:
        return
    row = frames.TELLS_AT + 2 * count
    batch[row] = machine.load64(arena, at + TELL_SESSION)
    batch[row + 1] = machine.load64(arena, at + TELL_SERIAL)
    batch[frames.TELLS] = count + 1


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
        lane[frames.REFUSED_SEQ] = head[SEQ]
        result[0] = head[QUEUE]  # who has sent without a receipt is told by these what it was
        result[4] = head[ROUTE_ID]
    elif head[FLAGS] & TELL and batch[frames.INTERNAL]:
        _note_tell(arena, lane, head, batch)
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
    """Take what `look_at_lanes` saw of a lane's entries, until something stops it; a Stop."""
    head = scratch[0]
    tail: int = lane[frames.UP_SEEN]
    cursor: int = lane[frames.UP_CURSOR]
    if tail < cursor or tail - cursor > lane[frames.UP_MASK] + 1 or tail & 7:
        return HOSTILE
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


@kernel()
def _drain_lane(
    lane: Words, board: Bytes, staging: Bytes, batch: Words, scratch: tuple[Words, Words, Words]
) -> int:
    """Drain one lane of the table; counts what it took, and the lane among those drained."""
    batch[frames.ROUTES_SIZE] = lane[frames.ROUTES_LENGTH]
    batch[frames.STORED_COUNT] = lane[frames.STORED_ROWS]
    batch[frames.INTERNAL] = lane[frames.MAY_APPEND]
    tables = (
        board, machine.words_at(lane[frames.ROUTES_AT]), machine.bytes_at(lane[frames.BLOCKS_AT]),
        machine.bytes_at(lane[frames.IDENTITY_AT]),
    )  # fmt: skip
    cursor: int = lane[frames.UP_CURSOR]
    done: int = lane[frames.DONE]
    owes: int = lane[frames.OWES]
    filled: int = batch[frames.FILLED]
    arena = machine.bytes_at(lane[frames.ARENA_AT])
    stored = machine.words_at(lane[frames.STORED_AT])
    stop = _drain(arena, lane, tables, stored, staging, batch, scratch)
    batch[frames.TAKEN] += lane[frames.DONE] - done
    lane[frames.OWES] = 0
    if batch[frames.SHARE]:
        lane[frames.OWES] = owes + batch[frames.FILLED] - filled
    if lane[frames.UP_CURSOR] != cursor and not lane[frames.DRAINED]:
        lane[frames.DRAINED] = 1
        batch[frames.DRAINED_LANES] += 1
    return stop


@kernel()
def _must_wait(lane: Words, batch: Words) -> bool:
    """Whether a lane still owes a cycle's share after it has paid one."""
    lane[frames.OWES] = max(0, lane[frames.OWES] - batch[frames.SHARE])
    if lane[frames.OWES]:
        batch[frames.MORE] = 1
        return True
    return False


@kernel(i8, WORDS, BYTES, WORDS, i8, i8)
def look_at_lanes(table: Words, board: Bytes, batch: Words, first: int, end: int) -> int:
    """See how far the rings of hot lanes are filled, before a batch's clock is looked at.

    So no message is stored at an earlier time than it was sent, however long the writer waits for a
    processor: a delay counts from that time. The arguments are those of `drain_lanes`. 0.
    """
    words = machine.raw(batch)
    lanes = machine.raw(table)
    if words[frames.CYCLE_BEGINS]:
        words[frames.CYCLE_BEGINS] = words[frames.TAKEN] = words[frames.MORE] = 0
        words[frames.CYCLES] += 1
        publish_counters(machine.raw(board), words)
        if words[frames.WOKEN]:
            words[frames.WOKEN] = 0
            wake_lanes(lanes, first, end)
    for number in range(first, end):
        lane = machine.words_at(lanes[number])
        if lane[frames.HOT]:
            arena = machine.bytes_at(lane[frames.ARENA_AT])
            # SYNC POINT: up tail (other end: `put`)
            tail = atomics.load_acquire(arena, lane[frames.CONTROL] + LANE_UP_TAIL)
            lane[frames.UP_SEEN] = tail
    return 0


@kernel()
def _after_limit(batch: Words, number: int, taken: int) -> int:
    """After a LIMIT of lane `number`: the lane to go on with once staging is written.

    Others have their turn before it takes more; a lane that found staging full has had none.
    """
    if not taken and batch[frames.FILLED]:
        return number
    batch[frames.MORE] = 1
    return number + 1


@kernel(i8, WORDS, BYTES, BYTES, WORDS, WORDS, i8, i8, i8)
def drain_lanes(
    table: Words, board: Bytes, staging: Bytes, batch: Words, scratch: Words, wall_ms: int,
    first: int, end: int,
) -> int:  # fmt: skip
    """Take entries of hot lanes, from number `first` to before `end`, into staging.

    Those that `look_at_lanes` saw: it comes before each batch, and `wall_ms` is read behind it.
    `table` has the addresses of the lanes' words (WRITER_LANE_WORDS). Single reader: the writer.
    Moves the lanes' private cursors and `batch`; gives queue offsets (board's `next_offset`).
    Returns a Stop, with AT_LANE as the lane to go on with unless it is DONE (all had their turn):
    LIMIT (write staging first), ROLL (a filler closes staging: write it and roll), ROUTE (load
    the route of the next entry), HOSTILE (cut the session off and go on behind it; what was
    taken before counts), FAILED (the board says so). `scratch` has SCRATCH_WORDS.
    """
    words = machine.raw(batch)
    memory = machine.raw(board)
    words[frames.STAGING_BYTES] = staging.size
    parts = (
        machine.raw(scratch),
        machine.shift(machine.raw(scratch), HEAD_WORDS),
        machine.shift(machine.raw(scratch), 2 * HEAD_WORDS),
    )
    if not words[frames.FILLED] and wall_ms > words[frames.STORE_MS]:  # LW-12
        words[frames.STORE_MS] = wall_ms
    if machine.load32(memory, BOARD_STATE) == STORE_FAILED:
        return FAILED
    for number in range(first, end):
        lane = machine.words_at(table[number])
        if not lane[frames.HOT] or (words[frames.SHARE] and _must_wait(lane, words)):
            continue
        taken: int = words[frames.TAKEN]
        stop = _drain_lane(lane, memory, machine.raw(staging), words, parts)
        words[frames.AT_LANE] = number
        if stop == LIMIT:
            following = _after_limit(words, number, words[frames.TAKEN] - taken)
            words[frames.AT_LANE] = following
            if following < end:
                return LIMIT
        elif stop != DONE and stop != BACKPRESSURE:
            return stop
    return DONE
