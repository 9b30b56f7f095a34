"""The txn-checker when the writer refuses, what its holder keeps, what RocketMQ is told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from gantrymq.brokerd.halvesholder import HalvesHolder
from gantrymq.shm import layout
from gantrymq.shm import transactionwire as wire
from gantrymq.shm.codes import Role
from gantrymq.shm.kernels import frames
from gantrymq.shm.kernels.words import store_half
from gantrymq.shm.lognames import segment_name
from gantrymq.shm.properties import HALF_TOPIC, OP_TOPIC
from gantrymq.shm.transactionwire import COMMITTED, GIVEN_UP, ROLLED_BACK
from gantrymq.workers.groups.ledger import open_ledger
from gantrymq.workers.groups.offsetfile import TRANSACTIONS_GROUP, Exports, read_offsets
from gantrymq.workers.transactions import progress as transactionprogress
from gantrymq.workers.transactions.agent import TxnChecker
from tests.support.simclock import SimClock
from tests.support.transacting import (
    CHECKER,
    GROUP,
    NO_TOPIC,
    Peer,
    TxnLife,
    last_segment,
    remove_below,
    txn_life,
)

TX = "0123456789abcdef" * 2
OTHER = "e" * 32
S = 1000  # milliseconds


@pytest.fixture
def life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TxnLife]:
    yield from txn_life(tmp_path / "store", monkeypatch)


def test_a_full_disk_leaves_the_half_open(life: TxnLife) -> None:
    """Commit and rollback are refused by name; once there is room both are decided."""
    peer = Peer(life)
    kept, dropped = life.half(TX), life.half(OTHER)
    life.board.set_half(layout.BOARD_DISK_FULL, 1)
    assert peer.ended([kept], commit=True) == ("", wire.DISK_FULL)
    assert peer.ended([dropped], commit=False) == ("", wire.DISK_FULL)
    assert (life.committed(), life.ops()) == ({}, [])
    life.board.set_half(layout.BOARD_DISK_FULL, 0)
    assert peer.ended([kept], commit=True) == (COMMITTED, "")
    assert peer.ended([dropped], commit=True) == (COMMITTED, "")
    assert life.committed() == {kept.position: 1, dropped.position: 1}


def spoiled(life: TxnLife, peer: Peer, half: wire.Check, number: int) -> int:
    """Put an END whose commit copy (0) or op record (1) the writer refuses; its serial."""
    life.settle()
    outlet = life.agents[CHECKER]._outlet  # type: ignore[attr-defined]
    words, arena = outlet.words, outlet.session.arena
    serial, before = peer.end([half], commit=True), int(words[frames.UP_CURSOR])
    life.agents[CHECKER].do_work(life.clock.monotonic_ns())
    sizes: list[int] = []
    for _ in range(2):
        at = int(words[frames.UP]) + ((before + sum(sizes)) & int(words[frames.UP_MASK]))
        if number == len(sizes):
            store_half(arena, at + layout.ENTRY_ROUTE, NO_TOPIC)
        sizes.append(int(arena[at : at + 4].view("<u4")[0]))
    assert before + sum(sizes) == words[frames.UP_CURSOR]
    life.agents[Role.WRITER].do_work(life.clock.monotonic_ns())
    return serial


def require_committed(
    life: TxnLife, peer: Peer, half: wire.Check, serial: int, victim: Role | None
) -> None:
    """The END is answered; if the victim is killed before, the one that is put again."""
    if victim is not None:
        life.kill(victim)
        serial = peer.end([half], commit=True)
    answer = peer.answer(serial)
    assert isinstance(answer, wire.Ended)
    assert (answer.outcome, answer.error) == (COMMITTED, "")


@pytest.mark.parametrize("victim", [None, CHECKER, Role.WRITER])
def test_a_refused_copy_is_owed_until_it_is_in_the_log(life: TxnLife, victim: Role | None) -> None:
    """The writer took the op record but not the copy: its `flag` tells whoever comes."""
    peer = Peer(life)
    half = life.half(TX)
    serial = spoiled(life, peer, half, 0)
    assert life.ops() == ["0,"]
    assert life.committed() == {}
    require_committed(life, peer, half, serial, victim)
    life.run_for(2 * S)
    life.kill(CHECKER)
    life.run_for(2 * S)
    assert life.committed() == {half.position: 1}
    assert [op.flag for op in life.in_topic(OP_TOPIC)] == [2]


def test_a_start_owes_nothing_of_a_half_that_is_gone(
    life: TxnLife, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk has refused its copy, then taken it: no clean stop waits for what cannot be."""
    peer = Peer(life)
    half = life.half(TX)
    spoiled(life, peer, half, 0)
    window = type(cast("TxnChecker", life.agents[CHECKER])._decisions.window)
    record, gone = window.record, half.position
    monkeypatch.setattr(window, "record", lambda self, at: None if at == gone else record(self, at))
    life.kill(CHECKER)
    life.run_for(2 * S)
    assert not cast("TxnChecker", life.agents[CHECKER])._decisions.waits
    life.stop()
    assert life.committed() == {}


