"""Sessions that ask and read no answer: agents leave them alone, and sleep."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gantrymq.shm import groupwire, schedulerwire, transactionwire
from gantrymq.shm.codes import Role
from gantrymq.shm.controllane import ControlLane
from tests.support.groups_rig import Rig
from tests.support.parking import Life
from tests.support.simclock import SimClock
from tests.support.transacting import CHECKER, Peer, TxnLife, txn_life
from tests.support.trials import mends
from tests.unit.test_recalls import Asker

#: More requests than there is room for on both ways of a lane.
MANY = 20_000


@pytest.fixture
def transacting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TxnLife]:
    yield from txn_life(tmp_path, monkeypatch)


def fill(lane: ControlLane, body: Callable[[int], bytes], turn: Callable[[], object]) -> int:
    """Ask until neither ring has room; how many requests went in."""
    put = 0
    for _ in range(MANY):
        before = put
        while lane.put(body(put + 1)):
            put += 1
        for _ in range(20):
            turn()
        if put == before:
            return put
    raise AssertionError("the ring always has room")


def answers(lane: ControlLane, wanted: int, turn: Callable[[], object]) -> int:
    """Read all answers; how many there are."""
    count = 0
    for _ in range(MANY):
        while lane.take() is not None:
            count += 1
        if count == wanted:
            return count
        turn()
    return count


@mends("S102")
def test_groups_sleeps_beside_who_reads_nothing() -> None:
    rig = Rig()
    hand = rig.attach()

    def work() -> None:
        rig.agent.do_work(rig.clock.monotonic_ns())

    put = fill(hand.lane, lambda n: groupwire.encode(groupwire.Commit(n, {0: 5}, {0: 1})), work)
    rig.settle()
    assert rig.agent.arm(rig.clock.monotonic_ns()) > 0, "it waits until there is room"
    rig.agent.disarm()
    assert answers(hand.lane, put, work) == put


@mends("S102")
def test_the_scheduler_sleeps_beside_who_reads_nothing(tmp_path: Path) -> None:
    life = Life(tmp_path, SimClock())
    asker = Asker(life)
    life.settle()
    recall = schedulerwire.Recall
    put = fill(asker.lane, lambda n: schedulerwire.encode(recall(n, "later", "x")), life.turn)
    agent = life.agents[Role.SCHEDULER]
    assert agent.arm(life.clock.monotonic_ns()) > 0, "it waits until there is room"
    agent.disarm()
    assert answers(asker.lane, put, life.turn) == put
    for agent in life.agents.values():
        agent.close()


@mends("S102")
def test_the_txn_checker_sleeps_beside_who_reads_nothing(transacting: TxnLife) -> None:
    life, peer = transacting, Peer(transacting)
    life.turn()

    def settle(number: int) -> bytes:
        rollback = transactionwire.ROLLBACK
        return transactionwire.encode(transactionwire.Settle(number, 1, rollback, "ops"))

    def turn() -> None:
        life.turn()
        life.clock.advance(100_000)

    put = fill(peer.lane, settle, turn)
    agent = life.agents[CHECKER]
    assert agent.arm(life.clock.monotonic_ns()) > 0, "it waits until there is room"
    agent.disarm()
    assert answers(peer.lane, put, turn) == put
