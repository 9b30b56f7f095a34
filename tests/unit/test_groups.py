"""The groups agent: members, leases, offsets, and what a death leaves."""

from __future__ import annotations

import errno
import random

import pytest

from shm import groupwire, layout
from shm.configfile import read_config
from shm.groupwire import ConsumeFrom
from shm.storage import read_file
from tests.support.faults import Fault, FaultPlan, KilledError, Moment
from tests.support.groups_rig import Rig, only
from tests.support.memory_sessions import add_topic, grow_topic
from tests.support.simstorage import SimStorage
from workers import ledger as ledger_module
from workers.groups import EXPORT_NS, MISSING_NS, SYNC_NS

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


def test_a_release_carries_the_offset_to_the_next_holder() -> None:
    rig = Rig(orders=1)
    rig.fill(0, 10)
    first, second = rig.attach(), rig.attach()
    first.join()
    first.start(q0=7)
    first.say(groupwire.Leave(3))
    second.join()
    assert second.granted[0].offset == 0
    second.release(0, offset=6)
    third = rig.attach()
    second.say(groupwire.Leave(3))
    third.join()
    assert third.granted[0].offset == 6


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


def test_an_attempt_is_forgotten_once_its_message_is_committed() -> None:
    rig = Rig(orders=1)
    rig.fill(0, 10)
    first = rig.attach()
    first.join()
    first.start(q0=5)
    first.die()
    second = rig.attach()
    second.join()
    second.commit(q0=3)
    second.say(groupwire.Leave(9))
    third = rig.attach()
    third.join()
    assert third.granted[0].attempts == [(3, 5, 1)]


def test_commits_published_before_a_death_still_count() -> None:
    rig = Rig(orders=1)
    rig.fill(0, 10)
    first = rig.attach()
    first.join()
    first.lane.put(groupwire.encode(groupwire.Commit(5, first.leases, {0: 8})))
    first.die()
    second = rig.attach()
    second.join()
    assert second.granted[0].offset == 8


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
    assert rig.agent.refused == 1
    assert rig.board.process(4)["refused"] == 1
    second.join()
    assert rig.agent.ledger.group("g").queue(("orders", 0)).committed == 0


def test_a_commit_never_goes_beyond_what_the_queue_holds() -> None:
    """LW-50 and CQ-31: RocketMQ stores any value."""
    rig = Rig(orders=1)
    rig.fill(0, 10, min_offset=4)
    hand = rig.attach()
    hand.join()
    assert hand.granted[0].offset == 4
    queue = rig.agent.ledger.group("g").queue(("orders", 0))
    hand.commit(q0=99)
    assert queue.committed == 10
    hand.commit(q0=1)
    assert queue.committed == 4


def test_a_committed_notice_means_that_the_offset_is_in_the_file() -> None:
    rig = Rig(orders=1)
    rig.fill(0, 10)
    hand = rig.attach()
    hand.join()
    hand.commit(q0=6)
    storage = SimStorage(rig.disk)
    again = ledger_module.open_ledger(storage, rig.board.epoch)
    assert again.group("g").queue(("orders", 0)).committed == 6


@pytest.mark.parametrize(
    ("consume_from", "offset"), [(ConsumeFrom.LAST_OFFSET, 7), (ConsumeFrom.FIRST_OFFSET, 2)]
)
def test_the_first_member_fixes_where_the_group_begins(consume_from: int, offset: int) -> None:
    rig = Rig(orders=1)
    rig.fill(0, 7, min_offset=2)
    first = rig.attach()
    first.join(consume_from=consume_from)
    first.die()
    rig.fill(0, 50, min_offset=2)
    second = rig.attach()
    second.join(consume_from=ConsumeFrom.LAST_OFFSET)
    assert second.granted[0].offset == offset


