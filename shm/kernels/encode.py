"""Up ring of one session -> records in the writer's staging buffer.

Copy first, then check: bytes are copied out of the ring once, straight to where they belong in the
record; header words are read by one load each; everything is judged on the private copy. A ring
that breaks the rules stops the call with Stop.HOSTILE and has changed nothing outside staging.
Nothing is published here: the caller writes staging to the log first, then calls `settle_lane`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shm import atomics, machine
from shm.codes import EntryFlag, EntryKind, Status, Stop
from shm.jit import BYTES, WORDS, i8, kernel
from shm.kernels import frames
from shm.kernels.record import (
    properties_legal,
    store_flags,
    store_head,
    store_hex48,
    store_place,
    store_trailer,
)
from shm.layout import (
    APPEND_BORN_HOST,
    APPEND_BYTES,
    APPEND_PREPARED,
    APPEND_RECONSUME,
    APPEND_STORE_HOST,
    APPEND_SYS_FLAG,
    COMPLETION_BYTES,
    COMPLETION_END,
    COMPLETION_POSITION,
    COMPLETION_QUEUE,
    COMPLETION_QUEUE_OFFSET,
    COMPLETION_SEQ,
    COMPLETION_STATUS,
    COMPLETION_STORE_MS,
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
    FILLER_MAGIC,
    LANE_CLIENT_ARMED,
    LANE_DOWN_HEAD,
    LANE_DOWN_TAIL,
    LANE_UP_HEAD,
    LANE_UP_TAIL,
    PAD_BYTES_MIN,
    QUEUE_BYTES,
    QUEUE_NEXT_OFFSET,
    RECORD_BODY_LENGTH,
    RECORD_BORN_HOST,
    RECORD_BORN_MS,
    RECORD_HEAD_BYTES,
    RECORD_MAGIC_V1,
    RECORD_MAGIC_V2,
    RECORD_PREPARED,
    RECORD_RECONSUME,
    RECORD_STORE_HOST,
    RECORD_STORE_MS,
    SYS_BORN_V6,
    SYS_COMMIT,
    SYS_STORE_V6,
    SYS_TRANSACTION,
    TOPIC_BYTES,
    TOPIC_NAME,
    TOPIC_NAME_BYTES,
    TOPIC_QUEUE_BASE,
    TOPIC_QUEUE_COUNT,
    TOPIC_WRITE_QUEUES,
    TOPICS_AT,
)
from shm.limits import (
    PROPERTIES_BYTES_MAX,
    RECORD_OVERHEAD_BYTES_MAX,
    ROUTES_MAX,
    TOPIC_BYTES_MAX,
    TRAILER_BYTES,
    UNIQ_KEY_PROPERTY_BYTES,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Words = NDArray[np.int64]

PAD = int(EntryKind.PAD)
SEND = int(EntryKind.SEND)
APPEND = int(EntryKind.APPEND)
COMPLETION = int(EntryKind.COMPLETION)
RECEIPT = int(EntryFlag.RECEIPT)
DURABLE = int(EntryFlag.DURABLE)
BATCH = int(EntryFlag.BATCH)

OK = int(Status.OK)
DUPLICATE = int(Status.DUPLICATE)
ILLEGAL_SIZE = int(Status.ILLEGAL_SIZE)
ILLEGAL_PROPERTIES = int(Status.ILLEGAL_PROPERTIES)
UNKNOWN_ROUTE = int(Status.UNKNOWN_ROUTE)
UNKNOWN_QUEUE = int(Status.UNKNOWN_QUEUE)
BATCH_REFUSED = int(Status.BATCH_REFUSED)
UNKNOWN_POSITION = int(Status.UNKNOWN_POSITION)

DONE = int(Stop.DONE)
LIMIT = int(Stop.LIMIT)
ROLL = int(Stop.ROLL)
ROUTE = int(Stop.ROUTE)
HOSTILE = int(Stop.HOSTILE)
BACKPRESSURE = int(Stop.BACKPRESSURE)

# One entry's header, read once: indexes into `head`.
(
    KIND, FLAGS, LENGTH, SEQ, BORN, ROUTE_ID, QUEUE, BODY, EXTRA, APP_FLAG, COUNT, TOPIC, CURSOR,
) = range(13)  # fmt: skip
HEAD_WORDS = 16
SCRATCH_WORDS = 2 * HEAD_WORDS + 8

#: What `_encode` returns besides a positive record size: minus a Status, or this.
NO_ROOM = -1000


@kernel()
def _read_head(arena: Bytes, lane: Words, cursor: int, tail: int, head: Words) -> int:
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
    fixed = ENTRY_BYTES + (APPEND_BYTES if head[KIND] == APPEND else 0)
    if length < fixed or head[KIND] not in (SEND, APPEND):
        return 0
    head[SEQ] = atomics.load_acquire(arena, at + ENTRY_SEQ)
    head[BORN] = machine.load64(arena, at + ENTRY_BORN)
    head[ROUTE_ID] = machine.load32(arena, at + ENTRY_ROUTE)
    head[QUEUE] = np.int64(np.int32(machine.load32(arena, at + ENTRY_QUEUE)))
    head[BODY] = atomics.load_acquire32(arena, at + ENTRY_BODY)
    head[EXTRA] = atomics.load_acquire32(arena, at + ENTRY_EXTRA)
    head[APP_FLAG] = machine.load32(arena, at + ENTRY_APP_FLAG)
    head[COUNT] = machine.load32(arena, at + ENTRY_BATCH) if head[FLAGS] & BATCH else 0
    if head[SEQ] <= 0 or fixed + head[BODY] + head[EXTRA] > length:
        return 0
    return 1


@kernel()
def _choose_queue(board: Bytes, head: Words, routes: Words) -> int:
    """The board's queue number for an entry, or -1. A negative queue id = the next in turn."""
    topic_at = TOPICS_AT + head[TOPIC] * TOPIC_BYTES
    queue = head[QUEUE]
    if queue < 0:
        count = machine.load32(board, topic_at + TOPIC_WRITE_QUEUES)
        row = head[ROUTE_ID] * frames.ROUTE_WORDS + frames.ROUTE_TURN
        if count <= 0:
            return -1
        queue = routes[row] % count
        routes[row] += 1
    elif queue >= machine.load32(board, topic_at + TOPIC_QUEUE_COUNT):
        return -1
    head[QUEUE] = queue
    return machine.load32(board, topic_at + TOPIC_QUEUE_BASE) + queue


