"""The txn-checker over the real agents: what it decides, what it stores, what outlives whom."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from gantrymq.shm import layout
from gantrymq.shm import transactionwire as wire
from gantrymq.shm.codes import Role
from gantrymq.shm.properties import GIVEN_UP_TOPIC, HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from gantrymq.shm.transactionwire import COMMITTED, GIVEN_UP, ROLLED_BACK
from gantrymq.workers.transactions import progress as transactionprogress
from gantrymq.workers.transactions.note import FILE, read_note
from tests.support.simclock import SimClock
from tests.support.transacting import CHECKER, GROUP, Peer, TxnLife, txn_life
from tests.support.trials import mends

TX = "0123456789abcdef" * 2
OTHER = "f" * 32
S = 1000  # milliseconds


@pytest.fixture
def life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TxnLife]:
    yield from txn_life(tmp_path / "store", monkeypatch)


def test_a_commit_stores_the_message_once_and_names_the_half(life: TxnLife) -> None:
    """TX-15, TX-46, TX-21: fields of the half, bits and position of a commit; the op record."""
    peer = Peer(life)
    half = life.half(TX, region="eu")
    assert peer.ended([half], commit=True) == (COMMITTED, "")
    (copy,) = life.in_topic("orders")
    (record,) = life.in_topic(HALF_TOPIC)
    assert (copy.queue_id, copy.body, copy.prepared_transaction_offset) == (
        1,
        b"paid",
        half.position,
    )
    assert copy.sys_flag == record.sys_flag | layout.SYS_COMMIT
    assert (copy.flag, copy.born_timestamp, copy.born_host) == (
        record.flag, record.born_timestamp, record.born_host,
    )  # fmt: skip
    named = record.property_map()
    dropped = {"REAL_TOPIC", "REAL_QID", "GANTRY_TX", "__CRC32#"}
    kept = {name: text for name, text in copy.property_map().items() if name != "__CRC32#"}
    assert kept == {name: text for name, text in named.items() if name not in dropped}
    (op,) = life.in_topic("RMQ_SYS_TRANS_OP_HALF_TOPIC")
    assert (op.body, op.queue_id, op.sys_flag) == (b"0,", 0, 0)
    assert {k: v for k, v in op.property_map().items() if k != "__CRC32#"} == {
        "TAGS": "d", "WAIT": "true",
    }  # fmt: skip
    assert op.physical_offset > copy.physical_offset


def test_the_first_decision_stands(life: TxnLife) -> None:
    """Asked again: the same answer, nothing more is stored; otherwise: an error that says what."""
    peer, second = Peer(life), Peer(life)
    kept, dropped = life.half(TX), life.half(OTHER)
    assert peer.ended([kept], commit=True) == (COMMITTED, "")
    assert peer.ended([dropped], commit=False) == (ROLLED_BACK, "")
    assert second.ended([kept], commit=True) == (COMMITTED, "")
    assert second.ended([kept], commit=False) == (COMMITTED, wire.DECIDED)
    assert second.ended([dropped], commit=True) == (ROLLED_BACK, wire.DECIDED)
    assert life.committed() == {kept.position: 1}
    assert life.ops() == ["0,", "1,"]


def test_what_is_no_half_of_theirs_is_refused(life: TxnLife) -> None:
    """LW-42: another group's, another transaction's, another offset, no half at all."""
    peer = Peer(life)
    half = life.half(TX)
    wrong = wire.Check(half.position, 0, half.queue_offset + 1, TX)
    behind = wire.Check(half.position + 1_000_000, 0, half.queue_offset, TX)
    inside = wire.Check(half.position + 8, 0, half.queue_offset, TX)
    assert peer.ended([half], commit=True, group="thief") == ("", wire.FOREIGN_GROUP)
    assert peer.ended([half], commit=False, group="thief") == ("", wire.FOREIGN_GROUP)
    assert peer.ended([half], commit=True, tx=OTHER) == ("", wire.NOT_A_HALF)
    for forged in (wrong, behind, inside):
        assert peer.ended([forged], commit=True) == ("", wire.NOT_A_HALF)
    assert peer.ended([half, wrong], commit=True) == ("", wire.NOT_A_HALF)
    assert (life.committed(), life.ops()) == (Counter(), [])
    assert peer.ended([half], commit=True) == (COMMITTED, "")


def test_many_decisions_share_an_op_record(life: TxnLife) -> None:
    """Committed halves come first, and `flag` says how many they are."""
    peers = [Peer(life) for _ in range(4)]
    halves = [life.half(f"{number:032x}") for number in range(8)]
    serials = [
        (peer, peer.end([halves[2 * n + k]], commit=k == 1))
        for n, peer in enumerate(peers)
        for k in range(2)
    ]
    for peer, serial in serials:
        answer = peer.answer(serial)
        assert isinstance(answer, wire.Ended)
        assert not answer.error
    (op,) = life.in_topic("RMQ_SYS_TRANS_OP_HALF_TOPIC")
    names = op.body.split(b",")[:-1]
    assert (sorted(names[:4]), sorted(names[4:])) == (
        [b"1", b"3", b"5", b"7"],
        [b"0", b"2", b"4", b"6"],
    )
    assert op.flag == 5


def test_an_old_decision_is_found_in_the_op_queue(life: TxnLife) -> None:
    """After a start nothing is remembered but what is open."""
    peer = Peer(life)
    kept, dropped = life.half(TX), life.half(OTHER)
    peer.ended([kept], commit=True)
    peer.ended([dropped], commit=False)
    life.run_for(2 * S)
    life.kill(CHECKER)
    assert peer.ended([kept], commit=True) == (COMMITTED, "")
    assert peer.ended([kept], commit=False) == (COMMITTED, wire.DECIDED)
    assert peer.ended([dropped], commit=False) == (ROLLED_BACK, "")
    assert life.committed() == {kept.position: 1}


@pytest.mark.parametrize("victim", [CHECKER, Role.WRITER, Role.READER, None])
@pytest.mark.parametrize("turns", [1, 2, 4])
def test_whoever_dies_each_half_is_decided_once(
    life: TxnLife, victim: Role | None, turns: int
) -> None:
    """A kill of one agent, or of all, after so many of their turns; the END is repeated."""
    peer = Peer(life)
    halves = [life.half(TX, number, bytes([number])) for number in (1, 2, 3)]
    dropped = life.half(OTHER)
    serials = [peer.end(halves, commit=True), peer.end([dropped], commit=False)]
    order = (CHECKER, Role.WRITER, CHECKER, Role.FLUSHER, Role.READER)
    for role in order[:turns]:
        life.agents[role].do_work(life.clock.monotonic_ns())
    if victim is None:
        life.kill_all()
    else:
        life.kill(victim)
    again = [peer.end(halves, commit=True), peer.end([dropped], commit=False)]
    for serial, outcome in zip(again, (COMMITTED, ROLLED_BACK), strict=True):
        answer = peer.answer(serial)
        assert isinstance(answer, wire.Ended)
        assert (answer.outcome, answer.error) == (outcome, "")
    life.run_for(2 * S)
    assert serials
    assert life.committed() == {half.position: 1 for half in halves}
    named = Counter(word for body in life.ops() for word in body.split(",") if word)
    assert named == {"0": 1, "1": 1, "2": 1, "3": 1}


@pytest.mark.parametrize("action", [wire.COMMIT, wire.ROLLBACK, wire.RECHECK])
def test_an_operator_settles_what_was_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    monkeypatch.setattr(transactionprogress, "interval_ns", 1_000_000_000)
    few: dict[str, object] = {"transaction_check_max": 1, "transaction_check_interval_s": 1}
    life = TxnLife(tmp_path / "store", SimClock(), few)
    peer = Peer(life, GROUP)
    half = life.half(TX)
    life.run_for(12 * S)
    assert len(life.parked()) == 1
    outcome = {
        wire.COMMIT: COMMITTED, wire.ROLLBACK: ROLLED_BACK, wire.RECHECK: wire.CHECKED_AGAIN,
    }[action]  # fmt: skip
    answer = peer.settle(half.position, action)
    assert (answer.outcome, answer.error) == (outcome, "")
    assert b"ops@host" in life.notes()[-1].body
    assert life.committed() == ({half.position: 1} if action == wire.COMMIT else {})
    if action == wire.RECHECK:
        asked = len(peer.checks)
        life.run_for(9 * S)
        peer.hear()
        assert len(peer.checks) > asked
        assert peer.ended([half], commit=True)[0] in (COMMITTED, GIVEN_UP)
    else:
        again = peer.settle(half.position, action)
        assert (again.outcome, again.error) == (outcome, "")
        other = wire.ROLLBACK if action == wire.COMMIT else wire.COMMIT
        assert peer.settle(half.position, other).error == wire.DECIDED
    life.kill_all()
    life.run_for(2 * S)
    still = 0 if action != wire.RECHECK else life.board.word(layout.BOARD_GIVEN_UP)
    assert life.board.word(layout.BOARD_GIVEN_UP) == still
    assert sum(life.committed().values()) <= 1


def test_an_operator_settles_an_open_one(life: TxnLife) -> None:
    peer = Peer(life)
    kept, dropped = life.half(TX), life.half(OTHER)
    life.settle()
    assert peer.settle(kept.position, wire.COMMIT).outcome == COMMITTED
    assert peer.settle(dropped.position, wire.ROLLBACK).outcome == ROLLED_BACK
    assert peer.settle(10**9, wire.ROLLBACK).error == wire.UNKNOWN
    assert peer.settle(kept.position, "burn").error == wire.NOT_A_HALF
    assert life.committed() == {kept.position: 1}
    assert peer.ended([dropped], commit=True) == (ROLLED_BACK, wire.DECIDED)


def test_an_end_that_names_a_half_twice_commits_it_once(life: TxnLife) -> None:
    """P7."""
    half = life.half(TX)
    life.settle()
    assert Peer(life).ended([half, half], commit=True) == (COMMITTED, "")
    assert life.committed() == {half.position: 1}
    assert life.ops() == ["0,"]


def test_a_transaction_of_which_an_operator_took_one_back_is_rolled_back(life: TxnLife) -> None:
    """P10: whichever it was, and whichever comes last in the END."""
    peer = Peer(life)
    for order in (1, -1):
        halves = [life.half(f"{order % 7:032x}", number) for number in (1, 2)]
        life.settle()
        kept, dropped = halves[::order]
        assert peer.settle(dropped.position, wire.ROLLBACK).outcome == ROLLED_BACK
        assert peer.ended([kept], commit=True) == (ROLLED_BACK, wire.DECIDED)
        assert peer.ended(halves, commit=True) == (ROLLED_BACK, wire.DECIDED)
        assert peer.ended(halves, commit=False) == (ROLLED_BACK, "")
        assert life.committed() == {}


def test_a_delayed_message_counts_from_its_commit(life: TxnLife) -> None:
    """LW-47: parked by the commit, as a delayed send is, and delivered with a commit's bits."""
    peer = Peer(life)
    level = life.half(TX, GANTRY_TX_DELAY="level:1")
    after = life.half(OTHER, GANTRY_TX_DELAY="after:2000")
    life.run_for(3 * S)
    assert peer.ended([level], commit=True) == (COMMITTED, "")
    assert peer.ended([after], commit=True) == (COMMITTED, "")
    assert life.in_topic("orders") == []
    (parked,) = life.in_topic(SCHEDULE_TOPIC)
    assert parked.prepared_transaction_offset == level.position
    life.run_for(1500)
    assert len(life.in_topic("orders")) == 1
    life.run_for(1 * S)
    assert len(life.in_topic("orders")) == 2
    assert all(copy.sys_flag & layout.SYS_COMMIT for copy in life.in_topic("orders"))
    life.kill_all()
    life.run_for(5 * S)
    assert len(life.in_topic("orders")) == 2
    assert life.ops() == ["0,", "1,"]


