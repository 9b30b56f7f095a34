"""A member's memory of its leases, against the real groups agent."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from gantrymq.clients.member import GroupMember
from gantrymq.clients.push.broadcast import BroadcastMember, OffsetFile
from gantrymq.clients.push.handoff import Handoff
from gantrymq.clients.session import Session
from gantrymq.shm import groupwire, layout
from gantrymq.shm.groupwire import ConsumeFrom
from tests.support.faults import Fault, FaultPlan, KilledError, Moment
from tests.support.groups_rig import Hand, Rig
from tests.support.ledgers import compact
from tests.support.memory_sessions import QUEUES_PER_TOPIC, memory_session
from tests.support.simbell import SimBell
from tests.support.trials import mends


class InMemory:
    """What a member needs of its session; waiting lets the agent work instead of sleeping."""

    def __init__(self, rig: Rig, number: int) -> None:
        self.rig = rig
        self.is_open = True
        made = memory_session(number)
        self.inside = made
        self.arena, self.plan = made.arena, made.plan
        self.board = rig.board
        self.groups_bell = SimBell()
        self.store_id = "one"
        self.store = "/nowhere"  # no message is there to be looked at
        self.store_failed = False
        self.answer_by = 1 << 62
        rig.sessions.attach(made)

    def wait(self, deadline_ns: int, ready: Callable[[], bool]) -> bool:
        """As clients.session.Session."""
        for _ in range(100):
            if ready():
                return True
            self.rig.settle()
        return False


def member_of(rig: Rig) -> tuple[InMemory, GroupMember]:
    session = InMemory(rig, 100)
    member = GroupMember(session, "g", {0: "orders"})  # type: ignore[arg-type]
    member.join(ConsumeFrom.FIRST_OFFSET, {})
    return session, member


def test_a_lease_given_back_is_not_taken_up_again_when_groups_repeats_it() -> None:
    """`groups` dies with a `Released` in its hands that left the ring, as on a full disk."""
    rig = Rig(orders=2)
    session, member = member_of(rig)
    assert set(member.assigned) == {0, 1}
    other = rig.attach()
    other.join()
    member.listen()
    revoked = [a for a in member.assigned.values() if a.revoked]
    assert len(revoked) == 1
    lease, queue = revoked[0].lease, revoked[0].number
    member.release_finished()
    rig.agent.ledger.storage.faults = FaultPlan(  # type: ignore[attr-defined]
        [Fault(1, Moment.BEFORE, kinds=("write",))], random.Random(0)
    )
    try:
        rig.settle()
    except KilledError:
        pass
    else:
        raise AssertionError("the ledger was to be written")
    rig.agent._peers[session.inside.session].lane.publish_taken()
    rig.replace_agent()
    rig.sessions.attach(session.inside)
    rig.settle()
    heard: list[groupwire.AnyNotice] = []
    hear = member._hear

    def overhear(notice: groupwire.AnyNotice) -> None:
        heard.append(notice)
        hear(notice)

    member._hear = overhear  # type: ignore[method-assign]
    member.listen()
    other.listen()
    other.join()
    rig.settle()
    member.listen()
    rig.settle()
    granted = [n.lease for n in heard if isinstance(n, groupwire.Granted)]
    assert lease in granted, "the successor has repeated the old lease"
    assert queue not in member.assigned
    other.listen()
    assert queue in other.leases, "its Released was said again"
    assert other.leases[queue] != lease


@pytest.mark.parametrize("keeps_one", [False, True])
def test_a_commit_behind_a_release_means_its_offset_too(*, keeps_one: bool) -> None:
    """P5: `groups` dies with both in its hands; its successor has to find both, in their order."""
    rig = Rig(orders=2)
    rig.fill(0, 10)
    rig.fill(1, 10)
    session, member = member_of(rig)
    if not keeps_one:
        rig.attach().join(queues=[1])
        member.listen()
        member.release_finished()
        rig.settle()
    other = rig.attach()
    other.join(queues=[0])
    member.listen()
    released = member.assigned[0]
    assert released.revoked
    released.delivered = released.passed = released.begun = 7
    member.release_finished()
    assert set(member.assigned) == ({1} if keeps_one else set())
    rig.agent.ledger.storage.faults = FaultPlan([Fault(1, Moment.BEFORE, kinds=("write",))])  # type: ignore[attr-defined]
    wait = session.wait

    def outlived(deadline_ns: int, ready: Callable[[], bool]) -> bool:
        with pytest.raises(KilledError):
            rig.settle()
        session.wait = wait  # type: ignore[method-assign]
        rig.replace_agent()
        rig.sessions.attach(session.inside)
        rig.agent.ledger.storage.faults = FaultPlan([Fault(3, Moment.BEFORE, kinds=("write",))])  # type: ignore[attr-defined]
        return wait(deadline_ns, ready)

    session.wait = outlived  # type: ignore[method-assign]
    member.commit()
    rig.restart_broker()  # all that was not in the ledger's file is lost
    assert rig.agent.ledger.group("g").queue(("orders", 0)).committed == 7


def passes(member: GroupMember, **offsets: int) -> None:
    """The application has been handed, and is done with, all below, as `passes(q0=5)`."""
    for name, offset in offsets.items():
        assigned = member.assigned[int(name[1:])]
        assigned.position = assigned.delivered = assigned.passed = assigned.begun = offset


def joins_again(rig: Rig, before: GroupMember) -> GroupMember:
    """The same consumer's next session."""
    member = GroupMember(cast(Session, InMemory(rig, 101)), "g", {0: "orders"}, before.places())
    member.join(ConsumeFrom.FIRST_OFFSET, {})
    return member


