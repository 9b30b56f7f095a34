"""The groups agent as keeper of offsets: where groups begin, and what survives."""

from __future__ import annotations

import errno
import json
import random
from collections.abc import Callable

import pytest

from gantrymq.shm import groupwire, layout
from gantrymq.shm.configfile import read_config
from gantrymq.shm.groupwire import ConsumeFrom
from gantrymq.shm.properties import HALF_TOPIC, OP_TOPIC
from gantrymq.shm.storage import read_file
from gantrymq.workers.groups import ledger as ledger_module
from gantrymq.workers.groups import ledgersuccessor
from gantrymq.workers.groups.agent import EXPORT_NS, SYNC_NS
from gantrymq.workers.groups.ledgersuccessor import UNFINISHED
from tests.support.faults import Fault, FaultPlan, KilledError, Moment
from tests.support.groups_rig import Rig
from tests.support.memory_sessions import add_topic, grow_topic
from tests.support.simstorage import SimStorage
from tests.support.trials import mends

ALL = {0, 1, 2, 3}


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


@mends("R1")
def test_what_others_append_before_groups_opens_hides_no_shorter_queue() -> None:
    """The scheduler delivers what is overdue at once; offsets count by what recovery has left."""
    rig = Rig(orders=1)
    rig.fill(0, 10)
    hand = rig.attach()
    hand.join()
    hand.commit(q0=7)
    hand.start(q0=9)
    hand.die()
    rig.fill(0, 6)  # the power went, and with it the queue's end
    rig.restart_broker(meanwhile=lambda: rig.fill(0, 300))
    queue = rig.agent.ledger.group("g").queue(("orders", 0))
    assert (queue.committed, queue.attempts) == (6, [])
    again = rig.attach()
    again.join()
    assert again.granted[0].offset == 6
    again.commit(q0=200)
    rig.replace_agent()  # in the same life all ends are true
    assert rig.agent.ledger.group("g").queue(("orders", 0)).committed == 200


@mends("R1")
def test_all_that_counts_offsets_or_positions_ends_where_recovery_ended() -> None:
    """What is done with, attempts, and copies on their way; whoever dies before it is written."""
    plan = FaultPlan()
    rig = Rig(plan, orders=1)
    rig.board.set_word(layout.BOARD_APPENDED, 5000)
    rig.fill(0, 300)
    ledger, key = rig.agent.ledger, ("orders", 0)
    ledger.commit("g", key, 2)
    ledger.grant("g", key, 7)
    ledger.start("g", key, 250, 7)
    ledger.finish("g", key, (3, 100))
    ledger.fail("g", key, 200, 4)
    ledger.sending("g", key, 120, 1, 4000)
    ledger.sending("g", key, 2, 1, 4000)
    ledger.flush()
    rig.board.set_word(layout.BOARD_APPENDED, 900)
    rig.fill(0, 40)

    def grow() -> None:
        rig.fill(0, 400)
        rig.board.set_word(layout.BOARD_APPENDED, 9000)
        plan.faults = [Fault(1, Moment.MIDDLE, errno.ENOSPC, ("write",), persistent=True)]

    rig.restart_broker(meanwhile=grow)
    plan.faults = []
    rig.replace_agent()  # its predecessor has written a part of it at most
    queue = rig.agent.ledger.group("g").queue(key)
    assert (queue.committed, queue.done, queue.attempts) == (2, [(3, 40)], [(2, 3, 1)])
    assert queue.sending == {2: (1, 900)}


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
    transactions = {
        f"{topic}@CID_RMQ_SYS_TRANS": {"0": 0} for topic in (HALF_TOPIC, OP_TOPIC)
    }  # HO-40
    assert saved["offsetTable"] == {"orders@g": {"0": 5, "1": 0}, **transactions}
    assert saved["groupTopicMap"]["g"] == ["orders"]


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


@mends("S272")
@pytest.mark.parametrize("which", [0, 1])
def test_a_reset_by_another_broker_to_what_we_had_exported_before_counts(which: int) -> None:
    """It writes no checksum of ours, whatever it says; what we wrote last changes nothing."""
    rig = Rig(orders=1)
    rig.fill(0, 20)
    hand = rig.attach()
    hand.join()
    exports = []
    for offset in (5, 9):
        hand.commit(q0=offset)
        rig.clock.advance(EXPORT_NS)
        rig.settle()
        exports.append(read_config(SimStorage(rig.disk), "consumerOffset.json"))
    rig.sessions.stop = True
    rig.settle()
    rig.restart_broker()
    assert rig.agent.ledger.group("g").queue(("orders", 0)).committed == 9
    write_offsets_by_hand(rig, json.dumps(exports[which]))
    rig.restart_broker()
    assert rig.agent.ledger.group("g").queue(("orders", 0)).committed == (5, 9)[which]


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


def test_committed_offsets_survive_a_kill_at_every_storage_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """F2: before and after each call, through exports and a compaction; never below a Committed."""
    monkeypatch.setattr(ledgersuccessor, "step_pieces", 2)
    seen: list[tuple[str, str]] = []
    calls = run_until_killed(FaultPlan(), lambda _who, kind, name: seen.append((kind, name)))
    assert seen.count(("write", UNFINISHED)) >= 2 * 3, "told before and after; in several steps"
    assert ("rename", "gantry/ledger") in seen
    for at in range(1, calls + 1):
        for moment in (Moment.BEFORE, Moment.MIDDLE, Moment.AFTER):
            run_until_killed(FaultPlan([Fault(at, moment)]))


def run_until_killed(
    plan: FaultPlan, watch: Callable[[str, str, str], None] = lambda *_: None
) -> int:
    """A life with commits, exports and a compaction; then another life checks the offsets."""
    rig = Rig(orders=1)
    rig.fill(0, 100)
    acknowledged = said = 0
    hand = rig.attach()
    hand.join()
    storage = rig.agent.ledger.storage
    assert isinstance(storage, SimStorage)
    storage.faults = plan
    rig.disk.watch = watch
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


def test_a_group_begins_at_the_log_s_end_while_the_reader_makes_older_units() -> None:
    """After a start `max_offset` may lie far behind: messages of before are not new."""
    rig = Rig(orders=2)
    rig.board.set_word(layout.BOARD_APPENDED, 5000)
    rig.board.set_word(layout.BOARD_RECOVERED_END, 5000)
    rig.board.set_word(layout.BOARD_DURABLE, 5000)
    rig.board.set_word(layout.BOARD_DISPATCHED, 700)
    rig.fill(0, 3)
    rig.board.set_word(rig.board.queue_at(0) + layout.QUEUE_NEXT_OFFSET, 40)
    rig.agent = rig.open_agent()
    hand = rig.attach()
    hand.join(consume_from=ConsumeFrom.LAST_OFFSET)
    assert [hand.granted[queue].offset for queue in (0, 1)] == [40, 0]
    rig.board.set_word(layout.BOARD_DISPATCHED, 5000)
    rig.fill(0, 40)
    rig.board.set_word(rig.board.queue_at(0) + layout.QUEUE_NEXT_OFFSET, 44)
    late = rig.attach()
    late.join(group="late", consume_from=ConsumeFrom.LAST_OFFSET)
    assert late.granted[0].offset == 40, "as far as can be seen, once all is made"