@mends("S12")
def test_a_wall_that_was_set_back_holds_no_delayed_message(life: TxnLife) -> None:
    peer = Peer(life)
    after = life.half(OTHER, GANTRY_TX_DELAY="after:2000")
    life.settle()
    assert peer.ended([after], commit=True) == (COMMITTED, "")
    life.run_for(500)
    life.clock.step_wall(-3_600_000)
    life.run_for(1_000)
    assert life.in_topic("orders") == []
    life.run_for(1_000)
    assert len(life.in_topic("orders")) == 1


@mends("S13")
def test_a_delay_waits_though_the_wall_was_set_back_before_the_commit(life: TxnLife) -> None:
    """P8: what is rounded was rounded by another wall than the record was stored by."""
    peer = Peer(life)
    half = life.half(OTHER, GANTRY_TX_DELAY="after:2000")
    life.settle()
    life.clock.step_wall(-3_600_000)
    life.run_for(100)
    assert peer.ended([half], commit=True) == (COMMITTED, "")
    (parked,) = life.in_topic(TIMER_TOPIC)
    rounded = int(parked.property_map()["TIMER_OUT_MS"])
    assert rounded < parked.store_timestamp + 2_000 <= rounded + 1_000
    life.run_for(1_500)
    assert life.in_topic("orders") == []
    life.run_for(1_000)
    assert len(life.in_topic("orders")) == 1


