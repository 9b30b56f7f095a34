"""The fetching thread of a push consumer.

It reads queues ahead of the listeners, and speaks to `groups`.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

import numpy as np

from gantrymq.clients.attachment import Attachment
from gantrymq.clients.batch import MessageBatch
from gantrymq.clients.message import MessageQueue
from gantrymq.clients.push.chunks import Chunk, Failure, Run
from gantrymq.clients.push.handoff import Handoff
from gantrymq.clients.push.member import PushMember, Resumed
from gantrymq.clients.push.telling import failed, log_sent_back
from gantrymq.clients.push.watch import RELIEF_NS, Limits, Watch
from gantrymq.clients.push.window import Window
from gantrymq.clients.session import now_ns
from gantrymq.shm import groupwire
from gantrymq.shm.errors import (
    BrokerGone,
    Corrupt,
    DiskFull,
    Evicted,
    GantryError,
    Timeout,
    Unavailable,
)
from gantrymq.shm.groupwire import merged

log = logging.getLogger("gantrymq")

FETCH_ROWS: Final = 1024
#: How often it looks round without a reason.
LOOK_NS: Final = 500_000_000
#: What `groups` could not take down, a failure or a join, is told again after so long (RD-41).
RETELL_NS: Final = 5_000_000_000
#: Ordered: the pause before a message that has failed comes again (RD-45).
PAUSE_MS: Final = 1000
#: How long a lost session waits for listeners before another is begun.
FINISH_NS: Final = 10_000_000_000
#: How long an end waits for answers about what has failed.
ANSWERS_NS: Final = 30_000_000_000
_RETRY_S: Final = 0.05


class Attach(Protocol):
    """Begins a session and joins; `places` are those of the session before."""

    def __call__(self, places: dict[MessageQueue, Resumed]) -> tuple[Attachment, PushMember]: ...


class Due(NamedTuple):
    """Something about a failure that has its time; the first two are for the order."""

    at_ns: int
    number: int
    failure: Failure
    resume: bool  # ordered: the pause is over; else: tell it again


class Dispatcher(threading.Thread):
    """See the module. Ends by `stop`, or by an error, which `error` then is, and the log says."""

    def __init__(
        self, name: str, attach: Attach, handoff: Handoff, limits: Limits,
        ended: Callable[[], None],
    ) -> None:  # fmt: skip
        """Attach and join. Raises BrokerGone, TopicNotFound, GroupIllegal, ..."""
        super().__init__(name=name, daemon=True)
        self.error: BaseException | None = None
        self._attach = attach
        self._handoff = handoff
        self._limits = limits
        self._ended = ended
        self._watch = Watch(handoff, limits)
        self._untold: list[Failure] = []  # what `groups` is to hear once it has answered others
        self._due: list[Due] = []
        self._order = itertools.count()
        self._places: dict[MessageQueue, Resumed] = {}
        self.lost_before = 0
        self._attachment: Attachment | None = None
        self.member: PushMember
        self._connect()

    # ------------------------------------------------------------------------------- the session

    def _connect(self) -> Attachment:
        self._attachment, self.member = self._attach(self._places)
        self._handoff.open(self._attachment.session)
        return self._attachment

    def _connect_again(self) -> Attachment:
        """Raises BrokerGone also for a broker that cannot answer: it may be able to later."""
        try:
            return self._connect()
        except Timeout as error:
            raise BrokerGone(str(error)) from error
        except DiskFull as error:
            self._await_room(error)
            raise BrokerGone(str(error)) from error

    def _await_room(self, error: DiskFull) -> None:
        log.warning("%s joins again as soon as there is room: %s", self.name, error)
        deadline_ns = now_ns() + RETELL_NS
        while not self._handoff.stopping and now_ns() < deadline_ns:
            time.sleep(_RETRY_S)

    def _lose(self, *, resume: bool) -> None:
        """The session is over: what listeners have is finished before another one is begun."""
        if self._attachment is None:
            return
        self.member.halt()
        self._handoff.forget()
        self._untold.clear()
        self._due.clear()
        if resume:
            self._await_listeners()
        places = self.member.resumable()  # also for its notes
        self._places = places if resume else {}
        self.member.let_go()
        self.lost_before += self.member.lost_commits
        self._handoff.close()
        self._attachment.session.close()
        self._attachment = None

    def _await_listeners(self) -> None:
        """What they finish in time counts, though nobody tells `groups` of what fails."""
        deadline_ns = now_ns() + FINISH_NS
        while self._handoff.is_at_work and now_ns() < deadline_ns:
            time.sleep(_RETRY_S / 10)

    # ---------------------------------------------------------------------------------- the loop

    def run(self) -> None:
        """Until stopped."""
        try:
            while not self._handoff.stopping:
                self._require_listeners()
                self._guarded(self._cycle)
            self._drain()
            self._require_listeners()
        except GantryError as error:
            self.error = error
            log.error("%s has ended: %s", self.name, error)
        except BaseException as error:
            self.error = failed(self.name, error)
            log.critical("%s", self.error, exc_info=error)
        finally:
            self._abandon()
            self._handoff.dismiss()
            self._ended()

    def _require_listeners(self) -> None:
        """Raise what one of their threads has died of."""
        if self._handoff.crashed is not None:
            raise self._handoff.crashed

    def _abandon(self) -> None:
        """End the session, if there is one: what was started and is not done with has failed."""
        if self._attachment is None:
            return
        self.member.halt()
        try:
            if self.error is not None:
                self._await_listeners()
                self.member.report_last()
        except Exception as error:
            log.warning("%s: the last offsets are not stored: %s", self.name, error)
        finally:
            self.member.let_go()
            self._handoff.close()
            self._attachment.session.close()

    def give_up(self) -> None:
        """End the session of a thread that never ran."""
        self._abandon()

    def stop(self) -> None:
        """Begin no more messages, and end when those begun are finished. Any thread."""
        self._handoff.stopping = True
        self._handoff.wake()

    def _guarded(self, act: Callable[[], None]) -> None:
        """Do something that the session's end may cut short."""
        try:
            act()
        except BrokerGone:
            self._lose(resume=True)
            time.sleep(_RETRY_S)  # nobody could ring: there is no broker
        except Evicted as error:
            log.error("the broker ended this consumer's session: %s", error)
            self._lose(resume=False)

    def _cycle(self) -> None:
        """Hear, tell, fetch; or sleep."""
        attachment = self._attachment or self._connect_again()
        self._converse(attachment)
        if self._handoff.wants_more and self._fetch(attachment):
            return
        attachment.report_untabled()
        self._rest(attachment)

    def _converse(self, attachment: Attachment) -> None:
        attachment.attend()
        self._tell()
        for failures, notice in self.member.answers():
            self._hear(failures, notice)
        self._watch.look(now_ns())

    def _fetch(self, attachment: Attachment) -> bool:
        """Fetch and hand over; True if there may be more at once."""
        try:
            batch = attachment.take(FETCH_ROWS, 0)
        except Corrupt as error:
            log.exception("a queue is not read any further")
            self._pause(error)
            return True
        windows = self.member.windows.values()
        before = sum(window.fetched for window in windows)
        if len(batch):
            self._share_out(batch)
        with self._handoff.lock:
            for window in windows:
                window.settle(window.assigned.position)
        return sum(window.fetched for window in windows) > before

    def _pause(self, error: Corrupt) -> None:
        """Leave a damaged queue alone; the others go on."""
        for assigned in self.member.assigned.values():
            if assigned.queue == error.fields.get("queue"):
                assigned.paused = self.member.changed = True

    def _rest(self, attachment: Attachment) -> None:
        handoff = self._handoff
        wanted = handoff.wants_more
        attachment.sate(not wanted)
        until_ns = self._next_look()  # before: a failure that does not wake counts on it
        handoff.start_resting()
        try:
            untold = handoff.failures and not handoff.gathering_ns
            if self._handoff.stopping or untold or handoff.wants_more != wanted:
                return
            attachment.wait(until_ns)
        finally:
            handoff.stop_resting()

    def _next_look(self) -> int:
        now = now_ns()
        wait_ns = LOOK_NS
        if self.member.is_restless or any(c.rows or c.untold for c in list(self._handoff.running)):
            wait_ns = RELIEF_NS
        wait_ns = min(wait_ns, self._handoff.gathering_ns or wait_ns)
        if self._handoff.running:
            wait_ns = min(wait_ns, max(RELIEF_NS, self._limits.consume_timeout_ns // 4))
        if self._due:
            wait_ns = min(wait_ns, max(0, self._due[0].at_ns - now))
        return now + wait_ns

    # ------------------------------------------------------------------------------ handing over

    def _share_out(self, batch: MessageBatch) -> None:
        """Make chunks of a batch."""
        batch.prepare()
        offsets: list[int] = batch.queue_offsets.tolist()
        numbers = batch.board_queues
        edges = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(batch)]
        attempts = batch.delivery_attempts
        with self._handoff.lock:
            for first, end in itertools.pairwise(edges):
                window = self.member.windows.get(int(numbers[first]))
                if window is None:
                    continue
                tried = attempts[first:end].tolist()
                if offsets[first] >= window.plain_from and max(tried) <= self._limits.max_attempts:
                    self._share_run(batch, offsets, window, range(first, end))
                else:
                    self._share_one_by_one(batch, offsets, window, first, tried)

    def _share_run(
        self, batch: MessageBatch, offsets: list[int], window: Window, rows: range
    ) -> None:
        run = Run(batch, offsets, window, rows.start, window.cover(offsets[rows.stop - 1]))
        size = self._handoff.pace.rows
        for at in range(rows.start, rows.stop, size):
            self._put(Chunk(run, range(at, min(at + size, rows.stop))))

    def _share_one_by_one(
        self, batch: MessageBatch, offsets: list[int], window: Window, first: int,
        attempts: list[int],
    ) -> None:  # fmt: skip
        """Rows some of which were delivered before, or are done with."""
        most = self._limits.max_attempts
        for row, attempt in enumerate(attempts, start=first):
            offset = offsets[row]
            if window.is_skipped(offset):
                continue
            run = Run(batch, offsets, window, row, window.cover(offset))
            # What has seen its consumers die runs alone, so that it takes no others along.
            alone = window.attempts_of(offset) >= max(1, min(2, most - 1))
            self._put(Chunk(run, (row,), alone=alone, exhausted=attempt > most))

    def _put(self, chunk: Chunk) -> None:
        if self._handoff.orderly:
            self._handoff.put_in_order(chunk)
        else:
            self._handoff.put(chunk)

    # ---------------------------------------------------------------------------------- failures

    def _tell(self) -> None:
        """Tell `groups` what has failed, and go on with what is due."""
        handoff, now = self._handoff, now_ns()
        while self._due and self._due[0].at_ns <= now:
            due = heapq.heappop(self._due)
            with handoff.lock:
                if due.resume:
                    due.failure.window.suspended = False
                    handoff.go_on(due.failure.window)
                else:
                    handoff.failures.append(due.failure)
        if not (self._untold or handoff.failures) or handoff.gathering_ns:
            return
        handoff.gather()
        failures, self._untold = self._untold, []
        while handoff.failures:
            failures.append(handoff.failures.popleft())
        held = [failure for failure in failures if failure.window.held]
        if len(held) < len(failures):
            self._forget([failure for failure in failures if not failure.window.held])
        if held:
            self._untold = self.member.tell(held, self._limits.max_attempts)

    def _hear(self, failures: list[Failure], notice: groupwire.AnyNotice) -> None:
        """Take an answer about failures of one window."""
        window = failures[0].window
        match notice:
            case groupwire.SentBack(offsets=offsets, dead=dead):
                if any(dead) or log.isEnabledFor(logging.INFO):
                    fates = dict(zip(offsets, dead, strict=True))
                    log_sent_back(self.member.group, failures, fates)
                self._was_sent_back(window, failures)
            case groupwire.Counted(attempts=attempts):
                failure = failures[0]
                with self._handoff.lock:
                    window.owed -= 1
                    window.count_failure(failure.offset, attempts)
                pause_ms = failure.delay or PAUSE_MS
                self._later(pause_ms * 1_000_000, failure, resume=True)
            case groupwire.Refused(error=error, text=text) if window.held:
                for failure in failures:
                    log.warning("%s %d: %s: %s", window.queue, failure.offset, error, text)
                    self._later(RETELL_NS, failure)
            case _:
                self._forget(failures)

    def _was_sent_back(self, window: Window, failures: list[Failure]) -> None:
        """Messages are in the log again: here they are done with."""
        ranges = merged((failure.first, failure.offset + 1) for failure in failures)
        with self._handoff.lock:
            window.owed -= len(failures)
            if not window.finish(ranges):
                self._handoff.refused += len(failures)
            if self._handoff.orderly:
                for failure in failures:
                    self._pass_failed(failure)

    def _later(self, wait_ns: int, failure: Failure, *, resume: bool = False) -> None:
        heapq.heappush(self._due, Due(now_ns() + wait_ns, next(self._order), failure, resume))

    def _forget(self, failures: list[Failure]) -> None:
        """Their lease is over: the messages come again, to whoever has the queue now."""
        with self._handoff.lock:
            for failure in failures:
                failure.window.owed -= 1
            self._handoff.refused += len(failures)

    def _pass_failed(self, failure: Failure) -> None:
        """Ordered: a message has gone to the dead-letter queue, the next one's turn comes."""
        chunk = failure.chunk
        row = chunk.rows.popleft()
        chunk.settled = chunk.current = row + 1
        if not chunk.rows:
            failure.window.pending.remove(chunk)
        failure.window.suspended = False
        self._handoff.go_on(failure.window)

    # --------------------------------------------------------------------------------------- end

    def _drain(self) -> None:
        """Let listeners finish what they have, tell the outcome, and leave."""
        if self._attachment is None:
            return
        self.member.halt()
        deadline_ns = 0
        try:
            while True:
                self._converse(self._attachment)
                handoff = self._handoff
                if not handoff.is_at_work:
                    deadline_ns = deadline_ns or now_ns() + ANSWERS_NS
                    untold = handoff.failures or self._untold or self.member.asked
                    if not untold or now_ns() >= deadline_ns:
                        break
                self._rest_a_little(self._attachment)
            self._attachment.report_untabled()
            self.member.commit()
            self.member.leave()
        except Unavailable as error:
            log.warning("left without a word: %s", error)

    def _rest_a_little(self, attachment: Attachment) -> None:
        attachment.sate(True)
        self._handoff.start_resting()
        try:
            gathering_ns = self._handoff.gathering_ns
            if gathering_ns or not self._handoff.failures:
                attachment.wait(now_ns() + (gathering_ns or RELIEF_NS))
        finally:
            self._handoff.stop_resting()
