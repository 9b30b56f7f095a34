"""Resets of a group's offsets, with members at work."""

from __future__ import annotations

import pytest

from gantrymq.shm.groupwire import Commit, Leave, Refused, Reset, WasReset, encode
from gantrymq.workers.groups.membership import DONE_MAX
from tests.support.groups_rig import only
from tests.support.trials import mends
from tests.unit.test_push_groups import known, rig_with

MINUTE_NS = 60_000_000_000


def test_a_reset_takes_queues_back_first_and_deals_them_out_again() -> None:
    rig = rig_with(2)
    hand, operator = rig.attach(), rig.attach()
    hand.join()
    hand.note(q0=(500, 600), q1=(7, 7))
    rig.settle()
    assert operator.say(Reset(1, "g", {0: 40})) == []
    hand.listen()
    assert hand.revoked == {0}
    rig.clock.advance(10_000_000_000)
    rig.settle()
    assert operator.listen() == [], "it waits for what runs"
    hand.release(0, 510)
    assert only(operator.listen(), WasReset) == WasReset(1, {0: 510}, {0: 40})
    assert hand.granted[0].offset == 40
    assert hand.granted[0].attempts == []
    rig.replace_agent()
    assert known(rig).committed == 40


@pytest.mark.parametrize("holds", [False, True])
def test_a_reset_said_again_to_a_successor_is_one_reset(*, holds: bool) -> None:
    """It may find the first in the ring as well: whoever asks repeats itself at a `Rejoin`."""
    rig = rig_with()
    hand, operator = rig.attach(), rig.attach()
    hand.join()
    if not holds:
        hand.say(Leave(9))
    operator.say(Reset(1, "g", {0: 40}))
    operator.say(Reset(1, "g", {0: 40}))
    if holds:
        assert operator.listen() == [], "no refusal"
        hand.listen()
        hand.release_revoked()
        operator.listen()
    wanted = WasReset(1, {0: 0}, {0: 40})
    assert operator.heard == [wanted] * (1 if holds else 2)
    assert known(rig).committed == 40


def test_who_does_not_give_back_in_time_is_ended_and_its_words_do_not_count() -> None:
    rig = rig_with()
    hand, operator = rig.attach(), rig.attach()
    hand.join()
    hand.note(q0=(500, 600))
    rig.settle()
    operator.say(Reset(1, "g", {0: 40}, patience_ms=100))
    rig.clock.advance(200_000_000)
    hand.note(q0=(550, 600))
    rig.settle()
    rig.settle()
    assert [session for session, _ in rig.sessions.cut] == [hand.number]
    assert only(operator.listen(), WasReset).before == {0: 550}
    assert (known(rig).committed, known(rig).started, known(rig).attempts) == (40, 40, [])


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (Reset(1, "nobody", {0: 1}), "no group"),
        (Reset(1, "g!", {0: 1}), "no group name"),
        (Reset(1, "g", {0: 1001}), "holds 0 to 1000"),
        (Reset(1, "g", {99: 0}), "no queue"),
    ],
)
def test_an_impossible_reset_is_refused(request_: Reset, text: str) -> None:
    rig = rig_with()
    rig.attach().join()
    assert text in only(rig.attach().say(request_), Refused).text
    assert known(rig).committed == 0


def test_two_resets_of_one_queue_do_not_meet() -> None:
    rig = rig_with()
    hand, operator = rig.attach(), rig.attach()
    hand.join()
    operator.say(Reset(1, "g", {0: 40}))
    assert "already" in only(operator.say(Reset(2, "g", {0: 50})), Refused).text
    hand.release(0)
    assert only(operator.listen(), WasReset).serial == 1


@mends("S37")
def test_resets_that_name_no_queue_are_refused() -> None:
    rig = rig_with()
    hand, operator = rig.attach(), rig.attach()
    hand.join()
    for serial in (1, 2):
        assert operator.lane.put(encode(Reset(serial, "g", {})))
    rig.settle()
    refused = [notice for notice in operator.listen() if isinstance(notice, Refused)]
    assert [notice.serial for notice in refused] == [1, 2]


@mends("S36")
def test_ranges_beyond_the_bound_cut_off_no_later_holder() -> None:
    """Whether one request brought them, or an older ledger has them already."""
    rig = rig_with()
    hand = rig.attach()
    hand.join()
    hand.start(q0=900)
    rig.agent.ledger.start("g", ("orders", 0), 100_000, hand.number)
    for first in (1, 2041):
        done = [(first + 2 * number, first + 2 * number + 1) for number in range(1020)]
        hand.say(Commit(0, hand.leases, done={0: done}))
    assert len(known(rig).done) == DONE_MAX
    many = [(first, first + 1) for first in range(10_001, 13_001, 2)]
    rig.agent.ledger.finish_all("g", ("orders", 0), many)
    hand.die()
    other = rig.attach()
    other.join()
    assert len(other.granted[0].done) == DONE_MAX