@kernel()
def _size_of(board: Bytes, head: Words, routes: Words, batch: Words, hosts: int) -> int:
    """Bytes of the record that an entry becomes, or minus a Status."""
    name = machine.load32(board, TOPICS_AT + head[TOPIC] * TOPIC_BYTES + TOPIC_NAME_BYTES)
    row = head[ROUTE_ID] * frames.ROUTE_WORDS
    properties = head[EXTRA] + TRAILER_BYTES
    if head[KIND] == SEND:
        properties += UNIQ_KEY_PROPERTY_BYTES + routes[row + frames.ROUTE_BLOCK_LENGTH]
    if properties > PROPERTIES_BYTES_MAX:
        return -ILLEGAL_PROPERTIES
    wide = 1 if name > TOPIC_BYTES_MAX else 0
    size = RECORD_HEAD_BYTES + hosts + head[BODY] + 1 + wide + name + 2 + properties
    if head[BODY] > batch[frames.BODY_MAX]:
        return -ILLEGAL_SIZE
    if size > batch[frames.BODY_MAX] + RECORD_OVERHEAD_BYTES_MAX:
        return -ILLEGAL_SIZE
    if size + 8 > batch[frames.SEGMENT_BYTES]:
        return -ILLEGAL_SIZE
    return size


@kernel()
def _copy_topic(board: Bytes, head: Words, staging: Bytes, at: int) -> int:
    """Topic after the body, at `at`; returns where the properties' length goes."""
    topic_at = TOPICS_AT + head[TOPIC] * TOPIC_BYTES
    name = machine.load32(board, topic_at + TOPIC_NAME_BYTES)
    if name > TOPIC_BYTES_MAX:
        machine.store_be16(staging, at, name)
        at += 2
    else:
        staging[at] = name
        at += 1
    machine.copy(staging, at, board, topic_at + TOPIC_NAME, name)
    return at + name


