"""Lanes: entries in rings between one client and one agent, and the sleeping protocol.

Publishing is one release store of the tail, consuming one release store of the head. A side that
sleeps first raises its flag behind a full fence and looks again; a side that publishes looks at
the flag behind a full fence. Leave either fence out and a wake-up gets lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gantrymq.shm import atomics, machine
from gantrymq.shm.codes import AgentState, EntryFlag, EntryKind, Status
from gantrymq.shm.jit import BYTES, BYTES_RO, WORDS, i8, kernel
from gantrymq.shm.kernels import frames
from gantrymq.shm.layout import (
    ARENA_DURABLE_WANTED,
    BATCH_COMPLETION_BYTES,
    BATCH_COMPLETION_COUNT,
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
    LANE_AGENT_STATE,
    LANE_DOWN_HEAD,
    LANE_DOWN_TAIL,
    LANE_UP_HEAD,
    LANE_UP_TAIL,
    PARK_BYTES,
    PARK_MODE,
    PARK_VALUE,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Words = NDArray[np.int64]

PAD = int(EntryKind.PAD)
SEND = int(EntryKind.SEND)
PARK = int(EntryKind.PARK)
COMPLETION = int(EntryKind.COMPLETION)
BATCH_COMPLETION = int(EntryKind.BATCH_COMPLETION)
DUPLICATE = int(Status.DUPLICATE)
URGENT = int(EntryFlag.URGENT)
BATCH = int(EntryFlag.BATCH)
NAPPING = int(AgentState.NAPPING)
ARMED = int(AgentState.ARMED)

#: A form's words: those of `fill_send`, and a ParkMode with its value.
FORM_WORDS = 8

#: Results of the functions below that are not counts.
FULL = -1
HOSTILE = -2
TOO_LARGE = -3


@kernel(i8, BYTES, i8, i8, i8, i8)
def arm(memory: Bytes, flag_at: int, flag: int, word_at: int, seen: int) -> int:
    """Raise a sleep flag, then look at the word once more: 1 = may sleep, 0 = it has moved.

    `seen` is the value that was consumed, never a fresh load.
    """
    atomics.store_release32(memory, flag_at, flag)
    # SYNC POINT: sleep (other end: `wanted`, `publish`)
    atomics.fence()
    return 1 if atomics.load_acquire(memory, word_at) == seen else 0


@kernel(i8, BYTES, i8, i8)
def publish(memory: Bytes, word_at: int, value: int) -> int:
    """Store a word that others may sleep on; their flags are to be looked at afterwards."""
    atomics.store_release(memory, word_at, value)
    # SYNC POINT: sleep (other end: `arm`)
    atomics.fence()
    return 0


@kernel(i8, BYTES, i8, i8, BYTES, i8)
def publish_and_check(memory: Bytes, word_at: int, value: int, flags: Bytes, flag_at: int) -> int:
    """Store a word and return the sleep flag of the one who waits for it."""
    atomics.store_release(memory, word_at, value)
    # SYNC POINT: sleep (other end: `arm`)
    atomics.fence()
    return atomics.load_acquire32(flags, flag_at)


@kernel(i8, BYTES, i8)
def wants_durable(arena: Bytes, durable: int) -> int:
    """1 if a session sleeps until `durable` reaches a position that it has reached.

    The caller has published `durable` behind a full fence.
    """
    wanted = atomics.load_acquire(arena, ARENA_DURABLE_WANTED)
    return 1 if 0 < wanted <= durable else 0


@kernel()
def _wants_bell(arena: Bytes, lane: Words, flags: int) -> int:
    """After the tail's release: 1 if the agent must be rung."""
    # SYNC POINT: sleep (other end: `arm`)
    atomics.fence()
    state = atomics.load_acquire32(arena, lane[frames.CONTROL] + LANE_AGENT_STATE)
    if state == ARMED:
        return 1
    if state == NAPPING:
        used = lane[frames.UP_CURSOR] - lane[frames.UP_SEEN]
        half_full = 2 * used > lane[frames.UP_MASK]
        if half_full:
            # The head seen last may be old; only a truly half-full ring wakes the agent.
            head = atomics.load_acquire(arena, lane[frames.CONTROL] + LANE_UP_HEAD)
            lane[frames.UP_SEEN] = head
            half_full = 2 * (lane[frames.UP_CURSOR] - head) > lane[frames.UP_MASK]
        return 1 if half_full or flags & URGENT else 0
    return 0


