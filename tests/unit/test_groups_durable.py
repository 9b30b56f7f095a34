"""The ledger is synced only when the copies that it counts are durable (P3, RD-21)."""

from __future__ import annotations

import pytest

from gantrymq.brokerd.holders import GroupsHolder
from gantrymq.shm import layout
from tests.support.groups_rig import Rig

S = 1_000_000_000


@pytest.fixture
def rig() -> Rig:
    """A group that has committed, with a retry copy that no disk has yet."""
    rig = Rig()
    rig.fill(0, 100)
    hand = rig.attach()
    hand.join()
    for _ in range(2):
        rig.clock.advance(10 * S)
        rig.settle()
    assert not rig.agent.ledger.unsynced
    rig.agent.sendbacks.last_end = 4096
    assert rig.board.word(layout.BOARD_DURABLE) < 4096
    hand.commit(q0=7)
    return rig


def test_the_export_of_offsets_waits_for_copies(rig: Rig) -> None:
    for _ in range(3):
        rig.clock.advance(6 * S)
        rig.settle()
        assert rig.agent.ledger.unsynced
        assert rig.agent.arm(rig.clock.monotonic_ns()) > S // 10, "it waits without a processor"
        rig.agent.disarm()
    rig.board.set_word(layout.BOARD_DURABLE, 4096)
    rig.clock.advance(6 * S)
    rig.settle()
    assert not rig.agent.ledger.unsynced


def test_retention_waits_for_copies(rig: Rig) -> None:
    ledger = rig.agent.ledger
    holder = GroupsHolder(ledger.storage, rig.board, ledger)
    held = holder.lowest_position(0)
    assert held is not None
    assert held.position == 0
    assert ledger.unsynced
    rig.board.set_word(layout.BOARD_DURABLE, 4096)
    holder.lowest_position(0)
    assert not ledger.unsynced