@mends("S13")
def test_a_delay_is_one_whenever_it_is_stored(life: TxnLife) -> None:
    """The end of a second lies between its decision and its storeTimestamp."""
    half = life.half(OTHER, GANTRY_TX_DELAY="after:2000")
    life.settle()
    life.clock.advance((999 - life.clock.wall_ms()) % 1000 * 1_000_000)
    Peer(life).end([half], commit=True)
    life.agents[CHECKER].do_work(life.clock.monotonic_ns())
    life.clock.advance(5_000_000)
    life.run_for(500)
    (parked,) = life.in_topic(TIMER_TOPIC)
    rounded = int(parked.property_map()["TIMER_OUT_MS"])
    assert parked.store_timestamp + 2_000 > rounded + 1_000
    life.clock.step_wall(-3_600_000)
    life.run_for(1_300)
    assert life.in_topic("orders") == []
    life.run_for(500)
    assert len(life.in_topic("orders")) == 1


def require_committed_on_disk(life: TxnLife, peer: Peer, half: wire.Check, serial: int) -> None:
    """The request is answered when the flusher has been there, and not before."""
    flusher = life.agents.pop(Role.FLUSHER)
    for _ in range(50):
        life.turn()
        peer.hear()
    assert serial not in peer.heard
    assert life.committed() == {half.position: 1}
    life.agents[Role.FLUSHER] = flusher
    answer = peer.answer(serial)
    assert isinstance(answer, wire.Ended | wire.Settled)
    assert answer.outcome == COMMITTED


