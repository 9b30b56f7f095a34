"""One entry of an up ring -> one record in the writer's staging buffer (SF-16 to SF-24).

Bytes are copied out of the ring once, straight to where they belong in the record; what has to be
legal is judged on that private copy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shm import machine
from shm.codes import EntryFlag, Status, Stop
from shm.jit import kernel
from shm.kernels import frames
from shm.kernels.entry import (
    APP_FLAG,
    BODY,
    BORN,
    CURSOR,
    EXTRA,
    FLAGS,
    KIND,
    QUEUE,
    ROUTE_ID,
    SEND,
    SEQ,
    TOPIC,
)
from shm.kernels.record import (
    copy_without_trailer,
    properties_legal,
    store_flags,
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
    ENTRY_BYTES,
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
    TOPIC_PERM,
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
    import numpy as np
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Words = NDArray[np.int64]

DURABLE = int(EntryFlag.DURABLE)
OK = int(Status.OK)
ILLEGAL_SIZE = int(Status.ILLEGAL_SIZE)
ILLEGAL_PROPERTIES = int(Status.ILLEGAL_PROPERTIES)
UNKNOWN_ROUTE = int(Status.UNKNOWN_ROUTE)
UNKNOWN_QUEUE = int(Status.UNKNOWN_QUEUE)
LIMIT = int(Stop.LIMIT)
ROLL = int(Stop.ROLL)
ROUTE = int(Stop.ROUTE)
HOSTILE = int(Stop.HOSTILE)

#: What an encoding returns besides a positive record size: minus a Status, or one of these.
NO_ROOM = -1000
NOT_ALLOWED = -1001


@kernel()
def _choose_queue(board: Bytes, head: Words, routes: Words) -> int:
    """The board's queue number for an entry, or -1. A negative queue id = the next in turn."""
    topic_at = TOPICS_AT + head[TOPIC] * TOPIC_BYTES
    queue: int = head[QUEUE]
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
    size: int = RECORD_HEAD_BYTES + hosts + head[BODY] + 1 + wide + name + 2 + properties
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
    """Lay a client's message out in staging, without place and checksums. Size or -Status."""
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
    given = head[EXTRA]
    # SF-22: an old trailer goes, and a missing last separator is added before the new one.
    kept = copy_without_trailer(staging, 0, arena, source, given, 0)
    open_end = 1 if kept < 0 else 0
    extra = head[EXTRA] = abs(kept)
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
    if copy_without_trailer(staging, place + 2, arena, source, given, extra) != kept:
        return -ILLEGAL_PROPERTIES
    if open_end:
        staging[place + 2 + extra] = 2
    return size


@kernel()
def finish(staging: Bytes, batch: Words, head: Words, board: Bytes, queue: int, size: int) -> int:
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
def _find_topic(board: Bytes, head: Words, routes: Words, batch: Words) -> int:
    """Topic of the entry's route into `head`; OK, a Status, or -ROUTE if it is to be loaded.

    A topic that was deleted since has no permission left. A broker's agent names topic slots, also
    of a deleted one (DT-16).
    """
    if batch[frames.INTERNAL] and head[KIND] != SEND:
        head[TOPIC] = head[ROUTE_ID]
        return OK
    if head[ROUTE_ID] >= ROUTES_MAX:
        return UNKNOWN_ROUTE
    row = head[ROUTE_ID] * frames.ROUTE_WORDS
    if row >= batch[frames.ROUTES_SIZE] or routes[row] == frames.ROUTE_UNKNOWN:
        return -ROUTE
    head[TOPIC] = routes[row]
    if head[TOPIC] < 0 or not machine.load32(
        board, TOPICS_AT + head[TOPIC] * TOPIC_BYTES + TOPIC_PERM
    ):
        return UNKNOWN_ROUTE
    return OK


@kernel()
def _encode(
    arena: Bytes, ring_at: int, head: Words, tables: tuple[Bytes, Words, Bytes, Bytes],
    staging: Bytes, batch: Words,
) -> int:  # fmt: skip
    """Lay an entry of either kind out in staging; only broker agents may APPEND."""
    if head[KIND] == SEND:
        return _encode_send(arena, ring_at, head, tables, staging, batch)
    if batch[frames.INTERNAL]:
        return _encode_append(arena, ring_at, head, tables, staging, batch)
    return NOT_ALLOWED


@kernel()
def _refusal(result: int, batch: Words) -> int:
    """What `admit` returns for a negative result of `_encode`."""
    if result == NO_ROOM:
        return -LIMIT if batch[frames.FILLED] else ILLEGAL_SIZE
    return -HOSTILE if result == NOT_ALLOWED else -result


@kernel()
def admit(
    arena: Bytes, lane: Words, head: Words, tables: tuple[Bytes, Words, Bytes, Bytes],
    staging: Bytes, batch: Words, result: Words,
) -> int:  # fmt: skip
    """Encode one entry behind what staging holds; Status, or -Stop where the batch must end.

    Fills `result` (queue id, offset, position, end, store ms).
    """
    board, routes, _blocks, _identity = tables
    for field in range(5):
        result[field] = -1
    status: int = batch[frames.REFUSE]
    if status == OK:
        status = _find_topic(board, head, routes, batch)
    if status != OK:
        return status
    queue = _choose_queue(board, head, routes)
    if queue < 0:
        return UNKNOWN_QUEUE
    ring_at = lane[frames.UP] + (head[CURSOR] & lane[frames.UP_MASK])
    size = _encode(arena, ring_at, head, tables, staging, batch)
    if size < 0:
        return _refusal(size, batch)
    position = batch[frames.POSITION] + batch[frames.FILLED]
    if position + size + 8 > batch[frames.SEGMENT_END]:  # SF-20
        return -ROLL
    result[1] = finish(staging, batch, head, board, queue, size)
    result[0] = head[QUEUE]
    result[2] = position
    result[3] = position + size
    result[4] = batch[frames.STORE_MS]
    batch[frames.FILLED] += size
    batch[frames.RECORDS] += 1
    if head[FLAGS] & DURABLE and result[3] > batch[frames.WANTED]:
        batch[frames.WANTED] = result[3]
    return OK
