"""How the writer goes to sleep and wakes: all its lanes by one call.

`table` has the addresses of the lanes' words (frames.WRITER_LANE_WORDS); `count` is how many.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gantrymq.shm import atomics, machine
from gantrymq.shm.codes import AgentState, EntryFlag
from gantrymq.shm.jit import WORDS, WORDS_RO, i8, kernel
from gantrymq.shm.kernels import frames
from gantrymq.shm.kernels.words import watch_raw
from gantrymq.shm.layout import ENTRY_FLAGS, LANE_AGENT_STATE, LANE_DOWN_HEAD, LANE_UP_TAIL

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Words = NDArray[np.int64]

ACTIVE = int(AgentState.HOT)
NAPPING = int(AgentState.NAPPING)
ARMED = int(AgentState.ARMED)
URGENT = int(EntryFlag.URGENT)

#: Entries that `nap_lanes` looks at in a lane for an urgent one.
NAP_LOOK = 16


@kernel()
def _announce(arena: Bytes, lane: Words, state: int) -> None:
    """Say how the writer sleeps, before it looks again."""
    atomics.store_release32(arena, lane[frames.CONTROL] + LANE_AGENT_STATE, state)
    # SYNC POINT: sleep (other end: `_wants_bell`)
    atomics.fence()


@kernel()
def _has_something(arena: Bytes, lane: Words) -> int:
    """1 if there is something to do: entries, or room again where the down ring was full."""
    control = lane[frames.CONTROL]
    if lane[frames.BLOCKED]:
        head = atomics.load_acquire(arena, control + LANE_DOWN_HEAD)
        return 1 if head != lane[frames.DOWN_SEEN] else 0
    tail = atomics.load_acquire(arena, control + LANE_UP_TAIL)
    return 1 if tail != lane[frames.UP_CURSOR] else 0


@kernel(i8, WORDS, i8)
def arm_lanes(table: Words, count: int) -> int:
    """Announce sleep in all lanes; 1 if none has something to do. The others are hot."""
    quiet = 1
    for number in range(count):
        lane = machine.words_at(table[number])
        if lane[frames.OVER]:
            continue
        arena = machine.bytes_at(lane[frames.ARENA_AT])
        _announce(arena, lane, ARMED)
        lane[frames.HOT] = _has_something(arena, lane)
        if lane[frames.HOT]:
            quiet = 0
    return quiet


@kernel()
def wake_lanes(table: Words, first: int, end: int) -> None:
    """Poll busy lanes again; idle ones stay armed until they have something."""
    for number in range(first, end):
        lane = machine.words_at(table[number])
        arena = machine.bytes_at(lane[frames.ARENA_AT])
        if not lane[frames.OVER] and (lane[frames.HOT] or _has_something(arena, lane)):
            lane[frames.HOT] = 1
            atomics.store_release32(arena, lane[frames.CONTROL] + LANE_AGENT_STATE, ACTIVE)


@kernel()
def _is_calm(arena: Bytes, lane: Words) -> int:
    """0 if a half-full ring or an urgent entry forbids a nap.

    An entry put between the last drain and the announcement rang nobody, so the first few are
    looked at here; a later urgent one waits for the nap's end at most.
    """
    mask = lane[frames.UP_MASK]
    cursor = lane[frames.UP_CURSOR]
    used = atomics.load_acquire(arena, lane[frames.CONTROL] + LANE_UP_TAIL) - cursor
    if lane[frames.BLOCKED]:
        return 1
    if used < 0 or 2 * used > mask:
        return 0
    looked = 0
    place = 0
    while place < used and looked < NAP_LOOK:
        at = lane[frames.UP] + ((cursor + place) & mask)
        length = atomics.load_acquire32(arena, at)
        if length < 8 or length > used - place or ((cursor + place) & mask) + length > mask + 1:
            return 0
        if machine.load16(arena, at + ENTRY_FLAGS) & URGENT:
            return 0
        place += length
        looked += 1
    return 1


@kernel(i8, WORDS, i8)
def nap_lanes(table: Words, count: int) -> int:
    """Announce a nap in hot lanes; 1 if none of them forbids it."""
    calm = 1
    for number in range(count):
        lane = machine.words_at(table[number])
        if lane[frames.HOT]:
            arena = machine.bytes_at(lane[frames.ARENA_AT])
            _announce(arena, lane, NAPPING)
            calm &= _is_calm(arena, lane)
    return calm


@kernel(i8, WORDS_RO, i8, i8, WORDS, nogil=True)
def watch_lanes(table: Words, count: int, rounds: int, scratch: Words) -> int:
    """Look out for entries, as `watch` (shm/kernels/words.py); `scratch` has 2 words for each."""
    for number in range(count):
        lane = machine.words_at(table[number])
        scratch[2 * number] = lane[frames.ARENA_AT] + lane[frames.CONTROL] + LANE_UP_TAIL
        scratch[2 * number + 1] = lane[frames.UP_CURSOR]
    return watch_raw(machine.raw(scratch), count, rounds)
