"""Halves that find no room in the txn-checker's ring: they harm nobody else, and are not lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from gantrymq.shm import layout
from gantrymq.shm import transactionwire as wire
from gantrymq.shm.codes import Role
from gantrymq.shm.properties import HALF_TOPIC
from gantrymq.shm.transactionwire import COMMITTED, ROLLED_BACK
from gantrymq.workers.transactions.agent import TxnChecker
from gantrymq.workers.transactions.halfmove import MOVES_MAX
from tests.support.transacting import CHECKER, Peer, TxnLife, txn_life
from tests.support.trials import mends

TX = "0123456789abcdef" * 2
OTHER = "e" * 32
RING_BYTES = 1 << 15
TOO_LARGE = b"x" * 17_000
HOUR_S = 3600


@pytest.fixture
def life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TxnLife]:
    monkeypatch.setitem(TxnLife.own_rings, CHECKER, RING_BYTES)
    yield from txn_life(tmp_path / "store", monkeypatch)


def require_alive(life: TxnLife) -> None:
    """The txn-checker decides what others ask."""
    half = life.half(OTHER)
    assert Peer(life).ended([half], commit=True) == (COMMITTED, "")
    assert life.committed()[half.position] == 1


@pytest.mark.parametrize("size", [15_800, 16_300, 33_000])
def test_a_delayed_one_is_refused_by_name(life: TxnLife, size: int) -> None:
    """TX-15, LW-47: also one that is too large only as it is parked, with what that adds."""
    half = life.half(TX, body=b"x" * size, GANTRY_TX_DELAY="level:1")
    life.settle()
    wanted = ("", wire.UNSTORABLE) if size > 16_000 else (COMMITTED, "")
    assert Peer(life).ended([half], commit=True) == wanted
    require_alive(life)


def test_a_delayed_one_is_found_before_a_part_goes_up(life: TxnLife) -> None:
    """Nothing of a transaction is stored that holds one."""
    halves = [life.half(TX, number, body=b"x" * 1500) for number in range(1, 41)]
    halves.append(life.half(TX, 41, body=TOO_LARGE, GANTRY_TX_DELAY="level:1"))
    life.settle()
    peer = Peer(life)
    assert peer.ended(halves, commit=True) == ("", wire.UNSTORABLE)
    assert (life.committed(), life.ops()) == ({}, [])
    assert peer.ended(halves, commit=False) == (ROLLED_BACK, "")
    require_alive(life)


def test_one_that_cannot_be_parked_stays_open(life: TxnLife) -> None:
    """TX-37: beside it others are given up, and an operator can take it back."""
    large = life.half(TX, body=TOO_LARGE, PGROUP="gone")
    small = life.half(OTHER, PGROUP="gone")
    life.run_for(2000)
    life.clock.step_wall(100 * HOUR_S * 1000)
    life.run_for(100_000)
    assert [record.origin for record in life.parked()] == [small.position]
    notes = [
        fields for _level, event, fields in life.tables[CHECKER].notes if event == "half_given_up"
    ]
    assert [fields["position"] for fields in notes] == [small.position]
    require_alive(life)
    assert Peer(life).settle(large.position, wire.ROLLBACK).outcome == ROLLED_BACK


def test_one_that_cannot_be_appended_again_holds_its_segment(life: TxnLife) -> None:
    """TX-30: others below are moved, and it is tried again."""
    large, small = life.half(TX, body=TOO_LARGE), life.half(OTHER)
    life.run_for(2000)
    life.board.set_word(layout.BOARD_TIMERS_WANTED, life.board.word(layout.BOARD_APPENDED))
    life.run_for(5000)
    moved = [record.origin for record in life.in_topic(HALF_TOPIC) if record.origin >= 0]
    assert moved == [small.position]
    require_alive(life)
    peer = Peer(life)
    assert peer.ended([large], commit=True) == ("", wire.UNSTORABLE)
    assert peer.ended([small], commit=True) == (COMMITTED, "")


def test_a_given_up_one_that_no_longer_fits_is_listed_still(life: TxnLife) -> None:
    """An operator's commit is refused by name; a rollback needs no copy."""
    half = life.half(TX, body=b"x" * 14_000, PGROUP="gone")
    life.run_for(2000)
    life.clock.step_wall(100 * HOUR_S * 1000)
    life.run_for(40_000)
    assert [record.origin for record in life.parked()] == [half.position]
    life.own = [it for it in life.own if it.owner != CHECKER]
    life.own_rings[CHECKER] = RING_BYTES // 2
    life.own.append(life._own_session(CHECKER))
    for role in (Role.WRITER, CHECKER):
        life.kill(role)
    life.run_for(2000)
    peer = Peer(life)
    for action in (wire.COMMIT, wire.RECHECK):
        assert peer.settle(half.position, action).error == wire.UNSTORABLE
    require_alive(life)
    assert peer.settle(half.position, wire.ROLLBACK).outcome == ROLLED_BACK


def test_what_waits_for_room_behind_one_is_told(life: TxnLife) -> None:
    """What is found too large only when its turn comes fails by itself."""
    peer = Peer(life)
    before = [life.half(f"{tx:032x}", body=b"x" * 1500) for tx in range(1, 41)]
    large, behind = life.half(TX, body=TOO_LARGE), life.half(OTHER)
    life.settle()
    serials = [peer.end([half], commit=True) for half in before]
    refused, late = peer.end([large], commit=True), peer.end([behind], commit=True)
    for serial in (*serials, late):
        answer = peer.answer(serial)
        assert isinstance(answer, wire.Ended)
        assert (answer.outcome, answer.error) == (COMMITTED, "")
    answer = peer.answer(refused)
    assert isinstance(answer, wire.Ended)
    assert answer.error == wire.UNSTORABLE