def restarted() -> tuple[Rig, GroupMember]:
    """A broker's next life; a member of the last one had committed 3 and 3, and passed 7 and 3."""
    rig = Rig(orders=2)
    rig.fill(0, 10)
    rig.fill(1, 10)
    _session, member = member_of(rig)
    passes(member, q0=3, q1=3)
    member.commit()
    passes(member, q0=7)
    rig.restart_broker()
    return rig, member


@mends("S51")
def test_a_commit_after_a_restart_is_lost_where_another_has_the_queue() -> None:
    rig, before = restarted()
    other = rig.attach()
    other.join()
    member = joins_again(rig, before)
    assert not member.assigned
    for _ in range(2):
        member.commit()
        assert member.lost_commits == 1, "the other queue's had been told"
    other.listen()
    other.release_revoked()
    other.die()
    member.listen()
    assert {a.number: a.position for a in member.assigned.values()} == {0: 3, 1: 3}
    assert member.lost_commits == 1


@mends("S51")
@pytest.mark.parametrize("store_failed", [False, True])
def test_what_was_passed_before_a_restart_is_taken_up_but_for_a_store_that_failed(
    *, store_failed: bool
) -> None:
    rig, before = restarted()
    cast(InMemory, before.session).store_failed = store_failed
    member = joins_again(rig, before)
    member.commit()
    assert rig.agent.ledger.group("g").queue(("orders", 0)).committed == (3 if store_failed else 7)
    assert member.lost_commits == (1 if store_failed else 0)


@mends("S51")
def test_what_another_has_set_back_since_a_restart_comes_again() -> None:
    """Also below what had been committed, which is no lost commit."""
    rig, before = restarted()
    other = rig.attach()
    other.join()
    other.commit(q0=2, q1=1)
    other.die()
    member = joins_again(rig, before)
    assert {a.number: a.position for a in member.assigned.values()} == {0: 2, 1: 1}
    assert member.lost_commits == 1


@mends("S61")
@pytest.mark.parametrize("who", ["another member", "an operator"])
@pytest.mark.parametrize("compacts", [False, True])
@pytest.mark.parametrize("offset", [2, 3, 5])
def test_an_offset_that_was_set_since_counts_wherever_it_lies(
    who: str, offset: int, *, compacts: bool
) -> None:
    """The member before has passed 7, nothing of which is in the ledger, which began at 0."""
    rig = Rig(orders=1)
    rig.fill(0, 10)
    _session, before = member_of(rig)
    passes(before, q0=7)
    rig.restart_broker()
    other = rig.attach()
    if who == "another member":
        other.join()
        other.commit(q0=9)
        other.commit(q0=offset)
        other.die()
    else:
        other.say(groupwire.Reset(1, "g", {0: offset}))
        rig.settle()
    if compacts:
        compact(rig.agent.ledger)
    rig.restart_broker()
    member = joins_again(rig, before)
    assert member.assigned[0].position == offset
    passes(member, q0=8)
    rig.restart_broker()
    assert joins_again(rig, member).assigned[0].position == 8, "nobody has set it since"


def test_another_lease_that_set_nothing_back_takes_nothing_away() -> None:
    """As of who came first after the restart, and had to give the queue back."""
    rig, before = restarted()
    other = rig.attach()
    other.join()
    other.commit(q0=4)
    other.die()
    assert joins_again(rig, before).assigned[0].position == 7


@pytest.mark.parametrize(("handed_out", "begins"), [(6, 2), (0, 2), (8, 8)])
def test_a_seek_back_that_a_kill_kept_from_the_ledger_holds(handed_out: int, begins: int) -> None:
    """But not against another member that was handed more meanwhile."""
    rig, before = restarted()
    other = rig.attach()
    other.join()
    other.commit(q0=max(3, handed_out))
    other.die()
    before.assigned[0].move_to(2)
    member = joins_again(rig, before)
    assert member.assigned[0].position == begins
    member.commit()
    assert rig.agent.ledger.group("g").queue(("orders", 0)).committed == begins
    assert member.lost_commits == 0


