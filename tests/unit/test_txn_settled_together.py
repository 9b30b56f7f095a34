"""P7: what was given up of one transaction is settled one way, by whomever and however late.

Two operators at once; one who was interrupted, and the other way by the next; and what becomes of
others of the transaction meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gantrymq.shm.codes import Role
from gantrymq.shm.transactionwire import (
    CHECKED_AGAIN,
    COMMIT,
    COMMITTED,
    DECIDED,
    OUTCOMES,
    RECHECK,
    ROLLBACK,
    ROLLED_BACK,
    UNSTORABLE,
    Settle,
    Settled,
)
from gantrymq.workers.transactions import progress as progressmodule
from gantrymq.workers.transactions.indoubt import InDoubt
from gantrymq.workers.transactions.note import FILE, read_note, write_note
from tests.support.transacting import CHECKER, GROUP, Peer, TxnLife, refuse_next, txn_life
from tests.support.trials import mends
from tests.unit.test_txn_kin import checker_of
from tests.unit.test_txn_settling import give_up_all

TX = "0123456789abcdef" * 2
OTHERWISE = {COMMIT: ROLLBACK, ROLLBACK: COMMIT}


@pytest.fixture
def life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TxnLife]:
    yield from txn_life(tmp_path / "store", monkeypatch)


def given_up(life: TxnLife, count: int = 2) -> list[int]:
    """Positions of the halves of a transaction that nobody can be asked about."""
    halves = [life.half(TX, number, PGROUP="gone") for number in range(1, count + 1)]
    give_up_all(life)
    assert len(InDoubt(life.storage, life.board).read()) == count
    return [half.position for half in halves]


def forget(life: TxnLife, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the txn-checker lose what it has in memory."""
    if how == "many":
        monkeypatch.setattr(checker_of(life)._kin._recent, "_most", 2)
        for number in range(5):
            half = life.half(f"{number:032x}", 2)
            Peer(life).ended([half], commit=False)
        return
    if how in ("note", "both"):
        life.run_for(7000)  # a note says what was settled
    life.kill_all()
    life.run_for(3000)
    if how == "both":
        life.run_for(7000)
        life.kill(CHECKER)
        life.run_for(3000)
    if how == "no note":
        life.storage.unlink(FILE)
        life.kill_all()
        life.run_for(3000)


