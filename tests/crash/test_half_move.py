"""Open halves whose segments are to go are appended again: each is decided once, whoever dies."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from gantrymq.brokerd.halvesholder import HalvesHolder
from gantrymq.shm import layout
from gantrymq.shm import transactionwire as wire
from gantrymq.shm.codes import Role
from gantrymq.shm.properties import GANTRY_TX, HALF_TOPIC, OP_TOPIC
from gantrymq.shm.record import Record
from gantrymq.shm.transactionwire import COMMITTED, ROLLED_BACK
from tests.support.transacting import (
    CHECKER,
    GROUP,
    Peer,
    TxnLife,
    last_segment,
    remove_below,
    txn_life,
)

SEGMENT = 1 << 16
FILLER = b"x" * 1500
S = 1000  # milliseconds


@pytest.fixture
def life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TxnLife]:
    yield from txn_life(tmp_path / "store", monkeypatch, {"mapped_file_size_commit_log": SEGMENT})


def tx_id(number: int) -> str:
    return f"{number:032x}"


def stored(life: TxnLife, count: int) -> list[wire.Check]:
    """Halves of so many transactions, one each."""
    return [life.half(tx_id(number), body=FILLER) for number in range(count)]


def moved(life: TxnLife) -> list[Record]:
    """Halves that stand for an older one."""
    return [one for one in life.in_topic(HALF_TOPIC) if one.prepared_transaction_offset < 0]


def root(life: TxnLife, position: int) -> int:
    """Position of the half that was stored first, of the one at a position."""
    origins = {one.physical_offset: one.prepared_transaction_offset for one in moved(life)}
    while position in origins:
        position = -1 - origins[position]
    return position


def roots_committed(life: TxnLife) -> Counter[int]:
    """Commit copies by the half that was stored first."""
    return Counter({root(life, at): count for at, count in life.committed().items()})


def test_the_holder_lets_go_of_what_was_appended_again(life: TxnLife) -> None:
    """Issue 6's point: an END that names the old position still matches, after a start as well."""
    peer = Peer(life)
    halves = stored(life, 60)
    done, rest = halves[:10], halves[10:]
    for half in done:
        assert peer.ended([half], commit=True) == (COMMITTED, "")
    life.run_for(3 * S)
    holder, low = HalvesHolder(life.storage, life.board), last_segment(life)
    held = holder.lowest_position(0)
    assert held is not None
    assert held.position == rest[0].position
    assert [(loss.what, loss.count) for loss in holder.losses(low, {})] == [
        (f"messages of {HALF_TOPIC}", sum(half.position < low for half in rest))
    ]
    assert holder.move_below(low)
    life.run_for(4 * S)
    below = [half for half in rest if half.position < low]
    old = {record.physical_offset: record for record in life.in_topic(HALF_TOPIC)}
    new = moved(life)
    assert [-1 - one.prepared_transaction_offset for one in new] == [h.position for h in below]
    for one in new:
        source = old[-1 - one.prepared_transaction_offset]
        before, after = source.property_map(), one.property_map()
        before[GANTRY_TX] += f",{source.physical_offset},{source.store_timestamp}"
        assert {k: v for k, v in after.items() if k != "__CRC32#"} == {
            k: v for k, v in before.items() if k != "__CRC32#"
        }
    named = {word for body in life.ops() for word in body.split(",") if word}
    assert named == {str(half.queue_offset) for half in (*done, *below)}
    assert [op.flag for op in life.in_topic(OP_TOPIC)][-1] == 0
    held = holder.lowest_position(0)
    assert held is not None
    assert held.position >= low
    assert not holder.move_below(low)
    remove_below(life, low)
    life.kill(CHECKER)
    first, second, third = below[:3]
    assert peer.ended([first], commit=True) == (COMMITTED, "")
    assert peer.ended([second], commit=False) == (ROLLED_BACK, "")
    assert peer.ended([first], commit=False) == (COMMITTED, wire.DECIDED)
    life.run_for(2 * S)
    life.kill(CHECKER)
    assert peer.ended([first], commit=True) == (COMMITTED, "")
    assert peer.ended([second], commit=True) == (ROLLED_BACK, wire.DECIDED)
    assert peer.ended([third], commit=True) == (COMMITTED, "")
    origin = {-1 - one.prepared_transaction_offset: one.physical_offset for one in new}
    committed = life.committed()
    assert (committed[origin[first.position]], committed[origin[third.position]]) == (1, 1)


def test_checks_go_on_where_they_were(life: TxnLife) -> None:
    """They count from the first record on, and name the newest one."""
    peer = Peer(life, GROUP)
    half = life.half(tx_id(1), body=FILLER)
    for number in range(2, 60):
        assert peer.ended([life.half(tx_id(number), body=FILLER)], commit=False)[1] == ""
    life.run_for(8 * S)
    peer.hear()
    assert [check.position for check in peer.checks] == [half.position]
    low = last_segment(life)
    assert HalvesHolder(life.storage, life.board).move_below(low)
    life.run_for(4 * S)
    (newer,) = moved(life)
    assert len(peer.checks) == 1
    life.run_for(30 * S)
    peer.hear()
    assert [check.position for check in peer.checks[1:]] == [newer.physical_offset]
    rows = life.agents[CHECKER]._halves.table.live()  # type: ignore[attr-defined]
    assert rows["checks"].tolist() == [2]
    life.kill(CHECKER)
    life.run_for(1 * S)
    rows = life.agents[CHECKER]._halves.table.live()  # type: ignore[attr-defined]
    assert rows["checks"].tolist() == [2]
    assert peer.ended([peer.checks[1]], commit=True) == (COMMITTED, "")
    assert roots_committed(life) == {half.position: 1}


@pytest.mark.parametrize("victim", [CHECKER, Role.WRITER, None])
@pytest.mark.parametrize("seed", [1, 2])
def test_deaths_on_the_way_decide_nothing_twice(
    life: TxnLife, victim: Role | None, seed: int
) -> None:
    """A death between any two steps, while ENDs name the old positions; all are asked again."""
    dice = random.Random(seed)
    peer = Peer(life)
    halves = stored(life, 70)
    life.run_for(2 * S)
    life.board.set_word(layout.BOARD_TIMERS_WANTED, last_segment(life))
    for half in halves[:12]:
        peer.end([half], commit=half.queue_offset % 2 == 0)
        for _ in range(dice.randrange(4)):
            life.agents[CHECKER].do_work(life.clock.monotonic_ns())
        for _ in range(dice.randrange(2)):
            life.turn()
        life.kill(victim) if victim is not None else life.kill_all()
        if dice.random() < 0.2:
            life.run_for(dice.randrange(2 * S))
    life.run_for(4 * S)
    low = life.board.word(layout.BOARD_TIMERS_WANTED)
    rows = life.agents[CHECKER]._halves.table.live()  # type: ignore[attr-defined]
    assert all(position >= low for position in rows["position"].tolist())
    for number, half in enumerate(halves):
        commit = half.queue_offset % 2 == 0
        assert peer.ended([half], commit=commit) == (COMMITTED if commit else ROLLED_BACK, "")
        if number % 30 == 29:
            life.run_for(2 * S)
            life.kill(CHECKER)
    life.run_for(2 * S)
    expected = {half.position: 1 for half in halves if half.queue_offset % 2 == 0}
    assert roots_committed(life) == expected
    named = Counter(word for body in life.ops() for word in body.split(",") if word)
    assert sorted(map(int, named)) == [one.queue_offset for one in life.in_topic(HALF_TOPIC)]
    life.kill(CHECKER)
    life.run_for(2 * S)
    assert roots_committed(life) == expected