def test_a_rollback_needs_no_topic(life: TxnLife) -> None:
    """TX-21: only what is to be delivered has to find one."""
    half = life.half(TX, REAL_TOPIC="deleted")
    peer = Peer(life)
    assert peer.ended([half], commit=True) == ("", wire.UNSTORABLE)
    assert peer.ended([half], commit=False) == (ROLLED_BACK, "")
    assert life.ops() == ["0,"]


@mends("S163")
@pytest.mark.parametrize("mark", [layout.DELETED, layout.LEAVING])
@pytest.mark.parametrize("delay", ["", "level:1"], ids=["now", "delayed"])
@pytest.mark.parametrize("count", [1, 3])
def test_nothing_is_committed_into_a_deleted_topic(
    life: TxnLife, mark: int, delay: str, count: int
) -> None:
    """Its place on the board may be kept: what is put there nobody ever sees."""
    peer = Peer(life)
    halves = [life.half(TX, number, GANTRY_TX_DELAY=delay) for number in range(1, count + 1)]
    life.mark_topic("orders", mark)
    for half in halves:
        assert peer.ended([half], commit=True) == ("", wire.UNSTORABLE)
    assert peer.ended(halves, commit=True) == ("", wire.UNSTORABLE)
    life.run_for(2000)
    assert (life.committed(), life.ops()) == ({}, [])
    life.kill(CHECKER)
    peer = Peer(life)
    assert peer.ended(halves, commit=True) == ("", wire.UNSTORABLE)
    life.mark_topic("orders", 0)
    assert peer.ended(halves, commit=True) == (COMMITTED, "")


def test_requests_that_wait_for_room_are_heard_by_the_next_writer(life: TxnLife) -> None:
    """They are answered though nobody asks again."""
    peer = Peer(life)
    transactions = [
        [life.half(f"{tx:032x}", number, body=b"x" * 1500) for number in (1, 2, 3)]
        for tx in range(9)
    ]
    life.settle()
    serials = [peer.end(halves, commit=True) for halves in transactions]
    checker = cast("TxnChecker", life.agents[CHECKER])
    checker.do_work(life.clock.monotonic_ns())
    assert checker._endings.held
    life.kill(Role.WRITER)
    for serial in serials:
        answer = peer.answer(serial)
        assert isinstance(answer, wire.Ended)
        assert (answer.outcome, answer.error) == (COMMITTED, "")
    assert life.committed() == {half.position: 1 for halves in transactions for half in halves}


def test_a_search_for_an_old_decision_outlives_the_writer(life: TxnLife) -> None:
    """Who waits for what is looked for is answered though nobody asks again."""
    peer = Peer(life)
    half = life.half(TX)
    assert peer.ended([half], commit=False) == (ROLLED_BACK, "")
    life.run_for(3000)
    life.kill(CHECKER)
    life.run_for(3000)
    serial = peer.end([half], commit=True)
    checker = cast("TxnChecker", life.agents[CHECKER])
    checker.do_work(life.clock.monotonic_ns())
    assert len(checker._past)
    life.kill(Role.WRITER)
    answer = peer.answer(serial)
    assert isinstance(answer, wire.Ended)
    assert (answer.outcome, answer.error) == (ROLLED_BACK, wire.DECIDED)


def test_one_that_cannot_be_stored_keeps_its_transaction_open(life: TxnLife) -> None:
    """P7: nothing of it is committed, whichever half is named, also one that was appended again."""
    peer = Peer(life)
    small, large = life.half(TX, 1), life.half(TX, 2, body=TOO_LARGE)
    life.run_for(2000)
    life.board.set_word(layout.BOARD_TIMERS_WANTED, life.board.word(layout.BOARD_APPENDED))
    life.run_for(5000)
    assert peer.ended([small], commit=True) == ("", wire.UNSTORABLE)
    assert peer.ended([small, large], commit=True) == ("", wire.UNSTORABLE)
    assert life.committed() == {}
    assert peer.ended([small], commit=False) == (ROLLED_BACK, "")
    assert peer.ended([large], commit=True) == (ROLLED_BACK, wire.DECIDED)


def test_nobody_is_said_to_be_given_up_who_only_waits_for_it(life: TxnLife) -> None:
    """The warning comes once the copy is in the log, though many wait for room."""
    halves = [life.half(f"{tx:032x}", PGROUP="gone", body=b"x" * 1500) for tx in range(1, 41)]
    large = life.half(OTHER, PGROUP="gone", body=TOO_LARGE)
    life.run_for(2000)
    life.clock.step_wall(100 * HOUR_S * 1000)
    life.run_for(300_000)
    notes = life.tables[CHECKER].notes
    noted = {fields["position"] for _level, event, fields in notes if event == "half_given_up"}
    assert noted == {half.position for half in halves}
    assert large.position not in {record.origin for record in life.parked()}


@pytest.mark.parametrize("count", [3, MOVES_MAX])
def test_many_that_cannot_be_appended_again_hold_up_no_others(life: TxnLife, count: int) -> None:
    for tx in range(1, count + 1):
        life.half(f"{tx:032x}", body=TOO_LARGE)
    halves = [life.half(f"{1000 + tx:032x}") for tx in range(3 * MOVES_MAX)]
    life.run_for(2000)
    life.board.set_word(layout.BOARD_TIMERS_WANTED, life.board.word(layout.BOARD_APPENDED))
    life.run_for(1000)
    moved = [record.origin for record in life.in_topic(HALF_TOPIC) if record.origin >= 0]
    assert sorted(moved) == [half.position for half in halves]
