"""The writer's answers: completions in down rings, and what else follows a batch in the log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gantrymq.shm import atomics, machine
from gantrymq.shm.codes import EntryFlag, EntryKind, Owed, Status, Stop
from gantrymq.shm.jit import BYTES, WORDS, i8, kernel
from gantrymq.shm.kernels import frames
from gantrymq.shm.kernels.entry import PAD, RESULT_FLAGS
from gantrymq.shm.layout import (
    ARENA_TOLD,
    BOARD_APPENDED,
    BOARD_DURABLE_WANTED,
    BOARD_FLUSHER_ARMED,
    BOARD_READER_ARMED,
    BOARD_SETTLED,
    BOARD_STORE_MS,
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
    LANE_NEXT_DOWN,
    LANE_NEXT_UP,
    LANE_UP_HEAD,
    PROCESS_BUSY,
    PROCESS_COUNTED_BYTES,
    PROCESS_FAULTS,
    PROCESS_HEARTBEAT,
    PROCESS_REFUSED,
    PROCESS_WORK,
    TOLD_MASK,
    TRANSACTIONS_LANE_AT,
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
RING_READER = int(Owed.RING_READER)
RING_FLUSHER = int(Owed.RING_FLUSHER)
RING_CLIENTS = int(Owed.RING_CLIENTS)
OWED_SETTLED = int(Owed.SETTLED)
RING_LISTENERS = int(Owed.RING_LISTENERS)

#: Results of `tell_lanes` that are not yet its end.
STEP_SILENT = -1
STEP_SETTLED = -2
STEP_APPENDED = -3


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


@kernel()
def publish_counters(board: Bytes, batch: Words) -> None:
    """The writer's process slot: readers may see some numbers of this call, some of another."""
    at = batch[frames.PROCESS_AT]
    machine.store64(board, at + PROCESS_HEARTBEAT, batch[frames.CYCLES])
    machine.store64(board, at + PROCESS_BUSY, batch[frames.BUSY])
    machine.store64(board, at + PROCESS_WORK, batch[frames.WORK])
    machine.store64(board, at + PROCESS_REFUSED, batch[frames.REFUSED_EVER])
    machine.store64(board, at + PROCESS_COUNTED_BYTES, batch[frames.BYTES_EVER])
    machine.store64(board, at + PROCESS_FAULTS, batch[frames.FAULTS])


@kernel()
def _publish_appended(board: Bytes, batch: Words) -> None:
    """Show the reader the batch, and ask for a sync that somebody waits for."""
    machine.store64(board, BOARD_STORE_MS, batch[frames.STORE_MS])
    atomics.store_release(board, BOARD_APPENDED, _end_of_batch(batch))
    # SYNC POINT: sleep (other end: `arm`)
    atomics.fence()
    if atomics.load_acquire32(board, BOARD_READER_ARMED):
        # Once: a second ring would only cut short the nap that it takes then.
        atomics.store_release32(board, BOARD_READER_ARMED, 0)
        batch[frames.OWED] |= RING_READER


@kernel()
def _end_of_batch(batch: Words) -> int:
    """Log position behind a batch."""
    if batch[frames.CLOSING]:
        end: int = batch[frames.SEGMENT_END]
        return end
    after: int = batch[frames.POSITION] + batch[frames.FILLED]
    return after


@kernel()
def _want_durable(board: Bytes, batch: Words) -> None:
    """Ask the flusher for what somebody waits for."""
    if batch[frames.WANTED] > machine.load64(board, BOARD_DURABLE_WANTED):
        atomics.store_release(board, BOARD_DURABLE_WANTED, batch[frames.WANTED])
        # SYNC POINT: sleep (other end: `arm`)
        atomics.fence()
        if atomics.load_acquire32(board, BOARD_FLUSHER_ARMED):
            batch[frames.OWED] |= RING_FLUSHER


@kernel()
def _tell(batch: Words, session: int, serial: int) -> None:
    """Let a session see that what it asked for is in the log."""
    for number in range(batch[frames.LISTENERS]):
        listener = machine.shift(
            machine.words_at(batch[frames.LISTENERS_AT]), number * frames.LISTENER_WORDS
        )
        if listener[frames.LISTENER_SESSION] == session:
            arena = machine.bytes_at(listener[frames.LISTENER_ARENA])
            # SYNC POINT: told (other end: `await_told`)
            atomics.store_release(arena, ARENA_TOLD + 8 * (serial & TOLD_MASK), serial)
            # SYNC POINT: sleep (other end: `arm`)
            atomics.fence()
            if atomics.load_acquire32(arena, TRANSACTIONS_LANE_AT + LANE_CLIENT_ARMED):
                listener[frames.LISTENER_ASLEEP] = 1
                batch[frames.OWED] |= RING_LISTENERS
            return


@kernel()
def _tell_listeners(batch: Words) -> None:
    """Tell those whose decisions the batch has brought into the log."""
    for number in range(batch[frames.TELLS]):
        row = frames.TELLS_AT + 2 * number
        _tell(batch, batch[row], batch[row + 1])
    batch[frames.TELLS] = 0


