"""Offsets as words of a session's arena, as `groups` takes them."""

from __future__ import annotations

import random

import numpy as np
import pytest

from gantrymq.clients.member import GroupMember
from gantrymq.shm import groupwire, layout, limits
from gantrymq.shm.groupwire import ConsumeFrom
from gantrymq.shm.kernels import progress
from gantrymq.workers.agent import IDLE_NS
from gantrymq.workers.groups.progress import Progress
from gantrymq.workers.groups.reports import LOOK_NS
from tests.support.groups_rig import Hand, Rig, only
from tests.support.trials import mends
from tests.unit.test_member import InMemory, member_of

MINUTE_NS = 60_000_000_000


def rig_with(queues: int = 1) -> Rig:
    rig = Rig(orders=queues)
    for queue in range(queues):
        rig.fill(queue, 10)
    return rig


def known(rig: Rig, queue: int = 0) -> Progress:
    return rig.agent.ledger.group("g").queue(("orders", queue))


def test_words_reach_the_ledger_without_a_request_or_a_ring() -> None:
    rig = rig_with()
    hand = rig.attach()
    hand.join()
    assert rig.agent.arm(rig.clock.monotonic_ns()) == IDLE_NS or rig.agent.ledger.unsynced
    hand.note(q0=(3, 6))
    assert 0 < rig.agent.arm(rig.clock.monotonic_ns()) <= LOOK_NS, "it looks again by itself"
    rig.agent.disarm()
    assert rig.agent.do_work(rig.clock.monotonic_ns()) == 0, "a look is no work to stay awake for"
    assert (known(rig).committed, known(rig).started) == (3, 6)
    assert rig.agent.ledger.waiting_bytes == 0, "it is in the file"
    assert hand.listen() == []


def test_words_of_a_killed_session_count_and_what_it_had_started_is_an_attempt() -> None:
    rig = rig_with()
    first = rig.attach()
    first.join()
    first.note(q0=(4, 7))
    first.die()
    second = rig.attach()
    second.join()
    assert second.granted[0].offset == 4
    assert second.granted[0].attempts == [(4, 7, 1)]


def test_words_go_back_by_a_seek() -> None:
    rig = rig_with()
    hand = rig.attach()
    hand.join()
    hand.note(q0=(8, 9))
    rig.settle()
    hand.note(q0=(2, 2))
    rig.settle()
    assert (known(rig).committed, known(rig).started) == (2, 2)


def test_a_commit_that_names_nothing_waits_for_the_words() -> None:
    rig = rig_with()
    hand = rig.attach()
    hand.join()
    hand.note(q0=(5, 5))
    assert only(hand.say(groupwire.Commit(2, {})), groupwire.Committed).lost == {}
    rig.replace_agent()
    assert known(rig).committed == 5


def test_a_replaced_agent_reads_words_before_anybody_joins_again() -> None:
    rig = rig_with()
    hand = rig.attach()
    hand.join()
    hand.note(q0=(6, 8))
    rig.replace_agent()
    assert (known(rig).committed, known(rig).started) == (6, 8)


def test_a_slot_between_two_leases_says_nothing() -> None:
    rig = rig_with()
    hand = rig.attach()
    hand.join()
    hand.note(q0=(5, 5))
    rig.settle()
    at = progress.close_slot(hand.session.arena, layout.PROGRESS_AT)
    progress.note_progress(hand.session.arena, at, 9, 9)
    rig.settle()
    assert known(rig).committed == 5
    assert hand.listen() == []
    assert rig.agent.reports.refused == 0


def test_words_of_a_lease_that_is_over_are_refused_once() -> None:
    rig = rig_with(2)
    first, second = rig.attach(), rig.attach()
    first.join()
    first.note(q0=(1, 1), q1=(1, 1))
    second.join()
    first.listen()
    (queue,) = first.revoked
    lease = first.leases[queue]
    first.release(queue, 1)
    second.listen()
    first.leases[queue] = lease
    first.note(**{f"q{queue}": (9, 9)})
    rig.settle()
    rig.settle()
    assert only(first.listen(), groupwire.Committed) == groupwire.Committed(0, {queue: lease})
    assert rig.agent.reports.refused == rig.board.process(4)["refused"] == 1
    assert known(rig, queue).committed == 1, "the new holder's"


@mends("S220")
def test_what_was_begun_since_the_last_look_is_done_with_at_a_hand_over() -> None:
    """The queue is given back before its words are looked at again."""
    rig = rig_with()
    first = rig.attach()
    first.join()
    first.note(q0=(0, 4))
    rig.settle()
    progress.close_slot(first.session.arena, layout.PROGRESS_AT)
    done: list[groupwire.Done] = [(2, 3), (5, 8), (9, 1 << 40)]
    lease = first.leases[0]
    first.say(groupwire.Released(0, lease, 1, done))
    assert known(rig).lease, "balanced: it is the only member"
    assert first.granted[0].lease > lease
    assert first.granted[0].offset == 1
    assert first.granted[0].done == [(2, 3), (5, 8), (9, 10)], "as far as the queue goes"


def with_news_in_all(rig: Rig, queues: int) -> Hand:
    """A member that has begun more of all its queues than one step of a look takes."""
    hand = rig.attach()
    hand.join()
    hand.note(**{f"q{queue}": (0, 1) for queue in range(queues)})
    rig.agent.do_work(rig.clock.monotonic_ns())
    hand.note(**{f"q{queue}": (0, 2) for queue in range(queues)})
    return hand


