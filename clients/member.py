"""A session's side of its group: leases as `groups` gives them, offsets as it is told them.

Nothing here reads messages. Offsets are words of the arena (layout PROGRESS): `groups` looks there
twice a second, and after this process's death. Queues beyond that table are told of in requests,
which go into the ring without waking `groups`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gantrymq.clients.assigned import Assigned, Place
from gantrymq.clients.message import MessageQueue
from gantrymq.clients.session import Session, now_ns
from gantrymq.shm import errors, groupwire, layout, limits
from gantrymq.shm.codes import ClientState
from gantrymq.shm.controllane import ControlLane, End
from gantrymq.shm.kernels import poll, progress

ANSWER_NS: Final = 30_000_000_000
#: Reports wake `groups` no more often than this.
REPORT_NS: Final = 100_000_000
#: Queues in one request: it has to fit into half of the ring.
QUEUES_PER_REQUEST: Final = 256
#: Leases given back lately, in case that their `Released` was lost with a dead `groups`.
_RELEASED_KEPT: Final = 4096


class Terms(NamedTuple):
    """What a member states of itself, as groupwire.Join has it."""

    max_attempts: int = 0
    digest: int = 0
    orderly: bool = False
    subscription: str = ""
    assignment: str = groupwire.STICKY


class GroupMember:
    """Membership of one session; see the module."""

    terms = Terms()
    #: SQL92 filters that bits may be made for, as groupwire.Join has them.
    filters: Sequence[tuple[int, str, str]] = ()

    def __init__(
        self,
        session: Session,
        group: str,
        names: dict[int, str],
        resume: dict[MessageQueue, Place] | None = None,
    ) -> None:
        """`names` maps topic slots to names of the topics subscribed.

        `resume` is what `places` said of a session before.
        """
        self.session = session
        self.group = group
        self.names = names
        self.assigned: dict[int, Assigned] = {}
        self.lost_commits = 0
        self.changed = True
        #: Queues of which nothing is to be fetched, with the last lease that they were under. Those
        #: that are given back stay: the next grant tells whether another member has had them.
        self.paused: dict[MessageQueue, int] = {}
        self._resume = dict(resume or {})
        self._lane = ControlLane(session.arena, session.plan.groups, End.CLIENT)
        self._join = groupwire.Join(0, group, sorted(names))
        self._serial = 0
        self._unanswered: dict[int, groupwire.Request] = {}
        self._answers: dict[int, groupwire.AnyNotice] = {}
        self._released: dict[int, groupwire.Released] = {}
        self._release_order: deque[int] = deque()
        self._unconfirmed = False  # whether a `Released` may not be in the ledger
        self._rung_ns = 0
        self._free = list(range(limits.PROGRESS_MAX - 1, -1, -1))  # slots of the progress table
        self._untabled = 0  # queues without one
        self._revoking = False  # whether a queue may be waiting to be given back
        # What is begun is noted first: whoever comes next goes on with it if a signal handler has
        # ended it by an exception.
        self._listening = False
        self._notice: bytes | None = None  # that is being heard
        self._owed: list[groupwire.Released] = []  # that are being said
        at = layout.ARENA_REVOKED
        self._revoked = session.arena[at : at + 8].view("<u8").data
        self._revoked_seen = 0

    # ------------------------------------------------------------------------- speaking, hearing

    def join(
        self,
        consume_from: groupwire.ConsumeFrom,
        starts: dict[int, int],
        chosen: list[int] | None = None,
    ) -> None:
        """Become a member, by balancing or with the board's queues `chosen`, or change between.

        Raises GroupIllegal, Timeout, or what the session raises.
        """
        terms = self.terms if chosen is None else self.terms._replace(assignment="")
        self._join = groupwire.Join(
            self._next_serial(), self.group, sorted(self.names), consume_from, starts, chosen,
            *terms, list(self.filters),
        )  # fmt: skip
        self._ask(self._join.serial, self._join)

    def commit(self) -> None:
        """Report, and wait until the offsets are in the ledger. Raises DiskFull, Timeout, ...

        What was passed in a session before, of queues that others have by now, is lost.
        """
        self._publish()
        parts = self._to_report() or [[]]  # for the words alone a request says nothing but "now"
        for items in parts if self.assigned or self._unconfirmed else ():
            serial = self._next_serial()
            with _to_be_said_again(items):
                self._ask(serial, _commit(serial, items))
        self._unconfirmed = False  # requests are taken in their order
        for assigned in self.assigned.values():
            assigned.confirm()
        self.lost_commits += sum(not place.is_confirmed for place in self._resume.values())
        self._resume.clear()

    def leave(self) -> None:
        """Give everything back and wait for the answer. Raises Timeout, ..."""
        serial = self._next_serial()
        self._ask(serial, groupwire.Leave(serial))
        self.assigned.clear()

    def report(self) -> None:
        """Say what has been passed and handed out since the last report, without waiting."""
        self._publish()
        self.report_untabled()

    def report_untabled(self) -> None:
        """The same for queues that have no words in the progress table."""
        for items in self._to_report() if self._untabled else ():
            with _to_be_said_again(items):
                self._put(_commit(0, items))
            self._ring_now_and_then()

    def _publish(self) -> None:
        self._require_own()
        arena = self.session.arena
        for assigned in self.assigned.values():
            at = assigned.words[poll.SLOT]
            if at:
                begun = max(assigned.begun, assigned.passed)
                progress.note_progress(arena, at, assigned.passed, begun)

    def _to_report(self) -> list[list[Assigned]]:
        """Queues with news, as many at a time as fit into a request."""
        news = [
            a
            for a in self.assigned.values()
            if a.slot < 0 and (a.passed != a.committed or a.begun > a.started)
        ]
        size = QUEUES_PER_REQUEST
        return [news[at : at + size] for at in range(0, len(news), size)]

    def _next_serial(self) -> int:
        self._serial += 1
        return self._serial

    def _ask(self, serial: int, request: groupwire.Request) -> None:
        self._unanswered[serial] = request
        self._put(request)
        self.session.groups_bell.ring()
        try:
            if not self._wait(lambda: serial in self._answers, self._answer_by()):
                raise errors.Timeout(f"groups did not answer {type(request).__name__} in time")
            answer = self._answers.pop(serial)
        finally:
            self._unanswered.pop(serial, None)
        if isinstance(answer, groupwire.Refused):
            raise getattr(errors, answer.error, errors.GantryError)(answer.text)

    def _answer_by(self) -> int:
        return min(now_ns() + ANSWER_NS, self.session.answer_by)

    def _wait(self, is_done: Callable[[], bool], deadline_ns: int) -> bool:
        def ready() -> bool:
            self._lane.arm(ClientState.ARMED)
            self.listen()
            return is_done()

        try:
            return self.session.wait(deadline_ns, ready)
        finally:
            self._lane.disarm()

    def _put(self, request: groupwire.Request) -> None:
        self._require_own()
        body = groupwire.encode(request)
        if self._lane.put(body):
            return
        self.session.groups_bell.ring()

        def fits() -> bool:
            self._lane.arm(ClientState.ARMED_FOR_ROOM)
            return self._lane.put(body)

        try:
            if not self.session.wait(self._answer_by(), fits):
                raise errors.Timeout("groups did not take a request in time")
        finally:
            self._lane.disarm()

    def _require_own(self) -> None:
        if not self.session.is_open:
            self.session.check()  # in a forked child the arena is the parent's: touch nothing

    def _ring_now_and_then(self) -> None:
        now = now_ns()
        half_full = 2 * self._lane.unread_bytes() > self._lane.plan.up_bytes // 2
        if half_full or now - self._rung_ns >= REPORT_NS:
            self._rung_ns = now
            self.session.groups_bell.ring()

    @property
    def is_restless(self) -> bool:
        """Whether `release_finished` may have something to do, or leases have come or gone."""
        return self.changed or self._revoking or self._listening

    @property
    def lane_words(self) -> NDArray[np.int64]:
        """Private words of the lane: where it is, and how far it was read."""
        return self._lane.words

    def is_notified(self) -> bool:
        """Whether `groups` has asked for something since `listen`; costs one load."""
        return self._revoked[0] != self._revoked_seen

    def listen(self) -> None:
        """Take all notices. Raises msgspec.DecodeError if the broker talks nonsense.

        And GroupIllegal if a replaced `groups` does not let this member join again.
        """
        self._listening = True
        self._revoked_seen = self._revoked[0]
        while (body := self._take()) is not None:
            if self._lane.wants_bell:
                self.session.groups_bell.ring()
            self._hear(groupwire.decode_notice(body))
            self._notice = None
        self._listening = False

    def _take(self) -> bytes | None:
        """The notice that was not heard to its end, or the next; None if there is none."""
        if self._notice is None:
            self._notice = self._lane.take()
        return self._notice

    def _hear(self, notice: groupwire.AnyNotice) -> None:
        match notice:
            case groupwire.Granted():
                self._grant(notice)
            case groupwire.Revoke():
                self._revoke(notice)
            case groupwire.Rejoin():
                self._rejoin()
            case groupwire.Committed():
                self._lose(notice.lost)
                self._answer(notice.serial, notice)
            case groupwire.Joined() | groupwire.Left():
                self._answer(notice.serial, notice)
            case groupwire.WasReset() | groupwire.Refused():
                self._answer(notice.serial, notice)

    def _answer(self, serial: int, notice: groupwire.AnyNotice) -> None:
        if serial in self._unanswered:
            self._answers[serial] = notice
        elif isinstance(notice, groupwire.Refused) and notice.error == "GroupIllegal":
            # A `Join` said again to a successor of `groups`: without it we would get nothing more.
            raise errors.GroupIllegal(notice.text)

    # ------------------------------------------------------------------------------------ leases

    def _grant(self, notice: groupwire.Granted) -> None:
        if notice.lease in self._released:
            self._put(self._released[notice.lease])
            return
        known = self.assigned.get(notice.queue)
        if known and known.lease == notice.lease:
            known.revoked = False  # `groups` was replaced; it revokes again if it has to
            return
        row = self.session.board.queue(notice.queue)
        queue = MessageQueue(self.names[row["topic"]], row["queue_id"])
        offset = notice.offset
        # What this object has passed before a broker's restart need not come again.
        before = self._resume.get(queue, Place(offset, offset, offset, notice.lease))
        end = max(row["max_offset"], row["next_offset"])
        start = before.start(offset, end, notice.since)
        if known:
            before = known.reached
            self._drop(known)
        if start < before.passed and not before.is_confirmed:
            self.lost_commits += 1
        assigned = Assigned(notice.queue, queue, notice.lease, offset)
        assigned.position = assigned.delivered = assigned.passed = assigned.begun = start
        assigned.attempts, assigned.done = notice.attempts, notice.done
        assigned.since = notice.since
        assigned.paused = self._stays_paused(queue, notice)
        self._give_slot(assigned)
        self.assigned[notice.queue] = assigned
        self.changed = True
        self._resume.pop(queue, None)

    def _stays_paused(self, queue: MessageQueue, notice: groupwire.Granted) -> bool:
        """Whether it was paused, and nobody has had it since."""
        if self.paused.get(queue) in (notice.previous, notice.lease):
            self.paused[queue] = notice.lease
        else:
            self.paused.pop(queue, None)
        return queue in self.paused

    def _give_slot(self, assigned: Assigned) -> None:
        if not self._free:
            self._untabled += 1
            return
        slot = self._free[-1]
        assigned.place = assigned.words[poll.SLOT] = progress.open_slot(
            self.session.arena, slot, assigned.lease, assigned.number, assigned.committed
        )
        # Nothing comes between these steps, up to where the queue is noted.
        assigned.slot = slot
        del self._free[-1]

    def apply_pauses(self) -> None:
        """`paused` has changed."""
        self.changed = True  # first: also if not all of them are reached
        for assigned in self.assigned.values():
            assigned.paused = assigned.queue in self.paused

    def _drop(self, assigned: Assigned) -> None:
        """Forget a queue whose lease is over, before anybody is told so."""
        self.changed = True
        if assigned.slot >= 0:
            progress.close_slot(self.session.arena, assigned.place)
            assigned.words[poll.SLOT] = 0
            freed = [assigned.slot]
        else:
            self._untabled -= 1
            freed = []
        # No call from here on: a signal handler that raises comes before both steps, or after.
        self._free += freed
        del self.assigned[assigned.number]

    def _revoke(self, notice: groupwire.Revoke) -> None:
        known = self.assigned.get(notice.queue)
        if known and known.lease == notice.lease:
            known.revoked = self.changed = self._revoking = True
        elif notice.lease in self._released:
            self._put(self._released[notice.lease])

    def _rejoin(self) -> None:
        """Say again what the dead `groups` may not have put down."""
        self._put(self._join)
        for assigned in self.assigned.values():
            assigned.committed = assigned.started = -1
        self.report_untabled()
        for serial, request in list(self._unanswered.items()):
            if serial not in self._answers and request is not self._join:
                self._put(request)
        self.session.groups_bell.ring()

    def _lose(self, lost: dict[int, int]) -> None:
        self.lost_commits += len(lost)
        for queue, lease in lost.items():
            known = self.assigned.get(queue)
            if known and known.lease == lease:
                self._drop(known)

    def places(self) -> dict[MessageQueue, Place]:
        """What a member of the next session resumes by.

        After the store has failed nothing goes on from there: where its log ended other messages
        may be by then.
        """
        found = self._resume | {a.queue: a.reached for a in self.assigned.values()}
        if not self.session.store_failed:
            return found
        return {q: place.voided() for q, place in found.items() if not place.is_confirmed}

    def release_finished(self) -> None:
        """Give revoked queues back of which nothing is being worked on."""
        if not self._revoking:
            return
        self._pay()
        revoked = [a for a in self.assigned.values() if a.revoked]
        for assigned in revoked:
            released = self._finished(assigned)
            if released is not None:
                self._release(released)
        self._revoking = bool(revoked)

    def _finished(self, assigned: Assigned) -> groupwire.Released | None:
        """What is said of a queue that is given back; None while messages are not done with."""
        if assigned.delivered > assigned.passed:
            return None
        return groupwire.Released(assigned.number, assigned.lease, assigned.passed)

    def _release(self, released: groupwire.Released) -> None:
        self._owed = [*self._owed, released]
        self._pay()

    def _pay(self) -> None:
        """Say that a queue is given back; again if that was broken off."""
        for released in self._owed:
            self._remember(released)
            known = self.assigned.get(released.queue)
            if known is not None and known.lease == released.lease:
                self._drop(known)
            self._unconfirmed = True
            self._put(released)
            self.session.groups_bell.ring()
        self._owed = []

    def _remember(self, released: groupwire.Released) -> None:
        if released.lease not in self._released:
            self._release_order.append(released.lease)
        self._released[released.lease] = released
        if len(self._release_order) > _RELEASED_KEPT:
            del self._released[self._release_order.popleft()]


@contextmanager
def _to_be_said_again(items: list[Assigned]) -> Iterator[None]:
    """What is said within, of these queues, unless it succeeds."""
    try:
        yield
    except BaseException:  # also from a signal handler
        for assigned in items:
            assigned.committed = -1
        raise


def _commit(serial: int, items: list[Assigned]) -> groupwire.Commit:
    """A request that says what is passed and handed out, and notes that it has been said."""
    offsets = {a.number: a.passed for a in items if a.passed != a.committed}
    started = {a.number: a.begun for a in items if a.begun > a.passed}
    for a in items:
        a.committed, a.started = a.passed, max(a.started, a.begun)
    done = {a.number: a.done for a in items if a.done}
    return groupwire.Commit(serial, {a.number: a.lease for a in items}, offsets, started, done)
