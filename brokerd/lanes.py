"""The writer's ends of sessions: private cursors, copies of routes, what their records share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gantrymq.shm import layout, limits
from gantrymq.shm.kernels import frames
from gantrymq.shm.kernels.lanes import watch_lanes
from gantrymq.shm.kernels.record import legal_properties
from gantrymq.shm.kernels.words import load_word, store_word

if TYPE_CHECKING:
    from gantrymq.brokerd.producers import Producers
    from gantrymq.shm.board import Board
    from gantrymq.workers.session import Session

LOOPBACK = bytes([127, 0, 0, 1])
_WORD_MAX = (1 << 63) - 1
#: Lanes that a table has addresses for at first; the other half is for numbers of lanes.
_ROOM_FIRST = 16


def _no_routes() -> NDArray[np.int64]:
    return np.full(16 * frames.ROUTE_WORDS, frames.ROUTE_UNKNOWN, np.int64)


@dataclass(slots=True, eq=False)
class Lane:
    """A session as the writer serves it; `words` has the addresses of what the kernels need."""

    session: Session
    words: NDArray[np.int64]
    stored: NDArray[np.int64]
    identity: NDArray[np.uint8]
    routes: NDArray[np.int64] = field(default_factory=_no_routes)
    blocks: NDArray[np.uint8] = field(default_factory=lambda: np.zeros(1024, np.uint8))
    block_bytes: int = 0
    view: memoryview[int] = field(init=False)  # `words`, to be read and set one by one
    address: int = field(init=False)  # of `words`

    def __post_init__(self) -> None:
        self.view = self.words.data
        self.address = int(self.words.ctypes.data)
        self.view[frames.MAY_APPEND] = int(self.session.owner > 0)
        self.view[frames.RESUMED_SEQ] = self.view[frames.SEQ]
        self.view[frames.HOT] = 1
        self._show_arrays()

    def _show_arrays(self) -> None:
        """Tell the kernels where the arrays are; after each change of one."""
        view = self.view
        view[frames.ARENA_AT] = self.session.arena.ctypes.data
        view[frames.IDENTITY_AT] = self.identity.ctypes.data
        view[frames.BLOCKS_AT] = self.blocks.ctypes.data
        view[frames.ROUTES_AT] = self.routes.ctypes.data
        view[frames.ROUTES_LENGTH] = self.routes.size
        view[frames.STORED_AT] = self.stored.ctypes.data
        view[frames.STORED_ROWS] = self.stored.size // frames.STORED_WORDS

    @property
    def hot(self) -> bool:
        """Whether its ring is looked at in each cycle."""
        return bool(self.view[frames.HOT])

    @property
    def over(self) -> bool:
        """Whether nothing more is taken from it."""
        return bool(self.view[frames.OVER])

    def heat(self) -> None:
        """Look at its ring in the next cycle."""
        self.view[frames.HOT] = int(not self.over)

    def end(self) -> None:
        """Take nothing more from it."""
        self.view[frames.OVER], self.view[frames.HOT] = 1, 0
        self.view[frames.SILENT] = 1

    def forget_stored(self) -> bool:
        """Drop the rows for entries sent again, once its client has sent more than it had.

        True if there were any.
        """
        view = self.view
        if not view[frames.STORED_ROWS] or view[frames.SEQ] <= view[frames.RESUMED_SEQ]:
            return False
        self.stored = self.stored[:0]
        self._show_arrays()
        return True

    def published(self) -> int:
        """Where the up ring ends now, but no further than one ring from what was taken."""
        view = self.view
        tail = load_word(self.session.arena, view[frames.CONTROL] + layout.LANE_UP_TAIL)
        return min(tail, int(view[frames.UP_CURSOR] + view[frames.UP_MASK]) + 1)

    def announce(self) -> None:
        """Tell the client that its lane is served, and the last seq of its that is in the log."""
        arena, control = self.session.arena, self.session.plan.writer.control
        store_word(arena, control + layout.LANE_LAST_SEQ, self.view[frames.SEQ])
        adopted = (load_word(arena, control + layout.LANE_ADOPTED) + 1) & _WORD_MAX
        store_word(arena, control + layout.LANE_ADOPTED, adopted)
        self.session.bell.ring()

    def load_route(self, number: int, board: Board) -> None:
        """Copy, check and remember the route that the next entry names."""
        arena, plan = self.session.arena, layout.ROUTES_AT + number * layout.ROUTE_BYTES
        topic, block = _read_route(arena[plan : plan + layout.ROUTE_BYTES].tobytes())
        if topic >= 0 and not self._may_send(board, topic, block):
            topic = frames.ROUTE_REFUSED
        while (number + 1) * frames.ROUTE_WORDS > self.routes.size:
            more = np.full(self.routes.size, frames.ROUTE_UNKNOWN, np.int64)
            self.routes = np.concatenate([self.routes, more])
        while self.block_bytes + len(block) > self.blocks.size:
            self.blocks = np.concatenate([self.blocks, np.zeros(self.blocks.size, np.uint8)])
        at = self.block_bytes
        self.blocks[at : at + len(block)] = np.frombuffer(block, np.uint8)
        self.block_bytes += len(block)
        row = number * frames.ROUTE_WORDS
        self.routes[row : row + frames.ROUTE_WORDS] = (topic, at, len(block), number)
        self._show_arrays()

    def _may_send(self, board: Board, slot: int, block: bytes) -> bool:
        if slot >= board.half(layout.BOARD_TOPIC_COUNT):
            return False
        topic = board.topic(slot)
        # Without permission it was deleted: the kernel refuses it until it is created again.
        if topic is None or (topic.system and topic.perm and not self.session.owner):
            return False
        return not block or bool(legal_properties(np.frombuffer(block, np.uint8)))


class LaneTable:
    """All lanes, and the array by which kernels go through them: `array`, the first `count`."""

    def __init__(self) -> None:
        self.lanes: list[Lane] = []
        self.count = 0
        self.array = np.zeros(2 * _ROOM_FIRST, np.int64)
        self._view = self.array.data
        self._clients: list[Lane] = []
        self._near = np.zeros(1, np.int64)  # addresses: of a client's lane, and all of agents
        self._looked_at = np.zeros(2, np.int64)

    def __iter__(self) -> Iterator[Lane]:
        return iter(self.lanes)

    def add(self, lane: Lane) -> None:
        """Serve one more; never while a batch is open."""
        self.lanes.append(lane)
        self._show()

    def remove(self, lane: Lane) -> None:
        """Serve it no more; likewise."""
        self.lanes.remove(lane)
        self._show()

    def of(self, session: int) -> Lane | None:
        """A session's lane."""
        return next((lane for lane in self.lanes if lane.session.session == session), None)

    def lone_client(self, before: Lane | None) -> Lane | None:
        """The only client that is busy; if none is, the one that was, as long as it is there."""
        found = None
        for lane in self._clients:
            if lane.view[frames.HOT]:
                if found is not None:
                    return None
                found = lane
        return found or (before if before in self._clients else None)

    def look_out(self, client: Lane, rounds: int) -> bool:
        """Look for the next entry of a client without sleeping.

        What it asks an agent for comes by the agent's own lane: these are looked at as well.
        """
        near = self._near
        near.data[0] = client.address
        return bool(watch_lanes(near, len(near), rounds, self._looked_at))

    def ringing(self, count: int) -> list[Lane]:
        """Lanes whose clients `tell_lanes` wants rung: so many numbers behind the addresses."""
        room = len(self._view) // 2
        return [self.lanes[number] for number in self._view[room : room + count]]

    def _show(self) -> None:
        self.count = len(self.lanes)
        while 2 * self.count > self.array.size:
            self.array = np.zeros(2 * self.array.size, np.int64)
            self._view = self.array.data
        self.array[: self.count] = [lane.address for lane in self.lanes]
        self._clients = [lane for lane in self.lanes if not lane.session.owner]
        own = [lane.address for lane in self.lanes if lane.session.owner]
        self._near = np.array([0, *own], np.int64)
        self._looked_at = np.zeros(2 * len(self._near), np.int64)