@kernel()
def _settle_lane(lane: Words, batch: Words) -> int:
    """Publish what was drained of a lane, now that it is in the log; the client's sleep flag.

    After a death behind the third store a successor does the last one: what was refused, and is
    told, is not taken again.
    """
    arena = machine.bytes_at(lane[frames.ARENA_AT])
    atomics.store_release(arena, lane[frames.CONTROL] + LANE_NEXT_DOWN, lane[frames.DOWN_CURSOR])
    atomics.store_release(arena, lane[frames.CONTROL] + LANE_NEXT_UP, lane[frames.UP_CURSOR])
    # SYNC POINT: down tail (other end: `take_completions`)
    atomics.store_release(arena, lane[frames.CONTROL] + LANE_DOWN_TAIL, lane[frames.DOWN_CURSOR])
    # SYNC POINT: up head (other end: `reserve`)
    atomics.store_release(arena, lane[frames.CONTROL] + LANE_UP_HEAD, lane[frames.UP_CURSOR])
    lane[frames.TOLD_SEQ] = lane[frames.SEQ]
    lane[frames.TOLD_MS] = batch[frames.STORE_MS]
    # SYNC POINT: sleep (other end: `arm`)
    atomics.fence()
    return atomics.load_acquire32(arena, lane[frames.CONTROL] + LANE_CLIENT_ARMED)


@kernel()
def _tell_next_lane(table: Words, room: int, batch: Words) -> int:
    """Settle drained lanes up to the first one with which the caller has something to do."""
    while batch[frames.DRAINED_LANES]:
        number = batch[frames.NEXT_LANE]
        batch[frames.NEXT_LANE] += 1
        lane = machine.words_at(table[number])
        if not lane[frames.DRAINED]:
            continue
        lane[frames.DRAINED] = 0
        batch[frames.DRAINED_LANES] -= 1
        batch[frames.AT_LANE] = number
        if lane[frames.SILENT]:
            return STEP_SILENT
        if _settle_lane(lane, batch):
            table[room + batch[frames.RINGING]] = number
            batch[frames.RINGING] += 1
            batch[frames.OWED] |= RING_CLIENTS
        gone_on = lane[frames.STORED_ROWS] and lane[frames.SEQ] > lane[frames.RESUMED_SEQ]
        if batch[frames.STEPWISE] or gone_on:
            return STEP_SETTLED
    return 0


@kernel()
def _end(board: Bytes, batch: Words) -> int:
    """The batch is told: count it, and begin the next one behind it. What is owed."""
    end = _end_of_batch(batch)
    if batch[frames.HELD]:
        batch[frames.OWED] |= OWED_SETTLED
    else:
        atomics.store_release(board, BOARD_SETTLED, end)
    batch[frames.WORK] += batch[frames.RECORDS]
    batch[frames.REFUSED_EVER] += batch[frames.REFUSED]
    batch[frames.BYTES_EVER] += batch[frames.FILLED]
    if batch[frames.TAKEN] and batch[frames.BUSY_CYCLE] != batch[frames.CYCLES]:
        batch[frames.BUSY_CYCLE] = batch[frames.CYCLES]
        batch[frames.BUSY] += 1
    publish_counters(board, batch)
    batch[frames.POSITION] = end
    batch[frames.FILLED] = batch[frames.RECORDS] = batch[frames.REFUSED] = 0
    batch[frames.WANTED] = batch[frames.CLOSING] = batch[frames.STAGE] = 0
    owed: int = batch[frames.OWED]
    return owed


@kernel(i8, WORDS, BYTES, WORDS)
def tell_lanes(table: Words, board: Bytes, batch: Words) -> int:
    """Tell everybody of a batch that is in the log, in the writer's order.

    `appended`, completions and ring heads lane by lane, `settled`. Returns what is owed still
    (codes.Owed, positive), or a step to be done before the next call goes on: STEP_SILENT (nobody
    is told of AT_LANE's entries: keep them), STEP_SETTLED (AT_LANE has its answers; only where its
    producer has gone on, or STEPWISE), STEP_APPENDED (only STEPWISE). Numbers of the lanes whose
    clients sleep are in the second half of `table`, RINGING of them.
    """
    words = machine.raw(batch)
    memory = machine.raw(board)
    if not words[frames.STAGE]:
        words[frames.STAGE] = 1
        words[frames.NEXT_LANE] = words[frames.RINGING] = words[frames.OWED] = 0
        if words[frames.FILLED]:
            _publish_appended(memory, words)
            if words[frames.STEPWISE]:
                return STEP_APPENDED
    if words[frames.STAGE] == 1:
        words[frames.STAGE] = 2
        _want_durable(memory, words)
        _tell_listeners(words)
    step = _tell_next_lane(machine.raw(table), table.size // 2, words)
    return step or _end(memory, words)