@kernel()
def reserve(arena: Bytes, lane: Words, cursor: int, size: int) -> int:
    """Where an entry of `size` bytes goes if the client's tail is `cursor`; pads at the wrap.

    Returns the tail at which the entry starts, or FULL. Publishes nothing.
    """
    mask = lane[frames.UP_MASK]
    offset = cursor & mask
    left = mask + 1 - offset
    skip = left if left < size else 0
    if cursor + skip + size - lane[frames.UP_SEEN] > mask + 1:
        # SYNC POINT: up head (other end: `tell_lanes`)
        head = atomics.load_acquire(arena, lane[frames.CONTROL] + LANE_UP_HEAD)
        lane[frames.UP_SEEN] = head
        if cursor + skip + size - head > mask + 1:
            return FULL
    if skip:
        at = lane[frames.UP] + offset
        machine.store32(arena, at, skip)
        machine.store16(arena, at + ENTRY_KIND, PAD)
        machine.store16(arena, at + ENTRY_FLAGS, 0)
    return cursor + skip


@kernel()
def reserve_leaving(arena: Bytes, lane: Words, cursor: int, size: int, spare: int) -> int:
    """As `reserve`, but FULL too if fewer than `spare` bytes were left in a ring in use."""
    start: int = reserve(arena, lane, cursor, size)
    room = lane[frames.UP_MASK] + 1
    if start >= 0 and start + size + spare - lane[frames.UP_SEEN] > room:
        # SYNC POINT: up head (other end: `tell_lanes`)
        head = atomics.load_acquire(arena, lane[frames.CONTROL] + LANE_UP_HEAD)
        lane[frames.UP_SEEN] = head
        if start + size + spare - head > room and head != cursor:
            return FULL
    return start


@kernel()
def _fill_head(
    arena: Bytes, at: int, size: int, kind: int, seq: int, form: Words,
    payload: tuple[Bytes, int, Bytes, int],
) -> None:  # fmt: skip
    """Write an entry's header."""
    machine.store32(arena, at, size)
    machine.store16(arena, at + ENTRY_KIND, kind)
    machine.store16(arena, at + ENTRY_FLAGS, form[0])
    machine.store64(arena, at + ENTRY_SEQ, seq)
    machine.store64(arena, at + ENTRY_BORN, form[3])
    machine.store32(arena, at + ENTRY_ROUTE, form[1])
    machine.store32(arena, at + ENTRY_QUEUE, form[2])
    machine.store32(arena, at + ENTRY_BODY, payload[1])
    machine.store32(arena, at + ENTRY_EXTRA, payload[3])
    machine.store32(arena, at + ENTRY_APP_FLAG, form[4])
    machine.store32(arena, at + ENTRY_BATCH, form[5])


@kernel()
def fill_send(
    arena: Bytes, at: int, seq: int, form: Words, payload: tuple[Bytes, int, Bytes, int]
) -> int:
    """Write a SEND entry at an arena offset; returns its length.

    `form`: flags, route, queue, born ms, application flag, batch count. `payload`: body and its
    length, extra properties and theirs.
    """
    body, body_bytes, extra, extra_bytes = payload
    size = (ENTRY_BYTES + body_bytes + extra_bytes + 7) & ~7
    _fill_head(arena, at, size, SEND, seq, form, payload)
    machine.copy(arena, at + ENTRY_BYTES, body, 0, body_bytes)
    machine.copy(arena, at + ENTRY_BYTES + body_bytes, extra, 0, extra_bytes)
    return size


@kernel()
def publish_entries(arena: Bytes, lane: Words, end: int, seq: int, flags: int) -> None:
    """Show the agent all that was written up to `end` by one store of the tail."""
    lane[frames.SEQ] = seq
    lane[frames.UP_CURSOR] = end
    # SYNC POINT: up tail (other end: `look_at_lanes`)
    atomics.store_release(arena, lane[frames.CONTROL] + LANE_UP_TAIL, end)
    lane[frames.RING] = _wants_bell(arena, lane, flags)


