"""The client's end of its lane with the writer: entries in, completions out. No waiting here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gantrymq.shm import layout
from gantrymq.shm.arena import LanePlan
from gantrymq.shm.codes import EntryKind, Status
from gantrymq.shm.kernels import frames
from gantrymq.shm.kernels.ring import (
    arm,
    put,
    put_batch,
)
from gantrymq.shm.kernels.words import load_word, spin, store_half, store_word
from gantrymq.shm.lookout import Lookout, address_of

#: Completions taken at one time.
DRAIN_ROWS = 4096
#: The word behind these, which says how many there are (`take_completions`).
COUNT = DRAIN_ROWS * frames.COMPLETION_WORDS


class WriterLane:
    """Private cursors over one session's arena. Not for several threads without a lock."""

    def __init__(self, arena: NDArray[np.uint8], plan: LanePlan, seq: int, completed: int) -> None:
        self.arena = arena
        self.plan = plan
        words = np.zeros(frames.LANE_WORDS, np.int64)
        words[frames.CONTROL] = plan.control
        words[frames.UP], words[frames.UP_MASK] = plan.up, plan.up_bytes - 1
        words[frames.DOWN], words[frames.DOWN_MASK] = plan.down, plan.down_bytes - 1
        words[frames.SEQ] = seq
        words[frames.COMPLETED] = completed
        self.words = words
        self._view = words.data
        self._tail_address = address_of(arena, plan.control + layout.LANE_DOWN_TAIL)

    @property
    def seq(self) -> int:
        """Last seq put."""
        return int(self.words[frames.SEQ])

    @property
    def wants_bell(self) -> bool:
        """Whether the last call wants the writer rung."""
        return bool(self._view[frames.RING])

    def put(
        self, form: NDArray[np.int64], body: NDArray[np.uint8], extra: NDArray[np.uint8]
    ) -> int:
        """Put one entry; its seq, ring.FULL or ring.TOO_LARGE."""
        return put(self.arena, self.words, form, body, extra)

    def put_batch(
        self, form: NDArray[np.int64], payload: NDArray[np.uint8], lengths: NDArray[np.int64]
    ) -> int:
        """Put an all-or-nothing batch; the last seq, ring.FULL or ring.TOO_LARGE."""
        return put_batch(self.arena, self.words, form, payload, lengths)

    def refill(self, entries: bytes) -> None:
        """Fill the ring, which is fresh, with entries that another arena has held.

        One store publishes them all: the writer must never see a part of a batch.
        """
        data = np.frombuffer(entries, np.uint8)
        self.arena[self.plan.up : self.plan.up + data.size] = data
        self.words[frames.UP_CURSOR] = data.size
        store_word(self.arena, self.plan.control + layout.LANE_UP_TAIL, data.size)

    def spin_completed(self, rounds: int) -> bool:
        """Look out for a completion without sleeping."""
        at = self.plan.control + layout.LANE_DOWN_TAIL
        return bool(spin(self.arena, at, self._view[frames.DOWN_CURSOR], rounds))

    def watch(self, lookout: Lookout) -> None:
        """Look out for a completion, among other things."""
        lookout.add(self._tail_address, self._view[frames.DOWN_CURSOR])

    def taken(self) -> int:
        """Bytes of the up ring that the writer has taken; entries below are in the log."""
        return load_word(self.arena, self.plan.control + layout.LANE_UP_HEAD)

    @property
    def put_end(self) -> int:
        """Bytes put so far: all is in the log when `taken` gets here."""
        return int(self.words[frames.UP_CURSOR])

    def arm_taken(self, seen: int) -> bool:
        """Ask for the bell at the next change; False if `taken` has moved from `seen` already."""
        return self._arm(layout.LANE_UP_HEAD, seen)

    def arm_completed(self) -> bool:
        """Ask for the bell at the next change; False if a completion is there already."""
        return self._arm(layout.LANE_DOWN_TAIL, int(self.words[frames.DOWN_CURSOR]))

    def _arm(self, word: int, seen: int) -> bool:
        control = self.plan.control
        flag = control + layout.LANE_CLIENT_ARMED
        return bool(arm(self.arena, flag, 1, control + word, seen))

    def disarm(self) -> None:
        """No bell wanted."""
        store_half(self.arena, self.plan.control + layout.LANE_CLIENT_ARMED, 0)

    def adopted(self) -> bool:
        """Whether a writer has taken the lane over."""
        return load_word(self.arena, self.plan.control + layout.LANE_ADOPTED) > 0

    def last_seq(self) -> int:
        """Last seq of this producer in the log when the writer took over."""
        return load_word(self.arena, self.plan.control + layout.LANE_LAST_SEQ)

    def unsettled(self) -> list[tuple[int, bytes]]:
        """Entries that may not be in the log, oldest first, with their seqs."""
        return list(self._unsettled())

    def unanswered(self, status: Status) -> NDArray[np.int64]:
        """Completions with a status, as `drain` gives them, of entries that may not be in the log.

        Of a route they have the number where a refusal has it.
        """
        entries = [layout.ENTRY.unpack(entry, 0) for _seq, entry in self._unsettled()]
        rows = np.full((len(entries), frames.COMPLETION_WORDS), -1, np.int64)
        rows[:, frames.OUT_STATUS] = status
        for row, entry in zip(rows, entries, strict=True):
            row[frames.OUT_SEQ], row[frames.OUT_QUEUE] = entry["seq"], entry["queue"]
            row[frames.OUT_MS], row[frames.OUT_FLAGS] = entry["route"], entry["flags"]
        return rows

    def _unsettled(self) -> Iterator[tuple[int, bytes]]:
        cursor, end = self.taken(), self.put_end
        while cursor < end:
            at = self.plan.up + (cursor & (self.plan.up_bytes - 1))
            head = layout.ENTRY.unpack(self.arena, at) if _is_whole(self.arena, at) else None
            length = int.from_bytes(self.arena[at : at + 4].tobytes(), "little")
            if head is not None and head["kind"] != EntryKind.PAD:
                yield head["seq"], self.arena[at : at + length].tobytes()
            if not length:
                return  # the memory is damaged: nobody knows what is behind
            cursor += length


def _is_whole(arena: NDArray[np.uint8], at: int) -> bool:
    return at + layout.ENTRY_BYTES <= arena.size


class Taken(NamedTuple):
    """Completions that were taken and may not have been dealt with: `words[COUNT]` of them.

    `words` is the same as `rows`, for a look at single words: much quicker than through numpy.
    """

    rows: NDArray[np.int64]
    words: memoryview


class Drained:
    """Completions that a producer has taken out of its rings, and may not have dealt with.

    A signal handler may take some while its thread has others in hand, another handler amid that,
    and each may be broken off by the next one's error. So each depth has rows of its own, which
    count until somebody has dealt with them.
    """

    def __init__(self) -> None:
        self.places: list[Taken] = []
        self._reach(0)

    def _reach(self, depth: int) -> None:
        while len(self.places) <= depth:
            rows = np.zeros(COUNT + 1, np.int64)
            self.places.append(Taken(rows, rows.data))

    def broken_off(self, depth: int) -> Sequence[int]:
        """Where rows are left that nobody deals with any more, the deepest first.

        As seen by who begins to look at a depth, which has a place then.
        """
        self._reach(depth)
        places = self.places
        return [at for at in reversed(range(depth, len(places))) if places[at].words[COUNT]]
