"""Whatever a client says, to the supervisor or to `groups`, harms nobody else (P12, F16)."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gantrymq.shm import groupwire, wire
from tests.support.door import Door, descriptors, opened
from tests.support.groups_rig import Hand, Rig
from tests.support.packed import NESTED, NOT_TEXT, spoiled, structures

_FRAMES = [kind for kind in wire.AnyFrame.__args__ if kind is not wire.StopBroker]
frames = st.one_of(
    st.binary(min_size=1, max_size=300), spoiled(st.one_of(*map(structures, _FRAMES)))
)
_NOTE = b"\x84\xa4type\xa4Note\xa5level\xa1a\xa5event\xa1b\xa6fields\x81\xa1x"


class Witness:
    """A door with a session that is attached all the time and must not notice anything."""

    def __init__(self, door: Door) -> None:
        self.door = door
        self.channel = door.connect()
        self.session = door.attach(self.channel, secret=b"w" * 10)
        self.descriptors = descriptors()
        roster = door.supervisor.desk.roster
        roster.joined({"group": "calm", "session": self.session.session})
        self.members = roster.page("calm", 0)
        assert [member.pid for member in self.members.members] == [os.getpid()]

    def topics(self) -> list[object]:
        return list(self.door.board.topics())

    def require_calm(self) -> None:
        answer = self.door.ask(self.channel, wire.ShowMembers("calm"))
        assert answer is not None
        assert (answer[0], answer[1]) == (self.members, [])
        assert self.door.sessions() == 1
        now = len(os.listdir("/proc/self/fd"))
        assert now <= self.descriptors  # fewer: what an earlier test had still open
        self.descriptors = now
        assert not self.door.supervisor.finished


@pytest.fixture(scope="module")
def witness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Witness]:
    with opened(tmp_path_factory.mktemp("door") / "home") as door:
        witness = Witness(door)
        yield witness
        witness.channel.close()


def answers(channel: socket.socket) -> list[wire.AnyFrame]:
    """All that has come, until nothing more does."""
    channel.setblocking(False)
    found = []
    try:
        while (received := wire.receive(channel)) is not None:
            found.append(received[0])
            for descriptor in received[1]:
                os.close(descriptor)
    except (BlockingIOError, ConnectionResetError):
        pass
    return found


@settings(max_examples=60, deadline=None)
@given(sent=st.lists(frames, min_size=1, max_size=4), greeted=st.booleans(), gifts=st.booleans())
@example(sent=[_NOTE + NESTED], greeted=True, gifts=False)
@example(sent=[b"\x82\xa4type\xa9OpenTopic\xa4name" + NOT_TEXT], greeted=True, gifts=True)
@example(sent=[b""], greeted=False, gifts=True)
def test_a_client_may_say_anything_to_the_supervisor(
    witness: Witness, sent: list[bytes], greeted: bool, gifts: bool
) -> None:
    """It is answered or cut off; sessions, topics and descriptors are as before."""
    door, topics = witness.door, witness.topics()
    with door.connect() as channel:
        if greeted:
            door.attach(channel)
        for data in sent:
            try:
                socket.send_fds(channel, [data], [0, 1, 2] if gifts else [])
            except (BrokenPipeError, ConnectionResetError):
                break
            door.turn()
        told = answers(channel)
    made = (wire.TopicOpened, wire.Done)
    assert witness.topics() == topics or any(isinstance(answer, made) for answer in told)
    witness.require_calm()


class Members:
    """`groups` with a member that goes on while another says anything."""

    def __init__(self) -> None:
        self.rig = Rig(orders=2)
        self.rig.fill(0, 1000)
        self.rig.fill(1, 1000)
        self.good = self.rig.attach()
        self.good.join("good")
        self.offset = 0

    def require_calm(self) -> None:
        self.offset += 1
        assert self.good.commit(q0=self.offset).lost == {}
        known = self.rig.agent.ledger.group("good").queue(("orders", 0))
        assert known.committed == self.offset
        assert self.rig.sessions.failures == []

    def hear(self, hand: Hand, body: bytes) -> bool:
        """Put a request; True if the session was cut off for it."""
        if not hand.lane.put(body[: hand.session.plan.groups.up_bytes // 2 - 16]):
            return True
        self.rig.settle()
        cut = [session for session, _why in self.rig.sessions.cut if session == hand.number]
        if not cut:
            hand.listen()
        return bool(cut)


@pytest.fixture(scope="module")
def members() -> Members:
    return Members()


requests = st.one_of(
    st.binary(min_size=1, max_size=200),
    spoiled(st.one_of(*map(structures, groupwire.AnyRequest.__args__))),
    st.builds(
        lambda *fields: groupwire.encode(groupwire.Join(*fields)),
        st.integers(0, 9),
        st.sampled_from(["g", "h", "\0" * 5000]),
        st.one_of(st.just([0]), st.just(list(range(200, 8200)))),
        st.integers(0, 3),
        st.dictionaries(st.integers(0, 3), st.integers(-(2**63), 2**63 - 1), max_size=3),
    ),
)


@settings(max_examples=60, deadline=None)
@given(sent=st.lists(requests, min_size=1, max_size=4), leases=st.integers(0, 5))
@example(sent=[b"\x92\xa5Leave" + NESTED], leases=0)
@example(sent=[b"\x94\xa4Join\x01" + NOT_TEXT + b"\x91\x00"], leases=0)
@example(sent=[groupwire.encode(groupwire.Join(1, "\0" * 20_000, [0]))], leases=0)
@example(sent=[groupwire.encode(groupwire.Commit(1, {0: 1}, {0: 2**64 - 1}))], leases=2)
@example(sent=[groupwire.encode(groupwire.Commit(1, {0: 1}, {}, {0: 2**64 - 1}))], leases=2)
def test_a_member_may_say_anything_to_groups(
    members: Members, sent: list[bytes], leases: int
) -> None:
    """It is answered or cut off; the other member's offsets and leases are as before."""
    hand = members.rig.attach()
    if leases:  # so that some of what it says is about its own
        hand.join("g")
        own = groupwire.Commit(3, hand.leases, dict.fromkeys(hand.leases, 2**62 + leases))
        sent = [*sent, groupwire.encode(own)]
    for body in sent:
        if members.hear(hand, body):
            break
    hand.die()
    members.require_calm()