@kernel()
def _encode_send(
    arena: Bytes, ring_at: int, head: Words, tables: tuple[Bytes, Words, Bytes, Bytes],
    staging: Bytes, batch: Words,
) -> int:  # fmt: skip
    """Lay a client's message out in staging; its place and checksums come later. Size or -Status."""
    board, routes, blocks, identity = tables
    size = _size_of(board, head, routes, batch, 0)
    if size < 0:
        return size
    at = batch[frames.FILLED]
    if at + size + 8 > batch[frames.STAGING_BYTES]:
        return NO_ROOM
    body = head[BODY]
    after = at + RECORD_HEAD_BYTES
    machine.copy(staging, after, arena, ring_at + ENTRY_BYTES, body)
    store_flags(staging, at, head[APP_FLAG], 0)
    machine.store_be64(staging, at + RECORD_BORN_MS, head[BORN])
    machine.copy(staging, at + RECORD_BORN_HOST, identity, frames.IDENTITY_BORN_HOST, 8)
    machine.copy(staging, at + RECORD_STORE_HOST, identity, frames.IDENTITY_STORE_HOST, 8)
    machine.store_be32(staging, at + RECORD_RECONSUME, 0)
    machine.store_be64(staging, at + RECORD_PREPARED, 0)
    place = _copy_topic(board, head, staging, after + body)
    machine.store_be16(staging, place, at + size - place - 2)
    place += 2
    machine.copy(staging, place, identity, frames.IDENTITY_PREFIX, frames.IDENTITY_PREFIX_BYTES)
    place += frames.IDENTITY_PREFIX_BYTES
    store_hex48(staging, place, head[SEQ])
    staging[place + 12] = 2
    place += 13
    row = head[ROUTE_ID] * frames.ROUTE_WORDS
    length = routes[row + frames.ROUTE_BLOCK_LENGTH]
    machine.copy(staging, place, blocks, routes[row + frames.ROUTE_BLOCK_AT], length)
    place += length
    machine.copy(staging, place, arena, ring_at + ENTRY_BYTES + body, head[EXTRA])
    if head[EXTRA] and not properties_legal(staging, place, head[EXTRA]):
        return -ILLEGAL_PROPERTIES
    return size


@kernel()
def _encode_append(
    arena: Bytes, ring_at: int, head: Words, tables: tuple[Bytes, Words, Bytes, Bytes],
    staging: Bytes, batch: Words,
) -> int:  # fmt: skip
    """Lay a broker agent's record out in staging, with all its fields as given. Size or -Status."""
    board, routes, _blocks, _identity = tables
    form = ring_at + ENTRY_BYTES
    sys_flag = machine.load32(arena, form + APPEND_SYS_FLAG)
    born = 20 if sys_flag & SYS_BORN_V6 else 8
    store = 20 if sys_flag & SYS_STORE_V6 else 8
    source = form + APPEND_BYTES + head[BODY]
    extra = head[EXTRA]
    # SF-22: a missing last separator is added before the trailer.
    open_end = 1 if extra and arena[source + extra - 1] != 2 else 0
    size = _size_of(board, head, routes, batch, born + store - 16 + open_end)
    if size < 0:
        return size
    at = batch[frames.FILLED]
    if at + size + 8 > batch[frames.STAGING_BYTES]:
        return NO_ROOM
    store_flags(staging, at, head[APP_FLAG], sys_flag)
    machine.store_be64(staging, at + RECORD_BORN_MS, head[BORN])
    machine.copy(staging, at + RECORD_BORN_HOST, arena, form + APPEND_BORN_HOST, born)
    place = at + RECORD_BORN_HOST + born + 8
    machine.copy(staging, place, arena, form + APPEND_STORE_HOST, store)
    place += store
    machine.store_be32(staging, place, machine.load32(arena, form + APPEND_RECONSUME))
    machine.store_be64(staging, place + 4, machine.load64(arena, form + APPEND_PREPARED))
    machine.store_be32(staging, place + 12, head[BODY])
    machine.copy(staging, place + 16, arena, form + APPEND_BYTES, head[BODY])
    place = _copy_topic(board, head, staging, place + 16 + head[BODY])
    machine.store_be16(staging, place, at + size - place - 2)
    machine.copy(staging, place + 2, arena, source, extra)
    if open_end:
        staging[place + 2 + extra] = 2
    return size


