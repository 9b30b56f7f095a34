"""Control messages between a session and `groups`, as entries of a lane in either direction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gantrymq.shm import atomics, machine
from gantrymq.shm.codes import ClientState, EntryKind
from gantrymq.shm.jit import BYTES, BYTES_RO, WORDS, i8, kernel
from gantrymq.shm.kernels import frames
from gantrymq.shm.kernels.ring import FULL, HOSTILE, TOO_LARGE
from gantrymq.shm.layout import (
    ENTRY_FLAGS,
    ENTRY_KIND,
    LANE_AGENT_STATE,
    LANE_CLIENT_ARMED,
    LANE_DOWN_HEAD,
    LANE_DOWN_TAIL,
    LANE_UP_HEAD,
    LANE_UP_TAIL,
    MESSAGE_BODY,
    MESSAGE_BYTES,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Words = NDArray[np.int64]

PAD = int(EntryKind.PAD)
FOR_ROOM = int(ClientState.ARMED_FOR_ROOM)


@kernel(i8, BYTES, WORDS, i8, i8, BYTES_RO)
def put_message(arena: Bytes, lane: Words, up: int, kind: int, body: Bytes) -> int:
    """Put a control entry into the up ring (`up` = 1, client) or the down ring (0, agent).

    Returns 1, FULL, TOO_LARGE, or HOSTILE if the peer's head is impossible. `lane[RING]` says
    whether to ring.
    """
    return put_bytes(arena, lane, up, kind, body, body.size)


@kernel()
def put_bytes(arena: Bytes, lane: Words, up: int, kind: int, body: Bytes, count: int) -> int:
    """`put_message` of the first bytes of a body."""
    own, peer, base, mask, cursor_at = _direction(lane, up)
    size = (MESSAGE_BYTES + count + 7) & ~7
    if 2 * size > mask + 1:
        return TOO_LARGE
    cursor = lane[cursor_at]
    left = mask + 1 - (cursor & mask)
    skip = left if left < size else 0
    head = atomics.load_acquire(arena, peer)
    if head > cursor or cursor - head > mask + 1:
        return HOSTILE
    if cursor + skip + size - head > mask + 1:
        return FULL
    if skip:
        _message_head(arena, base + (cursor & mask), skip, PAD)
    at = base + ((cursor + skip) & mask)
    _message_head(arena, at, size, kind)
    machine.store32(arena, at + MESSAGE_BODY, count)
    machine.copy(arena, at + MESSAGE_BYTES, body, 0, count)
    lane[cursor_at] = cursor + skip + size
    # SYNC POINT: message tail (other end: `take_message`)
    atomics.store_release(arena, own, cursor + skip + size)
    atomics.fence()
    flag_at = LANE_AGENT_STATE if up else LANE_CLIENT_ARMED
    flag = atomics.load_acquire32(arena, lane[frames.CONTROL] + flag_at)
    lane[frames.RING] = 1 if flag else 0
    return 1


@kernel()
def _direction(lane: Words, up: int) -> tuple[int, int, int, int, int]:
    """Own word, peer's word, ring, mask and cursor's index for putting in a direction."""
    control = lane[frames.CONTROL]
    if up:
        return (
            control + LANE_UP_TAIL, control + LANE_UP_HEAD,
            lane[frames.UP], lane[frames.UP_MASK], frames.UP_CURSOR,
        )  # fmt: skip
    return (
        control + LANE_DOWN_TAIL, control + LANE_DOWN_HEAD,
        lane[frames.DOWN], lane[frames.DOWN_MASK], frames.DOWN_CURSOR,
    )  # fmt: skip


@kernel()
def _message_head(arena: Bytes, at: int, length: int, kind: int) -> None:
    machine.store32(arena, at, length)
    machine.store16(arena, at + ENTRY_KIND, kind)
    machine.store16(arena, at + ENTRY_FLAGS, 0)


@kernel(i8, BYTES, WORDS, i8, BYTES)
def take_message(arena: Bytes, lane: Words, up: int, out: Bytes) -> int:
    """Take a control entry out of the up ring (`up` = 1, agent) or the down ring (0, client).

    Copies its body to `out`; returns the body's length, FULL if there is none, or HOSTILE if the
    ring breaks its rules (lengths are checked on private copies of the words). A client has its
    room back at once, an agent by `publish_taken`: until then a successor finds the entry again.
    """
    peer_tail, own_head, base, mask, cursor_at = _direction(lane, up)
    cursor = lane[cursor_at]
    # SYNC POINT: message tail (other end: `put_message`)
    tail = atomics.load_acquire(arena, peer_tail)
    result = FULL
    if tail < cursor or tail - cursor > mask + 1 or tail & 7:
        return HOSTILE
    while cursor < tail and result == FULL:
        at = base + (cursor & mask)
        length = atomics.load_acquire32(arena, at)
        if (
            length < 8
            or length & 7
            or length > tail - cursor
            or (cursor & mask) + length > mask + 1
        ):
            return HOSTILE
        if machine.load16(arena, at + ENTRY_KIND) != PAD:
            size = (
                atomics.load_acquire32(arena, at + MESSAGE_BODY) if length >= MESSAGE_BYTES else -1
            )
            if size < 0 or MESSAGE_BYTES + size > length or size > out.size:
                return HOSTILE
            machine.copy(out, 0, arena, at + MESSAGE_BYTES, size)
            result = size
        cursor += length
    if cursor != lane[cursor_at]:
        lane[cursor_at] = cursor
        if not up:
            atomics.store_release(arena, own_head, cursor)
            # SYNC POINT: sleep (other end: `arm`): the peer may wait for room.
            atomics.fence()
            flag = atomics.load_acquire32(arena, lane[frames.CONTROL] + LANE_AGENT_STATE)
            lane[frames.RING] = 1 if flag else 0
    return result


@kernel()
def pass_padding(arena: Bytes, lane: Words, tail: int) -> None:
    """Agent: go on at the up ring's begin, if the next entry only fills it up to its end."""
    cursor, mask = lane[frames.UP_CURSOR], lane[frames.UP_MASK]
    left = mask + 1 - (cursor & mask)
    at = lane[frames.UP] + (cursor & mask)
    if tail - cursor > left and machine.load16(arena, at + ENTRY_KIND) == PAD:
        if atomics.load_acquire32(arena, at) == left:
            lane[frames.UP_CURSOR] = cursor + left


@kernel(i8, BYTES, WORDS)
def publish_taken(arena: Bytes, lane: Words) -> int:
    """Agent: the room of all that was taken is the client's again; 1 if it is to be rung."""
    control = lane[frames.CONTROL]
    atomics.store_release(arena, control + LANE_UP_HEAD, lane[frames.UP_CURSOR])
    # SYNC POINT: sleep (other end: `arm`): the peer may wait for room.
    atomics.fence()
    # A client that only waits for a message need not hear of each of its own.
    return 1 if atomics.load_acquire32(arena, control + LANE_CLIENT_ARMED) == FOR_ROOM else 0
