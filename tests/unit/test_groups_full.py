"""The groups agent on a full disk: nothing is called stored that is not (F7, P3)."""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest

from gantrymq.shm import groupwire, layout
from gantrymq.shm.codes import Role
from gantrymq.shm.storage import read_file
from gantrymq.workers.agent import UNRUNG_NS
from gantrymq.workers.failure import has_failed
from gantrymq.workers.groups import ledger as ledger_module
from gantrymq.workers.groups import ledgerentries
from gantrymq.workers.groups.agent import DISK_RETRY_NS, EXPORT_NS, SYNC_NS, Groups
from gantrymq.workers.groups.sendbacks import AGAIN_NS
from tests.support.faults import Fault, FaultPlan, Moment
from tests.support.groups_rig import Hand, Rig, only
from tests.support.retry_rig import RetryRig
from tests.support.simstorage import SimStorage
from tests.support.trials import mends

FULL = Fault(1, error=errno.ENOSPC, kinds=("write",), persistent=True, under="gantry/ledger")


@pytest.mark.parametrize("moment", [Moment.BEFORE, Moment.MIDDLE])
def test_a_full_disk_refuses_commits_until_there_is_room(moment: Moment) -> None:
    """F7: nothing is called stored that is not, the broker lives, and what waited goes in."""
    plan = FaultPlan()
    rig = Rig(plan, orders=1)
    rig.fill(0, 10)
    hand = rig.attach()
    hand.join()
    plan.faults = [replace(FULL, moment=moment)]
    refused = only(hand.say(groupwire.Commit(2, hand.leases, {0: 5})), groupwire.Refused)
    assert (refused.serial, refused.error) == (2, "DiskFull")
    late = rig.attach()
    assert only(late.join(group="late"), groupwire.Refused).error == "DiskFull"
    assert not late.granted
    again = ledger_module.open_ledger(SimStorage(rig.disk), rig.board.epoch)
    assert again.group("g").queue(("orders", 0)).committed == 0
    assert not rig.sessions.failures
    assert [event for _, event, _ in rig.sessions.notes].count("no_space_for_groups") == 1
    assert 0 < rig.agent.arm(rig.clock.monotonic_ns()) <= DISK_RETRY_NS
    rig.agent.disarm()
    plan.faults = []
    rig.clock.advance(DISK_RETRY_NS)
    rig.settle()
    late.listen()
    assert late.granted[0].offset == 0
    again = ledger_module.open_ledger(SimStorage(rig.disk), rig.board.epoch)
    assert again.group("g").queue(("orders", 0)).committed == 5
    assert hand.commit(q0=6).lost == {}


@mends("S231")
def test_nobody_spins_while_the_ledger_waits_for_copies_to_be_durable() -> None:
    """A filter that waits to be written waits as well."""
    rig = Rig(orders=1)
    hand = rig.attach()
    rig.agent.ledger.may_sync = lambda: False
    assert not hand.join(filters=[(0, "SQL92", "a > 1")])
    assert rig.agent.ledger.must_sync
    rig.clock.advance(EXPORT_NS)
    rig.settle()
    assert rig.agent.arm(rig.clock.monotonic_ns()) >= 1_000_000
    rig.agent.disarm()
    rig.agent.ledger.may_sync = lambda: True
    rig.settle()
    only(hand.listen(), groupwire.Joined)


ASKED = [groupwire.Reset(7, "g", {0: 4}, patience_ms=100), groupwire.DeleteGroup(7, "idle")]


def _full_rig() -> tuple[FaultPlan, Rig]:
    """With a group that nobody is at work for."""
    plan = FaultPlan()
    rig = Rig(plan, orders=1)
    rig.fill(0, 10)
    idle = rig.attach()
    idle.join(group="idle")
    idle.die()
    return plan, rig


def _wait_and_make_room(plan: FaultPlan, rig: Rig) -> None:
    """Nobody is ended meanwhile."""
    rig.clock.advance(200_000_000)
    rig.settle()
    assert not rig.sessions.cut
    plan.faults = []
    rig.clock.advance(DISK_RETRY_NS)
    rig.settle()