@kernel()
def put_send(arena: Bytes, lane: Words, form: Words, payload: tuple[Bytes, int, Bytes, int]) -> int:
    """`put` over raw memory."""
    size = (ENTRY_BYTES + payload[1] + payload[3] + 7) & ~7
    if 2 * size > lane[frames.UP_MASK] + 1:
        return TOO_LARGE
    start = reserve(arena, lane, lane[frames.UP_CURSOR], size)
    if start < 0:
        return FULL
    seq: int = lane[frames.SEQ] + 1
    fill_send(arena, lane[frames.UP] + (start & lane[frames.UP_MASK]), seq, form, payload)
    publish_entries(arena, lane, start + size, seq, form[0])
    return seq


@kernel()
def put_park(arena: Bytes, lane: Words, form: Words, payload: tuple[Bytes, int, Bytes, int]) -> int:
    """As `put_send`, for a message that is due later: `form` goes on with mode and value."""
    body, body_bytes, extra, extra_bytes = payload
    size = (ENTRY_BYTES + PARK_BYTES + body_bytes + extra_bytes + 7) & ~7
    if 2 * size > lane[frames.UP_MASK] + 1:
        return TOO_LARGE
    start = reserve(arena, lane, lane[frames.UP_CURSOR], size)
    if start < 0:
        return FULL
    seq: int = lane[frames.SEQ] + 1
    at = lane[frames.UP] + (start & lane[frames.UP_MASK])
    _fill_head(arena, at, size, PARK, seq, form, payload)
    machine.store64(arena, at + ENTRY_BYTES + PARK_MODE, form[6])
    machine.store64(arena, at + ENTRY_BYTES + PARK_VALUE, form[7])
    machine.copy(arena, at + ENTRY_BYTES + PARK_BYTES, body, 0, body_bytes)
    machine.copy(arena, at + ENTRY_BYTES + PARK_BYTES + body_bytes, extra, 0, extra_bytes)
    publish_entries(arena, lane, start + size, seq, form[0])
    return seq


@kernel(i8, BYTES, WORDS, WORDS, BYTES_RO, BYTES_RO)
def put(arena: Bytes, lane: Words, form: Words, body: Bytes, extra: Bytes) -> int:
    """Put one SEND entry and publish it; a PARK entry if `form` has FORM_WORDS with a mode.

    Single writer: the client. Returns its seq, FULL, or TOO_LARGE (more than half of the ring).
    `lane[RING]` says whether to ring the agent.
    """
    payload = (machine.raw(body), body.size, machine.raw(extra), extra.size)
    if form.size == FORM_WORDS and form[6]:
        return put_park(machine.raw(arena), machine.raw(lane), machine.raw(form), payload)
    return put_send(machine.raw(arena), machine.raw(lane), machine.raw(form), payload)


@kernel()
def _put_batch(
    arena: Bytes, lane: Words, form: Words, payload: Bytes, lengths: Words, count: int
) -> int:
    total = 0
    for index in range(count):
        total += (ENTRY_BYTES + lengths[2 * index] + lengths[2 * index + 1] + 7) & ~7
    if 2 * total > lane[frames.UP_MASK] + 1:
        return TOO_LARGE
    cursor = lane[frames.UP_CURSOR]
    seq: int = lane[frames.SEQ]
    at = 0
    for index in range(count):
        body, extra = lengths[2 * index], lengths[2 * index + 1]
        size = (ENTRY_BYTES + body + extra + 7) & ~7
        start = reserve(arena, lane, cursor, size)
        if start < 0:
            return FULL
        seq += 1
        form[1] = lengths[2 * count + index]
        form[5] = count - index
        parts = (machine.shift(payload, at), body, machine.shift(payload, at + body), extra)
        fill_send(arena, lane[frames.UP] + (start & lane[frames.UP_MASK]), seq, form, parts)
        at += body + extra
        cursor = start + size
    publish_entries(arena, lane, cursor, seq, form[0])
    return seq


@kernel(i8, BYTES, WORDS, WORDS, BYTES_RO, WORDS)
def put_batch(arena: Bytes, lane: Words, form: Words, payload: Bytes, lengths: Words) -> int:
    """Put several entries and publish them by one store: the agent sees all or none.

    `lengths` holds body and extra lengths in turn, then the route of each; `payload` bodies and
    extras in that order. Returns the seq of the last, FULL or TOO_LARGE.
    """
    return _put_batch(
        machine.raw(arena), machine.raw(lane), machine.raw(form), machine.raw(payload),
        machine.raw(lengths), lengths.size // 3,
    )  # fmt: skip