@mends("S15")
@pytest.mark.parametrize("how", ["at once", "note", "both", "no note", "many"])
@pytest.mark.parametrize("action", [COMMIT, ROLLBACK])
def test_the_first_settlement_is_that_of_the_others(
    life: TxnLife, action: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator was interrupted behind the first, and the checker forgets."""
    first, second, third = given_up(life, 3)
    outcome = OUTCOMES[action]
    assert Peer(life).settle(first, action).outcome == outcome
    forget(life, how, monkeypatch)
    for contrary in (OTHERWISE[action], RECHECK):
        answer = Peer(life).settle(second, contrary)
        assert (answer.outcome, answer.error) == (outcome, DECIDED)
    assert Peer(life).settle(second, action).outcome == outcome
    forget(life, how, monkeypatch)
    assert Peer(life).settle(third, OTHERWISE[action]).error == DECIDED
    assert Peer(life).settle(third, action).outcome == outcome
    assert life.committed() == dict.fromkeys([first, second, third] if action == COMMIT else [], 1)


@mends("S15")
@pytest.mark.parametrize("actions", [(COMMIT, ROLLBACK), (ROLLBACK, COMMIT), (COMMIT, RECHECK)])
@pytest.mark.parametrize("is_known", [True, False])
def test_two_operators_at_once(life: TxnLife, actions: tuple[str, str], is_known: bool) -> None:
    """The one waits for the disk when the other comes."""
    places = given_up(life)
    if not is_known:
        life.kill(CHECKER)
        life.run_for(3000)
    peers = [Peer(life), Peer(life)]
    serials = [
        peer.put(Settle(peer.next_serial(), position, action, "ops@host"))
        for peer, position, action in zip(peers, places, actions, strict=True)
    ]
    first, second = (peer.answer(serial) for peer, serial in zip(peers, serials, strict=True))
    assert isinstance(first, Settled)
    assert isinstance(second, Settled)
    assert (first.outcome, first.error) == (OUTCOMES[actions[0]], "")
    assert second.error == DECIDED
    assert Peer(life).settle(places[1], actions[0]).outcome == OUTCOMES[actions[0]]
    assert life.committed() == dict.fromkeys(places if actions[0] == COMMIT else [], 1)


def test_the_same_at_once_is_one_settlement(life: TxnLife) -> None:
    places = given_up(life)
    peer = Peer(life)
    serials = [peer.put(Settle(peer.next_serial(), at, COMMIT, "ops@host")) for at in places]
    assert all(peer.answer(serial).error == "" for serial in serials)  # type: ignore[union-attr]
    assert life.committed() == dict.fromkeys(places, 1)


def test_a_settlement_that_fails_binds_nobody(life: TxnLife) -> None:
    places = given_up(life)
    life.kill(CHECKER)
    life.run_for(3000)
    peer = Peer(life)
    serial = peer.put(Settle(peer.next_serial(), places[0], COMMIT, "ops@host"))
    life.agents[CHECKER].do_work(life.clock.monotonic_ns())
    for number in (0, 1):
        refuse_next(life, number)
    assert peer.answer(serial).error  # type: ignore[union-attr]
    for position in places:
        assert Peer(life).settle(position, ROLLBACK).outcome == ROLLED_BACK


@mends("S15")
@pytest.mark.parametrize("refused", [0, 1])
def test_what_a_start_finds_carried_out_binds_the_others(life: TxnLife, refused: int) -> None:
    """The copy tells, not the note: of these two one was refused, and the checker has died."""
    places = given_up(life)
    peer = Peer(life)
    peer.put(Settle(peer.next_serial(), places[0], COMMIT, "ops@host"))
    life.agents[CHECKER].do_work(life.clock.monotonic_ns())
    refuse_next(life, refused)
    life.agents[Role.WRITER].do_work(life.clock.monotonic_ns())
    life.kill(CHECKER)
    life.run_for(3000)
    answer = Peer(life).settle(places[1], ROLLBACK)
    assert (answer.error == DECIDED) == (refused == 1)
    action = COMMIT if refused == 1 else ROLLBACK
    for position in places:
        assert Peer(life).settle(position, action).outcome == OUTCOMES[action]


@mends("S15")
@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("is_noted", [False, True])
@pytest.mark.parametrize("commit", [False, True])
def test_what_was_checked_anew_binds_the_others(
    life: TxnLife, commit: bool, is_noted: bool, is_killed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is open again, and its producer ends it; also of more than a note lists."""
    if is_noted:
        monkeypatch.setattr(progressmodule, "LISTED_MAX", 0)
    halves = [life.half(TX, number) for number in (1, 2)]
    give_up_all(life)
    assert Peer(life).settle(halves[0].position, RECHECK).outcome == CHECKED_AGAIN
    life.run_for(7000)
    outcome = COMMITTED if commit else ROLLED_BACK
    assert Peer(life).ended([halves[0]], commit=commit) == (outcome, "")
    if is_noted:
        life.run_for(7000)
    if is_killed:
        life.kill(CHECKER)
        life.run_for(3000)
    wanted, contrary = (COMMIT, ROLLBACK) if commit else (ROLLBACK, COMMIT)
    assert Peer(life).settle(halves[1].position, contrary).error == DECIDED
    assert Peer(life).settle(halves[1].position, wanted).outcome == outcome
    assert len(life.committed()) == (2 if commit else 0)


@mends("S15")
@pytest.mark.parametrize("is_killed", [False, True])
def test_what_is_open_again_follows_the_others(life: TxnLife, is_killed: bool) -> None:
    """Nobody can be asked about it; nor may its producer, or an operator, end it otherwise."""
    places = given_up(life, 3)
    assert Peer(life).settle(places[0], RECHECK).outcome == CHECKED_AGAIN
    assert Peer(life).settle(places[1], ROLLBACK).outcome == ROLLED_BACK
    if is_killed:
        life.kill(CHECKER)
        life.run_for(3000)
    assert Peer(life).settle(places[0], COMMIT).error == DECIDED
    life.run_for(3000)
    assert Peer(life).settle(places[2], COMMIT).error == DECIDED
    assert Peer(life).settle(places[0], ROLLBACK).outcome == ROLLED_BACK
    assert Peer(life, GROUP).settle(places[2], ROLLBACK).outcome == ROLLED_BACK
    assert life.committed() == {}
    assert InDoubt(life.storage, life.board).read() == []


@mends("S15")
@pytest.mark.parametrize("is_killed", [False, True])
def test_what_cannot_follow_is_taken_back_by_itself(life: TxnLife, is_killed: bool) -> None:
    """Its topic is gone; of the rest the first decision still stands."""
    topics = ("orders", "deleted", "orders")
    places = [
        life.half(TX, number, PGROUP="gone", REAL_TOPIC=topic).position
        for number, topic in enumerate(topics, 1)
    ]
    give_up_all(life)
    assert Peer(life).settle(places[0], COMMIT).outcome == COMMITTED
    assert Peer(life).settle(places[1], COMMIT).error == UNSTORABLE
    assert Peer(life).settle(places[1], RECHECK).error == DECIDED
    assert Peer(life).settle(places[1], ROLLBACK).outcome == ROLLED_BACK
    if is_killed:
        life.kill(CHECKER)
        life.run_for(3000)
    assert Peer(life).settle(places[2], ROLLBACK).error == DECIDED
    assert Peer(life).settle(places[2], COMMIT).outcome == COMMITTED


def test_checked_anew_while_another_is_ended_it_follows(life: TxnLife) -> None:
    """One is open again and its producer ends it before the other is in the log."""
    first, second = (life.half(TX, number) for number in (1, 2))
    give_up_all(life)
    peer = Peer(life)
    assert peer.settle(first.position, RECHECK).outcome == CHECKED_AGAIN
    life.run_for(1500)
    asked = peer.put(Settle(peer.next_serial(), second.position, RECHECK, "ops@host"))
    ended = peer.end([first], commit=True)
    for serial in (asked, ended):
        assert peer.answer(serial).error == ""  # type: ignore[union-attr]
    assert peer.ended([second], commit=False) == (COMMITTED, DECIDED)
    life.run_for(10_000)
    assert life.committed().total() == 2
    assert InDoubt(life.storage, life.board).read() == []


def test_a_note_that_says_otherwise_is_none(life: TxnLife) -> None:
    """Damage binds nobody: the log is read instead."""
    first, second = given_up(life)
    assert Peer(life).settle(first, COMMIT).outcome == COMMITTED
    life.run_for(7000)
    note = read_note(life.storage)
    assert note is not None
    assert note.begun == [[TX, COMMITTED]]
    write_note(life.storage, replace(note, begun=[[TX, "perhaps"]]))
    assert read_note(life.storage) is None
    life.kill(CHECKER)
    life.run_for(3000)
    assert Peer(life).settle(second, ROLLBACK).error == DECIDED
    assert Peer(life).settle(second, COMMIT).outcome == COMMITTED
    life.run_for(7000)
    note = read_note(life.storage)
    assert note is not None
    assert note.begun == []
