"""Failed messages that the store does not take back: said in the log and counted, once for each."""

from __future__ import annotations

from typing import Final

from gantrymq.shm import layout, wire
from gantrymq.shm.board import Board
from gantrymq.shm.codes import Role
from gantrymq.workers.groups.progress import QueueKey
from gantrymq.workers.session import SessionTable

#: Messages remembered as reported; with more, all are forgotten, and reported again.
_REMEMBERED: Final = 4096


class Unstorable:
    """See the module. Their consumers keep them, and ask again every few seconds."""

    def __init__(self, board: Board, sessions: SessionTable) -> None:
        self._board = board
        self._sessions = sessions
        self._reported: set[tuple[str, QueueKey, int]] = set()
        self._wanted: set[str] = set()  # topics, since the last call of `ask_for_topics`

    def want(self, topic: str) -> None:
        """For want of a topic no copy can be stored."""
        self._wanted.add(topic)

    def ask_for_topics(self) -> None:
        """Have those made again that are of groups, once for all messages of a request."""
        for topic in sorted(self._wanted):
            self._sessions.note("debug", wire.GROUP_TOPIC_WANTED, topic=topic)
        self._wanted.clear()

    def refused(self, name: tuple[str, QueueKey, int], why: str) -> None:
        """No copy can be stored for now, neither a retry nor a dead letter."""
        if self._is_new(name):
            group, (topic, queue), offset = name
            where = {"group": group, "topic": topic, "queue": queue, "offset": offset}
            self._sessions.note("error", "send_back_refused", **where, why=why)

    def dead_early(self, name: tuple[str, QueueKey, int], why: str) -> None:
        """A retry cannot be stored, a dead letter can."""
        if self._is_new(name):
            group, (topic, queue), offset = name
            where = {"group": group, "topic": topic, "queue": queue, "offset": offset}
            self._sessions.note("warning", "dead_letter_for_want_of_room", **where, why=why)

    def _is_new(self, name: tuple[str, QueueKey, int]) -> bool:
        if name in self._reported:
            return False
        if len(self._reported) >= _REMEMBERED:
            self._reported.clear()
        self._reported.add(name)
        at = self._board.process_at(Role.GROUPS) + layout.PROCESS_REFUSED
        self._board.set_word(at, self._board.word(at) + 1)
        return True