@mends("S221")
@pytest.mark.parametrize("queue", [0, 150, 299])
def test_a_failure_counts_though_words_of_many_queues_are_news(queue: int) -> None:
    rig = rig_with(300)
    hand = with_news_in_all(rig, 300)
    heard = hand.say(groupwire.Failed(5, queue, hand.leases[queue], 1, 0))
    assert only(heard, groupwire.Counted).attempts == 1
    hand.note(**{f"q{queue}": (0, 3) for queue in range(300)})
    heard = hand.say(groupwire.SendBack(6, queue, hand.leases[queue], 17, [2], [0], [""]))
    assert only(heard, groupwire.Refused).error == "Corrupt", "the rig has no records"


@mends("S221")
def test_words_that_were_seen_of_a_queue_that_is_given_back_are_no_lost_commit() -> None:
    rig = rig_with(300)
    hand = with_news_in_all(rig, 300)
    progress.close_slot(hand.session.arena, layout.PROGRESS_AT + 299 * layout.PROGRESS_BYTES)
    heard = hand.say(groupwire.Released(299, hand.leases[299], 1))
    assert [n for n in heard if isinstance(n, groupwire.Committed)] == []
    assert rig.agent.reports.refused == 0


@pytest.mark.parametrize("round_number", range(20))
def test_garbage_in_the_words_harms_its_writer_alone(round_number: int) -> None:
    """No agent falls over; other members' queues stay as they are; offsets stay in the queue."""
    dice, many = random.Random(round_number), np.random.default_rng(round_number)
    rig = rig_with(4)
    vandal, good = rig.attach(), rig.attach()
    vandal.join()
    good.join()
    vandal.listen()
    vandal.release_revoked()
    good.listen()
    good.note(**{f"q{queue}": (3, 4) for queue in good.leases})
    rig.settle()
    arena = vandal.session.arena
    numbers = [0, 1, 3, 9, -1, 1 << 62, (1 << 63) - 1, -(1 << 63), *vandal.leases, *good.leases]
    numbers += [*vandal.leases.values(), *good.leases.values()]
    for _ in range(5):
        words = many.choice(np.array(numbers, np.int64), 16 * limits.PROGRESS_MAX)
        end = layout.PROGRESS_AT + words.nbytes
        arena[layout.PROGRESS_AT : end] = words.view(np.uint8)
        count = np.array([dice.choice([limits.PROGRESS_MAX, 0xFFFFFFFF])], np.uint32)
        at = layout.ARENA_PROGRESS_COUNT
        arena[at : at + 4] = count.view(np.uint8)
        rig.settle()
        vandal.listen()
    for queue in good.leases:
        assert (known(rig, queue).committed, known(rig, queue).started) == (3, 4)
    for queue in range(4):
        assert 0 <= known(rig, queue).committed <= 10
    assert rig.agent.reports.refused > 0
    assert not rig.sessions.cut


def test_consume_timeout_counts_what_words_say_was_started() -> None:
    rig = rig_with(2)
    stalled, other = rig.attach(), rig.attach()
    stalled.join()
    other.join()
    stalled.listen()
    stalled.release_revoked()
    (queue,) = stalled.leases
    name = f"q{queue}"
    stalled.note(**{name: (0, 1)})
    rig.settle()
    rig.clock.advance(14 * MINUTE_NS)
    stalled.note(**{name: (1, 2)})
    rig.settle()
    rig.clock.advance(14 * MINUTE_NS)
    rig.settle()
    assert not rig.sessions.cut, "it goes on"
    rig.clock.advance(2 * MINUTE_NS)
    rig.settle()
    assert [session for session, _ in rig.sessions.cut] == [stalled.number]


def test_a_member_gives_its_slots_back_and_uses_them_again() -> None:
    rig = rig_with(2)
    session, member = member_of(rig)
    slots = {a.slot for a in member.assigned.values()}
    assert slots == {0, 1}
    other = rig.attach()
    other.join()
    member.listen()
    (given,) = [a for a in member.assigned.values() if a.revoked]
    given.position = given.delivered = given.passed = given.begun = 4
    member.report()
    member.release_finished()
    rig.settle()
    other.listen()
    assert other.granted[given.number].offset == 4
    other.die()
    member.listen()
    (again,) = [a for a in member.assigned.values() if a.number == given.number]
    assert again.slot == given.slot
    at = layout.PROGRESS_AT + again.slot * layout.PROGRESS_BYTES
    words = layout.PROGRESS.unpack(session.arena, at)
    known = {"lease": again.lease, "queue": again.number, "committed": 4, "started": 4}
    assert words == known | {"reserved": bytes(32), "acked": bytes(64)}


def test_queues_beyond_the_table_are_told_in_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PROGRESS_MAX", 1)
    rig = rig_with(3)
    session = InMemory(rig, 100)
    member = GroupMember(session, "g", {0: "orders"})  # type: ignore[arg-type]
    member.join(ConsumeFrom.FIRST_OFFSET, {})
    assert sorted(a.slot for a in member.assigned.values()) == [-1, -1, 0]
    for assigned in member.assigned.values():
        assigned.passed = assigned.begun = 2 + assigned.number
    member.report()
    rig.settle()
    assert [known(rig, queue).committed for queue in range(3)] == [2, 3, 4]
    for assigned in member.assigned.values():
        assigned.passed = assigned.begun = 8
    member.commit()
    assert [known(rig, queue).committed for queue in range(3)] == [8, 8, 8]
