"""Offsets of queues under lease, as words of a session's arena (layout PROGRESS).

Single writer: the client. `groups` copies what has changed into memory of its own and judges it
there. No lock and no version: a slot's numbers are true one by one, in whatever order they are
seen, and its lease says whose they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from shm import atomics, machine
from shm.jit import BYTES, WORDS, i8, kernel
from shm.layout import (
    ARENA_PROGRESS_COUNT,
    PROGRESS_AT,
    PROGRESS_BYTES,
    PROGRESS_COMMITTED,
    PROGRESS_LEASE,
    PROGRESS_QUEUE,
    PROGRESS_STARTED,
)
from shm.limits import PROGRESS_MAX

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
SLOT_WORDS: Final = 4


@kernel(i8, BYTES, i8, i8, i8, i8)
def open_slot(arena: Bytes, slot: int, lease: int, queue: int, offset: int) -> int:
    """Client: give a slot to a lease that begins, at an offset; returns the slot's place."""
    at = PROGRESS_AT + slot * PROGRESS_BYTES
    close_slot(arena, at)
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


@kernel(i8, BYTES, WORDS, WORDS)
def changed_slots(arena: Bytes, seen: Words, out: Words) -> int:
    """Agent: copy the slots that have changed since `seen` (SLOT_WORDS each) into `out`.

    Returns how many. A slot that changes hands just now is left for the next call.
    """
    used = min(atomics.load_acquire32(arena, ARENA_PROGRESS_COUNT), PROGRESS_MAX)
    count = 0
    for slot in range(used):
        at = PROGRESS_AT + slot * PROGRESS_BYTES
        # SYNC POINT: progress lease (other end: `open_slot`)
        lease = atomics.load_acquire(arena, at + PROGRESS_LEASE)
        # SYNC POINT: progress (other end: `note_progress`); `committed` is never older
        started = atomics.load_acquire(arena, at + PROGRESS_STARTED)
        committed = atomics.load_acquire(arena, at + PROGRESS_COMMITTED)
        queue = atomics.load_acquire(arena, at + PROGRESS_QUEUE)
        if lease == 0 or atomics.load_acquire(arena, at + PROGRESS_LEASE) != lease:
            continue
        known = slot * SLOT_WORDS
        if (
            seen[known + LEASE] == lease
            and seen[known + COMMITTED] == committed
            and seen[known + STARTED] == started
            and seen[known + QUEUE] == queue
        ):
            continue
        row = count * SLOT_WORDS
        out[row + LEASE] = seen[known + LEASE] = lease
        out[row + QUEUE] = seen[known + QUEUE] = queue
        out[row + COMMITTED] = seen[known + COMMITTED] = committed
        out[row + STARTED] = seen[known + STARTED] = started
        count += 1
    return count
