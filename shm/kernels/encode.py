"""One entry of an up ring -> one record in the writer's staging buffer (SF-16 to SF-24).

Bytes are copied out of the ring once, straight to where they belong in the record; what has to be
legal is judged on that private copy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gantrymq.shm import machine
from gantrymq.shm.codes import ParkMode, Status
from gantrymq.shm.jit import kernel
from gantrymq.shm.kernels import frames
from gantrymq.shm.kernels.entry import (
    APP_FLAG,
    APPEND,
    BODY,
    BORN,
    EXTRA,
    KIND,
    MODE,
    PARK,
    QUEUE,
    ROUTE_ID,
    SEQ,
    TOPIC,
)
from gantrymq.shm.kernels.half import transaction_bytes
from gantrymq.shm.kernels.record import (
    copy_without_trailer,
    properties_legal,
    store_flags,
    store_hex48,
    store_place,
    store_trailer,
)
from gantrymq.shm.layout import (
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
    TOPIC_QUEUE_BASE,
    TOPICS_AT,
)
from gantrymq.shm.limits import (
    BODY_BYTES_MAX,
    PROPERTIES_BYTES_MAX,
    RECORD_OVERHEAD_BYTES_MAX,
    TOPIC_BYTES_MAX,
    TRAILER_BYTES,
    UNIQ_KEY_PROPERTY_BYTES,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Words = NDArray[np.int64]

ILLEGAL_SIZE = int(Status.ILLEGAL_SIZE)
ILLEGAL_PROPERTIES = int(Status.ILLEGAL_PROPERTIES)
HALF = int(ParkMode.HALF)

#: What an encoding returns besides a positive record size: minus a Status, or one of these.
NO_ROOM = -1000
NOT_ALLOWED = -1001


@kernel()
def _size_of(board: Bytes, head: Words, routes: Words, batch: Words, hosts: int, more: int) -> int:
    """Bytes of the record that an entry becomes, `more` of properties included; or -Status."""
    name = machine.load32(board, TOPICS_AT + head[TOPIC] * TOPIC_BYTES + TOPIC_NAME_BYTES)
    row = head[ROUTE_ID] * frames.ROUTE_WORDS
    properties = head[EXTRA] + more + TRAILER_BYTES
    if head[KIND] != APPEND:
        properties += UNIQ_KEY_PROPERTY_BYTES + routes[row + frames.ROUTE_BLOCK_LENGTH]
    if properties > PROPERTIES_BYTES_MAX:
        return -ILLEGAL_PROPERTIES
    wide = 1 if name > TOPIC_BYTES_MAX else 0
    size: int = RECORD_HEAD_BYTES + hosts + head[BODY] + 1 + wide + name + 2 + properties
    # A copy is of what was taken once, perhaps when the setting was larger.
    body_max = BODY_BYTES_MAX if head[KIND] == APPEND else batch[frames.BODY_MAX]
    if head[BODY] > body_max or size > body_max + RECORD_OVERHEAD_BYTES_MAX:
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
def lay_out(
    arena: Bytes, body_at: int, head: Words, tables: tuple[Bytes, Words, Bytes, Bytes],
    staging: Bytes, batch: Words, more: int,
) -> int:  # fmt: skip
    """Lay a client's message out in staging, without place and checksums. Size or -Status.

    `more` bytes are left free between the message's properties and the trailer.
    """
    board, routes, blocks, identity = tables
    size = _size_of(board, head, routes, batch, 0, more)
    if size < 0:
        return size
    at = batch[frames.FILLED]
    if at + size + 8 > batch[frames.STAGING_BYTES]:
        return NO_ROOM
    body = head[BODY]
    after = at + RECORD_HEAD_BYTES
    machine.copy(staging, after, arena, body_at, body)
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
    machine.copy(staging, place, arena, body_at + body, head[EXTRA])
    return size if _extras_legal(staging, place, head) else -ILLEGAL_PROPERTIES


@kernel()
def _extras_legal(staging: Bytes, place: int, head: Words) -> int:
    """1 if a client may send these properties; those of a half begin with its transaction's."""
    ours = 0
    if head[KIND] == PARK and head[MODE] == HALF:
        ours = transaction_bytes(staging, place, head[EXTRA])
        if ours == 0:
            return 0
    if head[EXTRA] == ours:
        return 1
    return properties_legal(staging, place + ours, head[EXTRA] - ours)


@kernel()
def encode_append(
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
    size = _size_of(board, head, routes, batch, born + store - 16, open_end)
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
def finish(staging: Bytes, batch: Words, head: Words, board: Bytes, size: int) -> int:
    """Give an encoded record its place and checksums; returns its queue offset."""
    at = batch[frames.FILLED]
    position = batch[frames.POSITION] + at
    sys_flag = machine.load_be32(staging, at + 36)
    kind = sys_flag & SYS_TRANSACTION
    counted = kind in (0, SYS_COMMIT)  # SF-42
    topic_at = TOPICS_AT + head[TOPIC] * TOPIC_BYTES
    queue = machine.load32(board, topic_at + TOPIC_QUEUE_BASE) + head[QUEUE]
    queue_at = batch[frames.QUEUES_AT] + queue * QUEUE_BYTES + QUEUE_NEXT_OFFSET
    offset = machine.load64(board, queue_at) if counted else 0
    name = machine.load32(board, topic_at + TOPIC_NAME_BYTES)
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
