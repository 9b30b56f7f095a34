"""P7: a transaction has one decision, whoever takes it first, for all its halves, now and later.

Each place that decides a half: an END, an answer to a check, an operator, giving up, a start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from gantrymq.shm import layout
from gantrymq.shm import transactionwire as wire
from gantrymq.shm.codes import Role
from gantrymq.shm.properties import HALF_TOPIC
from gantrymq.shm.transactionwire import COMMIT, COMMITTED, DECIDED, GIVEN_UP, ROLLBACK, ROLLED_BACK
from gantrymq.workers.transactions import kin as kinmodule
from gantrymq.workers.transactions import latecomers as latecomersmodule
from gantrymq.workers.transactions.agent import TxnChecker
from gantrymq.workers.transactions.indoubt import InDoubt
from tests.support.parking import Parked
from tests.support.transacting import CHECKER, GROUP, Peer, TxnLife, refuse_next, txn_life
from tests.support.trials import mends

TX = "0123456789abcdef" * 2
OTHER = "e" * 32
HOUR_MS = 3_600_000


@pytest.fixture
def life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TxnLife]:
    yield from txn_life(tmp_path / "store", monkeypatch)


def checker_of(life: TxnLife) -> TxnChecker:
    return cast("TxnChecker", life.agents[CHECKER])


def two(life: TxnLife, tx: str = TX) -> list[wire.Check]:
    """The halves of a transaction."""
    return [life.half(tx, number) for number in (1, 2)]


def answer(peer: Peer, half: wire.Check, *, commit: bool) -> tuple[str, str]:
    """What a producer's `transaction_checker` says of a half, and what is made of it."""
    named = [(half.position, half.queue_offset)]
    request = wire.End(peer.next_serial(), GROUP, half.tx, commit, named, from_check=True)
    told = peer.answer(peer.put(request))
    assert isinstance(told, wire.Ended)
    return told.outcome, told.error


def require_one_decision(life: TxnLife, halves: list[wire.Check], outcome: str) -> None:
    """In the log, of all."""
    copies = life.committed()
    assert [copies[half.position] for half in halves] == [int(outcome == COMMITTED)] * len(halves)
    named = sorted(int(name) for body in life.ops() for name in body.split(",") if name)
    assert named == sorted(half.queue_offset for half in halves)
    assert InDoubt(life.storage, life.board).read() == []


@mends("S2")
@pytest.mark.parametrize("commit", [False, True])
@pytest.mark.parametrize("first", [0, 1])
def test_answers_that_contradict(life: TxnLife, first: int, commit: bool) -> None:
    """A checker that changes its mind between two questions: the first answer is for both."""
    peer = Peer(life, GROUP)
    halves = two(life)
    life.run_for(7000)
    peer.hear()
    assert [check.position for check in peer.checks] == [half.position for half in halves]
    outcome = COMMITTED if commit else ROLLED_BACK
    assert answer(peer, halves[first], commit=commit) == (outcome, "")
    assert answer(peer, halves[1 - first], commit=not commit) == (outcome, DECIDED)
    assert peer.ended(halves, commit=not commit) == (outcome, DECIDED)
    assert peer.ended(halves, commit=commit) == (outcome, "")
    life.run_for(40_000)
    require_one_decision(life, halves, outcome)
    assert len(peer.checks) == 2, "nobody is asked about what is decided"


@mends("S2")
def test_answers_in_one_step_that_contradict(life: TxnLife) -> None:
    """Neither is in the log when the other comes."""
    peer, halves = Peer(life, GROUP), two(life)
    life.run_for(7000)
    for half, commit in zip(halves, (False, True), strict=True):
        named = [(half.position, half.queue_offset)]
        peer.put(wire.End(peer.next_serial(), GROUP, TX, commit, named, from_check=True))
    life.run_for(3000)
    require_one_decision(life, halves, ROLLED_BACK)


def by_end(peer: Peer, half: wire.Check) -> str:
    return peer.ended([half], commit=False)[0]


def by_answer(peer: Peer, half: wire.Check) -> str:
    return answer(peer, half, commit=False)[0]


def by_hand(peer: Peer, half: wire.Check) -> str:
    return peer.settle(half.position, ROLLBACK).outcome


DECIDERS = [by_end, by_answer, by_hand]