def test_a_durable_topic_is_answered_once_the_disk_has_it(tmp_path: Path) -> None:
    life = TxnLife(tmp_path / "store", SimClock())
    life.metadata.create("sure", 2, "durable")
    peer = Peer(life)
    half = life.half(TX, REAL_TOPIC="sure")
    life.settle()
    require_committed_on_disk(life, peer, half, peer.end([half], commit=True))


def test_an_operator_is_answered_once_the_disk_has_it(tmp_path: Path) -> None:
    life = TxnLife(tmp_path / "store", SimClock())
    peer = Peer(life)
    half = life.half(TX)
    life.run_for(2 * S)
    serial = peer.put(wire.Settle(peer.next_serial(), half.position, wire.COMMIT, "ops@host"))
    require_committed_on_disk(life, peer, half, serial)


def test_the_note_spares_a_start_what_is_settled(life: TxnLife) -> None:
    """And tells RocketMQ's progress (HO-40): first open half, first op record behind it."""
    peer = Peer(life)
    halves = [life.half(f"{number:032x}") for number in range(5)]
    for number in (0, 1, 3):
        assert peer.ended([halves[number]], commit=True) == (COMMITTED, "")
    life.run_for(3 * S)
    note = read_note(life.storage)
    assert note is not None
    assert [row[0] for row in note.open] == [2, 4]
    assert (note.half_progress, note.op_progress) == (2, 2)
    assert life.board.word(layout.BOARD_HALF_PROGRESS) == 2
    assert life.board.word(layout.BOARD_OP_PROGRESS) == 2
    assert life.board.word(layout.BOARD_OPEN_HALVES) == 2
    life.kill(CHECKER)
    assert peer.ended([halves[2]], commit=True) == (COMMITTED, "")
    life.storage.unlink(FILE)
    life.kill(CHECKER)
    assert peer.ended([halves[4]], commit=False) == (ROLLED_BACK, "")
    assert peer.ended([halves[0]], commit=True) == (COMMITTED, "")
    assert life.committed() == {halves[number].position: 1 for number in (0, 1, 2, 3)}
    life.run_for(3 * S)
    assert life.board.word(layout.BOARD_HALF_PROGRESS) == 5


