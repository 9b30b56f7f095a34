"""One end of a lane that carries control messages: cursors of its own, bodies as bytes."""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from gantrymq.shm import layout
from gantrymq.shm.arena import LanePlan
from gantrymq.shm.codes import EntryKind
from gantrymq.shm.errors import Incompatible
from gantrymq.shm.kernels import frames, message, ring
from gantrymq.shm.lookout import address_of


class End(IntEnum):
    """Whose end of a lane it is; as kernels have it, 1 where the up ring is written."""

    AGENT = 0
    CLIENT = 1


class BrokenLane(Exception):
    """The peer broke the rules of the ring."""


def _word(memory: NDArray[np.uint8], at: int) -> int:
    return int.from_bytes(memory[at : at + 8].tobytes(), "little", signed=True)


class ControlLane:
    """Puts and takes messages; `wants_bell` says after each whether the peer is to be rung.

    What an agent has taken stays in the ring until `publish_taken`: its successor takes it again.
    """

    def __init__(self, arena: NDArray[np.uint8], plan: LanePlan, end: End) -> None:
        self.arena = arena
        self.plan = plan
        self.end = end
        self.wants_bell = False
        self.words = np.zeros(frames.LANE_WORDS, np.int64)
        self.words[frames.CONTROL] = plan.control
        self.words[frames.UP] = plan.up
        self.words[frames.UP_MASK] = plan.up_bytes - 1
        self.words[frames.DOWN] = plan.down
        self.words[frames.DOWN_MASK] = plan.down_bytes - 1
        up, down = (
            (layout.LANE_UP_TAIL, layout.LANE_DOWN_HEAD)
            if end is End.CLIENT
            else (layout.LANE_UP_HEAD, layout.LANE_DOWN_TAIL)
        )
        self.words[frames.UP_CURSOR] = _word(arena, plan.control + up)
        self.words[frames.DOWN_CURSOR] = _word(arena, plan.control + down)
        self._view = self.words.data
        self._up = end.value
        self._kind = (EntryKind.REQUEST if end is End.CLIENT else EntryKind.NOTICE).value
        self._taken = np.zeros(max(plan.up_bytes, plan.down_bytes) // 2, np.uint8)
        self._taken_bytes = self._taken.data
        self._taking = (arena,), (self.words,), (1 - self._up,), (self._taken,)
        self._got: list[int] = []  # size of what `_taken` has and nobody was given
        tail = layout.LANE_DOWN_TAIL if end is End.CLIENT else layout.LANE_UP_TAIL
        self.tail_at = at = plan.control + tail
        self._peer_tail = arena[at : at + 8].view(np.int64).data
        #: Of the word that changes when the peer puts something; good while the arena is held.
        self.tail_address = address_of(arena, at)
        at = plan.control + layout.LANE_UP_HEAD
        self._up_head = arena[at : at + 8].view(np.int64).data
        self._cursor = frames.DOWN_CURSOR if end is End.CLIENT else frames.UP_CURSOR
        self._seen = self._published = int(self.words[self._cursor])

    def put(self, body: bytes) -> bool:
        """Publish one message; False if there is no room now. Raises BrokenLane, Incompatible."""
        done = message.put_message(
            self.arena, self.words, self._up, self._kind, np.frombuffer(body, np.uint8)
        )
        return self.has_put(done, len(body))

    def has_put(self, done: int, size: int) -> bool:
        """What `put` makes of what a kernel says that has put so many bytes over `words`."""
        if done == 1:
            self.wants_bell = self._view[frames.RING] != 0
            return True
        self.wants_bell = False
        if done == ring.HOSTILE:
            raise BrokenLane("head of the ring is impossible")
        if done == ring.TOO_LARGE:
            raise Incompatible(f"a control message of {size} bytes does not fit into its ring")
        return False

    def take(self) -> bytes | None:
        """The next message, or None. Raises BrokenLane."""
        view = self._view
        if not self._got:
            if self._peer_tail[0] == self._seen:
                self.wants_bell = False
                return None
            view[frames.RING] = 0
            # Taken and noted in one step: a signal handler that raises comes before it, or after.
            self._got[:] = map(message.take_message, *self._taking)
        # One that takes more itself puts it where this is: no call before it is copied. It may take
        # this one as well, which is then told twice.
        got = self._got[0]
        taken = None if got < 0 else self._taken_bytes[:got].tobytes()
        self._seen = view[self._cursor]
        self.wants_bell = view[frames.RING] != 0
        del self._got[:]
        if got == ring.HOSTILE:
            raise BrokenLane("an entry of the ring breaks its rules")
        return taken

    @property
    def wants_ring(self) -> bool:
        """Whether the last call of a kernel over `words` wants the peer rung."""
        return bool(self._view[frames.RING])

    def follow(self) -> None:
        """A kernel has taken messages by `words`."""
        self._seen = self._view[self._cursor]

    @property
    def unpublished_bytes(self) -> int:
        """Agent: bytes that were taken and are in the ring still."""
        return self._seen - self._published

    def publish_taken(self) -> bool:
        """Agent: give the room of what was taken back; True if the client is to be rung."""
        if self._published == self._seen:
            return False
        self._published = self._seen
        return bool(message.publish_taken(self.arena, self.words))

    def arm(self, flag: int) -> bool:
        """Raise this end's sleep flag and look again; True if it may sleep."""
        if self.end is End.CLIENT:
            flag_at, word_at, seen = (
                layout.LANE_CLIENT_ARMED,
                layout.LANE_DOWN_TAIL,
                frames.DOWN_CURSOR,
            )
        else:
            flag_at, word_at, seen = layout.LANE_AGENT_STATE, layout.LANE_UP_TAIL, frames.UP_CURSOR
        control = self.plan.control
        return bool(
            ring.arm(self.arena, control + flag_at, flag, control + word_at, int(self.words[seen]))
        )

    def disarm(self) -> None:
        """Take the flag down."""
        flag_at = layout.LANE_CLIENT_ARMED if self.end is End.CLIENT else layout.LANE_AGENT_STATE
        at = self.plan.control + flag_at
        self.arena[at : at + 4] = 0

    @property
    def has_more(self) -> bool:
        """Whether the peer has put more than was taken."""
        return bool(self._peer_tail[0] != self._seen)

    @property
    def seen(self) -> int:
        """Bytes of the peer's that were taken: its tail is elsewhere once there are more."""
        return self._seen

    def unread_bytes(self) -> int:
        """Client: bytes that the agent has not given back yet (it may be about to)."""
        return int(self.words[frames.UP_CURSOR]) - self._up_head[0]