@mends("S51")
def test_a_lease_that_follows_another_at_once_tells_what_that_one_has_lost() -> None:
    rig = Rig(orders=1)
    rig.fill(0, 10)
    _session, member = member_of(rig)
    passes(member, q0=7)
    member._hear(groupwire.Granted(0, member.assigned[0].lease + 1, 3, []))
    assert (member.assigned[0].position, member.lost_commits) == (3, 1)


@mends("R1")
def test_a_broadcasting_member_passes_over_nothing_that_a_power_cut_made_room_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unique_name: str
) -> None:
    """Its file is synced, the log was not; what was sent since stands at the same offsets."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    rig = Rig(orders=1)
    rig.fill(0, 300)
    assert begins(rig, unique_name, committed=210) == 300
    assert begins(rig, unique_name) == 210
    rig.fill(0, 10)
    rig.restart_broker()
    rig.fill(0, 310)
    assert begins(rig, unique_name, committed=250) == 10
    assert begins(rig, unique_name) == 250, "in the same life all ends are true"
    rig.fill(0, 20)
    rig.restart_broker()
    rig.fill(0, 400)
    assert begins(rig, unique_name) == 20


@mends("S211")
def test_offsets_of_topics_that_are_not_asked_for_are_compared_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unique_name: str
) -> None:
    """Else a member that asks for them later in this life passes over what was sent again."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    rig = Rig(orders=1, other=1)
    other = QUEUES_PER_TOPIC
    rig.fill(0, 300)
    rig.fill(other, 500)
    assert begins(rig, unique_name, 210) == 300
    assert begins(rig, unique_name, 480, topic="other") == 500
    rig.fill(other, 460)
    rig.restart_broker()
    assert begins(rig, unique_name, 210) == 210
    rig.fill(other, 600)
    assert begins(rig, unique_name, topic="other") == 460
    [path] = tmp_path.rglob("*.json")
    path.write_text(path.read_text().replace("other", "gone"))
    rig.restart_broker()
    assert begins(rig, unique_name, 210) == 210
    assert json.loads(path.read_text())["offsets"]["gone"] == {"0": 0}, "made again, it begins at 0"


def begins(rig: Rig, group: str, committed: int = -1, *, topic: str = "orders") -> int:
    """Where a member begins; it leaves its file with an offset that it has come to."""
    slot = rig.board.topic_named(topic)
    assert slot is not None, topic
    number = slot.queue_base
    file = OffsetFile("/nowhere", group, "i")
    try:
        session = cast(Session, InMemory(rig, rig.board.half(layout.BOARD_SESSION_COUNT) + 100))
        member = BroadcastMember(session, group, {slot.slot: topic}, Handoff(1), file)
        member.join(ConsumeFrom.LAST_OFFSET, {})
        begun = member.assigned[number].committed
        if committed >= 0:
            member.windows[number].committed = committed
            member.commit()
        return begun
    finally:
        file.close()


def _reset(_member: GroupMember, peer: Hand) -> None:
    peer.say(groupwire.Reset(1, "g", {0: 0, 1: 0}))


def _ask_in_vain(member: GroupMember, peer: Hand) -> None:
    peer.join()
    member.listen()
    assert any(assigned.revoked for assigned in member.assigned.values())
    peer.die()


def _choose_nothing_for_a_while(member: GroupMember, _peer: Hand) -> None:
    member.join(ConsumeFrom.FIRST_OFFSET, {}, [])
    _give_back(member)
    member.join(ConsumeFrom.FIRST_OFFSET, {})


def _get_one(member: GroupMember, peer: Hand) -> None:
    peer.join()
    _give_back(member)
    peer.rig.settle()
    peer.listen()
    assert len(peer.granted) == len(member.assigned) == 1
    peer.die()


def _give_back(member: GroupMember) -> None:
    member.listen()
    member.release_finished()


@mends("S83")
@pytest.mark.parametrize(
    ("meanwhile", "left"),
    [(_reset, 2), (_ask_in_vain, 2), (_choose_nothing_for_a_while, 2), (_get_one, 1)],
)
def test_a_pause_ends_where_another_member_has_had_the_queue_and_only_there(
    meanwhile: Callable[[GroupMember, Hand], None], left: int
) -> None:
    rig = Rig(orders=2)
    _session, member = member_of(rig)
    before = {a.number: a.lease for a in member.assigned.values()}
    member.paused.update({a.queue: a.lease for a in member.assigned.values()})
    member.apply_pauses()
    meanwhile(member, rig.attach())
    _give_back(member)
    rig.settle()
    member.listen()
    assert {0, 1} == set(member.assigned)
    assert any(member.assigned[number].lease != lease for number, lease in before.items())
    assert sum(assigned.paused for assigned in member.assigned.values()) == left
