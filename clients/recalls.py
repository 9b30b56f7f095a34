"""Cancelling delayed messages, by a session with the scheduler that is opened when needed."""

from __future__ import annotations

import threading
from itertools import count
from typing import TYPE_CHECKING, Final

import msgspec

from gantrymq.clients.recalloutcome import RecallOutcome
from gantrymq.clients.session import Session, Turn, deadline_after, now_ns
from gantrymq.shm import schedulerwire
from gantrymq.shm.codes import ClientState, Status
from gantrymq.shm.controllane import ControlLane, End
from gantrymq.shm.errors import (
    Closed,
    DiskFull,
    Incompatible,
    MessageIllegal,
    Rejected,
    StoreFailed,
    Timeout,
    Unavailable,
)
from gantrymq.shm.fromhandlers import require_ours
from gantrymq.shm.schedulerwire import Recall, Recalled

if TYPE_CHECKING:
    import os

#: A scheduler that was replaced has forgotten what it was asked.
_REPEAT_NS: Final = 500_000_000


class Recaller:
    """The way to the scheduler; safe for threads."""

    def __init__(self, home: str | os.PathLike[str] | None) -> None:
        self._home = home
        self._lock = threading.RLock()  # a signal handler may recall amid a recall
        self._way: tuple[Session, ControlLane] | None = None
        self._is_closed = False
        self._store_id = ""
        self._serials = count(1)

    def recall(self, topic: str, handle: str, timeout: float) -> RecallOutcome:
        """Cancel a message.

        Raises MessageIllegal, Timeout, DiskFull, Rejected, StoreFailed, or what a session raises.
        """
        require_handle(topic, handle)
        deadline_ns = deadline_after(timeout)
        why = "the scheduler has not answered another thread's recall in time: nothing was asked"
        with Turn(self._lock, deadline_ns, why):
            known = self._way is not None
            try:
                return self._ask(topic, handle, deadline_ns)
            except Timeout:
                raise
            except Unavailable:
                self._drop()
                if not known:
                    raise
            # The broker was started again since: to ask twice does no harm.
            return self._ask(topic, handle, deadline_ns)

    def _ask(self, topic: str, handle: str, deadline_ns: int) -> RecallOutcome:
        session, lane = self._way or self._open(deadline_ns)
        serial = next(self._serials)
        request = schedulerwire.encode(Recall(serial, topic, handle))
        answers: list[Recalled] = []

        def is_answered() -> bool:
            answers.extend(self._take(lane, serial))
            if answers:
                return True
            lane.arm(ClientState.ARMED)
            answers.extend(self._take(lane, serial))
            return bool(answers)

        while not answers or answers[-1].refusal == schedulerwire.INDEX_BEHIND:
            answers.clear()
            if lane.put(request) and lane.wants_bell:
                session.scheduler_bell.ring()
            now = now_ns()
            if now >= deadline_ns:
                raise Timeout(
                    "the scheduler did not answer, or the key index is behind: the message may be"
                    " cancelled or not. Recall it again"
                )
            session.wait(min(deadline_ns, now + _REPEAT_NS), is_answered)
        return _outcome(answers[-1])

    def _open(self, deadline_ns: int) -> tuple[Session, ControlLane]:
        """Raises Closed where another thread, or a signal handler, closes meanwhile."""
        if not self._is_closed:
            session = Session(self._home, scheduler=True, answer_by=deadline_ns)
            session.require_store(self._store_id)
            self._store_id = session.store_id
            lane = ControlLane(session.arena, session.plan.scheduler, End.CLIENT)
            way = self._way = session, lane
            if not self._is_closed:
                return way
            self._drop()
        raise Closed(
            "this producer was closed amid a recall: the message may be cancelled or not. Recall it"
            " with another producer"
        )

    def _take(self, lane: ControlLane, serial: int) -> list[Recalled]:
        found = []
        while (body := lane.take()) is not None:
            try:
                notice = schedulerwire.decode_notice(body)
            except msgspec.DecodeError as error:
                raise Incompatible(f"the scheduler says what is not understood: {error}") from error
            if notice.serial == serial:
                found.append(notice)
        return found

    def close(self) -> None:
        """End the session, and open none any more. Safe to call twice."""
        self._is_closed = True
        self._drop()

    def _drop(self) -> None:
        way, self._way = self._way, None
        if way is not None:
            way[0].close()


def require_handle(topic: str, handle: str) -> None:
    """Raise MessageIllegal for what is no recall handle of a message to that topic."""
    try:
        parts = schedulerwire.parse_handle(handle)
    except (ValueError, AttributeError) as error:
        require_ours(error)
        raise MessageIllegal(
            f"{handle!r} is no recall handle: give the `recall_handle` of a receipt"
        ) from error
    if parts.topic != topic:
        raise MessageIllegal(
            f"the handle is of a message to topic {parts.topic}, not {topic}", topic=topic
        )


def _outcome(answer: Recalled) -> RecallOutcome:
    if answer.refusal == Status.DISK_FULL.name:
        raise DiskFull(
            "the broker's disk is full: nothing is changed by this recall;"
            " recall it again once there is room"
        )
    if answer.refusal == schedulerwire.REFUSED:
        raise Rejected("the scheduler does not carry out this recall: the broker's log says why")
    if answer.refusal:
        raise StoreFailed(f"the recall could not be stored: {answer.refusal}")
    return RecallOutcome(answer.outcome)
