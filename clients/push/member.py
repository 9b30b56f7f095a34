"""A push consumer's membership: a window for each lease, and what is sent back.

The fetching thread is the only one that calls this. Windows are touched with the handoff's lock.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, TypeVar

from gantrymq.clients.assigned import Assigned, Place
from gantrymq.clients.member import GroupMember, Terms
from gantrymq.clients.message import MessageQueue
from gantrymq.clients.push.chunks import Failure
from gantrymq.clients.push.handoff import Handoff
from gantrymq.clients.push.window import Window
from gantrymq.clients.session import Session
from gantrymq.shm import groupwire, layout, limits
from gantrymq.shm.groupwire import Done
from gantrymq.shm.kernels import poll
from gantrymq.shm.limits import PROGRESS_WINDOW

#: Bytes of requests about failures that may wait for an answer: said twice, after a `Rejoin`, they
#: still have to fit into the ring.
ASKED_BYTES_MAX: Final = limits.GROUPS_UP_BYTES // 4
#: Characters of reasons in one request, where they are not all the same.
REASONS_MAX: Final = 2000

_T = TypeVar("_T")
_Answer = groupwire.SentBack | groupwire.Counted | groupwire.Refused


class Resumed(NamedTuple):
    """How far a queue was when the session before ended."""

    base: int
    committed: int
    done: list[Done]
    lease: int


class _Asked(NamedTuple):
    """What a request has said that is not answered yet, and its size."""

    failures: dict[int, Failure]  # by offset
    bytes: int


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
        places = {q: Place(r.base, r.committed, r.committed, r.lease) for q, r in resume.items()}
        super().__init__(session, group, names, places)
        self._before = dict(resume)
        self.terms = terms
        self.windows: dict[int, Window] = {}
        self._handoff = handoff
        self._asked: dict[int, _Asked] = {}
        self._asked_bytes = 0
        self._heard: list[_Answer] = []
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
            self._handoff.welcome(window)

    def _still_done(self, assigned: Assigned) -> list[Done]:
        """What the session before had done above its offset, if the queue is as it was."""
        before = self._before.pop(assigned.queue, None)
        if before is None or before.lease < assigned.since:
            return []
        if before.committed != assigned.position:
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

    def _finished(self, assigned: Assigned) -> groupwire.Released | None:
        window = self.windows[assigned.number]
        with self._handoff.lock:
            if not window.is_idle:
                return None
            done = window.done()
            return groupwire.Released(assigned.number, assigned.lease, window.committed, done)

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

    def report_last(self) -> None:
        """Say what is no word of the arena, before a session is given up; nobody is waited for."""
        self.report_untabled()

    def resumable(self) -> dict[MessageQueue, Resumed]:
        """What a member of the next session goes on by: nothing after the store has failed."""
        if self.session.store_failed:
            return {}
        found = dict(self._before)
        for assigned in self.assigned.values():
            window = self.windows.get(assigned.number)
            if window is not None:
                done = [*window.skipped, *window.done()]
                found[assigned.queue] = Resumed(
                    assigned.base, window.committed, done, assigned.lease
                )
        return found

    # ----------------------------------------------------------------------------------- failures

    def tell(self, failures: Sequence[Failure], max_attempts: int) -> list[Failure]:
        """Say which deliveries have failed, without waiting; returns those it had no room for."""
        by_window: dict[Window, list[Failure]] = {}
        for failure in failures:
            by_window.setdefault(failure.window, []).append(failure)
        untold: list[Failure] = []
        ring = False
        for window, theirs in by_window.items():
            for part in _parts(theirs):
                request = self._request(window, part, max_attempts)
                size = len(groupwire.encode(request))
                if self._asked and self._asked_bytes + size > ASKED_BYTES_MAX:
                    untold += part
                    continue
                self._asked[request.serial] = _Asked({f.offset: f for f in part}, size)
                self._asked_bytes += size
                self._unanswered[request.serial] = request
                self._put(request)
                ring = ring or self._lane.wants_bell
        if ring:
            self.session.groups_bell.ring()
        return untold

    def _request(
        self, window: Window, failures: list[Failure], max_attempts: int
    ) -> groupwire.SendBack | groupwire.Failed:
        serial, number, lease = self._next_serial(), window.number, window.assigned.lease
        if failures[0].keep:
            offset = failures[0].offset
            return groupwire.Failed(serial, number, lease, offset, window.attempts_of(offset))
        offsets = [failure.offset for failure in failures]
        delays = _column([failure.delay for failure in failures])
        whys = _column([failure.why for failure in failures])
        return groupwire.SendBack(serial, number, lease, max_attempts, offsets, delays, whys)

    def _hear(self, notice: groupwire.AnyNotice) -> None:
        match notice:
            case groupwire.SentBack() | groupwire.Counted():
                self._heard.append(notice)
            case groupwire.Refused(serial=serial) if serial in self._asked:
                self._heard.append(notice)
            case _:
                super()._hear(notice)

    def answers(self) -> Iterator[tuple[list[Failure], _Answer]]:
        """What has been answered since the last call: failures of one window, and the notice."""
        heard, self._heard = self._heard, []
        for notice in heard:
            asked = self._asked.get(notice.serial)
            if asked is None:
                continue
            named = [] if isinstance(notice, groupwire.Counted) else notice.offsets
            found = [
                asked.failures.pop(offset)
                for offset in named or list(asked.failures)
                if offset in asked.failures
            ]
            if not asked.failures:
                del self._asked[notice.serial]
                self._asked_bytes -= asked.bytes
                self._unanswered.pop(notice.serial, None)
            if found:
                yield found, notice

    @property
    def asked(self) -> int:
        """Requests about failures that are not answered in full."""
        return len(self._asked)


def _parts(failures: list[Failure]) -> Iterator[list[Failure]]:
    """As many at a time as one request may name."""
    part: list[Failure] = []
    characters, mixed = 0, False
    for failure in failures:
        mixed = mixed or bool(part and failure.why != part[0].why)
        too_long = mixed and characters + len(failure.why) > REASONS_MAX
        if part and (failure.keep or len(part) == PROGRESS_WINDOW or too_long):
            yield part
            part, characters, mixed = [], 0, False
        part.append(failure)
        characters += len(failure.why)
    yield part


def _column(values: list[_T]) -> list[_T]:
    """One value that goes for all, if it does."""
    return values[:1] if values.count(values[0]) == len(values) else values