@kernel()
def _finish(staging: Bytes, batch: Words, head: Words, board: Bytes, queue: int, size: int) -> int:
    """Give an encoded record its place and checksums; returns its queue offset."""
    at = batch[frames.FILLED]
    position = batch[frames.POSITION] + at
    sys_flag = machine.load_be32(staging, at + 36)
    kind = sys_flag & SYS_TRANSACTION
    counted = kind in (0, SYS_COMMIT)  # SF-42
    queue_at = batch[frames.QUEUES_AT] + queue * QUEUE_BYTES + QUEUE_NEXT_OFFSET
    offset = machine.load64(board, queue_at) if counted else 0
    name = machine.load32(board, TOPICS_AT + head[TOPIC] * TOPIC_BYTES + TOPIC_NAME_BYTES)
    magic = RECORD_MAGIC_V2 if name > TOPIC_BYTES_MAX else RECORD_MAGIC_V1  # SF-17
    hosts = (12 if sys_flag & SYS_BORN_V6 else 0) + (12 if sys_flag & SYS_STORE_V6 else 0)
    machine.store_be64(
        staging,
        at + RECORD_STORE_MS + (12 if sys_flag & SYS_BORN_V6 else 0),
        batch[frames.STORE_MS],
    )
    store_place(staging, at, head[QUEUE], offset, position)
    store_head_at = at + hosts
    _store_crc(staging, at, store_head_at, size, magic, head[BODY])
    store_trailer(staging, at, size)
    if counted:
        machine.store64(board, queue_at, offset + 1)
    return offset


@kernel()
def _store_crc(staging: Bytes, at: int, shifted: int, size: int, magic: int, body: int) -> None:
    """Length, magic and the body's checksum; `shifted` = `at` plus what IPv6 hosts add."""
    machine.store_be32(staging, at, size)
    machine.store_be32(staging, at + 4, magic)
    machine.store_be32(staging, shifted + RECORD_BODY_LENGTH, body)
    crc = 0
    if body:
        crc = machine.crc32(staging, shifted + RECORD_BODY_LENGTH + 4, body) & 0x7FFFFFFF
    machine.store_be32(staging, at + 8, crc)


@kernel()
def _complete(arena: Bytes, lane: Words, seq: int, status: int, result: Words) -> None:
    """Write a completion behind the down ring's tail; room has been checked. Publishes nothing.

    `result`: queue id, queue offset, position, end, store ms.
    """
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
    machine.store16(arena, at + ENTRY_FLAGS, 0)
    machine.store64(arena, at + COMPLETION_SEQ, seq)
    machine.store64(arena, at + COMPLETION_QUEUE_OFFSET, result[1])
    machine.store64(arena, at + COMPLETION_POSITION, result[2])
    machine.store64(arena, at + COMPLETION_END, result[3])
    machine.store32(arena, at + COMPLETION_QUEUE, result[0])
    machine.store32(arena, at + COMPLETION_STATUS, status)
    machine.store64(arena, at + COMPLETION_STORE_MS, result[4])
    lane[frames.DOWN_CURSOR] = cursor + COMPLETION_BYTES