def test_a_session_that_breaks_the_rules_is_cut_off(life: TxnLife) -> None:
    peer = Peer(life)
    assert peer.lane.put(b"\xff\xff nonsense")
    life.settle()
    assert [number for number, _why in life.tables[CHECKER].cut] == [peer.session.session]
    assert GIVEN_UP_TOPIC in life.slots


def test_of_records_with_one_key_the_newest_counts(life: TxnLife) -> None:
    """HO-41: what a RocketMQ has put back (TX-32); an END may name any of them."""
    peer = Peer(life)
    older = life.half("", UNIQ_KEY="A" * 32, GANTRY_TX="")
    newest = life.half("", UNIQ_KEY="A" * 32, GANTRY_TX="", TRANSACTION_CHECK_TIMES="1")
    life.kill(CHECKER)
    assert peer.ended([older], commit=True) == (COMMITTED, "")
    assert peer.ended([newest], commit=True) == (COMMITTED, "")
    assert life.committed() == {newest.position: 1}
    assert life.ops() == ["0,", "1,"]
    life.run_for(2 * S)
    life.kill(CHECKER)
    assert peer.ended([older], commit=False) == (COMMITTED, wire.DECIDED)
    life.storage.unlink(FILE)
    life.kill(CHECKER)
    life.run_for(2 * S)
    assert life.committed() == {newest.position: 1}


@pytest.mark.parametrize("action", [wire.COMMIT, wire.ROLLBACK])
def test_what_was_settled_after_giving_up_is_known_after_a_start(
    tmp_path: Path, action: str
) -> None:
    """An END for it is told what the operator decided, not what the op record names."""
    few: dict[str, object] = {"transaction_check_max": 1, "transaction_check_interval_s": 1}
    life = TxnLife(tmp_path / "store", SimClock(), few)
    peer = Peer(life, GROUP)
    half = life.half(TX)
    life.run_for(12 * S)
    assert not peer.settle(half.position, action).error
    life.run_for(1 * S)
    life.kill(CHECKER)
    wanted = action == wire.COMMIT
    assert peer.ended([half], commit=wanted) == (COMMITTED if wanted else ROLLED_BACK, "")
    assert peer.ended([half], commit=not wanted)[1] == wire.DECIDED
    assert life.committed() == ({half.position: 1} if wanted else {})
