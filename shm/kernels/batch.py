"""All-or-nothing batches: all members in the log side by side, or none (SF-21)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gantrymq.shm import machine
from gantrymq.shm.codes import EntryFlag, EntryKind, Status, Stop
from gantrymq.shm.jit import kernel
from gantrymq.shm.kernels import frames
from gantrymq.shm.kernels.admit import admit
from gantrymq.shm.kernels.alike import admit_alike
from gantrymq.shm.kernels.complete import complete
from gantrymq.shm.kernels.entry import (
    BODY,
    COUNT,
    CURSOR,
    EXTRA,
    FLAGS,
    KIND,
    LENGTH,
    PAD,
    QUEUE,
    RESULT_FLAGS,
    ROUTE_ID,
    SEND,
    SEQ,
    TOPIC,
    read_head,
)
from gantrymq.shm.layout import (
    BATCH_COMPLETION_BYTES,
    BATCH_COMPLETION_COUNT,
    COMPLETION_END,
    COMPLETION_POSITION,
    COMPLETION_QUEUE,
    COMPLETION_QUEUE_OFFSET,
    COMPLETION_SEQ,
    COMPLETION_STATUS,
    COMPLETION_STORE_MS,
    ENTRY_FLAGS,
    ENTRY_KIND,
    QUEUE_BYTES,
    QUEUE_NEXT_OFFSET,
    TOPIC_BYTES,
    TOPIC_QUEUE_BASE,
    TOPICS_AT,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Words = NDArray[np.int64]

BATCH_COMPLETION = int(EntryKind.BATCH_COMPLETION)
RECEIPT = int(EntryFlag.RECEIPT)
OK = int(Status.OK)
ILLEGAL_SIZE = int(Status.ILLEGAL_SIZE)
BATCH_REFUSED = int(Status.BATCH_REFUSED)
DONE = int(Stop.DONE)
LIMIT = int(Stop.LIMIT)
ROLL = int(Stop.ROLL)
HOSTILE = int(Stop.HOSTILE)


@kernel()
def whole_batch(arena: Bytes, lane: Words, tail: int, head: Words, probe: Words) -> int:
    """1 if the batch that starts at `head` is published whole and obeys the rules."""
    cursor = head[CURSOR]
    left = head[COUNT]
    seq = head[SEQ]
    while left > 0:
        if cursor >= tail or not read_head(arena, lane, cursor, tail, probe):
            return 0
        cursor += probe[LENGTH]
        if probe[KIND] == PAD:
            continue
        if probe[COUNT] != left or probe[SEQ] != seq or probe[KIND] != SEND:
            return 0
        left -= 1
        seq += 1
    return 1


@kernel()
def _take_member(
    arena: Bytes, lane: Words, head: Words, tables: tuple[Bytes, Words, Bytes, Bytes],
    staging: Bytes, batch: Words, result: Words, place: tuple[int, int, int, int, int],
) -> int:  # fmt: skip
    """Encode the member at `head`; its Status, or -Stop.

    `place`: topic (or -1), queue and seq; route and body length of the member before, or -1.
    """
    topic, queue, seq, route, body = place
    if head[KIND] != SEND or head[SEQ] != seq:
        return -HOSTILE
    head[QUEUE] = queue
    if topic >= 0 and head[ROUTE_ID] == route and not head[EXTRA]:
        head[TOPIC] = topic
        if admit_alike(arena, lane, head, tables[0], staging, batch, result, body) == OK:
            return OK
    status = admit(arena, lane, head, tables, staging, batch, result)
    if status == OK and topic >= 0 and head[TOPIC] != topic:
        # The member is in another topic's queue: nothing of it may stay.
        _undo_batch(tables[0], batch, head[TOPIC], head[QUEUE], 1)
        return -HOSTILE
    return status


@kernel()
def _begin_answer(arena: Bytes, lane: Words, count: int) -> int:
    """Where in the arena the one completion of a batch goes, or -1 if it gets none.

    `completion_room` for each member has more room than that, from two members on.
    """
    if lane[frames.SILENT] or count < 2:
        return -1
    cursor = lane[frames.DOWN_CURSOR]
    offset = cursor & lane[frames.DOWN_MASK]
    left = lane[frames.DOWN_MASK] + 1 - offset
    if left < BATCH_COMPLETION_BYTES + 4 * count + 4:
        at = lane[frames.DOWN] + offset
        machine.store32(arena, at, left)
        machine.store16(arena, at + ENTRY_KIND, PAD)
        lane[frames.DOWN_CURSOR] = cursor + left
        offset = 0
    place: int = lane[frames.DOWN] + offset
    return place


@kernel()
def _end_answer(
    arena: Bytes, lane: Words, at: int, first: tuple[int, int, int], result: Words
) -> None:
    """Complete a batch: `first` is its first seq, its count, and its first record's position.

    The sizes of its records are there already; `result` is the last member's.
    """
    seq, count, position = first
    if at < 0:
        complete(arena, lane, seq, OK, result)
        return
    size = (BATCH_COMPLETION_BYTES + 4 * count + 7) & ~7
    machine.store32(arena, at, size)
    machine.store16(arena, at + ENTRY_KIND, BATCH_COMPLETION)
    machine.store16(arena, at + ENTRY_FLAGS, result[RESULT_FLAGS] & RECEIPT)
    machine.store64(arena, at + COMPLETION_SEQ, seq)
    machine.store64(arena, at + COMPLETION_QUEUE_OFFSET, result[1] - count + 1)
    machine.store64(arena, at + COMPLETION_POSITION, position)
    machine.store64(arena, at + COMPLETION_END, result[3])
    machine.store32(arena, at + COMPLETION_QUEUE, result[0])
    machine.store32(arena, at + COMPLETION_STATUS, OK)
    machine.store64(arena, at + COMPLETION_STORE_MS, result[4])
    machine.store32(arena, at + BATCH_COMPLETION_COUNT, count)
    machine.store32(arena, at + BATCH_COMPLETION_COUNT + 4, 0)
    lane[frames.DOWN_CURSOR] += size


@kernel()
def take_batch(
    arena: Bytes, lane: Words, head: Words, tables: tuple[Bytes, Words, Bytes, Bytes],
    staging: Bytes, batch: Words, result: Words,
) -> int:  # fmt: skip
    """Take a whole batch: all its records side by side in one segment and queue, or none (SF-21).

    `head[CURSOR]` is the batch's start, and its end with LENGTH 0 when all is done.
    """
    count = head[COUNT]
    first_seq = head[SEQ]
    result[RESULT_FLAGS] = head[FLAGS]
    batch[frames.FLAGS_SEEN] |= head[FLAGS]
    saved = (
        batch[frames.FILLED], batch[frames.RECORDS], batch[frames.WANTED], lane[frames.DOWN_CURSOR],
    )  # fmt: skip
    cursor: int = head[CURSOR]
    topic: int = -1
    queue: int = head[QUEUE]
    route: int = -1
    body: int = 0
    status = OK
    done = 0
    answer = _begin_answer(arena, lane, count)
    while done < count:
        # Checked by `whole_batch`; a client that changes it meanwhile is caught here.
        if not read_head(arena, lane, cursor, lane[frames.UP_SEEN], head):
            status = -HOSTILE
            break
        head[CURSOR] = cursor
        cursor += head[LENGTH]
        if head[KIND] == PAD:
            continue
        place = (topic, queue, first_seq + done, route, body)
        status = _take_member(arena, lane, head, tables, staging, batch, result, place)
        if status != OK:
            break
        topic = head[TOPIC]
        queue = head[QUEUE]
        route = -1 if head[EXTRA] else head[ROUTE_ID]
        body = head[BODY]
        if answer >= 0:
            size = result[3] - result[2]
            machine.store32(arena, answer + BATCH_COMPLETION_BYTES + 4 * done, size)
        done += 1
    if status == OK:
        first = (first_seq, count, batch[frames.POSITION] + saved[0])
        _end_answer(arena, lane, answer, first, result)
    else:
        _undo_batch(tables[0], batch, topic, queue, done)
        batch[frames.FILLED], batch[frames.RECORDS], batch[frames.WANTED] = saved[:3]
        lane[frames.DOWN_CURSOR] = saved[3]
        if status < 0 and not _never_fits(status, batch):
            return -status
        _refuse_batch(arena, lane, (first_seq, count, done, status), result)
        batch[frames.REFUSED] += count
        cursor = _end_of_batch(arena, lane, cursor, count - done, head)
    lane[frames.SEQ] = first_seq + count - 1
    head[CURSOR] = cursor
    head[LENGTH] = 0
    return DONE


@kernel()
def _never_fits(status: int, batch: Words) -> int:
    """1 if a batch met the end of an empty staging buffer or of a fresh segment."""
    fresh = batch[frames.POSITION] + batch[frames.FILLED] + batch[frames.SEGMENT_BYTES]
    if status == -ROLL:
        return 1 if fresh == batch[frames.SEGMENT_END] else 0
    return 1 if status == -LIMIT and batch[frames.FILLED] == 0 else 0


@kernel()
def _undo_batch(board: Bytes, batch: Words, topic: int, queue: int, done: int) -> None:
    """Take back the queue offsets of an unfinished batch."""
    if done == 0 or topic < 0:
        return
    base = machine.load32(board, TOPICS_AT + topic * TOPIC_BYTES + TOPIC_QUEUE_BASE)
    queue_at = batch[frames.QUEUES_AT] + (base + queue) * QUEUE_BYTES + QUEUE_NEXT_OFFSET
    machine.store64(board, queue_at, machine.load64(board, queue_at) - done)


@kernel()
def _end_of_batch(arena: Bytes, lane: Words, cursor: int, members: int, head: Words) -> int:
    """Where a batch ends of which `members` from `cursor` on were not looked at."""
    left = members - 1
    while left > 0:
        if not read_head(arena, lane, cursor, lane[frames.UP_SEEN], head):
            return cursor
        cursor += head[LENGTH]
        if head[KIND] != PAD:
            left -= 1
    return cursor


@kernel()
def _refuse_batch(
    arena: Bytes, lane: Words, facts: tuple[int, int, int, int], result: Words
) -> None:
    """Complete each member of a batch that was refused because of one of them."""
    first_seq, count, culprit, status = facts
    for field in range(5):
        result[field] = -1
    for index in range(count):
        member = BATCH_REFUSED
        if index == culprit:
            member = status if status >= 0 else ILLEGAL_SIZE
        complete(arena, lane, first_seq + index, member, result)