@kernel()
def _completion_room(arena: Bytes, lane: Words, count: int) -> int:
    """1 if `count` completions fit in the down ring, 0 if not, HOSTILE if its head is impossible."""
    need = (count + 1) * COMPLETION_BYTES
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
def _answer_stored(
    arena: Bytes, lane: Words, seq: int, stored: Words, count: int, result: Words
) -> None:
    """Complete an entry that is in the log already, from its record if that is still known."""
    for field in range(5):
        result[field] = -1
    status = UNKNOWN_POSITION
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
    _complete(arena, lane, seq, status, result)


@kernel()
def _admit(
    arena: Bytes, lane: Words, head: Words, tables: tuple[Bytes, Words, Bytes, Bytes],
    staging: Bytes, batch: Words, result: Words,
) -> int:  # fmt: skip
    """Encode one entry behind what staging holds; Status, or -Stop where the batch must end.

    Fills `result` (queue id, offset, position, end, store ms).
    """
    board, routes, _blocks, _identity = tables
    for field in range(5):
        result[field] = -1
    if batch[frames.REFUSE]:
        return batch[frames.REFUSE]
    if head[ROUTE_ID] >= ROUTES_MAX:
        return UNKNOWN_ROUTE
    row = head[ROUTE_ID] * frames.ROUTE_WORDS
    if row >= batch[frames.ROUTES_SIZE] or routes[row] == frames.ROUTE_UNKNOWN:
        return -ROUTE
    head[TOPIC] = routes[row]
    if head[TOPIC] < 0:
        return UNKNOWN_ROUTE
    queue = _choose_queue(board, head, routes)
    if queue < 0:
        return UNKNOWN_QUEUE
    ring_at = lane[frames.UP] + (head[CURSOR] & lane[frames.UP_MASK])
    if head[KIND] == SEND:
        size = _encode_send(arena, ring_at, head, tables, staging, batch)
    elif batch[frames.INTERNAL]:
        size = _encode_append(arena, ring_at, head, tables, staging, batch)
    else:
        return -HOSTILE
    if size == NO_ROOM:
        return -LIMIT if batch[frames.FILLED] else ILLEGAL_SIZE
    if size < 0:
        return -size
    position = batch[frames.POSITION] + batch[frames.FILLED]
    if position + size + 8 > batch[frames.SEGMENT_END]:  # SF-20
        return -ROLL
    result[1] = _finish(staging, batch, head, board, queue, size)
    result[0] = head[QUEUE]
    result[2] = position
    result[3] = position + size
    result[4] = batch[frames.STORE_MS]
    batch[frames.FILLED] += size
    batch[frames.RECORDS] += 1
    if head[FLAGS] & DURABLE and result[3] > batch[frames.WANTED]:
        batch[frames.WANTED] = result[3]
    return OK


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
    if head[SEQ] <= lane[frames.SEQ]:
        _answer_stored(arena, lane, head[SEQ], stored, batch[frames.STORED_COUNT], result)
        return DONE
    status = _admit(arena, lane, head, tables, staging, batch, result)
    if status < 0:
        return -status
    lane[frames.SEQ] = head[SEQ]
    if status != OK:
        batch[frames.REFUSED] += 1
    if status != OK or head[FLAGS] & RECEIPT:
        _complete(arena, lane, head[SEQ], status, result)
    return DONE