def test_a_start_by_time_is_what_the_session_found() -> None:
    rig = Rig(orders=2)
    rig.fill(0, 7)
    rig.fill(1, 7)
    hand = rig.attach()
    hand.join(consume_from=ConsumeFrom.TIMESTAMP, starts={0: 3, 1: 99})
    assert [hand.granted[q].offset for q in (0, 1)] == [3, 7]


def test_queues_created_later_and_retry_topics_begin_at_zero() -> None:
    rig = Rig(orders=1)
    retry = add_topic(rig.board, "%RETRY%g", 1)
    rig.fill(0, 7)
    rig.fill(16 * retry, 3)
    hand = rig.attach()
    hand.join(topics=(0, retry), consume_from=ConsumeFrom.LAST_OFFSET)
    assert hand.granted[0].offset == 7
    assert hand.granted[16 * retry].offset == 0
    rig.fill(1, 5)
    grow_topic(rig.board, 0, 2)
    rig.settle()
    hand.listen()
    assert hand.granted[1].offset == 0


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


def test_offsets_outlive_the_broker_and_leases_do_not() -> None:
    rig = Rig(orders=2)
    rig.fill(0, 10)
    hand = rig.attach()
    hand.join()
    hand.commit(q0=5)
    hand.start(q0=7)
    rig.restart_broker()
    again = rig.attach()
    again.join()
    assert again.granted[0].offset == 5
    assert again.granted[0].attempts == [(5, 7, 1)]
    assert set(again.leases) == {0, 1}


def test_offsets_beyond_a_log_that_a_power_cut_shortened_come_back_into_it() -> None:
    rig = Rig(orders=1)
    rig.fill(0, 10)
    hand = rig.attach()
    hand.join()
    hand.commit(q0=9)
    rig.fill(0, 6)
    rig.restart_broker()
    assert rig.agent.ledger.group("g").queue(("orders", 0)).committed == 6


def test_consumer_offsets_are_written_every_five_seconds_as_rocketmq_reads_them() -> None:
    """CQ-30 and store-format.md section 12."""
    rig = Rig(orders=2)
    rig.fill(0, 10)
    hand = rig.attach()
    hand.join()
    hand.commit(q0=5)
    rig.clock.advance(EXPORT_NS)
    rig.settle()
    saved = read_config(SimStorage(rig.disk), "consumerOffset.json")
    assert saved["offsetTable"] == {"orders@g": {"0": 5, "1": 0}}
    assert saved["groupTopicMap"] == {"g": ["orders"]}


def test_a_clean_stop_writes_everything_and_syncs_it() -> None:
    rig = Rig(orders=1)
    rig.fill(0, 10)
    hand = rig.attach()
    hand.join()
    hand.commit(q0=8)
    rig.sessions.stop = True
    rig.settle()
    assert rig.agent.finished
    assert not rig.agent.ledger.unsynced
    saved = read_config(SimStorage(rig.disk), "consumerOffset.json")
    assert saved["offsetTable"]["orders@g"] == {"0": 8}


def test_offsets_of_a_rocketmq_count_where_the_ledger_has_none() -> None:
    rig = Rig(orders=3)
    for queue in range(3):
        rig.fill(queue, 10)
    write_offsets_by_hand(rig, '{"offsetTable":{"orders@g":{0:4,1:99}}}')
    rig.restart_broker()
    hand = rig.attach()
    hand.join(consume_from=ConsumeFrom.LAST_OFFSET)
    assert {q: hand.granted[q].offset for q in range(3)} == {0: 4, 1: 10, 2: 0}


def test_offsets_that_another_broker_wrote_since_win_over_the_ledger() -> None:
    rig = Rig(orders=1)
    rig.fill(0, 20)
    hand = rig.attach()
    hand.join()
    hand.commit(q0=5)
    rig.sessions.stop = True
    rig.settle()
    rig.restart_broker()
    assert rig.agent.ledger.group("g").queue(("orders", 0)).committed == 5
    write_offsets_by_hand(rig, '{"offsetTable":{"orders@g":{0:17}}}')
    rig.restart_broker()
    assert rig.agent.ledger.group("g").queue(("orders", 0)).committed == 17


