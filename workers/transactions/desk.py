"""Sessions with a lane to the txn-checker: what they ask and are told, whose group they are.

They are listened to in turn: who was heard last comes last, so that none waits for what others ask.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from gantrymq.shm import transactionwire as wire
from gantrymq.shm.codes import AgentState
from gantrymq.shm.controllane import BrokenLane, ControlLane, End
from gantrymq.shm.errors import Incompatible
from gantrymq.shm.kernels.endanswers import tell_ends
from gantrymq.shm.kernels.ends import BODY_ROOM
from gantrymq.shm.lookout import Lookout
from gantrymq.shm.packed import Misfit
from gantrymq.shm.transactionwire import AnyNotice, AnyRequest
from gantrymq.workers.session import pass_turn

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gantrymq.workers.inhand import InHand
    from gantrymq.workers.session import Session, SessionTable

    Words = NDArray[np.int64]

#: What requests of one session may cost at one time, as `cost_of` says.
REQUESTS_MAX: Final = 16
#: What an END costs beside the halves that it names, and what an operator's settlement does: that
#: reads the log's end, and records. A unit is the work for a half, 20 to 60 µs.
END_COST: Final = 2
SETTLE_COST: Final = 16
#: Requests of one session without an answer; its others wait in its ring.
UNANSWERED_MAX: Final = 1024
#: Requests of one session that wait for what is found in old records, which takes long.
SEARCHES_MAX: Final = 8
#: How much of a fault a session is told.
TEXT_CHARACTERS: Final = 300
#: Among more sessions none is waited for alone: all their lanes are looked at meanwhile.
LONE_AMONG: Final = 32


@dataclass(slots=True)
class Peer:
    """A session; `told` waits for room in its ring."""

    session: Session
    lane: ControlLane
    group: str = ""
    told: deque[AnyNotice] = field(default_factory=deque)
    unanswered: int = 0
    searches: int = 0  # for it that are going on

    @property
    def is_heard(self) -> bool:
        """Whether its next request is taken; else it waits in its ring."""
        free = self.unanswered < UNANSWERED_MAX and self.searches < SEARCHES_MAX
        return free and not self.told


def cost_of(request: AnyRequest) -> int:
    """What it costs to carry a request out, as far as it says so itself."""
    match request:
        case wire.End():
            return END_COST + len(request.halves)
        case wire.Settle():
            return SETTLE_COST
        case _:
            return 1


class Desk:
    """Lanes of all sessions that have one with the txn-checker."""

    def __init__(self, sessions: SessionTable, hand: InHand) -> None:
        self._table = sessions
        self.hand = self._hand = hand
        self._peers: dict[int, Peer] = {}  # whose turn it is comes first
        self._members: dict[str, list[int]] = {}  # producer group -> sessions that are enlisted
        self._active: dict[int, Peer] = {}  # who asked in the last cycle in which anybody did
        self._fresh = True
        self._turn = 0
        self._text = np.zeros(BODY_ROOM, np.uint8)
        self.refused = 0

    # ----------------------------------------------------------------------------------- sessions

    def attach(self, session: Session) -> None:
        """Serve a session from now on."""
        lane = ControlLane(session.arena, session.plan.transactions, End.AGENT)
        peer = self._peers[session.session] = Peer(session, lane)
        if self._hand.is_condemned(session.session):
            self._set_aside(peer, None)

    def detach(self, session: int) -> None:
        """It has ended; what it has asked for and was decided is done all the same."""
        peer = self._peers.pop(session, None)
        self._active.pop(session, None)
        if peer is not None:
            self._leave(peer)

    def _leave(self, peer: Peer) -> None:
        if peer.group:
            members = self._members[peer.group]
            members.remove(peer.session.session)
            if not members:
                del self._members[peer.group]

    def enlist(self, session: int, group: str) -> None:
        """The session answers checks of a producer group."""
        peer = self._peers.get(session)
        if peer is None or peer.group == group:
            return
        self._leave(peer)
        peer.group = group
        self._members.setdefault(group, []).append(session)

    def member(self, group: str) -> int:
        """A live session of a producer group, in turn; -1: there is none."""
        members = self._members.get(group)
        if not members:
            return -1
        self._turn += 1
        return members[self._turn % len(members)]

    def has_member(self, group: str) -> bool:
        """Whether a producer group has a live session."""
        return bool(self._members.get(group))

    # ----------------------------------------------------------------------------------- requests

    def asking(self) -> list[Peer]:
        """Sessions that are listened to; `heard` says that one has asked something."""
        return [peer for peer in self._peers.values() if peer.is_heard]

    def heard(self, peer: Peer) -> None:
        """A kernel has taken requests of a session: whoever asked repeats what was not answered."""
        self._note_active(peer)
        if peer.lane.publish_taken():
            peer.session.bell.ring()

    def begin(self) -> None:
        """Whoever asks from now on asks in this cycle."""
        self._fresh = True

    def _note_active(self, peer: Peer) -> None:
        if self._fresh:
            self._active, self._fresh = {}, False
        self._active[peer.session.session] = peer

    def tell_ends(self, session: int, rows: Words, count: int) -> int:
        """Answer a session's rows of `shm.kernels.ends` as far as it has room; how far that was."""
        peer = self._peers.get(session)
        if peer is None:
            return count
        if peer.told:
            return 0
        lane = peer.lane
        told = int(tell_ends(rows, count, session, lane.arena, lane.words, self._text))
        if lane.wants_ring:
            peer.session.bell.ring()
        return told

    def requests(self) -> Generator[tuple[int, AnyRequest]]:
        """What sessions ask; one whose answers find no room is not listened to."""
        for served, peer in enumerate(list(self._peers.values()), 1):
            try:
                for request in self._requests_of(peer):
                    yield peer.session.session, request
                    if peer.session.session not in self._peers:
                        break
            except GeneratorExit:
                pass_turn(self._peers, served)
                raise
            except (BrokenLane, msgspec.DecodeError) as error:
                self._cut_off(peer, f"transactions lane: {error}")

    def _requests_of(self, peer: Peer) -> Iterator[AnyRequest]:
        lane, session, spent = peer.lane, peer.session.session, 0
        while spent < REQUESTS_MAX:
            body = lane.take() if peer.is_heard else None
            if body is None:
                return
            if lane.publish_taken():  # whoever asked repeats what was not answered
                peer.session.bell.ring()
            self._note_active(peer)
            try:
                request = wire.decode_request(body)
            except Misfit as misfit:
                self._refuse(peer, misfit.kind, misfit.serial, misfit.text)
                spent += 1
                continue
            if self._hand.is_poison(session, request.serial):
                self._set_aside(peer, request)
                return
            peer.unanswered += not isinstance(request, wire.Unknown)
            spent += cost_of(request)
            yield request

    def _refuse(self, peer: Peer, kind: str, serial: int, text: str) -> None:
        """Answer a request that nobody carries out, if its kind has an answer."""
        self.refused += 1
        text = text[:TEXT_CHARACTERS]
        if kind == wire.End.__name__:
            self.tell(peer.session.session, wire.Ended(serial, "", wire.REFUSED, text))
        elif kind == wire.Settle.__name__:
            self.tell(peer.session.session, wire.Settled(serial, "", wire.REFUSED, text))
        else:
            self._cut_off(peer, text)

    def _set_aside(self, peer: Peer, request: AnyRequest | None) -> None:
        """Refuse a request that has ended txn-checkers, and end its session."""
        what, serial = (type(request).__name__, request.serial) if request else ("a request", 0)
        why = self._hand.set_aside(self._table, peer.session.session, serial, what)
        self._refuse(peer, what, serial, why)
        self._cut_off(peer, why)

    def search_for(self, session: int, more: int) -> bool:
        """Count searches for a session that have begun, or ended; False if it is gone."""
        peer = self._peers.get(session)
        if peer is not None:
            peer.searches += more
        return peer is not None

    def note(self, level: str, event: str, **fields: object) -> None:
        """A line of the broker's log."""
        self._table.note(level, event, **fields)

    def tell(self, session: int, notice: AnyNotice) -> bool:
        """Tell a session something, now or when it has room; False if it is gone."""
        peer = self._peers.get(session)
        if peer is None:
            return False
        peer.unanswered = max(0, peer.unanswered - 1)  # those that kernels took were not counted
        if peer.told or not self._put(peer, notice):
            peer.told.append(notice)
        return True

    def ask(self, session: int, check: wire.Check) -> bool:
        """Send a check if there is room for it."""
        peer = self._peers.get(session)
        return peer is not None and not peer.told and self._put(peer, check)

    def tell_on(self) -> int:
        """Tell what found no room before; how much."""
        told = 0
        for peer in list(self._peers.values()):
            while peer.told and self._put(peer, peer.told[0]):
                peer.told.popleft()
                told += 1
        return told

    def _put(self, peer: Peer, notice: AnyNotice) -> bool:
        lane = peer.lane
        try:
            done = lane.put(wire.encode(notice))
        except (BrokenLane, Incompatible) as error:
            self._cut_off(peer, f"transactions lane: {error}")
            return False
        if done and lane.wants_bell:
            peer.session.bell.ring()
        return done

    def _cut_off(self, peer: Peer, why: str) -> None:
        number = peer.session.session
        if number in self._peers:
            self.refused += 1
            self.detach(number)
            self._table.cut_off(number, why)

    # ------------------------------------------------------------------------------------ sleeping

    @property
    def lone(self) -> Peer | None:
        """The only session that asks, if no other one does."""
        if len(self._active) != 1 or len(self._peers) > LONE_AMONG:
            return None
        (peer,) = self._active.values()
        return peer if peer.is_heard else None

    def watch(self, lookout: Lookout) -> None:
        """Look out for the next request of a lone session."""
        if len(self._active) == 1:
            for peer in self._active.values():
                lookout.add(peer.lane.tail_address, peer.lane.seen)

    @property
    def only_asking(self) -> Peer | None:
        """The session that has asked something that was not taken, if there is just one."""
        asking = [peer for peer in self._peers.values() if peer.lane.has_more]
        return asking[0] if len(asking) == 1 and asking[0].is_heard else None

    def watch_all(self, first: Peer, lookout: Lookout) -> None:
        """Look out for the next request of this one, and of anybody."""
        lookout.add(first.lane.tail_address, first.lane.seen)
        for peer in self._peers.values():
            if peer is not first:
                lookout.add(peer.lane.tail_address, peer.lane.seen)

    @property
    def is_asked(self) -> bool:
        """Whether a session has put something that was not taken."""
        return any(peer.lane.has_more for peer in self._peers.values())

    def forget_lone(self) -> None:
        """It asks nothing for now."""
        self._active = {}

    @property
    def waits(self) -> bool:
        """Whether a session is not heard: answers wait for room, say, which rings no bell."""
        return not all(peer.is_heard for peer in self._peers.values())

    def arm(self) -> bool:
        """Go to sleep unless a session has asked something since that is taken now."""
        heard = (peer for peer in self._peers.values() if peer.is_heard)
        return all(peer.lane.arm(AgentState.ARMED) for peer in heard)

    def disarm(self) -> None:
        """Awake."""
        for peer in self._peers.values():
            peer.lane.disarm()