@pytest.mark.parametrize("victim", [None, CHECKER, Role.WRITER])
def test_a_refused_op_record_leaves_the_copy_to_decide(life: TxnLife, victim: Role | None) -> None:
    """The copy is in the log: the half is committed, and named once the writer takes that."""
    peer = Peer(life)
    half = life.half(TX)
    serial = spoiled(life, peer, half, 1)
    assert life.ops() == []
    assert life.committed() == {half.position: 1}
    require_committed(life, peer, half, serial, victim)
    assert peer.ended([half], commit=False) == (COMMITTED, wire.DECIDED)
    assert life.committed() == {half.position: 1}
    assert life.ops() == ["0,"]


@pytest.mark.parametrize("victim", [None, CHECKER, Role.WRITER])
def test_a_copy_is_not_forgotten_while_its_op_record_finds_no_room(
    life: TxnLife, victim: Role | None
) -> None:
    """Refused again and again, over notes and deaths: it is stored once, and nobody told less."""
    peer = Peer(life)
    half = life.half(TX)
    serial = spoiled(life, peer, half, 1)
    life.board.set_half(layout.BOARD_DISK_FULL, 1)
    life.run_for(1 * S)
    late = peer.end([half], commit=True)
    life.run_for(3 * S)
    for _ in range(2 if victim is not None else 0):
        life.kill(victim)  # type: ignore[arg-type]
        late = serial = peer.end([half], commit=True)
        life.run_for(3 * S)
    peer.hear()
    assert peer.heard == {}
    life.board.set_half(layout.BOARD_DISK_FULL, 0)
    for asked in (serial, late):
        answer = peer.answer(asked)
        assert isinstance(answer, wire.Ended)
        assert (answer.outcome, answer.error) == (COMMITTED, "")
    assert life.committed() == {half.position: 1}
    assert life.ops() == ["0,"]