@mends("S179")
@pytest.mark.parametrize("asked", ASKED)
def test_what_an_operator_asks_on_a_full_disk_is_refused_by_name(
    asked: groupwire.Reset | groupwire.DeleteGroup,
) -> None:
    """At once, and not begun: no member could hear that it is to give a queue back."""
    plan, rig = _full_rig()
    hand, operator = rig.attach(), rig.attach()
    hand.join()
    hand.commit(q0=3)
    plan.faults = [FULL]
    hand.say(groupwire.Commit(2, hand.leases, {0: 5}))
    refused = only(operator.say(asked), groupwire.Refused)
    assert (refused.serial, refused.error) == (7, "DiskFull")
    assert "nothing was changed" in refused.text
    _wait_and_make_room(plan, rig)
    assert rig.agent.ledger.group("g").queue(("orders", 0)).committed == 5
    assert "idle" in rig.agent.ledger.groups
    assert hand.revoked == set()
    assert not any(isinstance(said, groupwire.Refused) for said in operator.say(asked))


@mends("S179")
def test_a_reset_that_waits_as_the_disk_gets_full_is_given_up() -> None:
    """Its member is not ended, and its queue is not kept from others."""
    plan, rig = _full_rig()
    hand, other, operator = rig.attach(), rig.attach(), rig.attach()
    hand.join()
    assert operator.say(ASKED[0]) == []
    plan.faults = [FULL]
    other.join(group="other")
    assert only(operator.listen(), groupwire.Refused).error == "DiskFull"
    _wait_and_make_room(plan, rig)
    hand.listen()
    hand.release_revoked()
    assert hand.granted[0].offset == 0


@mends("S179")
@pytest.mark.parametrize("asked", [groupwire.Reset(7, "idle", {0: 4}), ASKED[1]])
def test_what_meets_a_full_disk_is_told_so_and_done_once_there_is_room(
    asked: groupwire.Reset | groupwire.DeleteGroup,
) -> None:
    """Nobody had seen before that it is full."""
    plan, rig = _full_rig()
    operator = rig.attach()
    plan.faults = [FULL]
    refused = only(operator.say(asked), groupwire.Refused)
    assert (refused.serial, refused.error) == (7, "DiskFull")
    plan.faults = []
    rig.clock.advance(DISK_RETRY_NS)
    rig.settle()
    assert operator.listen() == []
    again = ledger_module.open_ledger(SimStorage(rig.disk), rig.board.epoch)
    if isinstance(asked, groupwire.Reset):
        assert again.group("idle").queue(("orders", 0)).committed == 4
    else:
        assert "idle" not in again.groups


def _failing_rig() -> tuple[RetryRig, Hand]:
    """A member of the one group has failed the first of three messages of a queue."""
    rig = RetryRig()
    for body in (b"fails", b"waits", b"follows"):
        rig.send(body)
    rig.settle()
    hand = rig.attach()
    rig.settle()
    hand.join()
    hand.note(q0=(0, 1))
    rig.settle()
    return rig, hand


def _fail_first(hand: Hand) -> list[groupwire.AnyNotice]:
    lease, ladder = hand.leases[0], [groupwire.LADDER]
    return hand.say(groupwire.SendBack(9, 0, lease, 17, [0], ladder, ["no good"]))


def _groups(rig: RetryRig) -> Groups:
    found = rig.agents[Role.GROUPS]
    assert isinstance(found, Groups)
    return found


def _is_asleep(rig: RetryRig) -> bool:
    """Whether `groups` sleeps until something happens, not until a time that has passed."""
    now_ns = rig.clock.monotonic_ns()
    slept_ns = _groups(rig).arm(now_ns)
    _groups(rig).disarm()
    return slept_ns >= UNRUNG_NS


