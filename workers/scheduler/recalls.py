"""Recalls: who asks, what is held for them, and what they are told.

The scheduler alone decides: a target that it still has is held, the recall record is appended with
the target as its origin, and the answer goes out when that is in the log. What has gone up already
is delivered, which is said once it is in the log. Of what waits no more the log tells by its index.

Sessions are served in turn, each cycle within a budget: what one asks for, however much and of
whatever kind, delays no timer by more than a cycle of that size, and no other session by more than
its turn. A session has so many requests here, the others wait in its ring; they end with it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from gantrymq.shm import layout, schedulerwire
from gantrymq.shm.codes import AgentState, Level, Status
from gantrymq.shm.controllane import BrokenLane, ControlLane, End
from gantrymq.shm.packed import Misfit
from gantrymq.shm.properties import encode_properties, java_hash
from gantrymq.shm.schedulerwire import (
    ALREADY_DELIVERED,
    CANCELLED,
    UNKNOWN_HANDLE,
    Recall,
    Recalled,
)
from gantrymq.workers.outlet import Copy
from gantrymq.workers.scheduler.recalltrace import RecallTrace, names_target
from gantrymq.workers.scheduler.timerbuckets import are_together
from gantrymq.workers.scheduler.timerpool import ENTRY, joined
from gantrymq.workers.session import pass_turn

if TYPE_CHECKING:
    from gantrymq.workers.inhand import InHand
    from gantrymq.workers.outlet import Outcome, Outlet
    from gantrymq.workers.scheduler.delivery import Delivery
    from gantrymq.workers.scheduler.timerbuckets import Looked
    from gantrymq.workers.scheduler.timerpool import Entries
    from gantrymq.workers.scheduler.timers import Timers
    from gantrymq.workers.session import Session, SessionTable

RECALL_TAG: Final = "_RECALL_TAG_"
#: Requests and answers of one session that are here; the others wait in its ring.
ASKED_MAX: Final = 32
#: Requests that are taken or looked at in one cycle.
LOOKS_MAX: Final = 64
#: Of these, reads of up to LOOK_ENTRIES entries of buckets or of memory, a millisecond each, and
#: steps into the index: each is some reads of files.
READS_MAX: Final = 2
TRACES_MAX: Final = 4
#: Looks into memory for one request: at first, and once all that it has to wait for is there.
MEMORY_LOOKS: Final = 2
CANCELLED_MAX: Final = 4096
#: The index is half a second behind; where it is not there, or far behind, time alone decides.
INDEX_PATIENCE_NS: Final = 1_500_000_000
TRACE_AGAIN_NS: Final = 100_000_000
#: A disk may be full for long: who has waited so long for what needs room there is refused.
ROOM_PATIENCE_NS: Final = 1_000_000_000
_HOST: Final = bytes([127, 0, 0, 1]) + bytes(4)


@dataclass(slots=True)
class _Peer:
    session: Session
    lane: ControlLane
    asked: list[_Asked] = field(default_factory=list)
    told: deque[Recalled] = field(default_factory=deque)  # what has found no room yet

    @property
    def is_full(self) -> bool:
        """Whether its next requests stay in its ring."""
        return bool(self.told) or len(self.asked) >= ASKED_MAX


@dataclass(slots=True, eq=False)
class _Asked:
    """A request that is being worked on."""

    session: int
    request: Recall
    handle: schedulerwire.Handle
    until: int  # units of the queue that have to be read before it is unknown
    target: int = -1
    end: int = -1  # what it is told counts once the log is sure up to here
    found: str = ""  # what is known of one that is not recalled, but may not be sure yet
    #: What it has to wait for, if it does not wait itself: copies put, where the log ended, until
    #: when for the index, and when to look there again.
    put_seq: int = -1
    appended: int = -1
    patience_ns: int = 0
    again_ns: int = 0
    since_ns: int = -1  # when it was looked at first
    #: What of its bucket was read, and what of it bears the handle; looks into memory, and what
    #: there bore it; the trace that goes on.
    places: dict[str, Looked] = field(default_factory=dict)
    named: Entries = field(default_factory=lambda: np.zeros(0, ENTRY))
    memory_looks: int = 0
    saw_what_came: bool = False
    remembered: Entries = field(default_factory=lambda: np.zeros(0, ENTRY))
    trace: Generator[None, None, tuple[int, int] | str | None] | None = None


class RecallDesk:
    """Sessions with a lane to the scheduler, and their requests."""

    def __init__(
        self,
        sessions: SessionTable,
        trace: RecallTrace,
        outlet: Outlet,
        delivery: Delivery,
        timers: Timers,
        hand: InHand,
    ) -> None:
        self._board = trace.board
        self._table = sessions
        self._trace = trace
        self._outlet = outlet
        self._delivery = delivery
        self._timers = timers
        self._hand = hand
        self._looks = self._reads = self._traces = 0  # that are left in this cycle
        self._has_room = True  # on the disk
        self._peers: dict[int, _Peer] = {}  # whose turn it is comes first
        self._flying: dict[int, _Asked] = {}  # by target
        self._flying_handles: set[schedulerwire.Handle] = set()
        self._cancelled: dict[schedulerwire.Handle, int] = {}  # lately: ends of their records
        self._appended = -1  # where the log ended before the first recall without an answer
        self._begun = -1  # units of the queue in the log when this desk began to serve

    # ----------------------------------------------------------------------------------- sessions

    def attach(self, session: Session) -> None:
        """Serve a session from now on."""
        lane = ControlLane(session.arena, session.plan.scheduler, End.AGENT)
        peer = self._peers[session.session] = _Peer(session, lane)
        if self._hand.is_condemned(session.session):
            self._set_aside(peer, 0)

    def detach(self, session: int) -> None:
        """It has ended, and with it what it has asked for, but for recalls that have gone up."""
        self._peers.pop(session, None)

    def serve(self, now_ms: int, now_ns: int, *, has_room: bool = True) -> int:
        """Take requests, work on them, answer; how much was done.

        `has_room`: buckets have found room on the disk.
        """
        self._has_room = has_room and not self._delivery.waits_again
        if self._begun < 0 <= self._timers.queue:
            self._begun = self._timers.written()
        self._looks, self._reads, self._traces = LOOKS_MAX, READS_MAX, TRACES_MAX
        done = 0
        for number, peer in enumerate(list(self._peers.values()), 1):
            done += self._take(peer) + self._work(peer, now_ms, now_ns)
            if min(self._looks, self._reads, self._traces) <= 0:
                pass_turn(self._peers, number)
                break
        return done + sum(self._tell(peer) for peer in list(self._peers.values()) if peer.told)

    def _take(self, peer: _Peer) -> int:
        count = 0
        try:
            while not peer.is_full and self._looks > 0 and (body := peer.lane.take()) is not None:
                if peer.lane.publish_taken():  # whoever asked repeats what was not answered
                    peer.session.bell.ring()
                self._looks -= 1
                count += 1
                self._decode(peer, body)
        except (BrokenLane, msgspec.DecodeError) as error:
            self._cut_off(peer, f"scheduler lane: {error}")
        return count

    def _cut_off(self, peer: _Peer, why: str) -> None:
        self._table.cut_off(peer.session.session, why)
        self._peers.pop(peer.session.session, None)

    def _set_aside(self, peer: _Peer, serial: int) -> None:
        """Refuse a request that has ended schedulers, and end its session."""
        session = peer.session.session
        why = self._hand.set_aside(self._table, session, serial, Recall.__name__)
        peer.told.append(Recalled(serial, "", schedulerwire.REFUSED))
        self._tell(peer)
        if session in self._peers:
            self._cut_off(peer, why)

    def _decode(self, peer: _Peer, body: bytes) -> None:
        try:
            request = schedulerwire.decode_request(body)
        except Misfit as misfit:
            peer.told.append(Recalled(misfit.serial, "", schedulerwire.REFUSED))
            return
        if self._hand.is_poison(peer.session.session, request.serial):
            peer.asked.clear()
            self._set_aside(peer, request.serial)
            return
        self._hand.take(peer.session.session, request.serial)
        self._hear(peer, request)
        self._hand.drop()

    def _hear(self, peer: _Peer, request: Recall) -> None:
        try:
            handle = schedulerwire.parse_handle(request.handle)
        except ValueError:
            peer.told.append(Recalled(request.serial, UNKNOWN_HANDLE))
            return
        if handle.topic != request.topic:
            peer.told.append(Recalled(request.serial, UNKNOWN_HANDLE))
            return
        session = peer.session.session
        peer.asked.append(_Asked(session, request, handle, self._timers.written()))

    # ----------------------------------------------------------------------------------- deciding

    def _work(self, peer: _Peer, now_ms: int, now_ns: int) -> int:
        """Look at what a session has asked, as far as it goes in this cycle."""
        done = 0
        for asked in list(peer.asked):
            if self._looks <= 0:
                break
            self._looks -= 1
            self._hand.take(asked.session, asked.request.serial)
            done += self._look_at(asked, now_ms, now_ns)
            self._hand.drop()
        return done

    def _look_at(self, asked: _Asked, now_ms: int, now_ns: int) -> int:
        if asked.end >= 0:
            return self._answer_when_sure(asked)
        if asked.target >= 0:
            return 0
        if asked.since_ns < 0:
            asked.since_ns = now_ns
        return self._look_for(asked, now_ms, now_ns)

    def _look_for(self, asked: _Asked, now_ms: int, now_ns: int) -> int:
        handle = asked.handle
        if asked.found:
            return self._make_sure(asked, now_ns)
        if self._is_too_early(asked):
            return self._refuse_without_room(asked, now_ns)
        if handle in self._cancelled:
            asked.end = self._cancelled[handle]
            return 1
        if handle in self._flying_handles:
            return 0  # somebody else has asked: wait for what becomes of it
        is_all = self._read_on(asked)
        self._look_at_what_came(asked)
        waiting = self._timers.that_wait(asked.named, asked.remembered, handle.due_ms)
        for position, ms, is_recall in waiting:
            if is_recall:
                asked.end = self._board.word(layout.BOARD_APPENDED)  # it may not be durable
                return 1
            return self._recall(asked, position, ms)
        return self._look_further(asked, now_ms, now_ns) if is_all else 1

    def _look_further(self, asked: _Asked, now_ms: int, now_ns: int) -> int:
        """It waits nowhere by now: look what else there is, once all that counts is known."""
        if not self._timers.has_read(asked.until) or not self._has_landed(asked, now_ns):
            return self._refuse_without_room(asked, now_ns)
        if asked.memory_looks < MEMORY_LOOKS:
            return self._look_into_memory(asked)
        return self._look_back(asked, now_ms, now_ns)

    def _read_on(self, asked: _Asked) -> bool:
        """Read what is new of its bucket; whether that was all.

        A request that waits reads nothing twice: neither the bucket nor memory. As long as what it
        names may be among units that come into the bucket, it does not look far back there.
        """
        handle, places = asked.handle, asked.places
        if not self._timers.buckets.has_all(places):  # done with: what was named there is, too
            places.clear()
            asked.named, asked.memory_looks = asked.named[:0], 0
        if self._reads <= 0:
            return False
        before = places.copy()
        comes = self._has_room and self._timers.is_reading
        back = not comes or self._timers.has_read(asked.until)
        found, is_all = self._timers.look_on(handle.due_ms, _hash_of(handle), places, back=back)
        self._reads -= places != before
        asked.named = joined(asked.named, self._that_bear(asked.handle, found))
        if is_all and not asked.memory_looks:
            self._look_into_memory(asked)
        return is_all

    def _look_at_what_came(self, asked: _Asked) -> None:
        """Once, as soon as what it may name is in memory: with many others it is filed later."""
        if not asked.saw_what_came and self._reads > 0 and self._timers.knows(asked.until):
            asked.saw_what_came = True
            self._remember(asked)

    def _look_into_memory(self, asked: _Asked) -> int:
        """What is there may be due at another time than the handle says."""
        asked.memory_looks += 1
        self._remember(asked)
        return 1

    def _remember(self, asked: _Asked) -> None:
        self._reads -= 1
        found = self._timers.in_memory(_hash_of(asked.handle))
        fresh = self._that_bear(asked.handle, found)
        asked.remembered = joined(asked.remembered, fresh)

    def _that_bear(self, handle: schedulerwire.Handle, found: Entries) -> Entries:
        """Which of these entries, told apart by a hash so far, bear a handle."""
        rows = []
        for number, (position, is_recall) in enumerate(self._timers.places_of(found)):
            record = self._delivery.record(position)
            if record is not None and names_target(record, handle, is_recall=is_recall):
                rows.append(number)
        return found[rows]

    def _is_too_early(self, asked: _Asked) -> bool:
        """Whether it may name another record in a moment, or be recalled by one that is unread."""
        if self._timers.is_moving:
            asked.until = self._timers.written()
            asked.memory_looks, asked.saw_what_came = 0, False
            return True
        return not self._timers.has_read(self._begun)

    def _refuse_without_room(self, asked: _Asked, now_ns: int) -> int:
        """What it waits for may be read, or land, as soon as there is room: nobody knows when."""
        if self._has_room or now_ns - asked.since_ns < ROOM_PATIENCE_NS:
            return 0
        return self._close(asked, "", Status.DISK_FULL.name)

    def _has_landed(self, asked: _Asked, now_ns: int) -> bool:
        """Whether all that had gone up is in the log."""
        if asked.appended < 0:
            if asked.put_seq < 0:
                asked.put_seq = self._delivery.put_seq
            if self._delivery.answered_seq < asked.put_seq:
                return False
            asked.appended = self._board.word(layout.BOARD_APPENDED)
            asked.patience_ns = now_ns + INDEX_PATIENCE_NS
        return True

    def _decide(self, asked: _Asked, found: str) -> int:
        """It is not recalled; what was found may have gone up while it was looked for."""
        asked.found, asked.put_seq, asked.appended = found, -1, -1
        return 1

    def _make_sure(self, asked: _Asked, now_ns: int) -> int:
        """Wait until all that has gone up is in the log, then for that to count in its topic."""
        if not self._has_landed(asked, now_ns):
            return self._refuse_without_room(asked, now_ns)
        asked.end = asked.appended
        return 1

    def _look_back(self, asked: _Asked, now_ms: int, now_ns: int) -> int:
        if now_ns < asked.again_ns or self._traces <= 0:
            return 0
        self._traces -= 1
        asked.trace = asked.trace or self._follow(asked)
        try:
            next(asked.trace)
            return 1
        except StopIteration as end:
            outcome, asked.trace = end.value, None
        if isinstance(outcome, tuple):
            return self._recall(asked, *outcome)
        if outcome is not None:
            return self._decide(asked, outcome)
        asked.again_ns = now_ns + TRACE_AGAIN_NS
        if self._trace.has_index:  # it tells, once it is up to date
            behind = schedulerwire.INDEX_BEHIND
            return self._close(asked, "", behind) if now_ns >= asked.patience_ns else 0
        late = asked.handle.due_ms <= now_ms
        return self._decide(asked, ALREADY_DELIVERED if late else UNKNOWN_HANDLE)

    def _follow(self, asked: _Asked) -> Generator[None, None, tuple[int, int] | str | None]:
        """What became of a message, or position and ms of a timer that still waits; in steps."""
        outcome = yield from self._trace.begin(asked.handle, asked.appended)
        if not isinstance(outcome, int):
            return outcome
        ms = yield from self._timers.seek(outcome)
        # Delivered as soon as it can be: its topic is not there.
        return ALREADY_DELIVERED if ms is None else (outcome, ms)

    def _recall(self, asked: _Asked, position: int, ms: int) -> int:
        """DT-72, as it comes to stand in the log of a RocketMQ; in its target's bucket, at `ms`."""
        handle = asked.handle
        deliver_ms = handle.due_ms if are_together(handle.due_ms, ms) else ms
        properties = encode_properties(
            {
                "UNIQ_KEY": handle.unique,
                "TAGS": RECALL_TAG,
                "TIMER_DEL_UNIQKEY": f"{handle.topic}+{handle.unique}",
                "TIMER_DELIVER_MS": str(deliver_ms),
                "TIMER_OUT_MS": str(handle.due_ms - 1),
                "REAL_TOPIC": handle.topic,
                "REAL_QID": "0",
            }
        )
        slot = self._board.half(self._board.queue_at(self._timers.queue) + layout.QUEUE_TOPIC)
        born = max(0, self._board.word(layout.BOARD_STORE_MS))
        copy = Copy(slot, 0, b"0", properties, position, 0, 0, born, _HOST, _HOST, 0)
        appended = self._board.word(layout.BOARD_APPENDED)
        if not self._outlet.put(copy, asked):
            return 0
        if not self._flying:
            self._appended = appended
        asked.target = position
        self._flying[position] = asked
        self._flying_handles.add(handle)
        self._timers.hold(position)
        return 1

    def _close(self, asked: _Asked, outcome: str, refusal: str = "") -> int:
        peer = self._peers.get(asked.session)
        if peer is not None and asked in peer.asked:
            peer.asked.remove(asked)
            peer.told.append(Recalled(asked.request.serial, outcome, refusal))
        return 1

    def _answer_when_sure(self, asked: _Asked) -> int:
        sure = self._is_sure(asked.handle.topic, asked.end)
        return self._close(asked, asked.found or CANCELLED) if sure else 0

    def _is_sure(self, name: str, end: int) -> bool:
        """Whether what is below a position of the log counts in a topic of that name."""
        if self._board.word(layout.BOARD_DURABLE) >= end:
            return True
        topic = self._board.topic_named(name)
        return topic is None or topic.level != Level.DURABLE

    # ------------------------------------------------------------------------------------ outcomes

    @property
    def unsure_from(self) -> int:
        """Log position from which on recalls without an answer may be; -1 if there are none."""
        return self._appended if self._flying else -1

    @property
    def flying(self) -> int:
        """Recalls without an answer of the writer."""
        return len(self._flying)

    def answered(self, outcome: Outcome) -> None:
        """A recall record is in the log, or was refused."""
        asked = outcome.tag
        assert isinstance(asked, _Asked), "nothing else goes up by this way"
        self._flying.pop(asked.target, None)
        self._flying_handles.discard(asked.handle)
        if outcome.status <= Status.DUPLICATE:
            self._cancel(asked, outcome.end)
            return
        self._timers.let_go(asked.target)
        self._close(asked, "", Status(outcome.status).name)

    def lost(self, found: set[int]) -> None:
        """The writer was replaced: targets in `found` have their recall in the log."""
        flying, self._flying = self._flying, {}
        self._flying_handles.clear()
        for target, asked in flying.items():
            if target in found:
                self._cancel(asked, self._board.word(layout.BOARD_APPENDED))
            else:
                self._timers.let_go(target)
                asked.target = -1

    def _cancel(self, asked: _Asked, end: int) -> None:
        asked.end = end
        self._timers.give_up(asked.target)
        self._cancelled[asked.handle] = end
        if len(self._cancelled) > CANCELLED_MAX:  # by now they are found in their buckets
            del self._cancelled[next(iter(self._cancelled))]

    def _tell(self, peer: _Peer) -> int:
        told = 0
        try:
            while peer.told and peer.lane.put(schedulerwire.encode(peer.told[0])):
                peer.told.popleft()
                told += 1
                if peer.lane.wants_bell:
                    peer.session.bell.ring()
        except BrokenLane as error:
            self._cut_off(peer, f"scheduler lane: {error}")
        return told

    # ------------------------------------------------------------------------------------ sleeping

    def arm(self) -> bool:
        """Go to sleep unless a session has asked something since that is taken now."""
        heard = (peer for peer in self._peers.values() if not peer.is_full)
        return all(peer.lane.arm(AgentState.ARMED) for peer in heard)

    @property
    def waits(self) -> bool:
        """Whether a request waits for what rings no bell."""
        return any(peer.asked or peer.told for peer in self._peers.values())

    def disarm(self) -> None:
        """Awake."""
        for peer in self._peers.values():
            peer.lane.disarm()


def _hash_of(handle: schedulerwire.Handle) -> int:
    return java_hash(handle.unique) & 0xFFFFFFFF