def test_our_own_older_file_does_not_turn_the_ledger_back() -> None:
    rig = Rig(orders=1)
    rig.fill(0, 20)
    hand = rig.attach()
    hand.join()
    hand.commit(q0=5)
    rig.clock.advance(EXPORT_NS)
    rig.settle()
    hand.commit(q0=9)
    rig.restart_broker()
    assert rig.agent.ledger.group("g").queue(("orders", 0)).committed == 9


def write_offsets_by_hand(rig: Rig, text: str) -> None:
    storage = SimStorage(rig.disk)
    name = "config/consumerOffset.json"
    if storage.exists(name):
        storage.unlink(name)
    storage.create(name).write_at(text.encode(), 0)


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


@pytest.mark.parametrize("kind", ["write", "sync"])
def test_a_failing_write_or_sync_is_final_and_answers_nobody(kind: str) -> None:
    """P3."""
    plan = FaultPlan()
    rig = Rig(plan, orders=1)
    rig.fill(0, 10)
    hand = rig.attach()
    hand.join()
    rig.clock.advance(SYNC_NS)
    plan.faults = [Fault(1, error=errno.EIO, kinds=(kind,), under="gantry/ledger")]
    assert not [n for n in hand.say(groupwire.Commit(2, hand.leases, {0: 5})) if kind == "write"]
    rig.clock.advance(SYNC_NS)
    rig.settle()
    assert rig.sessions.failures[0][0] == errno.EIO
    assert hand.say(groupwire.Commit(3, hand.leases, {0: 6})) == []
    assert len(plan.met) == 1, "a failed call must not be tried again"


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


def test_a_commit_survives_a_power_cut_a_second_later(seed: int) -> None:
    rig = Rig(orders=1)
    rig.fill(0, 10)
    hand = rig.attach()
    hand.join()
    hand.commit(q0=5)
    assert rig.agent.arm(rig.clock.monotonic_ns()) <= SYNC_NS
    rig.agent.disarm()
    rig.clock.advance(SYNC_NS)
    rig.settle()
    rig.disk.power_cut(random.Random(seed))
    rig.restart_broker()
    assert rig.agent.ledger.group("g").queue(("orders", 0)).committed == 5


def test_committed_offsets_survive_a_kill_at_every_storage_call() -> None:
    """F2: before and after each call, through exports and a compaction; never below a Committed."""
    calls = run_until_killed(FaultPlan())
    assert calls > 20
    for at in range(1, calls + 1):
        for moment in (Moment.BEFORE, Moment.MIDDLE, Moment.AFTER):
            run_until_killed(FaultPlan([Fault(at, moment)]))


def run_until_killed(plan: FaultPlan) -> int:
    """A life with commits, exports and a compaction; then another life checks the offsets."""
    rig = Rig(orders=1)
    rig.fill(0, 100)
    acknowledged = said = 0
    hand = rig.attach()
    hand.join()
    storage = rig.agent.ledger.storage
    assert isinstance(storage, SimStorage)
    storage.faults = plan
    rig.agent.ledger.compact_bytes = 200
    try:
        for said in range(1, 5):
            hand.commit(q0=said)
            acknowledged = said
            rig.clock.advance(EXPORT_NS)
            rig.settle()
    except KilledError:
        storage.faults = FaultPlan()
    rig.restart_broker()
    committed = rig.agent.ledger.group("g").queue(("orders", 0)).committed
    assert acknowledged <= committed <= said, plan.met
    return plan.calls


def test_the_ledger_names_each_group_once() -> None:
    rig = Rig(orders=1)
    rig.fill(0, 10)
    hand = rig.attach()
    hand.join(group="payments")
    for offset in range(5):
        hand.commit(q0=offset)
    assert read_file(SimStorage(rig.disk), "gantry/ledger").count(b"payments") == 1
