"""A consumer's session with one life of the broker: membership, fetching, sleeping."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from gantrymq.clients.batch import MessageBatch
from gantrymq.clients.columns import Columns
from gantrymq.clients.fetcher import Fetcher
from gantrymq.clients.logfiles import LogFiles
from gantrymq.clients.member import ANSWER_NS, GroupMember
from gantrymq.clients.message import MessageQueue
from gantrymq.clients.queries.bytime import offset_at
from gantrymq.clients.session import NEVER_NS, Session, now_ns
from gantrymq.shm import layout, limits, wire
from gantrymq.shm.errors import GroupIllegal, Timeout
from gantrymq.shm.filter import Filter, SqlFilter
from gantrymq.shm.groupwire import FILTER_CHARACTERS, FILTERS_PER_JOIN, Attempts, ConsumeFrom
from gantrymq.shm.jit import JIT_OFF
from gantrymq.shm.kernels import poll
from gantrymq.shm.properties import DLQ_PREFIX, RETRY_PREFIX

_NOTHING: Final = Columns(1, 1)


class Attachment:
    """Lives from an attach to the broker's end, to eviction, or to `close` of its session."""

    def __init__(
        self,
        home: str | os.PathLike[str] | None,
        group: str,
        filters: Mapping[str, Filter],
        member: Callable[..., GroupMember] = GroupMember,
        of_store: str = "",
        answer_by: int = NEVER_NS,
    ) -> None:
        """Attach and open the topics. Raises BrokerGone, TopicNotFound, Incompatible, ...

        `member` makes the member that `join` lets join; `of_store` is the id of the store of a
        session before, which had the topics open, "" without one; `answer_by` the deadline of all,
        `join` too.
        """
        self.group = group
        self._make_member = member
        session = Session(home, groups=True, answer_by=answer_by)
        self.session = session.require_store(of_store)
        try:
            self._opened = self._open(filters, again=bool(of_store))
        except BaseException:
            self.session.close()
            raise
        board = self.session.board
        self.files = LogFiles(self.session.store, board)
        self.member: GroupMember
        self._filters = filters
        self._fetcher = Fetcher(board, self.files, filters, group)
        self._nothing = MessageBatch(_NOTHING, 0, {}, {})
        self._queues: dict[int, MessageQueue] = {}
        self._attempts: dict[int, Sequence[Attempts]] = {}

    def _open(self, topics: Collection[str], *, again: bool) -> list[wire.TopicOpened]:
        """What is subscribed. `again`: a topic that was deleted since is not made anew by that.

        Nor does it stop the others: it has nothing for its consumers until somebody makes it again.
        """
        retry, dead = RETRY_PREFIX + self.group, DLQ_PREFIX + self.group
        opened = [
            self.session.open_topic(topic, of_member=True)
            if topic in (retry, dead)
            else self.session.open_topic(topic, was_open=again)
            for topic in topics
        ]
        if retry in topics:  # what fails in the end goes there
            self.session.open_topic(dead, of_member=True)
        return opened

    def join(
        self,
        consume_from: ConsumeFrom,
        consume_ms: int,
        places: Mapping[MessageQueue, tuple[Any, ...]],
        chosen: Iterable[MessageQueue] | None = None,
    ) -> None:
        """Become a member; `places` as `GroupMember.places`. Raises GroupIllegal, Timeout, ..."""
        names = {topic.slot: topic.name for topic in self._opened}
        try:
            self.member = self._make_member(self.session, self.group, names, places)
            self.member.filters = self._told_filters()
            timed = consume_from is ConsumeFrom.TIMESTAMP
            starts = self._starts(consume_ms) if timed else {}
            self.member.join(consume_from, starts, self.numbers(chosen))
            descriptors = self.session.descriptors
            self._fetcher.attach(self.session.arena, self.member.lane_words, descriptors)
            self.session.answer_by = NEVER_NS
        except BaseException:
            self.session.close()
            raise

    def _told_filters(self) -> list[tuple[int, str, str]]:
        """SQL92 filters that `groups` is told of; one that is very long gets no bits."""
        found = [(topic.slot, self._filters.get(topic.name)) for topic in self._opened]
        return [
            (slot, wanted.dialect.value, wanted.text)
            for slot, wanted in found
            if isinstance(wanted, SqlFilter) and len(wanted.text) <= FILTER_CHARACTERS
        ][:FILTERS_PER_JOIN]

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
            if topic.name.startswith(RETRY_PREFIX):
                continue  # begins at 0
            for number in range(topic.queue_base, topic.queue_base + topic.queues):
                words = self.session.board.queue(number)
                queue = MessageQueue(topic.name, words["queue_id"])
                low, high = words["min_offset"], words["written"]
                starts[number] = offset_at(self.files, queue, low, high, consume_ms)
        return starts

    def catch_up(self) -> None:
        """Wait until queues show what is in the log now: after a start they may be made anew.

        Raises Timeout, or what the session raises.
        """
        word = self.session.board.word
        appended = word(layout.BOARD_APPENDED)
        deadline_ns = min(now_ns() + ANSWER_NS, self.session.answer_by)
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
        """Tell what is passed and what is begun. Raises what `take` does of the session."""
        self._look()
        self.member.report()

    def report_untabled(self) -> None:
        """The same for queues whose offsets are no words."""
        self.member.report_untabled()

    def begin(self) -> None:
        """Before `take`: `put_back` means what is fetched from now on."""
        self._fetcher.begin()

    def put_back(self) -> None:
        """What was fetched since `begin` has come to nobody: it is fetched again."""
        self._fetcher.put_back()

    def take(self, rows: int, mode: int) -> MessageBatch:
        """What is there, up to so many messages; `mode` as poll.MODE. Raises Corrupt, ..."""
        self._look()
        member = self.member
        count = self._fetcher.poll(rows, mode, restless=member.is_restless)
        if count == poll.ATTEND:
            self.attend()
            self._refresh()
            count = self._fetcher.poll(rows, mode, restless=False, attended=True)
        if not count:
            return self._nothing
        return MessageBatch(self._fetcher.columns, count, self._queues, self._attempts)

    def _look(self) -> None:
        """Now and then look whether the session goes on: who never waits hears of nothing."""
        session = self.session
        if now_ns() >= session.look_due or not session.is_live:
            session.look_at_times()

    def _refresh(self) -> None:
        """After leases have come or gone: what to fetch from, and what to be woken for."""
        if not self.member.changed:
            return
        held = self.member.assigned.values()
        self._queues = {a.number: a.queue for a in held}
        self._attempts = {a.number: tuple(a.attempts) for a in held if a.attempts}
        self._fetcher.follow(held)
        self._nothing = MessageBatch(_NOTHING, 0, self._queues, self._attempts)
        self._announce_interest()
        self.member.changed = False  # last: a signal handler that raises has all of it done again

    def _announce_interest(self) -> None:
        arena = self.session.arena
        held = self.member.assigned.values()
        active = [a.number for a in held if not a.revoked and not a.paused]
        numbers = np.array(active, np.uint32)
        listed = numbers[: limits.INTEREST_MAX]
        arena[layout.INTEREST_AT : layout.INTEREST_AT + 4 * listed.size] = listed.view(np.uint8)
        count = np.array([numbers.size], np.uint32).view(np.uint8)
        arena[layout.ARENA_INTEREST_COUNT : layout.ARENA_INTEREST_COUNT + 4] = count

    # ----------------------------------------------------------------------------------- sleeping

    def sate(self, sated: bool) -> None:
        """While sated, `wait` sleeps whatever there is to fetch."""
        self._fetcher.sate(sated)

    def wait(self, deadline_ns: int) -> bool:
        """Sleep until there may be something to fetch or to hear; False when the time is up.

        Raises what the session raises, also for those who never wait.
        """
        if self._sleep(deadline_ns):
            return True
        self.session.look_at_times()
        return False

    def _sleep(self, deadline_ns: int) -> bool:
        state, session = self._fetcher.state, self.session
        if JIT_OFF:
            return self._wait_in_python(deadline_ns)
        while (left := deadline_ns - now_ns()) > 0:
            found = session.sleep_by(poll.rest, state, left)
            if found == poll.WOKEN:
                return True
            if found == poll.SPOKEN_TO:
                session.look()
                return True
            session.check()
        return False

    def _wait_in_python(self, deadline_ns: int) -> bool:
        if now_ns() >= deadline_ns:
            return False
        try:
            return self.session.wait(deadline_ns, self._is_ready)
        finally:
            poll.disarm(self._fetcher.state)

    def _is_ready(self) -> bool:
        return not poll.arm(self._fetcher.state)

    def arm_for_select(self) -> None:
        """Make the bell readable from now on when something comes, or at once if it is there.

        A broker that has ended is readable for ever: raises what tells of it.
        """
        self.session.look()
        self._refresh()
        self.session.bell.clear()
        if self._is_ready():
            self.session.bell.ring()
