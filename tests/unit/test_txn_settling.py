"""Settlements by an operator when the writer refuses something of them, or dies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from gantrymq.shm import layout
from gantrymq.shm import transactionwire as wire
from gantrymq.shm.codes import Role
from gantrymq.shm.transactionwire import COMMITTED, GIVEN_UP, ROLLED_BACK
from gantrymq.workers.transactions.agent import ENDS_AWAKE, REQUESTS_MAX, TxnChecker
from gantrymq.workers.transactions.desk import SETTLE_COST
from gantrymq.workers.transactions.indoubt import InDoubt
from gantrymq.workers.transactions.note import FILE
from tests.support.transacting import CHECKER, GROUP, Peer, TxnLife, refuse_next, txn_life
from tests.support.trials import mends

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


@mends("S282")
def test_a_look_follows_a_log_that_goes_on_in_new_segments(life: TxnLife) -> None:
    """It read the last segment that it knew for ever."""
    halves = [life.half(TX, PGROUP="gone")]
    life.run_for(2000)
    look = InDoubt(life.storage, life.board)
    while life.board.word(layout.BOARD_APPENDED) < 3 * life.board.segment_bytes:
        tx = f"{len(halves):032x}"
        halves.append(life.half(tx, PGROUP="gone", body=bytes(8000)))
        life.run_for(100)
    life.run_for(2000)
    assert {doubt.position for doubt in look.read()} == {half.position for half in halves}


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


def all_but_the_writer(life: TxnLife, turns: int) -> None:
    """The writer is slow."""
    for _ in range(turns):
        life.clock.advance(100_000_000)
        for role, agent in life.agents.items():
            if role is not Role.WRITER:
                agent.do_work(life.clock.monotonic_ns())


@pytest.mark.parametrize("is_refused", [False, True])
@pytest.mark.parametrize("action", [wire.COMMIT, wire.RECHECK, wire.ROLLBACK])
def test_who_asks_meanwhile_hears_what_became_of_it(
    life: TxnLife, action: str, is_refused: bool
) -> None:
    """P10: an END waits for the settlement, another settlement is sent away; also after a start."""
    half = life.half(TX, PGROUP="gone")
    give_up_all(life)
    life.kill(CHECKER)
    life.run_for(3000)
    peer, other = Peer(life), Peer(life)
    serial = peer.put(wire.Settle(peer.next_serial(), half.position, action, "ops@host"))
    life.agents[CHECKER].do_work(life.clock.monotonic_ns())
    for number in range(1 if action == wire.ROLLBACK else 2):
        if is_refused:
            refuse_next(life, number)
    asked = other.end([half], commit=action != wire.COMMIT, group="gone")
    twice = other.put(wire.Settle(other.next_serial(), half.position, wire.ROLLBACK, "two@host"))
    all_but_the_writer(life, 30)
    other.hear()
    assert asked not in other.heard
    assert other.answer(twice).error == wire.DECIDED  # type: ignore[union-attr]
    assert (peer.answer(serial).error == "") != is_refused  # type: ignore[union-attr]
    answer = other.answer(asked)
    assert isinstance(answer, wire.Ended)
    if is_refused:
        assert (answer.outcome, answer.error) == (GIVEN_UP, wire.DECIDED)
        assert listed(life) == {half.position: GIVEN_UP}
    elif action == wire.RECHECK:
        assert (answer.outcome, answer.error) == (COMMITTED, "")
    else:
        assert (answer.outcome, answer.error) == (wire.OUTCOMES[action], wire.DECIDED)
    wanted = COMMITTED if action != wire.ROLLBACK and not is_refused else ""
    assert sum(life.committed().values()) == (wanted == COMMITTED)


def test_a_note_that_is_written_meanwhile_lists_it(life: TxnLife) -> None:
    """P10: nothing of the settlement is in the log, and the checker dies before the next note."""
    half = life.half(TX, PGROUP="gone")
    give_up_all(life)
    peer = Peer(life)
    peer.put(wire.Settle(peer.next_serial(), half.position, wire.COMMIT, "ops@host"))
    life.agents[CHECKER].do_work(life.clock.monotonic_ns())
    for number in (0, 1):
        refuse_next(life, number)
    all_but_the_writer(life, 30)
    life.agents[Role.WRITER].do_work(life.clock.monotonic_ns())
    life.kill(CHECKER)
    life.run_for(3000)
    assert listed(life) == {half.position: GIVEN_UP}


@pytest.mark.parametrize("victim", [CHECKER, Role.WRITER])
@pytest.mark.parametrize("action", [wire.COMMIT, wire.RECHECK])
@pytest.mark.parametrize("refused", [0, 1])
def test_half_a_settlement_is_told_by_its_copy(
    life: TxnLife, refused: int, action: str, victim: Role
) -> None:
    """P7, P10: without the copy it is listed still; with it alone it is carried out."""
    half = life.half(TX, PGROUP="gone")
    give_up_all(life)
    peer = Peer(life)
    peer.put(wire.Settle(peer.next_serial(), half.position, action, "ops@host"))
    life.agents[CHECKER].do_work(life.clock.monotonic_ns())
    refuse_next(life, refused)
    life.agents[Role.WRITER].do_work(life.clock.monotonic_ns())
    life.kill(victim)
    life.run_for(1000)
    state = listed(life).get(half.position)
    assert state == (GIVEN_UP if refused == 0 else None)
    assert Peer(life).settle(half.position, wire.COMMIT).outcome == COMMITTED
    life.run_for(3000)
    assert sum(life.committed().values()) == 1


def test_a_copy_that_is_refused_for_ever_is_answered(life: TxnLife) -> None:
    """What is not for want of room is not tried without end; a clean stop ends."""
    half = life.half(TX)
    life.run_for(2000)
    peer = Peer(life)
    serial = peer.end([half], commit=True)
    decisions = cast("TxnChecker", life.agents[CHECKER])._decisions
    while serial not in peer.heard:
        life.agents[CHECKER].do_work(life.clock.monotonic_ns())
        if decisions._flights and decisions._flights[0].first_copy != decisions._flights[0].op_seq:
            refuse_next(life)
        life.turn()
        life.clock.advance(1_000_000)
        peer.hear()
    answer = peer.answer(serial)
    assert isinstance(answer, wire.Ended)
    assert answer.error == wire.UNSTORABLE
    assert len(life.ops()) == 1
    life.stop()


def test_a_recheck_of_an_open_one_is_asked_at_once(life: TxnLife) -> None:
    half = life.half(TX)
    peer = Peer(life, GROUP)
    life.run_for(70_000)
    peer.hear()
    asked = len(peer.checks)
    assert Peer(life).settle(half.position, wire.RECHECK).outcome == wire.CHECKED_AGAIN
    life.run_for(1000)
    peer.hear()
    assert len(peer.checks) == asked + 1


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("number", [0, 1])
def test_any_half_that_was_given_up_is_checked_again(
    life: TxnLife, number: int, is_killed: bool
) -> None:
    """Number 1 of the transaction or not: it does not follow those that were given up with it."""
    halves = [life.half(TX, one) for one in (1, 2)]
    give_up_all(life)
    peer = Peer(life, GROUP)
    life.run_for(1000)
    assert Peer(life).settle(halves[number].position, wire.RECHECK).outcome == wire.CHECKED_AGAIN
    if is_killed:
        life.kill(CHECKER)
        peer.enlist(GROUP)
    life.run_for(80_000)
    peer.hear()
    assert peer.checks
    assert sorted(listed(life).values()) == ["given_up", "open"]


def test_a_step_carries_out_few_settlements(life: TxnLife) -> None:
    """Each reads the log's end, and a record: 256 in a row kept others waiting for 80 ms."""
    half = life.half(TX)
    life.settle()
    peer = Peer(life)
    assert peer.settle(half.position, wire.ROLLBACK).outcome == ROLLED_BACK
    peer.heard.clear()
    while peer.lane.put(
        wire.encode(wire.Settle(peer.next_serial(), half.position, wire.ROLLBACK, "ops@host"))
    ):
        pass
    few, before = (REQUESTS_MAX + ENDS_AWAKE) // SETTLE_COST, 0  # in a step, and awake after it
    put = peer.serial - 2  # the first is answered, the last found no room
    assert put > 2 * few
    while before < put:
        life.agents[CHECKER].do_work(life.clock.monotonic_ns())
        peer.hear()
        assert len(peer.heard) - before <= few
        before = len(peer.heard)


