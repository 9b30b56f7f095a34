"""What consumers may see: `max_offset` of queues, and the bells of those who wait for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gantrymq.shm import layout
from gantrymq.shm.bell import give_way
from gantrymq.shm.codes import Level
from gantrymq.shm.kernels import dispatch
from gantrymq.shm.kernels.visible import publish_units, publish_visible
from gantrymq.shm.marks import mark
from gantrymq.workers.session import Attached, Detached, Session

if TYPE_CHECKING:
    from gantrymq.shm.board import Board, TopicSlot

Words = NDArray[np.int64]


class Visibility:
    """Moves `written` and `max_offset`; only the reader has one.

    `form` and `touched` are the words of `dispatch_log` (shm/kernels/dispatch.py).
    """

    def __init__(self, board: Board, form: Words, touched: Words) -> None:
        self._board = board
        self._words = board.array()
        self._form = form
        self._out = form.data
        self._touched = touched
        self._held_level = np.zeros(board.queues_max, np.int64)
        self._levels: dict[int, TopicSlot] = {}
        self._stamps = np.zeros(board.queues_max, np.int64)
        #: (log position that has to be durable, pairs of queue and offset), in order.
        self._waiting: deque[tuple[int, Words]] = deque()
        self._clients: dict[int, Session] = {}
        self._seat()

    # ------------------------------------------------------------------------------- who is there

    def follow(self, events: Iterable[Attached | Detached]) -> None:
        """Note who has come or gone.

        Who comes is rung: a reader before this one may have died owing it that, and a session that
        has just begun only looks once more.
        """
        for event in events:
            if isinstance(event, Attached):
                self._clients[event.session.session] = event.session
                event.session.bell.ring()
            else:
                self._clients.pop(event.session, None)
        self._seat()

    def _seat(self) -> None:
        """Lay out the table of arenas, and bind kernels to what they always work on."""
        self._sessions = list(self._clients.values())
        addresses = [session.arena.ctypes.data for session in self._sessions]
        self._form[dispatch.SLEEPERS] = len(addresses)
        arenas, rings = np.array(addresses, np.int64), np.zeros(len(addresses), np.int64)
        self._rings = rings.data
        self._publish_units = partial(
            publish_units, self._words, self._form, self._touched, self._held_level,
            self._stamps, arenas, rings,
        )  # fmt: skip
        self._arenas, self._found = arenas, rings

    def sessions(self) -> Collection[Session]:
        """Who is attached."""
        return self._sessions

    # --------------------------------------------------------------------------- what is shown

    def set_levels(self, topics: Iterable[TopicSlot]) -> None:
        """Which queues show their units only when the records are durable."""
        for topic in topics:
            if self._levels.get(topic.slot) is topic:  # as the board has it while it is the same
                continue
            self._levels[topic.slot] = topic
            queues = slice(topic.queue_base, topic.queue_base + topic.queue_count)
            self._held_level[queues] = topic.level == Level.DURABLE

    def publish(self, end: int) -> None:
        """Units of the last call are in the files: show them, if need be once `end` is durable."""
        count = self._publish_units()
        out = self._out
        held = out[dispatch.HELD]
        if held < out[dispatch.TOUCHED]:
            self._ring(count)
        if held:
            self._waiting.append((end, self._touched[: 2 * held].copy()))

    def waits(self) -> bool:
        """Whether units wait for the disk."""
        return bool(self._waiting)

    def show_durable(self, durable: int) -> int:
        """Show units whose records are on the disk by now; how many cycles they came from."""
        shown = 0
        while self._waiting and self._waiting[0][0] <= durable:
            self._show(self._waiting.popleft()[1])
            shown += 1
        return shown

    def recover(self) -> None:
        """Show what a reader that died had written but not shown."""
        at_once: list[int] = []
        held: list[int] = []
        for topic in self._board.topics():
            for queue in range(topic.queue_base, topic.queue_base + topic.queue_count):
                at = self._board.queue_at(queue)
                written = self._board.word(at + layout.QUEUE_WRITTEN)
                if written > self._board.word(at + layout.QUEUE_MAX_OFFSET):
                    pairs = held if topic.level == Level.DURABLE else at_once
                    pairs += [queue, written]
        if at_once:
            self._show(np.array(at_once, np.int64))
        if held:
            # The records of these units may end anywhere up to `appended`.
            end = self._board.word(layout.BOARD_APPENDED)
            self._waiting.append((end, np.array(held, np.int64)))

    def _show(self, pairs: Words) -> None:
        """Move `max_offset` of queues, pairs of (queue, offset)."""
        count = publish_visible(
            self._words, self._form, pairs, self._stamps, self._arenas, self._found
        )
        self._ring(count)

    def _ring(self, count: int) -> None:
        """Wake the sessions that the kernel has found waiting."""
        mark("reader.before_ring")
        if count:
            for place in self._rings[:count]:
                self._sessions[place].bell.ring()
            give_way()
