"""A session's side of its group: leases as `groups` gives them, offsets as it is told them.

Nothing here reads messages. Offsets are words of the arena (layout PROGRESS): `groups` looks there
twice a second, and after this process's death. Queues beyond that table are told of in requests,
which go into the ring without waking `groups`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gantrymq.clients.assigned import Assigned
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
        resume: dict[MessageQueue, tuple[int, int]] | None = None,
    ) -> None:
        """`names` maps topic slots to names of the topics subscribed.

        `resume` has, for queues of a session before, the lowest offset that the ledger can have and
        how far the application got.
        """
        self.session = session
        self.group = group
        self.names = names
        self.assigned: dict[int, Assigned] = {}
        self.lost_commits = 0
        self.changed = True
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
        """Report, and wait until the offsets are in the ledger. Raises DiskFull, Timeout, ..."""
        self._publish()
        parts = self._to_report() or [[]]  # for the words alone a request says nothing but "now"
        for items in parts if self.assigned or self._unconfirmed else ():
            serial = self._next_serial()
            try:
                self._ask(serial, _commit(serial, items))
            except errors.GantryError:
                for assigned in items:
                    assigned.committed = -1  # to be said again
                raise
        self._unconfirmed = False  # requests are taken in their order

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
        return self.changed or self._revoking

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
        self._revoked_seen = self._revoked[0]
        while (body := self._lane.take()) is not None:
            if self._lane.wants_bell:
                self.session.groups_bell.ring()
            self._hear(groupwire.decode_notice(body))

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
        base, passed = self._resume.pop(queue, (offset, offset))
        # What this object has passed before a broker's restart need not come again.
        known_end = max(row["max_offset"], row["next_offset"])
        start = passed if base <= offset <= passed <= known_end else offset
        if known:
            self._drop(known)
        assigned = Assigned(notice.queue, queue, notice.lease, offset)
        assigned.position = assigned.delivered = assigned.passed = assigned.begun = start
        assigned.attempts, assigned.done = notice.attempts, notice.done
        self._give_slot(assigned)
        self.assigned[notice.queue] = assigned
        self.changed = True

    def _give_slot(self, assigned: Assigned) -> None:
        if not self._free:
            self._untabled += 1
            return
        assigned.slot = self._free.pop()
        assigned.place = assigned.words[poll.SLOT] = progress.open_slot(
            self.session.arena, assigned.slot, assigned.lease, assigned.number, assigned.committed
        )

    def _drop(self, assigned: Assigned) -> None:
        """Forget a queue whose lease is over, before anybody is told so."""
        del self.assigned[assigned.number]
        self.changed = True
        if assigned.slot < 0:
            self._untabled -= 1
            return
        progress.close_slot(self.session.arena, assigned.place)
        assigned.words[poll.SLOT] = 0
        self._free.append(assigned.slot)

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

    def places(self) -> dict[MessageQueue, tuple[int, int]]:
        """What a member of the next session resumes by.

        Nothing after the store has failed: where its log ended other messages may be by then.
        """
        if self.session.store_failed:
            return {}
        return self._resume | {a.queue: (a.base, a.passed) for a in self.assigned.values()}

    def release_finished(self) -> None:
        """Give revoked queues back of which nothing is being worked on."""
        if not self._revoking:
            return
        revoked = [a for a in self.assigned.values() if a.revoked]
        self._revoking = bool(revoked)
        for assigned in revoked:
            released = self._finished(assigned)
            if released is not None:
                self._release(released)

    def _finished(self, assigned: Assigned) -> groupwire.Released | None:
        """What is said of a queue that is given back; None while messages are not done with."""
        if assigned.delivered > assigned.passed:
            return None
        return groupwire.Released(assigned.number, assigned.lease, assigned.passed)

    def _release(self, released: groupwire.Released) -> None:
        self._remember(released)
        self._drop(self.assigned[released.queue])
        self._unconfirmed = True
        self._put(released)
        self.session.groups_bell.ring()

    def _remember(self, released: groupwire.Released) -> None:
        self._released[released.lease] = released
        self._release_order.append(released.lease)
        if len(self._release_order) > _RELEASED_KEPT:
            del self._released[self._release_order.popleft()]


def _commit(serial: int, items: list[Assigned]) -> groupwire.Commit:
    """A request that says what is passed and handed out, and notes that it has been said."""
    offsets = {a.number: a.passed for a in items if a.passed != a.committed}
    started = {a.number: a.begun for a in items if a.begun > a.passed}
    for a in items:
        a.committed, a.started = a.passed, max(a.started, a.begun)
    done = {a.number: a.done for a in items if a.done}
    return groupwire.Commit(serial, {a.number: a.lease for a in items}, offsets, started, done)
