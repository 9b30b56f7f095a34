"""The board's topics by name, for kernels that look one up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from gantrymq.shm import layout
from gantrymq.shm.kernels.dispatch import index_topics

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gantrymq.shm.board import Board

_ROOM_FIRST: Final = 16


class TopicIndex:
    """Follows the board; `words` is what `index_topics` makes, four times as long as needed."""

    def __init__(self, board: Board, without: Sequence[int] = ()) -> None:
        """`without` topics that are marked so, as an agent that puts copies wants none that leaves.

        Marks are layout.LEAVING and layout.DELETED.
        """
        self._board = board
        self._without = list(without)
        self._memory = board.array()
        self.words: NDArray[np.int64] = np.zeros(_ROOM_FIRST, np.int64)
        #: Of topics, as the board had them: how many, and how often they were changed.
        self.count = self.changes = -1

    @property
    def is_current(self) -> bool:
        """Whether the board has no other topics by now."""
        return self._on_board() == (self.count, self.changes)

    def follow(self) -> bool:
        """Know the topics of now; True if they are others."""
        found = self._on_board()
        if found == (self.count, self.changes):
            return False
        room = _ROOM_FIRST
        while room < 4 * found[0]:
            room *= 2
        self.words = np.zeros(room, np.int64)
        index_topics(self._memory_of(found[0]), found[0], self.words)
        self.count, self.changes = found
        return True

    def _memory_of(self, count: int) -> NDArray[np.uint8]:
        """The board, or a copy of its topics where some are not to be found."""
        if not self._without:
            return self._memory
        table = self._memory[: self._board.topic_at(count)]
        systems = table[layout.TOPICS_AT + layout.TOPIC_SYSTEM :: layout.TOPIC_BYTES]
        hidden = np.flatnonzero(np.isin(systems, self._without))
        if not len(hidden):
            return self._memory
        table = table.copy()
        for slot in hidden.tolist():  # a name that nobody has
            table[self._board.topic_at(slot) + layout.TOPIC_NAME] = 0
        return table

    def _on_board(self) -> tuple[int, int]:
        board = self._board
        return board.half(layout.BOARD_TOPIC_COUNT), board.half(layout.BOARD_TOPIC_CHANGES)