@kernel()
def _whole_batch(arena: Bytes, lane: Words, tail: int, head: Words, probe: Words) -> int:
    """1 if the batch that starts at `head` is published whole and obeys the rules."""
    cursor = head[CURSOR]
    left = head[COUNT]
    seq = head[SEQ]
    while left > 0:
        if cursor >= tail or not _read_head(arena, lane, cursor, tail, probe):
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
def _take_batch(
    arena: Bytes, lane: Words, head: Words, tables: tuple[Bytes, Words, Bytes, Bytes],
    staging: Bytes, batch: Words, result: Words,
) -> int:  # fmt: skip
    """Take a whole batch: all its records side by side in one segment and queue, or none (SF-21).

    `head[CURSOR]` is the batch's start, and its end with LENGTH 0 when all is done.
    """
    count = head[COUNT]
    first_seq = head[SEQ]
    saved = (
        batch[frames.FILLED], batch[frames.RECORDS], batch[frames.WANTED], lane[frames.DOWN_CURSOR],
    )  # fmt: skip
    cursor = head[CURSOR]
    topic = np.int64(-1)
    queue = head[QUEUE]
    status = OK
    done = 0
    while done < count:
        # Checked by `_whole_batch`; a client that changes it meanwhile is caught here.
        if not _read_head(arena, lane, cursor, lane[frames.UP_SEEN], head):
            status = -HOSTILE
            break
        head[CURSOR] = cursor
        cursor += head[LENGTH]
        if head[KIND] == PAD:
            continue
        if head[KIND] != SEND or head[SEQ] != first_seq + done:
            status = -HOSTILE
            break
        head[QUEUE] = queue
        status = _admit(arena, lane, head, tables, staging, batch, result)
        if status != OK:
            break
        if done and head[TOPIC] != topic:
            # The member is in another topic's queue: nothing of it may stay.
            _undo_batch(tables[0], batch, head[TOPIC], head[QUEUE], 1)
            status = -HOSTILE
            break
        topic = head[TOPIC]
        queue = head[QUEUE]
        _complete(arena, lane, first_seq + done, OK, result)
        done += 1
    if status != OK:
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
        if not _read_head(arena, lane, cursor, lane[frames.UP_SEEN], head):
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
        _complete(arena, lane, first_seq + index, member, result)


@kernel()
def _drain(
    arena: Bytes, lane: Words, tables: tuple[Bytes, Words, Bytes, Bytes], stored: Words,
    staging: Bytes, batch: Words, scratch: tuple[Words, Words, Words],
) -> int:  # fmt: skip
    """The loop of `drain_lane`, over raw memory."""
    head, probe, result = scratch
    # SYNC POINT: up tail (other end: `put`)
    tail = atomics.load_acquire(arena, lane[frames.CONTROL] + LANE_UP_TAIL)
    cursor = lane[frames.UP_CURSOR]
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
        if not _read_head(arena, lane, cursor, tail, head):
            return HOSTILE
        head[CURSOR] = cursor
        if head[KIND] == PAD:
            cursor += head[LENGTH]
            lane[frames.UP_CURSOR] = cursor
            continue
        in_batch = head[FLAGS] & BATCH
        room = _completion_room(arena, lane, head[COUNT] if in_batch else 1)
        if room != 1:
            lane[frames.BLOCKED] = 1
            return HOSTILE if room == HOSTILE else BACKPRESSURE
        if in_batch and head[SEQ] > lane[frames.SEQ]:
            if head[COUNT] < 1 or not _whole_batch(arena, lane, tail, head, probe):
                return HOSTILE
            stop = _take_batch(arena, lane, head, tables, staging, batch, result)
        else:
            stop = _take_single(arena, lane, head, tables, stored, staging, batch, result)
        if stop != DONE:
            if stop == ROLL:
                _store_filler(staging, batch)
            return stop
        cursor = head[CURSOR] + head[LENGTH]
        lane[frames.UP_CURSOR] = cursor
        lane[frames.DONE] += 1
        taken += 1
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


@kernel(i8, BYTES, WORDS)
def settle_lane(arena: Bytes, lane: Words) -> int:
    """Publish what `drain_lane` has done once it is in the log; returns the client's sleep flag."""
    # SYNC POINT: down tail (other end: `take_completions`)
    atomics.store_release(arena, lane[frames.CONTROL] + LANE_DOWN_TAIL, lane[frames.DOWN_CURSOR])
    # SYNC POINT: up head (other end: `_reserve`)
    atomics.store_release(arena, lane[frames.CONTROL] + LANE_UP_HEAD, lane[frames.UP_CURSOR])
    # SYNC POINT: sleep (other end: `arm`)
    atomics.fence()
    return atomics.load_acquire32(arena, lane[frames.CONTROL] + LANE_CLIENT_ARMED)
