"""The writer's end of a session: private cursors, copies of its routes, what its records share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from shm import layout, limits
from shm.kernels import frames
from shm.kernels.record import legal_properties
from shm.kernels.words import load_word, spin, store_word

if TYPE_CHECKING:
    from brokerd.producers import Producers
    from shm.board import Board
    from workers.session import Session

LOOPBACK = bytes([127, 0, 0, 1])
_WORD_MAX = (1 << 63) - 1


def _no_routes() -> NDArray[np.int64]:
    return np.full(16 * frames.ROUTE_WORDS, frames.ROUTE_UNKNOWN, np.int64)


@dataclass(slots=True, eq=False)
class Lane:
    """A session as the writer serves it; its arrays are what `drain_lane` wants."""

    session: Session
    words: NDArray[np.int64]
    stored: NDArray[np.int64]
    identity: NDArray[np.uint8]
    routes: NDArray[np.int64] = field(default_factory=_no_routes)
    blocks: NDArray[np.uint8] = field(default_factory=lambda: np.zeros(1024, np.uint8))
    block_bytes: int = 0
    hot: bool = True
    over: bool = False
    resumed_seq: int = 0  # last seq in the log when the lane was taken over

    def end(self) -> None:
        """Take nothing more from it."""
        self.over, self.hot = True, False
        self.words[frames.SILENT] = 1

    @property
    def has_gone_on(self) -> bool:
        """True once its client has sent more than it had when the lane was taken over."""
        return bool(self.words[frames.SEQ] > self.resumed_seq)

    def published(self) -> int:
        """Where the up ring ends now, but no further than one ring from what was taken."""
        words = self.words
        tail = load_word(self.session.arena, words[frames.CONTROL] + layout.LANE_UP_TAIL)
        return min(tail, int(words[frames.UP_CURSOR] + words[frames.UP_MASK]) + 1)

    def announce(self) -> None:
        """Tell the client that its lane is served, and the last seq of its that is in the log."""
        arena, control = self.session.arena, self.session.plan.writer.control
        store_word(arena, control + layout.LANE_LAST_SEQ, int(self.words[frames.SEQ]))
        adopted = (load_word(arena, control + layout.LANE_ADOPTED) + 1) & _WORD_MAX
        store_word(arena, control + layout.LANE_ADOPTED, adopted)
        self.session.bell.ring()

    def look_out(self, rounds: int) -> bool:
        """Look for the next entry without sleeping."""
        at = int(self.words[frames.CONTROL]) + layout.LANE_UP_TAIL
        return bool(spin(self.session.arena, at, int(self.words[frames.UP_CURSOR]), rounds))

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

    def _may_send(self, board: Board, slot: int, block: bytes) -> bool:
        if slot >= board.half(layout.BOARD_TOPIC_COUNT):
            return False
        topic = board.topic(slot)
        # Without permission it was deleted: the kernel refuses it until it is created again.
        if topic is None or (topic.system and topic.perm and not self.session.internal):
            return False
        return not block or bool(legal_properties(np.frombuffer(block, np.uint8)))


def take_cursors(session: Session) -> NDArray[np.int64] | None:
    """Private words of a lane where it stands; None if its cursors are impossible."""
    plan = session.plan.writer
    words = np.zeros(frames.LANE_WORDS, np.int64)
    words[frames.CONTROL] = plan.control
    words[frames.UP], words[frames.UP_MASK] = plan.up, plan.up_bytes - 1
    words[frames.DOWN], words[frames.DOWN_MASK] = plan.down, plan.down_bytes - 1
    arena = session.arena
    words[frames.UP_CURSOR] = load_word(arena, plan.control + layout.LANE_UP_HEAD)
    words[frames.DOWN_CURSOR] = load_word(arena, plan.control + layout.LANE_DOWN_TAIL)
    words[frames.DOWN_SEEN] = load_word(arena, plan.control + layout.LANE_DOWN_HEAD)
    return words if _cursors_legal(words) else None


def open_lane(
    session: Session, words: NDArray[np.int64], producers: Producers, store_host: bytes
) -> Lane:
    """A lane that knows what the log has of its producer."""
    producer = session.producer
    seq = words[frames.SEQ] = producers.last_seq(producer)
    words[frames.KNOWN_FROM], stored = producers.unanswered.of(producer)
    return Lane(session, words, stored, identity_of(producer, store_host), resumed_seq=seq)


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
