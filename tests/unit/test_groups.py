"""The groups agent: members, leases, offsets, and what a death leaves."""

from __future__ import annotations

import pytest

from gantrymq.shm import groupwire, layout
from gantrymq.shm.properties import HIDDEN_TOPICS
from gantrymq.workers.groups.missing import MISSING_NS
from tests.support.groups_rig import Rig, only
from tests.support.trials import mends

ALL = {0, 1, 2, 3}


def test_the_only_member_gets_every_queue_once() -> None:
    rig = Rig(orders=4)
    hand = rig.attach()
    heard = hand.join()
    assert isinstance(heard[-1], groupwire.Joined), "it comes behind what was granted at once"
    assert set(hand.leases) == ALL
    assert len(set(hand.leases.values())) == 4


def test_a_queue_goes_to_the_newcomer_only_after_its_holder_released_it() -> None:
    rig = Rig(orders=4)
    first, second = rig.attach(), rig.attach()
    first.join()
    second.join()
    first.listen()
    assert second.leases == {}
    assert len(first.revoked) == 2
    moving = set(first.revoked)
    first.release_revoked()
    second.listen()
    assert set(second.leases) == moving
    assert set(first.leases) == ALL - moving


def test_the_dead_holders_queues_go_to_the_living() -> None:
    rig = Rig(orders=4)
    first, second = rig.attach(), rig.attach()
    first.join()
    second.join()
    first.die()
    second.listen()
    assert set(second.leases) == ALL


def test_what_a_dead_session_had_started_counts_as_an_attempt() -> None:
    rig = Rig(orders=1)
    rig.fill(0, 10)
    for _ in range(2):
        hand = rig.attach()
        hand.join()
        hand.start(q0=5)
        hand.commit(q0=2)
        hand.die()
    last = rig.attach()
    last.join()
    assert last.granted[0].offset == 2
    assert last.granted[0].attempts == [(2, 5, 2)]


def test_a_commit_after_the_lease_is_over_is_refused_and_counted() -> None:
    rig = Rig(orders=1)
    rig.fill(0, 10)
    first, second = rig.attach(), rig.attach()
    first.join()
    lease = first.leases[0]
    first.release(0)
    late = only(first.say(groupwire.Commit(4, {0: lease}, {0: 9})), groupwire.Committed)
    first.listen()
    assert late.lost == {0: lease}
    assert rig.agent.reports.refused == 1
    assert rig.board.process(4)["refused"] == 1
    second.join()
    assert rig.agent.ledger.group("g").queue(("orders", 0)).committed == 0


def test_a_replaced_agent_asks_sessions_to_join_again_and_keeps_their_leases() -> None:
    rig = Rig(orders=4)
    rig.fill(0, 10)
    first, second = rig.attach(), rig.attach()
    first.join()
    second.join()
    first.listen()
    first.release_revoked()
    second.listen()
    held = (dict(first.leases), dict(second.leases))
    first.commit(q0=4)
    rig.replace_agent()
    for hand in (first, second):
        assert groupwire.Rejoin() in hand.listen()
    first.join()
    second.join()
    rig.settle()
    first.listen()
    second.listen()
    assert (first.leases, second.leases) == held
    assert first.granted[0].offset == 4
    assert not first.revoked
    assert not second.revoked


def test_a_session_that_died_with_the_agent_loses_its_leases() -> None:
    rig = Rig(orders=1)
    rig.fill(0, 10)
    first, second = rig.attach(), rig.attach()
    first.join()
    first.start(q0=3)
    second.join()
    del rig.hands[first.number]
    rig.replace_agent()
    second.join()
    assert second.leases == {}
    rig.clock.advance(MISSING_NS)
    rig.settle()
    second.listen()
    assert second.granted[0].attempts == [(0, 3, 1)]
    assert rig.sessions.cut[0][0] == first.number


@pytest.mark.parametrize("group", ["", "a b", "x" * 121, "gruppe\u00e9"])
def test_group_names_keep_to_the_rules(group: str) -> None:
    """CQ-100."""
    rig = Rig(orders=1)
    refused = only(rig.attach().join(group=group), groupwire.Refused)
    assert refused.error == "GroupIllegal"


def test_a_topic_that_is_not_there_is_refused() -> None:
    rig = Rig(orders=1)
    refused = only(rig.attach().join(topics=(5,)), groupwire.Refused)
    assert "[5]" in refused.text


@mends("S222")
@pytest.mark.parametrize("hidden", sorted(HIDDEN_TOPICS))
def test_no_group_has_a_topic_of_what_waits(hidden: str) -> None:
    """Whatever number a session names: a copy of what is parked would count as its delivery."""
    rig = Rig(None, **{"orders": 1, hidden: 1})
    queue = rig.board.topics()[1].queue_base
    rig.fill(queue, 10)
    hand = rig.attach()
    heard = hand.join(topics=(0, 1), queues=[queue], starts={queue: 0})
    assert hidden in only(heard, groupwire.Refused).text
    hand.join()
    assert set(hand.leases) == {0}
    other = rig.attach()
    heard = other.say(groupwire.Reset(3, "g", {queue: 5}))
    assert hidden in only(heard, groupwire.Refused).text
    assert set(rig.agent.ledger.group("g").queues) == {("orders", 0)}


