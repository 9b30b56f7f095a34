"""A push consumer's membership: a window for each lease, and what is sent back.

The fetching thread is the only one that calls this. Windows are touched with the handoff's lock.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from clients.assigned import Assigned
from clients.chunks import Failure
from clients.handoff import Handoff
from clients.member import GroupMember, Terms
from clients.message import MessageQueue
from clients.session import Session
from clients.window import Window
from shm import groupwire, layout
from shm.groupwire import Done
from shm.kernels import poll

#: Requests about failures that may wait for an answer: they have to fit into the ring.
ASKED_MAX: Final = 128


class Resumed(NamedTuple):
    """How far a queue was when the session before ended."""

    base: int
    committed: int
    done: list[Done]


class PushMember(GroupMember):
    """A member whose queues are windows: messages are finished in any order."""

    def __init__(
        self,
        session: Session,
        group: str,
        names: dict[int, str],
        resume: dict[MessageQueue, Resumed],
        terms: Terms,
        handoff: Handoff,
    ) -> None:
        super().__init__(session, group, names, {q: r[:2] for q, r in resume.items()})
        self._before = dict(resume)
        self.terms = terms
        self.windows: dict[int, Window] = {}
        self._handoff = handoff
        self._asked: dict[int, Failure] = {}
        at = layout.ARENA_EVICTED
        self._evicted = session.arena[at : at + 4].view("<u4").data

    # ------------------------------------------------------------------------------------ leases

    def _grant(self, notice: groupwire.Granted) -> None:
        super()._grant(notice)
        assigned = self.assigned.get(notice.queue)
        if assigned is None or assigned.lease != notice.lease:
            return
        window = self.windows.get(notice.queue)
        if window is None:
            self._open_window(assigned)
        elif window.halted:  # what it had has been dropped: give it back, it comes anew
            assigned.revoked = self._revoking = self.changed = True

    def _open_window(self, assigned: Assigned) -> None:
        assigned.words[poll.SLOT] = 0  # the window publishes, not the poll
        window = Window(assigned, self.session.arena if assigned.place else None, self._evicted)
        window.skip([*assigned.done, *self._still_done(assigned)])
        with self._handoff.lock:
            self.windows[assigned.number] = window

    def _still_done(self, assigned: Assigned) -> list[Done]:
        """What the session before had done above its offset, if the queue is as it was."""
        before = self._before.pop(assigned.queue, None)
        if before is None or before.committed != assigned.position:
            return []
        end = self.session.board.queue(assigned.number)["next_offset"]
        return [done for done in before.done if done[1] <= end]

    def _drop(self, assigned: Assigned) -> None:
        window = self.windows.pop(assigned.number, None)
        if window is not None:
            with self._handoff.lock:
                window.halted = True
                window.held = False
        super()._drop(assigned)

    def _revoke(self, notice: groupwire.Revoke) -> None:
        super()._revoke(notice)
        known = self.assigned.get(notice.queue)
        if known is not None and known.revoked and notice.queue in self.windows:
            with self._handoff.lock:
                self.windows[notice.queue].halted = True

    def halt(self) -> None:
        """Let listeners get nothing more."""
        with self._handoff.lock:
            for window in self.windows.values():
                window.halted = True

    def let_go(self) -> None:
        """The session is over: what is finished from now on counts for nothing."""
        with self._handoff.lock:
            for window in self.windows.values():
                window.held = False

    def release_finished(self) -> None:
        """Give revoked queues back of which nothing is being worked on."""
        if not self._revoking:
            return
        revoked = [a for a in self.assigned.values() if a.revoked]
        self._revoking = bool(revoked)
        for assigned in revoked:
            window = self.windows[assigned.number]
            with self._handoff.lock:
                idle, committed, done = window.is_idle, window.committed, window.done()
            if idle:
                self._release(groupwire.Released(assigned.number, assigned.lease, committed, done))

    # ------------------------------------------------------------------------------------ offsets

    def _publish(self) -> None:
        """Windows have said all there is to say."""

    def report_untabled(self) -> None:
        """Tell of queues that have no words in the progress table."""
        if self._untabled:
            for assigned in self.assigned.values():
                window = self.windows.get(assigned.number)
                if assigned.slot < 0 and window is not None:
                    with self._handoff.lock:
                        assigned.passed, assigned.begun = window.committed, window.started
                        assigned.done = window.done()
        super().report_untabled()

    def resumable(self) -> dict[MessageQueue, Resumed]:
        """What a member of the next session goes on by."""
        found = dict(self._before)
        for assigned in self.assigned.values():
            window = self.windows.get(assigned.number)
            if window is not None:
                done = [*window.skipped, *window.done()]
                found[assigned.queue] = Resumed(assigned.base, window.committed, done)
        return found

    # ----------------------------------------------------------------------------------- failures

    def tell(self, failure: Failure, max_attempts: int) -> bool:
        """Say that a delivery has failed, without waiting; False if there is no room now."""
        if len(self._asked) >= ASKED_MAX:
            return False
        window, serial = failure.window, self._next_serial()
        lease = window.assigned.lease
        request: groupwire.Request
        if failure.keep:
            known = window.attempts_of(failure.offset)
            request = groupwire.Failed(serial, window.number, lease, failure.offset, known)
        else:
            request = groupwire.SendBack(
                serial, window.number, lease, failure.offset, failure.delay, max_attempts,
                failure.why,
            )  # fmt: skip
        self._asked[serial] = failure
        self._unanswered[serial] = request
        self._put(request)
        return True

    def answers(self) -> Iterator[tuple[Failure, groupwire.AnyNotice]]:
        """What has been answered since the last call."""
        while self._answers:
            serial, notice = self._answers.popitem()
            self._unanswered.pop(serial, None)
            failure = self._asked.pop(serial, None)
            if failure is not None:
                yield failure, notice

    @property
    def asked(self) -> int:
        """Failures that no answer has come for."""
        return len(self._asked)