def test_the_holder_holds_what_is_open_or_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also without a note, and more than it lists; what was given up is parked again (ADR 0019)."""
    monkeypatch.setattr(transactionprogress, "interval_ns", 1_000_000_000)
    few: dict[str, object] = {"transaction_check_max": 1, "transaction_check_interval_s": 1}
    life = TxnLife(tmp_path / "store", SimClock(), few)
    holder = HalvesHolder(life.storage, life.board)
    assert holder.lowest_position(0) is None
    peer = Peer(life)
    first, second = life.half(TX), life.half(OTHER)
    life.settle()
    held = holder.lowest_position(0)
    assert held is not None
    assert held.position == first.position
    assert peer.ended([first], commit=True) == (COMMITTED, "")
    life.run_for(3 * S)
    held = holder.lowest_position(0)
    assert held is not None
    assert held.position == second.position
    end = second.position + 1
    assert [(loss.what, loss.count) for loss in holder.losses(end, {})] == [
        (f"messages of {HALF_TOPIC}", 1)
    ]
    peer.enlist(GROUP)
    life.run_for(20 * S)
    (parked,) = life.parked()
    held = holder.lowest_position(0)
    assert held is not None
    assert held.position == parked.physical_offset
    low = life.board.word(layout.BOARD_APPENDED)
    assert holder.move_below(low)
    life.run_for(3 * S)
    _, again = life.parked()
    assert (again.origin, again.body) == (second.position, parked.body)
    held = holder.lowest_position(0)
    assert held is not None
    assert held.position == again.physical_offset >= low
    assert not holder.move_below(low)
    life.kill(CHECKER)
    assert peer.ended([second], commit=False) == (GIVEN_UP, wire.DECIDED)
    assert peer.settle(second.position, wire.COMMIT).outcome == COMMITTED
    life.run_for(3 * S)
    assert life.committed() == {first.position: 1, second.position: 1}
    assert holder.lowest_position(0) is None
    assert list(holder.losses(1 << 40, {})) == []


def test_an_end_of_what_has_expired_is_told_so(tmp_path: Path) -> None:
    """Decided long ago, and removed with its segment, or lost with it on a full disk."""
    small: dict[str, object] = {"mapped_file_size_commit_log": 1 << 16}
    life = TxnLife(tmp_path / "store", SimClock(), small)
    peer = Peer(life)
    done, lost = life.half(TX), life.half(OTHER)
    assert peer.ended([done], commit=True) == (COMMITTED, "")
    for _ in range(50):
        life.half(f"{life.clock.monotonic_ns():032x}", body=b"x" * 1500)
    life.run_for(2 * S)
    remove_below(life, last_segment(life))
    life.run_for(2 * S)
    assert peer.ended([lost], commit=True) == ("", wire.UNKNOWN)
    assert peer.settle(lost.position, wire.COMMIT).error == wire.UNKNOWN
    life.kill(CHECKER)
    for half in (done, lost):
        assert peer.ended([half], commit=True) == ("", wire.UNKNOWN)
    assert life.committed()[lost.position] == 0


def test_nobody_is_asked_about_what_has_just_gone(tmp_path: Path) -> None:
    """A full disk takes the half: the word says so first, then its blocks are given back."""
    sizes = {"mapped_file_size_commit_log": 1 << 16, "transaction_check_interval_s": 1}
    life = TxnLife(tmp_path / "store", SimClock(), {**sizes})
    peer = Peer(life, GROUP)
    half = life.half(TX)
    for _ in range(50):
        life.half("", body=b"x" * 1500, PGROUP="others")
    while not peer.checks:
        life.run_for(10)
        peer.hear()
    asked = len(peer.checks)
    checker = life.agents[CHECKER]
    assert isinstance(checker, TxnChecker)
    checker._read_ns = life.clock.monotonic_ns() + 10 * S * 1_000_000  # it has just looked
    life.board.set_word(layout.BOARD_LOW, last_segment(life))
    segment = tmp_path / "store" / segment_name(0)
    with segment.open("r+b") as file:
        file.write(bytes(segment.stat().st_size))
    life.run_for(5 * S)
    peer.hear()
    assert [check.tx for check in peer.checks] == [TX] * asked
    assert peer.ended([half], commit=True) == ("", wire.UNKNOWN)


def test_the_progress_of_another_broker_is_written_from_the_board(life: TxnLife) -> None:
    """HO-40: consumerOffset.json names first open half and first op record, never ahead."""
    peer = Peer(life)
    halves = [life.half(f"{number:032x}") for number in range(4)]
    for number in (0, 1, 3):
        assert peer.ended([halves[number]], commit=False) == (ROLLED_BACK, "")
    life.run_for(3 * S)
    exports = Exports(open_ledger(life.storage, life.board.epoch), life.board)
    assert exports.write()
    offsets = read_offsets(life.storage)
    assert offsets[HALF_TOPIC, TRANSACTIONS_GROUP] == {0: 2}
    assert offsets[OP_TOPIC, TRANSACTIONS_GROUP] == {0: 2}
    assert peer.ended([halves[2]], commit=False) == (ROLLED_BACK, "")
    life.run_for(3 * S)
    assert exports.write()
    offsets = read_offsets(life.storage)
    assert offsets[HALF_TOPIC, TRANSACTIONS_GROUP] == {0: 4}
    assert offsets[OP_TOPIC, TRANSACTIONS_GROUP] == {0: 4}