@kernel()
def _take_completion(arena: Bytes, at: int, lane: Words, out: Words, taken: int) -> int:
    """Take what answers one or more entries; returns how many completions `out` then has.

    `lane[COMPLETED]` says how far those were taken that `out` had no room for.
    """
    count = 1
    end = machine.load64(arena, at + COMPLETION_END)
    position = machine.load64(arena, at + COMPLETION_POSITION)
    sizes = at + BATCH_COMPLETION_BYTES
    batched = machine.load16(arena, at + ENTRY_KIND) == BATCH_COMPLETION
    if batched:
        count = machine.load32(arena, at + BATCH_COMPLETION_COUNT)
        end = position
    first = machine.load64(arena, at + COMPLETION_SEQ)
    status = machine.load32(arena, at + COMPLETION_STATUS)
    offset = machine.load64(arena, at + COMPLETION_QUEUE_OFFSET)
    queue = machine.load32(arena, at + COMPLETION_QUEUE)
    store_ms = machine.load64(arena, at + COMPLETION_STORE_MS)
    flags = machine.load16(arena, at + ENTRY_FLAGS)
    room = (out.size - 1) // frames.COMPLETION_WORDS
    for index in range(count):
        position = end if batched else position
        end += machine.load32(arena, sizes + 4 * index) if batched else 0
        if first + index <= lane[frames.COMPLETED] or taken == room:
            continue
        lane[frames.COMPLETED] = first + index
        row = taken * frames.COMPLETION_WORDS
        out[row + frames.OUT_SEQ] = first + index
        out[row + frames.OUT_STATUS] = status
        out[row + frames.OUT_QUEUE] = queue
        out[row + frames.OUT_OFFSET] = offset + index
        out[row + frames.OUT_POSITION] = position
        out[row + frames.OUT_END] = end
        out[row + frames.OUT_MS] = store_ms
        out[row + frames.OUT_FLAGS] = flags
        lane[frames.BAD] += 1 if status > DUPLICATE else 0
        taken += 1
    lane[frames.LEFT] = first + count - 1 - lane[frames.COMPLETED]
    return taken


@kernel(i8, BYTES, WORDS, WORDS)
def take_completions(arena: Bytes, lane: Words, out: Words) -> int:
    """Take completions out of the down ring, as many as `out` has room for. Single reader.

    Returns how many, which is `out`'s last word as well: a signal handler's error may come before
    the caller has what is returned. Entries that repeat a seq (posted again after an agent's
    restart) are passed.
    """
    room = (out.size - 1) // frames.COMPLETION_WORDS
    taken = 0
    lane[frames.RING] = 0
    lane[frames.BAD] = 0
    cursor = lane[frames.DOWN_CURSOR]
    # SYNC POINT: down tail (other end: `tell_lanes`)
    tail = atomics.load_acquire(arena, lane[frames.CONTROL] + LANE_DOWN_TAIL)
    was_full = 2 * (tail - cursor) > lane[frames.DOWN_MASK]
    while cursor < tail and taken < room:
        at = lane[frames.DOWN] + (cursor & lane[frames.DOWN_MASK])
        if machine.load16(arena, at + ENTRY_KIND) in (COMPLETION, BATCH_COMPLETION):
            taken = _take_completion(arena, at, lane, out, taken)
            if lane[frames.LEFT] > 0:
                break
        cursor += machine.load32(arena, at)
    if cursor != lane[frames.DOWN_CURSOR]:
        lane[frames.DOWN_CURSOR] = cursor
        # SYNC POINT: down head (other end: `drain_lanes`)
        atomics.store_release(arena, lane[frames.CONTROL] + LANE_DOWN_HEAD, cursor)
        atomics.fence()
        # An agent that stopped draining for want of room is ARMED.
        state = atomics.load_acquire32(arena, lane[frames.CONTROL] + LANE_AGENT_STATE)
        lane[frames.RING] = 1 if state == ARMED and was_full else 0
    out[-1] = taken
    return taken
