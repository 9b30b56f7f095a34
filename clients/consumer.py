"""`PullConsumer`: the application asks for messages, in columns or one by one."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import datetime
from types import TracebackType
from typing import Final, Literal, Self

from gantrymq.clients.alone import Alone
from gantrymq.clients.arguments import MESSAGES_MAX, TIMEOUT_S, check_start, judged
from gantrymq.clients.assigned import Assigned, Place
from gantrymq.clients.attachment import Attachment
from gantrymq.clients.batch import MessageBatch
from gantrymq.clients.closing import OfOneProcess
from gantrymq.clients.member import GroupMember, Terms
from gantrymq.clients.message import MessageQueue, ReceivedMessage
from gantrymq.clients.queries.bytime import offset_at
from gantrymq.clients.queries.moments import milliseconds
from gantrymq.clients.selector import Selector
from gantrymq.clients.session import Session, deadline_after, now_ns, pause
from gantrymq.clients.subscription import Subscription, describe, digest
from gantrymq.shm.errors import (
    ArgumentIllegal,
    BrokerGone,
    Closed,
    Corrupt,
    Evicted,
    GantryError,
    GroupIllegal,
    Timeout,
    Unavailable,
)
from gantrymq.shm.groupwire import STICKY, ConsumeFrom
from gantrymq.shm.kernels import poll

__all__ = ["ConsumeFrom", "MessageBatch", "PullConsumer"]

POLL_MESSAGES: Final = 10_000
LOOP_MESSAGES: Final = 1024
#: A loop over messages says at least this often which ones it has begun.
MARK_NS: Final = 1_000_000
_RETRY_S: Final = 0.05
#: So long a call with a shorter timeout waits for the broker's answers.
_ANSWER_S: Final = 1.0


class PullConsumer(OfOneProcess):
    """A member of a group that fetches by itself; RocketMQ's LitePullConsumer.

    With `auto_commit`, what a `poll` returned is committed by the next call, and what a `for` loop
    has passed as the loop goes on; a clean `close` commits everything handed out. Without it,
    `commit` does so for everything handed out so far. Commits reach the broker's memory at once and
    its ledger within a second, also if this process is killed; `commit` waits for the ledger.

    A queue that moves to another member is given back once its messages are committed. After a
    restart of the broker the consumer attaches again and goes on. One thread at a time may use it,
    and any may `close` it.
    """

    def __init__(  # noqa: PLR0913 - each is a setting of its own, by name
        self,
        group: str,
        subscription: Subscription,
        *,
        home: str | os.PathLike[str] | None = None,
        consume_from: ConsumeFrom = ConsumeFrom.LAST_OFFSET,
        consume_timestamp: datetime | None = None,
        auto_commit: bool = True,
        assignment: str = STICKY,
        timeout: float | None = None,
    ) -> None:
        """Attach and join; `subscription` lists topics, or maps them to tags ("a || b", "*").

        `consume_from` says where a group begins that has no offset yet; TIMESTAMP needs
        `consume_timestamp`. `assignment` says how queues are spread over members: "sticky" moves
        few, "average" does as RocketMQ. `timeout` is what `poll` waits if it is not told: seconds,
        10 by default (None), for ever with math.inf; this, `commit`, `assign`, `seek`, `close` and
        each attaching anew wait as long for the broker's answers, a second at least and 30 at most.
        Raises BrokerGone, Timeout, GroupIllegal, TopicNotFound, FilterSyntaxError, ...
        """
        (
            self.group, filters, self._home, self.auto_commit, timeout,
            self._consume_from, consume_timestamp, assignment,
        ) = judged(
            "PullConsumer", group, subscription, home, auto_commit, timeout,
            consume_from, consume_timestamp, assignment,
        )  # fmt: skip
        check_start(consume_from, consume_timestamp)
        self._timeout_s = TIMEOUT_S if timeout is None else timeout
        self._filters = filters
        self._terms = Terms(0, digest(filters), False, describe(filters), assignment)
        self._consume_ms = milliseconds(consume_timestamp) if consume_timestamp else 0
        self._lost_before = 0
        self._closed = False
        self._alone = Alone("PullConsumer", self._require_open)
        self._selector: Selector | None = None  # once somebody has asked for a descriptor
        #: Queues, each with its generation, of which a loop holds rows that it has not handed out.
        self._ahead: dict[int, tuple[Assigned, int]] = {}
        #: Where a call has fetched what has not come to its caller.
        self._fetched: Attachment | None = None
        self._chosen: list[MessageQueue] | None = None
        self._paused: dict[MessageQueue, int] = {}  # as the member's; outlives the broker
        self._attachment: Attachment | None = None
        self._store_id = ""
        self._member = self._attach({}, self._answer_by()).member

    # ---------------------------------------------------------------------------------- messages

    def poll(self, max_messages: int = POLL_MESSAGES, timeout: float | None = None) -> MessageBatch:
        """Messages that are there, or the first that come within `timeout` seconds.

        At most 1,048,576 messages. None: the consumer's own `timeout`; math.inf: for ever. Empty
        when the time is up. Raises BrokerGone if there was no broker all that time, Evicted (the
        next call joins again), Corrupt, StoreFailed; ArgumentIllegal for less than one message.
        """
        max_messages, timeout = judged("PullConsumer.poll", max_messages, timeout)
        max_messages = min(max_messages, MESSAGES_MAX)
        timeout = self._timeout_s if timeout is None else timeout
        mode = poll.HAND_OUT | poll.PASS if self.auto_commit else poll.HAND_OUT
        self._alone.enter()
        try:
            self._begin()
            self._take_back()
            batch = self._collect(max_messages, mode, timeout)
            if self._selector is not None and not len(batch):
                self._guarded(Attachment.arm_for_select)
                self._live()  # who sleeps on a descriptor of before would not be woken
        except BaseException:
            self._alone.leave()
            raise
        # No call from here on: what a signal handler raises comes before all of this or behind.
        self._fetched = None
        del self._alone.holder[0]
        return batch

    def __iter__(self) -> Iterator[ReceivedMessage]:
        """Messages for ever; with `auto_commit` each is passed when the next one is asked for.

        A broker that is away is waited for. After `break` another loop goes on with the message
        behind. So does a `poll` or another loop inside this one, and then this one behind theirs. A
        body that cannot be unpacked raises Corrupt; another loop goes on behind it, too.
        """
        # Also what an earlier loop was left at: nothing may come behind that for long.
        mode = poll.PASS if self.auto_commit else 0
        while True:
            with self._alone:
                self._begin()
                self._take_back()
                batch = self._collect(LOOP_MESSAGES, mode, math.inf)
                fetched = {a.number: (a, a.generation) for a in self._member.assigned.values()}
                self._ahead, self._fetched = fetched, None
            try:
                yield from self._loop_over(batch, fetched)
            finally:
                if self._ahead is fetched:
                    self._take_back()

    def _begin(self) -> None:
        """At the start of each call: what one that was broken off has fetched is fetched again."""
        if self._fetched is not None:
            self._fetched.put_back()
            self._fetched = None

    def _take_back(self) -> None:
        """What a loop has fetched and not handed out is fetched again, by whoever is next.

        So one loop at a time is ahead of what was handed out: what another one, or a `poll`,
        fetches behind it would be handed out first, and count for all that lies before it.
        """
        for assigned, generation in self._ahead.values():
            words, holds = assigned.words, self._holds(assigned, generation)
            # No call from here on: a loop of another thread hands a message out before, or not.
            if holds and assigned.generation == generation:
                words[poll.POSITION] = min(words[poll.POSITION], words[poll.DELIVERED])
                assigned.generation += 1
        self._ahead = {}

    def _loop_over(
        self, batch: MessageBatch, fetched: dict[int, tuple[Assigned, int]]
    ) -> Iterator[ReceivedMessage]:
        numbers, offsets = batch.board_queues.tolist(), batch.queue_offsets.tolist()
        pace = _Pace()
        for row in range(len(batch)):
            if row >= pace.marked:
                ahead = slice(row, pace.mark(row, len(batch)))
                self._mark_begun(fetched, numbers[ahead], offsets[ahead])
                self._guarded(Attachment.report)
            if self._member.is_notified():
                self._guarded(Attachment.attend)
            if self._attachment is None:
                return  # the group may have given the rest to others by now
            assigned, generation = fetched[numbers[row]]
            if self._holds(assigned, generation):
                try:
                    message = batch[row]
                except Corrupt:  # it is told, and the next loop goes on behind it
                    assigned.words[poll.DELIVERED] = offsets[row] + 1
                    raise
                # No call from here on: what a signal handler raises would come after it is counted.
                if assigned.generation != generation:
                    continue  # a handler or a thread has polled: what was ahead is fetched again
                assigned.words[poll.DELIVERED] = offsets[row] + 1
                yield message
                self._pass(assigned, generation)
        self._pass_kept_away(fetched)

    def _mark_begun(
        self, fetched: dict[int, tuple[Assigned, int]], numbers: list[int], offsets: list[int]
    ) -> None:
        for number, offset in zip(numbers, offsets, strict=True):
            begun, generation = fetched[number]
            if self._holds(begun, generation):
                begun.begun = max(begun.begun, offset + 1)

    def _pass_kept_away(self, fetched: dict[int, tuple[Assigned, int]]) -> None:
        """What a filter has kept away behind the last row of a queue."""
        for assigned, generation in fetched.values():
            if not self._holds(assigned, generation):
                continue
            # With nothing to commit before it, nobody would commit it (FL-4).
            owes_nothing = assigned.delivered == assigned.passed
            assigned.delivered = max(assigned.delivered, assigned.position)
            if self.auto_commit or owes_nothing:
                assigned.pass_delivered()

    def _pass(self, assigned: Assigned, generation: int) -> None:
        if self.auto_commit and self._holds(assigned, generation):
            assigned.pass_delivered()

    def _holds(self, assigned: Assigned, generation: int) -> bool:
        known = self._member.assigned.get(assigned.number)
        return known is assigned and assigned.generation == generation

    def commit(self) -> None:
        """Everything handed out so far is done with; returns once that is in the ledger.

        Raises BrokerGone, DiskFull, Timeout, ...: then it is unknown whether it will get there.
        Not of queues that another member has by now, as after a restart: see `lost_commits`.
        """
        with self._alone:
            self._begin()
            self._pass_all()
            answer_by = self._answer_by()
            try:
                attachment = self._attachment or self._attach(self._member.places(), answer_by)
                with attachment.session.answering_by(answer_by):
                    self._member.commit()
            except (BrokerGone, Evicted):
                self._lose()
                raise

    def _pass_all(self) -> None:
        for assigned in self._member.assigned.values():
            assigned.pass_delivered()

    # ------------------------------------------------------------------------------------ queues

    def assignment(self) -> list[MessageQueue]:
        """Queues that this member owns at present."""
        self._require_open()
        return sorted(assigned.queue for assigned in list(self._member.assigned.values()))

    def assign(self, queues: Iterable[MessageQueue] | None) -> None:
        """Take these queues of the topics subscribed, and none by balancing; None: balance again.

        Offsets are the group's and kept as always; the other queues are shared by members that
        have not chosen. A queue has one holder: one that another member has comes once that has
        finished with it, unless it was chosen there too. Queues left are given back once their
        messages are passed. Raises GroupIllegal for a queue of no topic subscribed.
        """
        (queues,) = judged("PullConsumer.assign", queues)
        chosen = None if queues is None else sorted(set(queues))
        with self._alone:
            self._begin()
            self._assign(chosen)

    def _assign(self, chosen: list[MessageQueue] | None) -> None:
        answer_by = self._answer_by()
        if self.auto_commit:
            self._pass_all()
        attachment = self._attachment or self._attach(self._member.places(), answer_by)
        numbers = attachment.numbers(chosen)
        self._chosen = chosen
        try:
            with attachment.session.answering_by(answer_by):
                self._member.join(self._consume_from, {}, numbers)
                attachment.attend()
        except (BrokerGone, Evicted):
            self._lose()
            raise

    def position(self, queue: MessageQueue) -> int:
        """Offset of the next message to be handed out. Raises GroupIllegal."""
        (queue,) = judged("PullConsumer.position", queue)
        with self._alone:
            self._begin()
            return self._find(queue).delivered

    def seek(self, queue: MessageQueue, to: int | datetime | Literal["begin", "end"]) -> None:
        """Go on at an offset, at the first message stored at a time or later, or at an end.

        It is a commit, too. Raises GroupIllegal if the queue is not assigned, ArgumentIllegal (a
        ValueError) for what is no place, or an offset that the queue does not have.
        """
        queue, to = judged("PullConsumer.seek", queue, to)
        with self._alone:
            self._begin()
            self._seek(queue, to)

    def _seek(self, queue: MessageQueue, to: int | datetime | Literal["begin", "end"]) -> None:
        assigned = self._find(queue)
        attachment = self._live()
        if isinstance(to, datetime):
            with attachment.session.answering_by(self._answer_by()):
                attachment.catch_up()
        words = attachment.session.board.queue(assigned.number)
        low = words["min_offset"]
        high = max(low, words["max_offset"])
        if isinstance(to, datetime):
            offset = offset_at(attachment.files, queue, low, high, milliseconds(to))
        else:
            offset = {"begin": low, "end": high}[to] if isinstance(to, str) else to
        if not low <= offset <= high:
            raise ArgumentIllegal(f"to is {offset}: {queue} has offsets {low} to {high}")
        assigned.move_to(offset)
        self._guarded(Attachment.report)

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Fetch nothing from these queues until `resume`, or until another member gets them.

        A restart of the broker changes nothing about it, unless another member gets them before
        this one attaches again. Raises GroupIllegal.
        """
        (queues,) = judged("PullConsumer.pause", queues)
        with self._alone:
            self._begin()
            found = [self._find(queue) for queue in queues]
            self._paused.update({assigned.queue: assigned.lease for assigned in found})
            self._member.apply_pauses()

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Fetch from these queues again. Raises GroupIllegal."""
        (queues,) = judged("PullConsumer.resume", queues)
        with self._alone:
            self._begin()
            for queue in queues:
                if queue not in self._paused:  # since a restart it may not be here again
                    self._find(queue)
                self._paused.pop(queue, None)
            self._member.apply_pauses()

    @property
    def lost_commits(self) -> int:
        """Commits that came after the queue's lease was over: those messages come again."""
        return self._lost_before + self._member.lost_commits

    def _find(self, queue: MessageQueue) -> Assigned:
        for assigned in self._member.assigned.values():
            if assigned.queue == queue:
                return assigned
        raise GroupIllegal(f"{queue} is not assigned to this consumer now", queue=queue)

    # ----------------------------------------------------------------------- fetching and waiting

    def _collect(self, rows: int, mode: int, timeout: float) -> MessageBatch:
        """Fetch; if nothing is there, wait. Attaches again if the broker has gone."""
        deadline_ns = 0
        if self._selector is not None:
            self._selector.clear()
        while True:
            try:
                attachment = self._attachment or self._attach_again(mode, timeout)
                attachment.begin()
                self._fetched = attachment
                batch = attachment.take(rows, mode)
                if len(batch):
                    # What was handed out gets to the caller; the next call finds why it failed.
                    with suppress(BrokerGone, Evicted, Timeout):
                        attachment.report_untabled()
                    return batch
                attachment.report_untabled()
                deadline_ns = deadline_ns or deadline_after(timeout)
                if not attachment.wait(deadline_ns):
                    return batch
                self._require_open()
            except BrokerGone:
                self._require_open()
                self._lose()
                deadline_ns = deadline_ns or deadline_after(timeout)
                if now_ns() >= deadline_ns:
                    raise
                pause(_RETRY_S)
            except (Evicted, GroupIllegal):
                self._lose()
                raise

    def fileno(self) -> int:
        """Readable when something may be there, after a `poll` that returned nothing.

        And once the broker ends. It stays the same until `close`, also when the consumer attaches
        anew; while there is no broker nothing wakes who sleeps on it: after `BrokerGone` poll again
        by the clock.
        """
        with self._alone:
            self._begin()
            if self._selector is None:
                attachment = self._live()
                selector = Selector()
                selector.follow(attachment.session)
                self._selector = selector
                attachment.arm_for_select()
            return self._selector.fileno()

    # -------------------------------------------------------------------------------- the session

    def _make_member(
        self,
        session: Session,
        group: str,
        names: dict[int, str],
        places: dict[MessageQueue, Place],
    ) -> GroupMember:
        member = GroupMember(session, group, names, places)
        member.terms, member.paused = self._terms, self._paused
        return member

    def _attach(self, places: dict[MessageQueue, Place], answer_by: int) -> Attachment:
        """Begin a session and join, by a deadline; `places` are those of the session before."""
        make, store = self._make_member, self._store_id
        attachment = Attachment(self._home, self.group, self._filters, make, store, answer_by)
        try:
            self._store_id = attachment.session.store_id
            attachment.join(self._consume_from, self._consume_ms, places, self._chosen)
            before = getattr(self, "_member", None)
            lost_before = self._lost_before + (before.lost_commits if before else 0)
            if self._selector is not None:
                self._selector.follow(attachment.session)
            self._member = attachment.member
            self._attachment, self._lost_before = attachment, lost_before
        except BaseException:  # also from a signal handler
            self._part_from(attachment.session)
            raise
        return attachment

    def _answer_by(self, timeout: float | None = None) -> int:
        """When the broker's answers have to be there: `timeout` is the consumer's own if None."""
        return deadline_after(max(self._timeout_s if timeout is None else timeout, _ANSWER_S))

    def _attach_again(self, mode: int, timeout: float) -> Attachment:
        if mode & poll.PASS:
            self._pass_all()  # all of it was returned: a poll that fails hands nothing out
        return self._attach(self._member.places(), self._answer_by(timeout))

    def _guarded(self, act: Callable[[Attachment], None]) -> None:
        """Do something that a broker's end may cut short; `_collect` attaches again."""
        if self._attachment is None:
            return
        try:
            act(self._attachment)
        except BrokerGone:
            self._lose()
        except Evicted:
            self._lose()
            raise

    def _lose(self) -> None:
        if self._attachment is None:
            return
        try:
            self._part_from(self._attachment.session)
        finally:
            self._attachment = None

    def _part_from(self, session: Session) -> None:
        try:
            if self._selector is not None and session.is_open:
                self._selector.leave(session)
        finally:
            session.close()

    def _live(self) -> Attachment:
        if self._attachment is None:
            raise BrokerGone("the broker is gone; the next poll attaches again")
        self._attachment.session.check()  # in a forked child it is the parent's: touch nothing
        return self._attachment

    def _require_open(self) -> None:
        if self._closed:
            raise Closed("this consumer is closed")
        self._alone.require_own()

    def close(self, *, commit: bool = True) -> None:
        """Leave the group. With `auto_commit` and `commit`, all that was handed out is passed.

        Safe to call twice, and from any thread: another one's call is ended first, by Closed.
        """
        (commit,) = judged("PullConsumer.close", commit)
        if self._closed:
            return
        self._closed = True
        try:
            self._end(commit)
        except BaseException:
            self._closed = self._attachment is None  # if a signal handler came between: not yet
            raise

    def _end(self, commit: bool) -> None:
        self._alone.end(self._wake)
        try:
            self._begin()
            if self.auto_commit and commit:
                self._pass_all()
            self._leave(self._answer_by())
        except (Unavailable, Closed):
            pass  # the broker, or the parent's session in a forked child, is gone: nothing to leave
        except GantryError:
            self._give_back()
            raise
        # Not after what a signal handler raises: the next `close` passes what was handed out.
        self._give_back()

    def _give_back(self) -> None:
        self._lose()
        if self._selector is not None:
            self._selector.close()

    def _leave(self, answer_by: int) -> None:
        """Commit and leave. A session that is over may have a successor, if there is what for."""
        self._alone.require_own()
        try:
            self._leave_now(answer_by)
        except (BrokerGone, Evicted) as error:
            self._lose()
            places = self._member.places()
            if self._alone.is_interrupted or all(p.is_confirmed for p in places.values()):
                raise
            try:
                self._attach(places, answer_by)
            except GantryError as refused:  # another store is there, for example
                raise error from refused
            self._leave_now(answer_by)

    def _leave_now(self, answer_by: int) -> None:
        with self._live().session.answering_by(answer_by):
            self._member.commit()
            self._member.leave()

    def _wake(self) -> None:
        """Let the thread that waits look, and find this closed."""
        attachment = self._attachment
        if attachment is not None and attachment.session.is_open:
            attachment.session.bell.ring()

    def __repr__(self) -> str:
        what = f"{self.group!r}, {describe(self._filters)}"
        state = "closed" if self._closed else f"{len(self._member.assigned)} queues"
        return f"<PullConsumer {what}, {state}>"

    def __enter__(self) -> Self:
        self._require_open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # After an exception the batch in hand may not be done with.
        self.close(commit=kind is None)


class _Pace:
    """How many messages a loop marks as begun at a time: what the last millisecond saw."""

    def __init__(self) -> None:
        self.marked = 0
        self._first = 0
        self._last_ns = 0

    def mark(self, row: int, count: int) -> int:
        """Mark from `row` on; returns the row behind the last one marked."""
        now = now_ns()
        done = row - self._first
        ahead = done * MARK_NS // max(1, now - self._last_ns) if done else 1
        self._first, self._last_ns = row, now
        self.marked = min(count, row + max(1, ahead))
        return self.marked
