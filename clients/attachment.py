"""A consumer's session with one life of the broker: membership, fetching, sleeping."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np

from clients.batch import Columns, MessageBatch
from clients.fetcher import Fetcher
from clients.logfiles import LogFiles
from clients.member import ANSWER_NS, Assigned, GroupMember, now_ns
from clients.message import MessageQueue
from clients.session import Session
from shm import layout, limits
from shm.errors import GroupIllegal, Timeout
from shm.filter import TagFilter
from shm.groupwire import Attempts, ConsumeFrom

_NOTHING: Final = Columns(1, 1)


class Attachment:
    """Lives from an attach to the broker's end, to eviction, or to `close` of its session."""

    def __init__(
        self,
        home: str | os.PathLike[str] | None,
        group: str,
        filters: Mapping[str, TagFilter],
    ) -> None:
        """Attach and open the topics. Raises BrokerGone, TopicNotFound, ..."""
        self.group = group
        self.session = Session(home, groups=True)
        try:
            self._opened = [self.session.open_topic(topic) for topic in filters]
        except BaseException:
            self.session.close()
            raise
        board = self.session.board
        self.files = LogFiles(self.session.store, board)
        self.member: GroupMember
        self._fetcher = Fetcher(board, self.files, filters)
        self._active: list[Assigned] = []
        self._places: list[tuple[int, Assigned]] = []
        self._nothing = MessageBatch(_NOTHING, 0, {}, {})
        self._queues: dict[int, MessageQueue] = {}
        self._attempts: dict[int, Sequence[Attempts]] = {}

    def join(
        self,
        consume_from: ConsumeFrom,
        consume_ms: int,
        places: dict[MessageQueue, tuple[int, int]],
        chosen: Iterable[MessageQueue] | None = None,
    ) -> None:
        """Become a member; `places` as `GroupMember.places`. Raises GroupIllegal, Timeout, ..."""
        names = {topic.slot: topic.name for topic in self._opened}
        try:
            self.member = GroupMember(self.session, self.group, names, places)
            timed = consume_from is ConsumeFrom.TIMESTAMP
            starts = self._starts(consume_ms) if timed else {}
            self.member.join(consume_from, starts, self.numbers(chosen))
        except BaseException:
            self.session.close()
            raise

    def numbers(self, chosen: Iterable[MessageQueue] | None) -> list[int] | None:
        """The board's numbers of queues. Raises GroupIllegal for one of no subscribed topic."""
        if chosen is None:
            return None
        topics = {topic.name: topic for topic in self._opened}
        numbers = []
        for queue in chosen:
            topic = topics.get(queue.topic)
            if topic is None or not 0 <= queue.queue_id < topic.queues:
                raise GroupIllegal(f"{queue} is no queue of a topic subscribed", queue=queue)
            numbers.append(topic.queue_base + queue.queue_id)
        return numbers

    def _starts(self, consume_ms: int) -> dict[int, int]:
        """Offsets by time, for a group that begins (CQ-33)."""
        self.catch_up()
        starts: dict[int, int] = {}
        for topic in self._opened:
            for number in range(topic.queue_base, topic.queue_base + topic.queues):
                words = self.session.board.queue(number)
                queue = MessageQueue(topic.name, words["queue_id"])
                low, high = words["min_offset"], words["written"]
                starts[number] = self.files.offset_at(queue, low, high, consume_ms)
        return starts

    def catch_up(self) -> None:
        """Wait until queues show what is in the log now: after a start they may be made anew.

        Raises Timeout, or what the session raises.
        """
        word = self.session.board.word
        appended = word(layout.BOARD_APPENDED)
        deadline_ns = now_ns() + ANSWER_NS
        if not self.session.wait(deadline_ns, lambda: word(layout.BOARD_DISPATCHED) >= appended):
            raise Timeout(
                "the broker is still making its queues from the log, so no place can be found by"
                " time: try again later",
                dispatched=word(layout.BOARD_DISPATCHED),
            )

    # ---------------------------------------------------------------------------------- fetching

    def attend(self) -> None:
        """Hear notices, and give back what was asked for and is finished."""
        self.session.check()
        self.member.listen()
        self.member.release_finished()

    def report(self) -> None:
        """Tell what is passed and what is begun."""
        self.member.report()

    def fetch(self, rows: int) -> MessageBatch:
        """What is there, up to so many messages. Raises Corrupt."""
        self._refresh()
        word = self.session.board.word
        waiting = [a for at, a in self._places if word(at) > a.position]
        if not waiting:
            return self._nothing
        columns, count = self._fetcher.fetch(waiting, rows)
        if not count:
            for assigned in self._active:
                if assigned.delivered == assigned.passed:  # tags kept everything away (FL-4)
                    assigned.delivered = max(assigned.delivered, assigned.position)
                    assigned.begun = assigned.passed = assigned.delivered
        return MessageBatch(columns, count, self._queues, self._attempts)

    def _refresh(self) -> None:
        """After leases have come or gone: what to fetch from, and what to be woken for."""
        if not self.member.changed:
            return
        self.member.changed = False
        held = self.member.assigned.values()
        self._queues = {a.number: a.queue for a in held}
        self._attempts = {a.number: tuple(a.attempts) for a in held if a.attempts}
        self._active = [a for a in held if not a.revoked and not a.paused]
        at = layout.QUEUE_MAX_OFFSET
        self._places = [(self.session.board.queue_at(a.number) + at, a) for a in self._active]
        self._nothing = MessageBatch(_NOTHING, 0, self._queues, self._attempts)
        self._announce_interest()

    def _announce_interest(self) -> None:
        arena = self.session.arena
        numbers = np.array([a.number for a in self._active], np.uint32)
        listed = numbers[: limits.INTEREST_MAX]
        arena[layout.INTEREST_AT : layout.INTEREST_AT + 4 * listed.size] = listed.view(np.uint8)
        count = np.array([numbers.size], np.uint32).view(np.uint8)
        arena[layout.ARENA_INTEREST_COUNT : layout.ARENA_INTEREST_COUNT + 4] = count

    # ----------------------------------------------------------------------------------- sleeping

    def wait(self, deadline_ns: int) -> bool:
        """Sleep until there is something to fetch or a notice; False when the time is up."""
        if now_ns() >= deadline_ns:
            return False
        try:
            return self.session.wait(deadline_ns, self._is_ready)
        finally:
            self.session.arena[layout.ARENA_WAIT_ARMED] = 0
            self.member.disarm()

    def _is_ready(self) -> bool:
        """Raise both flags, then look: the fence in the lane's arming is for both."""
        self.session.arena[layout.ARENA_WAIT_ARMED] = 1
        # SYNC POINT: sleep (other end: the reader rings those who wait)
        if not self.member.arm():
            return True
        return self._has_more()

    def _has_more(self) -> bool:
        """True if a queue shows units beyond our position."""
        word = self.session.board.word
        return any(word(at) > assigned.position for at, assigned in self._places)

    def arm_for_select(self) -> None:
        """Make the bell readable from now on when something comes, or at once if it is there."""
        self._refresh()
        self.session.bell.clear()
        if self._is_ready():
            self.session.bell.ring()