@mends("S195")
@pytest.mark.parametrize("first", ["reset", "disk"])
def test_a_reset_that_waits_for_copies_without_room_is_refused_and_ends_nobody(first: str) -> None:
    """The writer alone lacks room: the ledger has some, and the member cannot give its queue back.

    Whichever comes first.
    """
    rig, hand = _failing_rig()
    operator = rig.attach()
    asked = groupwire.Reset(7, "g", {0: 1}, patience_ms=100)
    heard = operator.say(asked) if first == "reset" else []
    assert not heard
    rig.board.set_half(layout.BOARD_DISK_FULL, 1)
    assert not any(isinstance(said, groupwire.SentBack) for said in _fail_first(hand))
    heard = operator.listen() if first == "reset" else operator.say(asked)
    refused = only(heard, groupwire.Refused)
    assert (refused.serial, refused.error) == (7, "DiskFull")
    for _ in range(3):
        rig.clock.advance(AGAIN_NS)
        rig.settle()
        assert _is_asleep(rig)
    assert not rig.sessions.cut
    rig.board.set_half(layout.BOARD_DISK_FULL, 0)
    rig.clock.advance(AGAIN_NS)
    rig.settle()
    assert only(hand.listen(), groupwire.SentBack).offsets == [0]
    operator.say(groupwire.Reset(8, "g", asked.offsets))
    hand.listen()
    hand.release_revoked()
    assert only(operator.listen(), groupwire.WasReset).after == {0: 1}


@mends("S195")
def test_a_deadline_of_a_reset_that_has_passed_wakes_nobody() -> None:
    """Its member was ended then; what is waited for is the writer, which stands still."""
    rig, hand = _failing_rig()
    operator = rig.attach()
    rig.stalled.add(Role.WRITER)
    _fail_first(hand)
    assert operator.say(groupwire.Reset(7, "g", {0: 1}, patience_ms=100)) == []
    rig.clock.advance(100_000_000)
    rig.settle()
    assert [session for session, _ in rig.sessions.cut] == [hand.number]
    assert _is_asleep(rig)
    rig.stalled.clear()
    rig.settle()
    assert only(operator.listen(), groupwire.WasReset).after == {0: 1}


@mends("S195")
def test_a_group_whose_failed_messages_find_no_room_is_not_deleted() -> None:
    """It has no members: without room there would be nothing to wait for."""
    rig, hand = _failing_rig()
    operator = rig.attach()
    rig.board.set_half(layout.BOARD_DISK_FULL, 1)
    _fail_first(hand)
    rig.kill(hand)
    rig.settle()
    refused = only(operator.say(groupwire.DeleteGroup(7, "g")), groupwire.Refused)
    assert (refused.serial, refused.error) == (7, "DiskFull")
    rig.board.set_half(layout.BOARD_DISK_FULL, 0)
    rig.clock.advance(AGAIN_NS)
    rig.settle()
    assert only(operator.say(groupwire.DeleteGroup(8, "g")), groupwire.GroupDeleted).known


def test_groups_starts_and_stops_on_a_full_disk() -> None:
    """What was not stored was promised to nobody; the ledger is as it was."""
    plan = FaultPlan()
    rig = Rig(plan, orders=1)
    rig.fill(0, 10)
    hand = rig.attach()
    hand.join()
    hand.commit(q0=3)
    plan.faults = [FULL]
    hand.say(groupwire.Commit(2, hand.leases, {0: 5}))
    rig.replace_agent()
    assert not rig.agent.failed
    rig.restart_broker()
    rig.sessions.stop = True
    rig.settle()
    assert rig.agent.finished
    assert not ledgerentries.is_closed(SimStorage(rig.disk), rig.board.epoch)
    plan.faults = []
    rig.restart_broker()
    queue = rig.agent.ledger.group("g").queue(("orders", 0))
    assert (queue.committed, queue.lease) == (3, None)