@mends("S2")
@pytest.mark.parametrize("victim", [None, CHECKER, Role.WRITER, "all"])
@pytest.mark.parametrize("decide", DECIDERS)
@pytest.mark.parametrize("is_read", [False, True])
def test_a_half_that_comes_late_follows(
    life: TxnLife, decide: Callable[..., str], is_read: bool, victim: Role | str | None
) -> None:
    """It was on its way. Whoever was replaced meanwhile, it is not asked about."""
    peer = Peer(life, GROUP)
    first = life.half(TX, 1)
    life.run_for(2000 if is_read or decide is by_hand else 0)
    assert decide(peer, first) == ROLLED_BACK
    if victim == "all":
        life.kill_all()
    elif isinstance(victim, Role):
        life.kill(victim)
    peer.enlist(GROUP)
    late = [life.half(TX, number) for number in (2, 3)]
    life.run_for(3000)
    require_one_decision(life, [first, *late], ROLLED_BACK)
    assert answer(peer, late[0], commit=True) == (ROLLED_BACK, DECIDED)
    peer.hear()
    assert peer.checks == []


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_late_half_that_its_producer_ends_otherwise(life: TxnLife, is_killed: bool) -> None:
    """Its END comes before the half was read from its queue, or right after a start."""
    peer = Peer(life, GROUP)
    first = life.half(TX, 1)
    life.run_for(7000)
    assert answer(peer, first, commit=True) == (COMMITTED, "")
    late = life.half(TX, 2)
    if is_killed:
        life.kill(CHECKER)
    assert peer.ended([late], commit=False) == (COMMITTED, DECIDED)
    life.run_for(3000)
    require_one_decision(life, [first, late], COMMITTED)