def take_cursors(session: Session) -> NDArray[np.int64] | None:
    """Private words of a lane where it stands; None if its cursors are impossible."""
    plan = session.plan.writer
    words = np.zeros(frames.WRITER_LANE_WORDS, np.int64)
    words[frames.CONTROL] = plan.control
    words[frames.UP], words[frames.UP_MASK] = plan.up, plan.up_bytes - 1
    words[frames.DOWN], words[frames.DOWN_MASK] = plan.down, plan.down_bytes - 1
    arena = session.arena
    words[frames.UP_CURSOR] = _taken(arena, plan.control)
    words[frames.DOWN_CURSOR] = load_word(arena, plan.control + layout.LANE_DOWN_TAIL)
    words[frames.DOWN_SEEN] = load_word(arena, plan.control + layout.LANE_DOWN_HEAD)
    if session.owner:
        _pass_over(arena, plan.control, words)
    return words if _cursors_legal(words) else None


def _taken(arena: NDArray[np.uint8], control: int) -> int:
    """Where the up ring's head is: a writer that died behind its answers has not said it yet."""
    names = (layout.LANE_UP_HEAD, layout.LANE_NEXT_UP, layout.LANE_UP_TAIL)
    head, answered, tail = (load_word(arena, control + name) for name in names)
    is_told = load_word(arena, control + layout.LANE_NEXT_DOWN) == load_word(
        arena, control + layout.LANE_DOWN_TAIL
    )
    if not (is_told and head < answered <= tail):
        return head
    store_word(arena, control + layout.LANE_UP_HEAD, answered)
    return answered


