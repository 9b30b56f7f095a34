"""Offsets of queues under lease, as words of a session's arena (layout PROGRESS).

Single writer: the client. `groups` copies what has changed into memory of its own and judges it
there. No lock and no version: a slot's numbers are true one by one, in whatever order they are
seen, and its lease says whose they are.

Who finishes messages in any order (a push consumer) has a bit for each of the PROGRESS_WINDOW
messages from `committed` on: `begin_messages` before they are handed out, `ack_messages` when they
are done with. Who finishes them in order says `note_progress` and leaves the bits zero. One thread
of a client at a time may call these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gantrymq.shm import atomics, machine
from gantrymq.shm.jit import BYTES, WORDS, i8, kernel
from gantrymq.shm.layout import (
    ARENA_PROGRESS_COUNT,
    PROGRESS_ACKED,
    PROGRESS_AT,
    PROGRESS_BYTES,
    PROGRESS_COMMITTED,
    PROGRESS_LEASE,
    PROGRESS_QUEUE,
    PROGRESS_STARTED,
)
from gantrymq.shm.limits import PROGRESS_WINDOW

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Words = NDArray[np.int64]

# What `changed_slots` gives of a slot, and remembers of it: SLOT_WORDS each.
LEASE: Final = 0
QUEUE: Final = 1
COMMITTED: Final = 2
STARTED: Final = 3
ACKED: Final = 4  # and seven more: bit (offset mod 512) of them is a message's
ACKED_WORDS: Final = PROGRESS_WINDOW // 64
SLOT_WORDS: Final = ACKED + ACKED_WORDS


@kernel(i8, BYTES, i8, i8, i8, i8)
def open_slot(arena: Bytes, slot: int, lease: int, queue: int, offset: int) -> int:
    """Client: give a slot to a lease that begins, at an offset; returns the slot's place."""
    at = PROGRESS_AT + slot * PROGRESS_BYTES
    close_slot(arena, at)
    for word in range(ACKED_WORDS):
        atomics.store_release(arena, at + PROGRESS_ACKED + 8 * word, 0)
    atomics.store_release(arena, at + PROGRESS_QUEUE, queue)
    atomics.store_release(arena, at + PROGRESS_COMMITTED, offset)
    atomics.store_release(arena, at + PROGRESS_STARTED, offset)
    # SYNC POINT: progress lease (other end: `changed_slots`)
    atomics.store_release(arena, at + PROGRESS_LEASE, lease)
    if atomics.load_acquire32(arena, ARENA_PROGRESS_COUNT) <= slot:
        atomics.store_release32(arena, ARENA_PROGRESS_COUNT, slot + 1)
    return at


@kernel(i8, BYTES, i8)
def close_slot(arena: Bytes, at: int) -> int:
    """Client: a lease is over, its numbers mean nothing any more."""
    atomics.store_release(arena, at + PROGRESS_LEASE, 0)
    return at


@kernel(i8, BYTES, i8, i8, i8)
def note_progress(arena: Bytes, at: int, committed: int, started: int) -> int:
    """Client: say how far a queue is; returns 1 if that is news."""
    news = 0
    if machine.load64(arena, at + PROGRESS_COMMITTED) != committed:
        # SYNC POINT: progress (other end: `changed_slots`)
        atomics.store_release(arena, at + PROGRESS_COMMITTED, committed)
        news = 1
    if machine.load64(arena, at + PROGRESS_STARTED) != started:
        atomics.store_release(arena, at + PROGRESS_STARTED, started)
        news = 1
    return news


@kernel()
def _change_bits(arena: Bytes, at: int, first: int, end: int, value: int) -> None:
    """Set (1) or clear (0) the bits of the messages [first, end), a word of 32 at a time."""
    offset = first
    while offset < end:
        bit = offset & (PROGRESS_WINDOW - 1)
        low = bit & 31
        count = min(end - offset, 32 - low, PROGRESS_WINDOW - bit)
        mask = ((1 << count) - 1) << low
        place = at + PROGRESS_ACKED + 4 * (bit >> 5)
        known = atomics.load_acquire32(arena, place)
        # SYNC POINT: progress (other end: `changed_slots`)
        atomics.store_release32(arena, place, known | mask if value else known & ~mask)
        offset += count