def test_a_late_half_follows_a_decision_that_is_found_far_back(
    life: TxnLife, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is remembered no more: the half queue tells, read backwards in short steps."""
    monkeypatch.setattr(latecomersmodule, "UNITS_MAX", 4)
    life.settle()
    monkeypatch.setattr(checker_of(life)._kin._recent, "_most", 1)
    peer, first = Peer(life), life.half(TX, 1)
    assert peer.ended([first], commit=True) == (COMMITTED, "")
    between = [life.half(f"{number:032x}") for number in range(1, 40)]
    for half in between:
        assert answer(peer, half, commit=False) == (ROLLED_BACK, "")
    late, alone = life.half(TX, 2), life.half(OTHER, 2)
    life.run_for(3000)
    assert life.committed() == {first.position: 1, late.position: 1}
    (doubt,) = InDoubt(life.storage, life.board).read()
    assert doubt.position == alone.position, "of this one nobody has decided anything"
    assert peer.ended([alone], commit=True) == (COMMITTED, "")


def test_a_half_before_those_that_are_named_is_decided_with_them(life: TxnLife) -> None:
    """Its receipt was lost: the producer rolls back what it knows of, read or not."""
    peer = Peer(life)
    halves = two(life)
    assert peer.ended(halves[1:], commit=False) == (ROLLED_BACK, "")
    life.run_for(3000)
    require_one_decision(life, halves, ROLLED_BACK)


@mends("S2")
@pytest.mark.parametrize("refused", [(), (0,), (1,), (2,), (0, 2), (1, 2)])
@pytest.mark.parametrize("victim", [CHECKER, Role.WRITER, "all"])
def test_a_death_amid_siblings(life: TxnLife, refused: tuple[int, ...], victim: Role | str) -> None:
    """Something of a commit is in the log when its decider dies, and the other answer comes."""
    peer, halves = Peer(life, GROUP), two(life)
    life.run_for(7000)
    named = [(halves[0].position, halves[0].queue_offset)]
    peer.put(wire.End(peer.next_serial(), GROUP, TX, True, named, from_check=True))
    life.agents[CHECKER].do_work(life.clock.monotonic_ns())
    for number in refused:
        refuse_next(life, number)
    life.agents[Role.WRITER].do_work(life.clock.monotonic_ns())
    if victim == "all":
        life.kill_all()
    else:
        life.kill(cast("Role", victim))
    assert answer(peer, halves[1], commit=False) == (COMMITTED, DECIDED)
    life.run_for(3000)
    require_one_decision(life, halves, COMMITTED)


@pytest.mark.parametrize("is_killed", [False, True])
def test_all_of_a_transaction_are_given_up(life: TxnLife, is_killed: bool) -> None:
    """By the checks of the first that has had them all; what comes later is parked as well."""
    halves = [life.half(TX, number, PGROUP="gone") for number in (1, 2)]
    life.run_for(2000)
    life.clock.step_wall(100 * HOUR_MS)
    life.run_for(8000)
    life.clock.step_wall(-100 * HOUR_MS)
    if is_killed:
        life.kill(CHECKER)
    halves.append(life.half(TX, 3, PGROUP="gone"))
    life.run_for(3000)
    assert [record.origin for record in life.parked()] == [half.position for half in halves]
    doubts = InDoubt(life.storage, life.board).read()
    assert [doubt.state for doubt in doubts] == [GIVEN_UP] * 3
    peer = Peer(life)
    for half in halves:
        assert peer.ended([half], commit=True, group="gone") == (GIVEN_UP, DECIDED)
    for half in halves:
        assert peer.settle(half.position, COMMIT).outcome == COMMITTED
    require_one_decision(life, halves, COMMITTED)


def test_halves_of_a_rocketmq_are_transactions_by_themselves(life: TxnLife) -> None:
    """They have no id: each has its own decision."""
    peer = Peer(life, GROUP)
    halves = []
    for name in ("A", "B"):
        properties = {
            "UNIQ_KEY": name * 32, "TRAN_MSG": "true", "PGROUP": GROUP, "REAL_TOPIC": "orders",
            "REAL_QID": "0",
        }  # fmt: skip
        (position,) = life.park(Parked(HALF_TOPIC, 0, properties, b"paid"))
        halves.append(wire.Check(position, 0, life.outcomes[-1].queue_offset, ""))
    life.run_for(2000)
    assert answer(peer, halves[0], commit=True) == (COMMITTED, "")
    assert answer(peer, halves[1], commit=False) == (ROLLED_BACK, "")
    assert life.committed() == {halves[0].position: 1}


def test_what_one_decision_does_not_take_along_follows(
    life: TxnLife, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kinmodule, "ALONG_MAX", 3)
    halves = [life.half(TX, number) for number in range(1, 12)]
    life.run_for(2000)
    assert Peer(life).ended(halves[5:6], commit=True) == (COMMITTED, "")
    life.run_for(3000)
    require_one_decision(life, halves, COMMITTED)
    assert life.ops()[0] == "5,0,1,2,"


def test_what_finds_no_room_on_the_disk_follows_later(life: TxnLife) -> None:
    peer, first = Peer(life), life.half(TX, 1)
    assert answer(peer, first, commit=True) == (COMMITTED, "")
    late = life.half(TX, 2)
    life.settle()
    checker = checker_of(life)
    while not checker._endings.is_flying(late.position):
        life.clock.advance(100_000_000)
        checker.do_work(life.clock.monotonic_ns())
    for number in (0, 1):
        refuse_next(life, number)
    life.agents[Role.WRITER].do_work(life.clock.monotonic_ns())
    life.run_for(10_000)
    require_one_decision(life, [first, late], COMMITTED)


def test_pairs_of_what_is_decided_are_forgotten(
    life: TxnLife, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Books do not only grow (H13): neither rows of several nor ids of decided transactions."""
    monkeypatch.setattr(kinmodule, "GONE_MIN", 8)
    life.settle()
    monkeypatch.setattr(checker_of(life)._kin._recent, "_most", 4)
    peer = Peer(life)
    for number in range(1, 30):
        halves = two(life, f"{number:032x}")
        life.run_for(1500)
        assert peer.ended(halves, commit=False) == (ROLLED_BACK, "")
    kin = checker_of(life)._kin
    assert len(kin._pairs) <= 24
    assert len(kin._recent) <= 4


def test_single_halves_cost_nothing_more(life: TxnLife) -> None:
    """A row each, as before, and no pair."""
    for number in range(1, 20):
        life.half(f"{number:032x}")
    life.run_for(2000)
    kin, table = checker_of(life)._kin, checker_of(life)._halves.table
    assert (len(kin._pairs), table.rows.dtype.itemsize) == (0, 64)
    assert np.count_nonzero(table.rows["kin"]) == 0
    assert life.board.word(layout.BOARD_OPEN_HALVES) == 19