def _pass_over(arena: NDArray[np.uint8], control: int, words: NDArray[np.int64]) -> None:
    """Take nothing of what an agent had put before: it looks in the log and puts the rest again."""
    words[frames.UP_CURSOR] = load_word(arena, control + layout.LANE_UP_TAIL)
    store_word(arena, control + layout.LANE_UP_HEAD, int(words[frames.UP_CURSOR]))


def open_lane(
    session: Session, words: NDArray[np.int64], producers: Producers, store_host: bytes
) -> Lane:
    """A lane that knows what the log has of its producer."""
    producer = session.producer
    words[frames.SEQ] = producers.last_seq(producer)
    words[frames.KNOWN_FROM], stored = producers.unanswered.of(producer)
    return Lane(session, words, stored, identity_of(producer, store_host))


def _read_route(slot: bytes) -> tuple[int, bytes]:
    """Topic slot and property block of a route slot, judged on this copy."""
    route = layout.ROUTE.unpack(slot)
    if not route["ready"] or route["block_bytes"] > limits.ROUTE_BLOCK_BYTES_MAX:
        return frames.ROUTE_REFUSED, b""
    return route["topic"], route["block"][: route["block_bytes"]]


def identity_of(producer: bytes, store_host: bytes) -> NDArray[np.uint8]:
    """What the encode kernel puts into every record of a session."""
    identity = np.zeros(frames.IDENTITY_BYTES, np.uint8)
    prefix = b"UNIQ_KEY\x01" + producer.hex().upper().encode()
    identity[: frames.IDENTITY_PREFIX_BYTES] = np.frombuffer(prefix, np.uint8)
    born = LOOPBACK + bytes(4)
    identity[frames.IDENTITY_BORN_HOST :][:8] = np.frombuffer(born, np.uint8)
    identity[frames.IDENTITY_STORE_HOST :][:8] = np.frombuffer(store_host, np.uint8)
    return identity


def _cursors_legal(words: NDArray[np.int64]) -> bool:
    up, down, seen = (
        int(words[at]) for at in (frames.UP_CURSOR, frames.DOWN_CURSOR, frames.DOWN_SEEN)
    )
    aligned = not (up | down | seen) & 7
    return aligned and up >= 0 and 0 <= seen <= down <= seen + int(words[frames.DOWN_MASK]) + 1