def test_a_session_is_in_one_group_only() -> None:
    rig = Rig(orders=1)
    hand = rig.attach()
    hand.join(group="a")
    assert only(hand.join(group="b"), groupwire.Refused).error == "GroupIllegal"


def test_two_groups_each_get_all_queues() -> None:
    rig = Rig(orders=4)
    first, second = rig.attach(), rig.attach()
    first.join(group="a")
    second.join(group="b")
    assert set(first.leases) == set(second.leases) == ALL


def test_a_member_that_drops_a_topic_is_asked_for_its_queues() -> None:
    rig = Rig(orders=2, events=2)
    hand = rig.attach()
    hand.join(topics=(0, 1))
    hand.join(topics=(1,))
    assert hand.revoked == {0, 1}


def test_garbage_ends_its_own_session_only() -> None:
    rig = Rig(orders=2)
    good, bad = rig.attach(), rig.attach()
    good.join()
    bad.join()
    bad.lane.put(b"\xc1 no msgpack")
    rig.settle()
    assert [session for session, _ in rig.sessions.cut] == [bad.number]
    assert only(good.say(groupwire.Commit(7, good.leases, {0: 0})), groupwire.Committed)


def test_an_impossible_cursor_ends_its_own_session_only() -> None:
    rig = Rig(orders=2)
    good, bad = rig.attach(), rig.attach()
    good.join()
    at = bad.session.plan.groups.control + layout.LANE_UP_TAIL
    bad.session.arena[at : at + 8].view("<u8")[0] = 1 << 40
    rig.settle()
    assert [session for session, _ in rig.sessions.cut] == [bad.number]
    assert not rig.agent.failed


def test_a_full_down_ring_holds_up_its_own_session_only() -> None:
    rig = Rig(orders=2)
    slow, quick = rig.attach(), rig.attach()
    slow.join()
    quick.join()
    sent = 0
    for _ in range(100_000):
        if not slow.lane.put(groupwire.encode(groupwire.Commit(sent + 1, slow.leases, {0: 0}))):
            break
        sent += 1
        rig.settle()
    assert only(quick.say(groupwire.Commit(7, {}, {})), groupwire.Committed)
    answers = 0
    while answers < sent:
        heard = [n for n in slow.listen() if isinstance(n, groupwire.Committed)]
        assert heard, f"{answers} of {sent} commits were answered"
        answers += len(heard)
        rig.settle()
    assert answers == sent


def test_a_member_that_has_finished_all_that_it_began_is_not_stalled() -> None:
    rig = Rig(orders=2)
    rig.fill(0, 10)
    idle, other = rig.attach(), rig.attach()
    idle.join()
    other.join()
    idle.release_revoked()
    began = dict.fromkeys(idle.leases, 5)
    idle.say(groupwire.Commit(3, idle.leases, began, began))
    rig.clock.advance(16 * 60 * 1_000_000_000)
    rig.settle()
    assert not rig.sessions.cut


def test_a_stalled_member_is_ended_when_another_could_take_over() -> None:
    rig = Rig(orders=1)
    rig.fill(0, 10)
    stalled = rig.attach()
    stalled.join()
    stalled.start(q0=1)
    rig.clock.advance(16 * 60 * 1_000_000_000)
    rig.settle()
    assert not rig.sessions.cut
    other = rig.attach()
    other.join()
    rig.settle()
    other.listen()
    assert [session for session, _ in rig.sessions.cut] == [stalled.number]
    assert other.granted[0].attempts == [(0, 1, 1)]


def test_queues_chosen_by_hand_are_held_and_the_rest_is_balanced() -> None:
    rig = Rig(orders=4)
    first, second, third = rig.attach(), rig.attach(), rig.attach()
    first.join()
    second.join(queues=[3, 0, 99])
    first.listen()
    assert first.revoked == {0, 3}
    assert second.leases == {}, "not before their holder has finished"
    first.release_revoked()
    second.listen()
    third.join()
    first.listen()
    first.release_revoked()
    third.listen()
    assert set(second.leases) == {0, 3}
    assert len(first.leases) == len(third.leases) == 1
    second.join(queues=[])
    second.listen()
    assert second.revoked == {0, 3}
    second.release_revoked()
    first.listen()
    third.listen()
    assert set(first.leases) | set(third.leases) == ALL


def test_of_two_that_choose_a_queue_its_holder_keeps_it() -> None:
    rig = Rig(orders=4)
    first, second = rig.attach(), rig.attach()
    second.join(queues=[1, 2])
    first.join(queues=[0, 1])
    assert (set(first.leases), set(second.leases)) == ({0}, {1, 2})
    second.die()
    first.listen()
    assert set(first.leases) == {0, 1}


def test_what_was_chosen_outlives_the_agent() -> None:
    """Until a member has said again what it chose it is granted nothing."""
    rig = Rig(orders=4)
    hand = rig.attach()
    hand.join(queues=[2])
    rig.replace_agent()
    assert groupwire.Rejoin() in hand.listen()
    rig.settle()
    hand.listen()
    assert set(hand.leases) == {2}
    hand.join(queues=[2])
    assert set(hand.leases) == {2}
    hand.join()
    assert set(hand.leases) == ALL
