"""Sessions with a lane to the txn-checker: what they ask and are told, whose group they are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from shm import transactionwire as wire
from shm.codes import AgentState
from shm.controllane import BrokenLane, ControlLane, End
from shm.errors import Incompatible
from shm.kernels.endanswers import tell_ends
from shm.kernels.ends import BODY_ROOM
from shm.lookout import Lookout
from shm.transactionwire import AnyNotice, AnyRequest

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from workers.session import Session, SessionTable

    Words = NDArray[np.int64]

#: Requests of one session that are taken at one time.
REQUESTS_MAX: Final = 256
#: Among more sessions none is waited for alone: all their lanes are looked at meanwhile.
LONE_AMONG: Final = 32


@dataclass(slots=True)
class Peer:
    """A session; `told` waits for room in its ring."""

    session: Session
    lane: ControlLane
    group: str = ""
    told: list[AnyNotice] = field(default_factory=list)


class Desk:
    """Lanes of all sessions that have one with the txn-checker."""

    def __init__(self, sessions: SessionTable) -> None:
        self._table = sessions
        self._peers: dict[int, Peer] = {}
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
        self._peers[session.session] = Peer(session, lane)

    def detach(self, session: int) -> None:
        """It has ended; what it has asked for is done all the same."""
        peer = self._peers.pop(session, None)
        self._active.pop(session, None)
        if peer is not None and peer.group:
            self._leave(session, peer.group)

    def _leave(self, session: int, group: str) -> None:
        members = self._members[group]
        members.remove(session)
        if not members:
            del self._members[group]

    def enlist(self, session: int, group: str) -> None:
        """The session answers checks of a producer group."""
        peer = self._peers.get(session)
        if peer is None or peer.group == group:
            return
        if peer.group:
            self._leave(session, peer.group)
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
        return [peer for peer in self._peers.values() if not peer.told]

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

    def requests(self) -> Iterator[tuple[int, AnyRequest]]:
        """What sessions ask; one whose answers find no room is not listened to."""
        for peer in list(self._peers.values()):
            if peer.told:
                continue
            number, lane = peer.session.session, peer.lane
            try:
                for _ in range(REQUESTS_MAX):
                    body = lane.take()
                    if body is None:
                        break
                    if lane.publish_taken():  # whoever asked repeats what was not answered
                        peer.session.bell.ring()
                    self._note_active(peer)
                    yield number, wire.decode_request(body)
            except (BrokenLane, msgspec.DecodeError) as error:
                self._cut_off(peer, error)

    def note(self, level: str, event: str, **fields: object) -> None:
        """A line of the broker's log."""
        self._table.note(level, event, **fields)

    def tell(self, session: int, notice: AnyNotice) -> bool:
        """Tell a session something, now or when it has room; False if it is gone."""
        peer = self._peers.get(session)
        if peer is None:
            return False
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
                del peer.told[0]
                told += 1
        return told

    def _put(self, peer: Peer, notice: AnyNotice) -> bool:
        lane = peer.lane
        try:
            done = lane.put(wire.encode(notice))
        except (BrokenLane, Incompatible) as error:
            self._cut_off(peer, error)
            return False
        if done and lane.wants_bell:
            peer.session.bell.ring()
        return done

    def _cut_off(self, peer: Peer, error: Exception) -> None:
        number = peer.session.session
        if number in self._peers:
            self.refused += 1
            self.detach(number)
            self._table.cut_off(number, f"transactions lane: {error}")

    # ------------------------------------------------------------------------------------ sleeping

    @property
    def lone(self) -> Peer | None:
        """The only session that asks, if no other one does."""
        if len(self._active) != 1 or len(self._peers) > LONE_AMONG:
            return None
        (peer,) = self._active.values()
        return None if peer.told else peer

    def watch(self, lookout: Lookout) -> None:
        """Look out for the next request of a lone session."""
        if len(self._active) == 1:
            for peer in self._active.values():
                lookout.add(peer.lane.tail_address, peer.lane.seen)

    @property
    def only_asking(self) -> Peer | None:
        """The session that has asked something that was not taken, if there is just one."""
        asking = [peer for peer in self._peers.values() if peer.lane.has_more]
        return asking[0] if len(asking) == 1 and not asking[0].told else None

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
        """Whether answers wait for room, which rings no bell."""
        return any(peer.told for peer in self._peers.values())

    def arm(self) -> bool:
        """Go to sleep unless a session has asked something since."""
        return all(peer.lane.arm(AgentState.ARMED) for peer in self._peers.values())

    def disarm(self) -> None:
        """Awake."""
        for peer in self._peers.values():
            peer.lane.disarm()
