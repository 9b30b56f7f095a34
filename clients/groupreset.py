"""An operator's hand on a group's offsets: where they would go, and setting them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, TypeVar

from gantrymq.clients.logfiles import LogFiles
from gantrymq.clients.message import MessageQueue
from gantrymq.clients.queries.bytime import offset_at
from gantrymq.clients.queries.moments import parse_moment
from gantrymq.clients.session import Session, now_ns
from gantrymq.shm import errors, groupwire
from gantrymq.shm.codes import ClientState
from gantrymq.shm.controllane import ControlLane, End

if TYPE_CHECKING:
    from gantrymq.shm.board import Board, TopicSlot

#: How much longer than members have the answer may take.
_ANSWER_NS: Final = 30_000_000_000
_SERIAL: Final = 1
Answer = TypeVar("Answer", bound=groupwire.Notice)
#: Queue id -> next offset to consume, of a topic as a board has it.
Plan = Callable[["Board", "TopicSlot"], Mapping[int, int]]


def offset_of(place: str, store: str, board: Board, topic: TopicSlot, queue_id: int) -> int:
    """The queue offset that `begin`, `end`, a number or an ISO 8601 time means.

    A time means the first message stored then or later (CQ-62); without an offset it is this
    machine's time. Raises Rejected.
    """
    row = board.queue(topic.queue_base + queue_id)
    low, high = row["min_offset"], row["max_offset"]
    if place == "begin":
        return low
    if place == "end":
        return high
    if place.isdecimal():
        return int(place)
    try:
        moment_ms = parse_moment(place)
    except errors.Rejected:
        raise errors.Rejected(
            f"--to {place}: give begin, end, an offset, or a time such as 2026-01-31T08:00"
        ) from None
    queue = MessageQueue(topic.name, queue_id)
    return offset_at(LogFiles(store, board), queue, low, high, moment_ms)


def reset_offsets(
    home: str | os.PathLike[str], group: str, topic: str, plan: Plan, patience_s: float
) -> dict[int, int]:
    """Set a group's offsets in a topic; returns those before by queue id, -1 for none.

    Planning may take long. It is done on the board of the session that asks for the reset, which
    has the topic open meanwhile: the queues' numbers mean no others, whatever becomes of the topic
    or the broker. Members finish what runs and give the queues back first; who has not within
    `patience_s` is ended. Raises TopicNotFound, GroupIllegal, DiskFull, Timeout, BrokerGone, ...
    """
    session = Session(home, groups=True)
    try:
        slot = session.board.topic(session.open_topic(topic, create=False).slot)
        assert slot is not None, "it keeps its slot"
        before = _reset(session, slot, group, plan, patience_s)
    finally:
        session.close()
    return {queue - slot.queue_base: offset for queue, offset in before.items()}


def _reset(
    session: Session, slot: TopicSlot, group: str, plan: Plan, patience_s: float
) -> Mapping[int, int]:
    """Offsets before, by queue of the board. What retention has removed meanwhile is planned anew.

    Raises what a refusal names, Timeout, BrokerGone, ...
    """
    board, base = session.board, slot.queue_base
    timeout_ns = int(patience_s * 1e9) + _ANSWER_NS
    planned = plan(board, slot)
    while True:
        wanted = {base + queue: offset for queue, offset in planned.items()}
        request = groupwire.Reset(_SERIAL, group, wanted, int(patience_s * 1000))
        try:
            return ask_groups(session, request, groupwire.WasReset, timeout_ns).before
        except errors.GroupIllegal:
            if all(at >= board.queue(queue)["min_offset"] for queue, at in wanted.items()):
                raise
            before, planned = planned, plan(board, slot)
            if planned == before:
                raise


def ask_groups(
    session: Session, request: groupwire.Request, kind: type[Answer], timeout_ns: int
) -> Answer:
    """Ask `groups` and wait for an answer of this kind; said again to one that was replaced.

    Raises what a refusal names, Timeout, BrokerGone, ...
    """
    lane = ControlLane(session.arena, session.plan.groups, End.CLIENT)
    heard: list[groupwire.AnyNotice] = []

    def put() -> None:
        lane.put(groupwire.encode(request))
        session.groups_bell.ring()

    def ready() -> bool:
        lane.arm(ClientState.ARMED)
        while (body := lane.take()) is not None:
            notice = groupwire.decode_notice(body)
            if isinstance(notice, groupwire.Rejoin):
                put()  # the `groups` that it was said to has died
            elif isinstance(notice, kind | groupwire.Refused):
                heard.append(notice)
        return bool(heard)

    put()
    if not session.wait(now_ns() + timeout_ns, ready):
        raise errors.Timeout("groups did not answer: it may still do what it was asked for")
    answer = heard[0]
    if isinstance(answer, groupwire.Refused):
        raise getattr(errors, answer.error, errors.Rejected)(answer.text)
    assert isinstance(answer, kind), "waited for"
    return answer
