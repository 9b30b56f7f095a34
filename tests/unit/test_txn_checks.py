"""Checks of open halves over the real agents: when, of whom, how often, and how they end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gantrymq.shm import layout
from gantrymq.shm import transactionwire as wire
from gantrymq.shm.transactionwire import COMMITTED, GIVEN_UP
from gantrymq.workers.transactions.agent import TxnChecker
from gantrymq.workers.transactions.checks import CHECKS_MAX
from gantrymq.workers.transactions.indoubt import InDoubt
from tests.support.simclock import SimClock
from tests.support.transacting import CHECKER, GROUP, Peer, TxnLife, txn_life
from tests.support.trials import mends

TX = "0123456789abcdef" * 2
OTHER = "f" * 32
S = 1000  # milliseconds


@pytest.fixture
def life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TxnLife]:
    yield from txn_life(tmp_path / "store", monkeypatch)


def test_checks_come_in_time_and_end_by_giving_up(life: TxnLife) -> None:
    """TX-40: first after 6 s, then every 30 s, 15 at most; then TX-37. At most 4 KiB of log."""
    peer = Peer(life, GROUP)
    before = life.board.word(layout.BOARD_APPENDED)
    half = life.half(TX)
    size = life.board.word(layout.BOARD_APPENDED) - before
    life.run_for(5 * S)
    peer.hear()
    assert peer.checks == []
    life.run_for(2 * S)
    peer.hear()
    assert [(c.position, c.queue_offset, c.tx) for c in peer.checks] == [(half.position, 0, TX)]
    for seen in range(2, 8):
        life.run_for(30 * S)
        peer.hear()
        assert len(peer.checks) == seen
    life.kill(CHECKER)
    peer.enlist(GROUP)
    life.run_for(8 * 30 * S)
    peer.hear()
    assert len(peer.checks) in (15, 16)  # a start checks at once what is old enough
    assert life.board.word(layout.BOARD_APPENDED) - before - size <= 4096
    life.run_for(60 * S)
    (parked,) = life.parked()
    assert parked.prepared_transaction_offset == -1 - half.position
    assert parked.body == b"paid"
    assert life.ops() == ["0,"]
    assert peer.ended([half], commit=True) == (GIVEN_UP, wire.DECIDED)
    assert life.board.word(layout.BOARD_GIVEN_UP) == 1


def test_without_a_live_producer_nothing_is_counted(life: TxnLife) -> None:
    """It is waited for until file_reserved_time; a producer that comes is asked."""
    half = life.half(TX)
    life.run_for(120 * S)
    assert (life.notes(), life.parked()) == ([], [])
    peer = Peer(life, GROUP)
    life.run_for(31 * S)
    peer.hear()
    assert [check.position for check in peer.checks] == [half.position]


def test_all_whom_nobody_can_be_asked_about_wait_together(life: TxnLife) -> None:
    """LW-45: one pass puts them off, however many; those of a live group are asked meanwhile."""
    for number in range(1, CHECKS_MAX + 50):
        life.half(f"{number:032x}", PGROUP="gone")
    asked = life.half("f" * 32)
    peer = Peer(life, GROUP)
    life.run_for(5 * S)
    agent = life.agents[CHECKER]
    assert isinstance(agent, TxnChecker)
    rows = agent._halves.table.rows
    assert len(rows) == CHECKS_MAX + 50
    due_ns = int(rows["next_ns"].max())
    assert agent._checks.step(due_ns, life.clock.wall_ms(), agent._times) == 1
    peer.hear()
    assert [check.position for check in peer.checks] == [asked.position]
    assert set(rows["next_ns"].tolist()) == {due_ns + 30_000_000_000}
    assert rows["checks"].tolist() == [0] * (len(rows) - 1) + [1]
    assert agent._checks.next_ns == due_ns + 30_000_000_000


def test_a_clock_that_is_set_gives_nothing_up_that_can_be_asked_about(life: TxnLife) -> None:
    """F11: age alone ends what nobody can be asked about."""
    asked, alone = life.half(TX), life.half(OTHER, PGROUP="gone")
    peer = Peer(life, GROUP)
    life.run_for(2 * S)
    life.clock.step_wall(100 * 3600 * S)
    life.run_for(8 * S)
    peer.hear()
    assert [check.position for check in peer.checks] == [asked.position]
    assert [record.origin for record in life.parked()] == [alone.position]


def test_immunity_puts_the_first_check_off_and_costs_none(life: TxnLife) -> None:
    """LW-46's opposite: CHECK_IMMUNITY_TIME_IN_SECONDS delays the first check only."""
    peer = Peer(life, GROUP)
    life.half(TX, CHECK_IMMUNITY_TIME_IN_SECONDS="100")
    life.run_for(99 * S)
    peer.hear()
    assert peer.checks == []
    life.run_for(2 * S)
    peer.hear()
    assert len(peer.checks) == 1


@pytest.mark.parametrize("is_killed", [False, True])
def test_what_was_checked_anew_and_given_up_then_is_listed(tmp_path: Path, is_killed: bool) -> None:
    """P10: an operator's recheck of an open half does not settle it, also after a start."""
    few: dict[str, object] = {"transaction_check_max": 2, "transaction_check_interval_s": 1}
    life = TxnLife(tmp_path / "store", SimClock(), few)
    peer = Peer(life, GROUP)
    half = life.half(TX)
    life.run_for(7 * S)
    assert peer.settle(half.position, wire.RECHECK).outcome == wire.CHECKED_AGAIN
    life.run_for(20 * S)
    assert len(life.parked()) == 1
    if is_killed:
        life.kill(CHECKER)
        life.run_for(2 * S)
    assert life.board.word(layout.BOARD_GIVEN_UP) == 1
    (doubt,) = InDoubt(life.storage, life.board).read()
    assert (doubt.state, doubt.position) == (GIVEN_UP, half.position)
    assert peer.settle(half.position, wire.COMMIT).outcome == COMMITTED
    assert life.committed() == {half.position: 1}
    assert InDoubt(life.storage, life.board).read() == []


def test_a_start_shows_at_once_what_is_open(life: TxnLife) -> None:
    life.half(TX)
    life.run_for(2 * S)
    life.board.set_word(layout.BOARD_OPEN_HALVES, -1)
    life.kill(CHECKER)
    life.settle()
    life.run_for(5)
    assert life.board.word(layout.BOARD_OPEN_HALVES) == 1


@mends("S35")
def test_a_property_whose_name_ends_alike_is_not_the_transactions(life: TxnLife) -> None:
    peer = Peer(life, GROUP)
    life.half(TX, MY_GANTRY_TX="v")
    life.run_for(7 * S)
    peer.hear()
    assert [check.tx for check in peer.checks] == [TX]