@mends("S242")
@pytest.mark.parametrize(("of", "named"), [(1, 1), (8, 1), (8, 8), (64, 1), (64, 64)])
def test_a_step_decides_some_halves_however_many_each_end_is_of(
    life: TxnLife, of: int, named: int
) -> None:
    """Named, or open beside those that are named: 16,384 in a row took a third of a second."""
    transactions = [[life.half(f"{at:032d}", 1 + n) for n in range(of)] for at in range(2048 // of)]
    life.run_for(3000)
    peer = Peer(life)
    serials = [peer.end(one[: min(named, of)], commit=False) for one in transactions[:256]]
    life.settle()
    peer.hear()
    assert len(peer.heard) == len(serials)
    names = [len(body.split(",")) for body in life.ops()]
    assert sum(names) >= of * len(serials)
    assert max(names) <= 400  # each op record is of one step: 8 ms or so


@mends("S14")
@pytest.mark.parametrize("wish", ["after:2000", "level:2", "at"])
def test_what_was_given_up_is_delayed_from_its_commit_on(life: TxnLife, wish: str) -> None:
    """P7, P8: as any other commit is; and it is settled by that, whoever is replaced."""
    due_ms = life.clock.wall_ms() + HOURS_100_MS + 300_000
    wish = f"at:{due_ms}" if wish == "at" else wish
    half = life.half(TX, PGROUP="gone", GANTRY_TX_DELAY=wish)
    give_up_all(life)
    assert Peer(life).settle(half.position, wire.COMMIT).outcome == COMMITTED
    asked_ms = life.clock.wall_ms()
    assert life.in_topic("orders") == []
    for again in (False, True):
        if again:
            life.kill_all()
            life.storage.unlink(FILE)
        life.run_for(500)
        assert listed(life) == {}
        assert life.committed() == {half.position: 1}
        assert Peer(life).settle(half.position, wire.COMMIT).outcome == COMMITTED
    wait_ms = {"after:2000": 2000, "level:2": 5000}.get(wish, due_ms - asked_ms)
    life.run_for(wait_ms - (life.clock.wall_ms() - asked_ms) - 100)
    assert life.in_topic("orders") == []
    life.run_for(wait_ms + 200)
    assert len(life.in_topic("orders")) == 1


@mends("S14")
@pytest.mark.parametrize("refused", [0, 1])
def test_a_parked_copy_tells_of_half_a_settlement(life: TxnLife, refused: int) -> None:
    """P7: it has the half's position as any commit copy has."""
    half = life.half(TX, PGROUP="gone", GANTRY_TX_DELAY="after:2000")
    give_up_all(life)
    peer = Peer(life)
    peer.put(wire.Settle(peer.next_serial(), half.position, wire.COMMIT, "ops@host"))
    life.agents[CHECKER].do_work(life.clock.monotonic_ns())
    refuse_next(life, refused)
    life.agents[Role.WRITER].do_work(life.clock.monotonic_ns())
    life.kill(CHECKER)
    life.run_for(1000)
    assert listed(life) == ({half.position: GIVEN_UP} if refused == 0 else {})
    assert Peer(life).settle(half.position, wire.COMMIT).outcome == COMMITTED
    life.run_for(3000)
    assert life.committed() == {half.position: 1}
    assert len(life.in_topic("orders")) == 1