def test_a_partial_write_on_a_full_disk_is_cut_as_a_torn_tail() -> None:
    """Some pages of a large change got through before the disk was full, then `groups` dies."""
    plan = FaultPlan()
    rig = Rig(plan, orders=1)
    rig.fill(0, 1000)
    hand = rig.attach()
    hand.join()
    hand.commit(q0=3)
    plan.faults = [replace(FULL, moment=Moment.MIDDLE)]
    before = len(read_file(SimStorage(rig.disk), "gantry/ledger"))
    for offset in range(4, 400):
        hand.say(groupwire.Commit(0, hand.leases, {0: offset}))
        rig.clock.advance(DISK_RETRY_NS)
    assert len(read_file(SimStorage(rig.disk), "gantry/ledger")) > before
    plan.faults = []
    rig.replace_agent()
    committed = rig.agent.ledger.group("g").queue(("orders", 0)).committed
    assert 3 <= committed < 400
    assert hand.commit(q0=500).lost == {}
    rig.restart_broker()
    assert rig.agent.ledger.group("g").queue(("orders", 0)).committed == 500


@mends("H15")
def test_what_cannot_be_read_ends_the_agent_and_not_the_broker() -> None:
    """Its successor goes on from the ledger; a failed write stays final."""
    plan = FaultPlan()
    rig = Rig(plan, orders=1)
    rig.fill(0, 10)
    hand = rig.attach()
    hand.join()
    hand.commit(q0=3)
    rig.clock.advance(EXPORT_NS)
    rig.settle()
    hand.commit(q0=4)
    exported = "config/consumerOffset.json"
    plan.faults = [Fault(1, Moment.BEFORE, errno.EIO, ("read",), persistent=True, under=exported)]
    rig.clock.advance(EXPORT_NS)
    with pytest.raises(OSError, match="EIO"):
        rig.settle()
    assert not has_failed(rig.board)
    plan.faults = []
    rig.replace_agent()
    rig.settle()
    assert hand.commit(q0=5)
    plan.faults = [Fault(1, Moment.BEFORE, errno.EIO, ("write",), under="gantry/ledger")]
    hand.lane.put(groupwire.encode(groupwire.Commit(7, hand.leases, {0: 6})))
    rig.settle()
    assert has_failed(rig.board)


@pytest.mark.parametrize("kind", ["create", "write", "sync", "rename"])
def test_no_room_for_a_compacted_ledger(kind: str) -> None:
    """The old one goes on with its own numbers, and is compacted later."""
    plan = FaultPlan()
    rig = Rig(plan, orders=2)
    rig.fill(0, 1000)
    rig.attach().join(group="gone")
    hand = rig.attach()
    hand.join()
    rig.agent.ledger.compact_bytes = 200
    if kind == "rename":
        plan.faults = [replace(FULL, kinds=(kind,))]
    else:
        plan.faults = [replace(FULL, kinds=(kind,), under="gantry/ledger.new")]
    for offset in range(1, 8):
        hand.commit(**{f"q{min(hand.leases)}": offset})
        rig.clock.advance(SYNC_NS)
        rig.settle()
    assert plan.met
    assert not rig.agent.failed
    assert not SimStorage(rig.disk).exists("gantry/ledger.new")
    again = ledger_module.open_ledger(SimStorage(rig.disk), rig.board.epoch)
    assert again.groups == rig.agent.ledger.groups


def test_exports_that_fail_for_room_do_not_make_our_file_another_s() -> None:
    """SF-105: the version of the file does not tell who wrote it, so the ledger must."""
    plan = FaultPlan()
    rig = Rig(plan, orders=1)
    rig.fill(0, 20)
    hand = rig.attach()
    hand.join()
    hand.commit(q0=5)
    rig.clock.advance(EXPORT_NS)
    rig.settle()
    plan.faults = [replace(FULL, under="config/")]
    for offset in range(6, 16):
        hand.commit(q0=offset)
        rig.clock.advance(EXPORT_NS)
        rig.settle()
    assert not rig.agent.failed
    plan.faults = []
    rig.restart_broker()
    assert rig.agent.ledger.group("g").queue(("orders", 0)).committed == 15
