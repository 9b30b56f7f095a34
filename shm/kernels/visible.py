"""What consumers may see, and which sessions sleep until they do (the reader's side)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gantrymq.shm import atomics, machine
from gantrymq.shm.jit import BYTES, WORDS, i8, kernel
from gantrymq.shm.kernels.dispatch import (
    DISPATCHED,
    HELD,
    QUEUES_AT,
    SLEEPERS,
    STAMP,
    TOUCH_COUNT,
    TOUCH_FIRST,
    TOUCH_QUEUE,
    TOUCH_WORDS,
    TOUCHED,
)
from gantrymq.shm.layout import (
    ARENA_INTEREST_COUNT,
    ARENA_WAIT_ARMED,
    BOARD_APPENDED,
    BOARD_DURABLE,
    BOARD_READER_ARMED,
    INTEREST_AT,
    QUEUE_BYTES,
    QUEUE_MAX_OFFSET,
    QUEUE_WRITTEN,
)
from gantrymq.shm.limits import INTEREST_MAX

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Words = NDArray[np.int64]


@kernel()
def _is_interested(arena: Bytes, stamps: Words, queues: int, now: int) -> int:
    """1 if a sleeping session waits for a queue whose stamp is `now`. Its words may be anything."""
    if not atomics.load_acquire32(arena, ARENA_WAIT_ARMED):
        return 0
    count = atomics.load_acquire32(arena, ARENA_INTEREST_COUNT)
    if count > INTEREST_MAX:
        return 1
    for place in range(count):
        queue = machine.load32(arena, INTEREST_AT + 4 * place)
        if queue < queues and stamps[queue] == now:
            return 1
    return 0


@kernel()
def _find_sleepers(form: Words, stamps: Words, queues: int, arenas: Words, rings: Words) -> int:
    """Places of the sessions that wait for a queue of the newest stamp; how many there are."""
    # SYNC POINT: sleep (other end: `arm` of consumers)
    atomics.fence()
    count = 0
    for place in range(form[SLEEPERS]):
        if _is_interested(machine.bytes_at(arenas[place]), stamps, queues, form[STAMP]):
            rings[count] = place
            count += 1
    return count


@kernel()
def _raise_to(board: Bytes, at: int, end: int) -> None:
    """Move a word that only grows: units that waited for the disk may come behind later ones.

    A topic may be made again at another level, and a new reader begins with units shown before.
    """
    # SYNC POINT: max offset (other end: the consumer's poll)
    if end > atomics.load_acquire(board, at):
        atomics.store_release(board, at, end)


@kernel(i8, BYTES, WORDS, WORDS, WORDS, WORDS, WORDS, WORDS)
def publish_units(
    board: Bytes, form: Words, touched: Words, held_level: Words, stamps: Words, arenas: Words,
    rings: Words,
) -> int:  # fmt: skip
    """After the units are in the files: move `written` of touched queues, and what may be seen.

    A queue with `held_level` shows nothing yet: it moves to the front of `touched` as a pair of
    (queue, offset), and form[HELD] counts these. `arenas` are addresses; the places of those that
    are to be rung go into `rings`, and their number is returned.
    """
    held = 0
    form[STAMP] += 1
    for place in range(form[TOUCHED]):
        at = place * TOUCH_WORDS
        queue = touched[at + TOUCH_QUEUE]
        queue_at = form[QUEUES_AT] + queue * QUEUE_BYTES
        end = touched[at + TOUCH_FIRST] + touched[at + TOUCH_COUNT]
        _raise_to(board, queue_at + QUEUE_WRITTEN, end)
        if held_level[queue]:
            touched[2 * held] = queue
            touched[2 * held + 1] = end
            held += 1
        else:
            stamps[queue] = form[STAMP]
            _raise_to(board, queue_at + QUEUE_MAX_OFFSET, end)
    form[HELD] = held
    if held == form[TOUCHED]:
        return 0
    raw = machine.raw
    return _find_sleepers(raw(form), raw(stamps), stamps.size, raw(arenas), raw(rings))


@kernel(i8, BYTES, WORDS, WORDS, WORDS, WORDS, WORDS)
def publish_visible(
    board: Bytes, form: Words, pairs: Words, stamps: Words, arenas: Words, rings: Words
) -> int:
    """Move `max_offset` of queues: pairs of (queue, offset). Returns as `publish_units` does."""
    form[STAMP] += 1
    for place in range(0, pairs.size, 2):
        queue_at = form[QUEUES_AT] + pairs[place] * QUEUE_BYTES
        stamps[pairs[place]] = form[STAMP]
        _raise_to(board, queue_at + QUEUE_MAX_OFFSET, pairs[place + 1])
    raw = machine.raw
    return _find_sleepers(raw(form), raw(stamps), stamps.size, raw(arenas), raw(rings))


@kernel(i8, BYTES, WORDS, i8)
def arm_reader(board: Bytes, form: Words, durable: int) -> int:
    """Raise the reader's sleep flag, then look once more: 1 = may sleep, 0 = something has moved.

    `durable` is the position that was last taken notice of, or -1 if nothing waits for it.
    """
    atomics.store_release32(board, BOARD_READER_ARMED, 1)
    # SYNC POINT: sleep (other end: `publish_and_check` of writer and flusher)
    atomics.fence()
    if atomics.load_acquire(board, BOARD_APPENDED) != form[DISPATCHED]:
        return 0
    if durable >= 0 and atomics.load_acquire(board, BOARD_DURABLE) != durable:
        return 0
    return 1
