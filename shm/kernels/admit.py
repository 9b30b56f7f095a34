"""An entry judged, encoded behind what staging holds, and given its place: or why not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gantrymq.shm import machine
from gantrymq.shm.codes import EntryFlag, Status, Stop
from gantrymq.shm.jit import kernel
from gantrymq.shm.kernels import frames
from gantrymq.shm.kernels.encode import NO_ROOM, NOT_ALLOWED, encode_append, finish, lay_out
from gantrymq.shm.kernels.entry import (
    APPEND,
    CURSOR,
    FLAGS,
    KIND,
    MODE,
    PARK,
    QUEUE,
    REAL_QUEUE,
    ROUTE_ID,
    SEND,
    TOPIC,
)
from gantrymq.shm.kernels.park import HALF, encode_park
from gantrymq.shm.layout import (
    ENTRY_BYTES,
    TOPIC_BYTES,
    TOPIC_PERM,
    TOPIC_QUEUE_COUNT,
    TOPIC_WRITE_QUEUES,
    TOPICS_AT,
)
from gantrymq.shm.limits import ROUTES_MAX

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Words = NDArray[np.int64]

DURABLE = int(EntryFlag.DURABLE)
OK = int(Status.OK)
ILLEGAL_SIZE = int(Status.ILLEGAL_SIZE)
UNKNOWN_ROUTE = int(Status.UNKNOWN_ROUTE)
UNKNOWN_QUEUE = int(Status.UNKNOWN_QUEUE)
LIMIT = int(Stop.LIMIT)
ROLL = int(Stop.ROLL)
ROUTE = int(Stop.ROUTE)
HOSTILE = int(Stop.HOSTILE)


@kernel()
def _choose_queue(board: Bytes, head: Words, routes: Words) -> int:
    """Queue id of an entry into `head`; OK or a Status. A negative one = the next in turn."""
    topic_at = TOPICS_AT + head[TOPIC] * TOPIC_BYTES
    queue: int = head[QUEUE]
    if queue < 0:
        count = machine.load32(board, topic_at + TOPIC_WRITE_QUEUES)
        row = head[ROUTE_ID] * frames.ROUTE_WORDS + frames.ROUTE_TURN
        if count <= 0:
            return UNKNOWN_QUEUE
        queue = routes[row] % count
        routes[row] += 1
    elif queue >= machine.load32(board, topic_at + TOPIC_QUEUE_COUNT):
        return UNKNOWN_QUEUE
    head[QUEUE] = queue
    return OK


@kernel()
def _find_topic(board: Bytes, head: Words, routes: Words, batch: Words) -> int:
    """Topic of the entry's route into `head`; OK, a Status, or -ROUTE if it is to be loaded.

    A topic that was deleted since has no permission left. A broker's agent names topic slots, also
    of a deleted one (DT-16).
    """
    if batch[frames.INTERNAL] and head[KIND] == APPEND:
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
    """Lay an entry of any kind out in staging; only broker agents may APPEND."""
    if head[KIND] == SEND:
        return lay_out(arena, ring_at + ENTRY_BYTES, head, tables, staging, batch, 0)
    if head[KIND] != APPEND:
        return encode_park(arena, ring_at, head, tables, staging, batch)
    if batch[frames.INTERNAL]:
        return encode_append(arena, ring_at, head, tables, staging, batch)
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

    Fills `result` (queue id, offset, position, end, store ms). The queue of a half is the real one
    (TX-4).
    """
    board, routes, _blocks, _identity = tables
    for field in range(5):
        result[field] = -1
    status: int = batch[frames.REFUSE]
    if status == OK:
        status = _find_topic(board, head, routes, batch)
    if status == OK:
        status = _choose_queue(board, head, routes)
    if status != OK:
        return status
    ring_at = lane[frames.UP] + (head[CURSOR] & lane[frames.UP_MASK])
    size = _encode(arena, ring_at, head, tables, staging, batch)
    if size < 0:
        return _refusal(size, batch)
    position = batch[frames.POSITION] + batch[frames.FILLED]
    if position + size + 8 > batch[frames.SEGMENT_END]:  # SF-20
        return -ROLL
    result[1] = finish(staging, batch, head, board, size)
    result[0] = head[REAL_QUEUE] if head[KIND] == PARK and head[MODE] == HALF else head[QUEUE]
    result[2] = position
    result[3] = position + size
    result[4] = batch[frames.STORE_MS]
    batch[frames.FILLED] += size
    batch[frames.RECORDS] += 1
    if head[FLAGS] & DURABLE and result[3] > batch[frames.WANTED]:
        batch[frames.WANTED] = result[3]
    return OK
