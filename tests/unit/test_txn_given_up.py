"""Giving up is one decision, whoever dies amid it: listed once, and settled once (P10)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from gantrymq.shm import layout
from gantrymq.shm import transactionwire as wire
from gantrymq.shm.codes import Role
from gantrymq.shm.transactionwire import COMMITTED, DECIDED, GIVEN_UP, ROLLED_BACK
from gantrymq.workers.transactions.agent import TxnChecker
from gantrymq.workers.transactions.indoubt import InDoubt
from tests.support.simclock import SimClock
from tests.support.transacting import CHECKER, GROUP, Peer, TxnLife, refuse_next, txn_life

TX = "0123456789abcdef" * 2
HOURS_100_MS = 360_000_000


@pytest.fixture
def life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TxnLife]:
    yield from txn_life(tmp_path / "store", monkeypatch)


def give_up_amid(life: TxnLife, refused: int, victim: Role) -> None:
    """A half becomes too old; the writer refuses one entry of it, and an agent dies at once.

    The copy goes up first, then the op record.
    """
    life.run_for(2000)
    life.clock.step_wall(HOURS_100_MS)
    checker = cast("TxnChecker", life.agents[CHECKER])
    for number in range(refused + 1):
        for _ in range(100_000):
            if checker._decisions.flying:
                break
            life.clock.advance(1_000_000)
            checker.do_work(life.clock.monotonic_ns())
        if number == refused:
            refuse_next(life)
        life.agents[Role.WRITER].do_work(life.clock.monotonic_ns())
        if number < refused:
            checker._take(life.clock.monotonic_ns())
            checker._decisions.flush(life.clock.wall_ms())
    life.kill(victim)
    life.run_for(3000)


def listed(life: TxnLife) -> list[tuple[int, str]]:
    """What `gantrymq tx list` shows."""
    return [(doubt.position, doubt.state) for doubt in InDoubt(life.storage, life.board).read()]


@pytest.mark.parametrize(
    ("refused", "victim", "action"),
    [
        (0, CHECKER, wire.COMMIT),
        (1, CHECKER, wire.RECHECK),
        (0, Role.WRITER, wire.ROLLBACK),
        (1, Role.WRITER, wire.COMMIT),
    ],
)
def test_what_a_full_disk_took_of_giving_up_is_put_again(
    life: TxnLife, refused: int, victim: Role, action: str
) -> None:
    half = life.half(TX, PGROUP="gone")
    give_up_amid(life, refused, victim)
    life.run_for(8000)
    assert listed(life) == [(half.position, GIVEN_UP)]
    assert {record.origin for record in life.parked()} == {half.position}
    assert life.ops() == ["0,"]
    assert life.board.word(layout.BOARD_OPEN_HALVES) == 0
    assert Peer(life).settle(half.position, action).outcome == wire.OUTCOMES[action]
    assert life.committed() == ({half.position: 1} if action == wire.COMMIT else {})


@pytest.mark.parametrize("refused", [0, 1])
def test_a_producer_and_an_operator_hear_the_same(life: TxnLife, refused: int) -> None:
    half = life.half(TX, PGROUP="gone")
    give_up_amid(life, refused, CHECKER)
    outcome, error = Peer(life).ended([half], commit=False, group="gone")
    assert (outcome, error) in ((ROLLED_BACK, ""), (GIVEN_UP, DECIDED))
    answer = Peer(life).settle(half.position, wire.COMMIT)
    if outcome == ROLLED_BACK:
        assert (answer.outcome, answer.error) == (ROLLED_BACK, DECIDED)
        assert (listed(life), life.committed()) == ([], {})
    else:
        assert answer.outcome == COMMITTED
        assert life.committed() == {half.position: 1}


@pytest.mark.parametrize("commit", [False, True])
def test_a_copy_without_op_record_is_a_decision(tmp_path: Path, commit: bool) -> None:
    """A power cut between the two: neither producer nor operator decide again what the other did.

    Nobody is old enough to be given up at once by the next txn-checker.
    """
    few: dict[str, object] = {
        "transaction_check_max": 1, "transaction_check_interval_s": 1, "transaction_timeout_s": 1,
    }  # fmt: skip
    life = TxnLife(tmp_path / "store", SimClock(), few)
    peer = Peer(life, GROUP)
    half = life.half(TX)
    checker = cast("TxnChecker", life.agents[CHECKER])
    while not life.parked():
        life.clock.advance(5_000_000)
        life.turn()
    checker._decisions.flush = lambda now_ms: False  # type: ignore[method-assign]
    life.run_for(100)
    life.kill(CHECKER)
    life.turn()
    assert listed(life) == [(half.position, GIVEN_UP)]
    assert peer.ended([half], commit=commit) == (GIVEN_UP, DECIDED)
    assert (life.ops(), len(life.parked())) == (["0,"], 1)
    assert peer.settle(half.position, wire.ROLLBACK).outcome == ROLLED_BACK
    assert (life.committed(), listed(life)) == ({}, [])


def test_copies_are_parked_again_as_often_as_retention_asks(life: TxnLife) -> None:
    """Each time the newest one counts, and the next is not held up by the one before."""
    half = life.half(TX, PGROUP="gone")
    life.run_for(2000)
    life.clock.step_wall(HOURS_100_MS)
    life.run_for(40_000)
    for number in range(3):
        life.half(f"{number:032x}")
    for times in range(2, 5):
        life.run_for(2000)
        life.board.set_word(layout.BOARD_TIMERS_WANTED, life.board.word(layout.BOARD_APPENDED))
        life.run_for(4000)
        assert [record.origin for record in life.parked()] == [half.position] * times
    assert life.ops() == ["0,", "1,2,3,", "4,5,6,", "7,8,9,"]
    assert listed(life)[0] == (half.position, GIVEN_UP)
    assert Peer(life).settle(half.position, wire.COMMIT).outcome == COMMITTED
    assert life.committed() == {half.position: 1}
