"""Settlements by an operator when the writer refuses something of them, or dies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from shm import transactionwire as wire
from shm.codes import Role
from shm.transactionwire import COMMITTED, GIVEN_UP, ROLLED_BACK
from tests.support.transacting import CHECKER, Peer, TxnLife, refuse_next, txn_life
from workers.transactions.indoubt import InDoubt

TX = "0123456789abcdef" * 2
OTHER = "e" * 32
HOURS_100_MS = 360_000_000


@pytest.fixture
def life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TxnLife]:
    yield from txn_life(tmp_path / "store", monkeypatch)


def give_up_all(life: TxnLife) -> None:
    """What is open has waited too long."""
    life.run_for(2000)
    life.clock.step_wall(HOURS_100_MS)
    life.run_for(40_000)


def settle_refused(life: TxnLife, position: int, action: str, refused: tuple[int, ...]) -> int:
    """Ask for a settlement of which the writer refuses some entries; its serial, and who asked."""
    peer = Peer(life)
    serial = peer.put(wire.Settle(peer.next_serial(), position, action, "ops@host"))
    life.agents[CHECKER].do_work(life.clock.monotonic_ns())
    for number in refused:
        refuse_next(life, number)
    answer = peer.answer(serial)
    assert isinstance(answer, wire.Settled)
    return answer.error == "" and answer.outcome == wire.OUTCOMES[action]


def listed(life: TxnLife) -> dict[int, str]:
    """What `gantrymq tx list` shows."""
    return {doubt.position: doubt.state for doubt in InDoubt(life.storage, life.board).read()}


@pytest.mark.parametrize("refused", [(0,), (1,), (0, 1)])
def test_a_settlement_that_fails_lists_nothing_that_was_settled_before(
    life: TxnLife, refused: tuple[int, ...]
) -> None:
    """P10: also of a life before; and what failed is listed, or carried out as a whole."""
    before, half = life.half(TX, PGROUP="gone"), life.half(OTHER, PGROUP="gone")
    give_up_all(life)
    assert Peer(life).settle(before.position, wire.ROLLBACK).outcome == ROLLED_BACK
    life.run_for(3000)
    life.kill(CHECKER)
    life.run_for(3000)
    done = settle_refused(life, half.position, wire.COMMIT, refused)
    assert done == (len(refused) == 1)
    life.run_for(3000)
    assert listed(life) == ({} if done else {half.position: GIVEN_UP})
    peer = Peer(life)
    assert peer.settle(before.position, wire.COMMIT).error != ""
    assert peer.settle(half.position, wire.COMMIT).outcome == COMMITTED
    assert life.committed() == {half.position: 1}


@pytest.mark.parametrize("action", [wire.COMMIT, wire.ROLLBACK])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_what_an_operator_is_told_of_an_open_one_outlives_a_death(
    life: TxnLife, number: int, action: str
) -> None:
    """P10: copy, note and op record are one decision: what was refused of it is put again."""
    half = life.half(TX)
    life.run_for(2000)
    assert settle_refused(life, half.position, action, (number,) if number < 2 else ())
    life.kill(CHECKER)
    life.run_for(3000)
    wanted = wire.OUTCOMES[action]
    answer = Peer(life).ended([half], commit=action != wire.COMMIT)
    assert answer == (wanted, wire.DECIDED)
    assert life.committed() == ({half.position: 1} if action == wire.COMMIT else {})
    assert b"ops@host" in life.notes()[-1].body
    assert life.ops() == ["0,"]


def test_one_of_which_all_is_refused_stays_open(life: TxnLife) -> None:
    half = life.half(TX)
    life.run_for(2000)
    assert not settle_refused(life, half.position, wire.COMMIT, (0, 1, 2))
    life.run_for(2000)
    assert listed(life) == {half.position: "open"}
    assert (life.committed(), life.notes(), life.ops()) == ({}, [], [])
    assert Peer(life).ended([half], commit=False) == (ROLLED_BACK, "")


@pytest.mark.parametrize("victim", [CHECKER, Role.WRITER])
@pytest.mark.parametrize("action", [wire.COMMIT, wire.ROLLBACK])
@pytest.mark.parametrize("turns", [0, 1, 2, 3])
def test_whoever_dies_a_settlement_is_one(
    life: TxnLife, turns: int, action: str, victim: Role
) -> None:
    """P7, P10: an operator who has heard nothing asks again."""
    half = life.half(TX)
    life.run_for(2000)
    peer = Peer(life)
    peer.put(wire.Settle(peer.next_serial(), half.position, action, "ops@host"))
    for _ in range(turns):
        life.turn()
    life.kill(victim)
    life.run_for(3000)
    assert Peer(life).settle(half.position, action).outcome == wire.OUTCOMES[action]
    assert life.committed() == ({half.position: 1} if action == wire.COMMIT else {})
    assert life.ops() == ["0,"]