@kernel(i8, BYTES, i8, i8)
def begin_messages(arena: Bytes, at: int, end: int) -> int:
    """Client: all below `end` is about to be handed out.

    Returns how far it was noted: below `end` if that were more than PROGRESS_WINDOW messages.
    """
    started = atomics.load_acquire(arena, at + PROGRESS_STARTED)
    end = min(end, atomics.load_acquire(arena, at + PROGRESS_COMMITTED) + PROGRESS_WINDOW)
    if end > started:
        _change_bits(arena, at, started, end, 0)
        # SYNC POINT: progress (other end: `changed_slots`)
        atomics.store_release(arena, at + PROGRESS_STARTED, end)
        started = end
    return started


@kernel(i8, BYTES, i8, i8, i8)
def ack_messages(arena: Bytes, at: int, first: int, end: int) -> int:
    """Client: the messages [first, end), begun before, are done with.

    Returns `committed`, which has passed all that are done with in a row.
    """
    committed = atomics.load_acquire(arena, at + PROGRESS_COMMITTED)
    started = atomics.load_acquire(arena, at + PROGRESS_STARTED)
    _change_bits(arena, at, max(first, committed), min(end, started), 1)
    passed = committed
    while passed < started:
        bit = passed & (PROGRESS_WINDOW - 1)
        word = atomics.load_acquire32(arena, at + PROGRESS_ACKED + 4 * (bit >> 5))
        if not word >> (bit & 31) & 1:
            break
        passed += 1
    if passed > committed:
        # SYNC POINT: progress (other end: `changed_slots`)
        atomics.store_release(arena, at + PROGRESS_COMMITTED, passed)
    return passed


@kernel()
def _copy_slot(arena: Bytes, at: int, out: Words, row: int) -> int:
    """Agent: copy one slot to `out[row:]`; 0 if it is nobody's or changes hands just now."""
    # SYNC POINT: progress lease (other end: `open_slot`)
    lease = atomics.load_acquire(arena, at + PROGRESS_LEASE)
    # SYNC POINT: progress (other ends: the client's). Bits after `started`: what it covers has
    # had its bit cleared; before `committed`: a bit that is used again lies below that by then.
    out[row + STARTED] = atomics.load_acquire(arena, at + PROGRESS_STARTED)
    for word in range(ACKED_WORDS):
        out[row + ACKED + word] = atomics.load_acquire(arena, at + PROGRESS_ACKED + 8 * word)
    out[row + COMMITTED] = atomics.load_acquire(arena, at + PROGRESS_COMMITTED)
    out[row + QUEUE] = atomics.load_acquire(arena, at + PROGRESS_QUEUE)
    out[row + LEASE] = lease
    return 1 if lease and atomics.load_acquire(arena, at + PROGRESS_LEASE) == lease else 0


@kernel(i8, BYTES, WORDS, WORDS)
def changed_slots(arena: Bytes, seen: Words, out: Words) -> int:
    """Agent: copy the slots that have changed since `seen` (SLOT_WORDS each) into `out`.

    Slots beyond `seen` are not looked at. Returns how many have changed. A slot that changes hands
    just now is left for the next call.
    """
    used = min(atomics.load_acquire32(arena, ARENA_PROGRESS_COUNT), len(seen) // SLOT_WORDS)
    count = 0
    for slot in range(used):
        at = PROGRESS_AT + slot * PROGRESS_BYTES
        row = count * SLOT_WORDS
        if not _copy_slot(arena, at, out, row):
            continue
        known = slot * SLOT_WORDS
        news = 0
        for word in range(SLOT_WORDS):
            if seen[known + word] != out[row + word]:
                seen[known + word] = out[row + word]
                news = 1
        count += news
    return count
