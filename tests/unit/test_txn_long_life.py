"""A txn-checker over weeks and many starts: more than a note lists, second and third rounds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from gantrymq.brokerd.halvesholder import HalvesHolder
from gantrymq.shm import layout
from gantrymq.shm import transactionwire as wire
from gantrymq.shm.codes import Role
from gantrymq.shm.properties import HALF_TOPIC
from gantrymq.shm.transactionwire import (
    COMMIT,
    COMMITTED,
    DECIDED,
    GIVEN_UP,
    RECHECK,
    ROLLBACK,
    ROLLED_BACK,
)
from gantrymq.workers.transactions import halves as halvesmodule
from gantrymq.workers.transactions import progress as transactionprogress
from gantrymq.workers.transactions.indoubt import InDoubt
from gantrymq.workers.transactions.note import FILE, read_note
from tests.support.transacting import CHECKER, Peer, TxnLife, last_segment, remove_below, txn_life
from tests.support.trials import mends

TX = "0123456789abcdef" * 2
OTHER = "e" * 32
HOUR_MS = 3_600_000
ACTIONS = [COMMIT, ROLLBACK, RECHECK]


@pytest.fixture
def life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TxnLife]:
    yield from txn_life(tmp_path / "store", monkeypatch)


@pytest.fixture
def few_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A note lists two halves at most."""
    monkeypatch.setattr(transactionprogress, "LISTED_MAX", 2)


def listed(life: TxnLife) -> dict[int, str]:
    """What `gantrymq tx list` shows."""
    return {doubt.position: doubt.state for doubt in InDoubt(life.storage, life.board).read()}


def give_up_all(life: TxnLife) -> None:
    """What is open has waited too long."""
    life.run_for(2000)
    life.clock.step_wall(100 * HOUR_MS)
    life.run_for(8000)


def ask_for(life: TxnLife, wanted: int) -> int:
    """What retention asks for, and some time for it."""
    life.board.set_word(layout.BOARD_TIMERS_WANTED, wanted)
    life.run_for(4000)
    return wanted


def lone(life: TxnLife, number: int, body: bytes = b"paid") -> wire.Check:
    """A half whose producer has gone."""
    return life.half(f"{number:032x}", body=body, PGROUP="gone")


def end(life: TxnLife, half: wire.Check, *, commit: bool) -> tuple[str, str]:
    """Ask as some producer of its group."""
    return Peer(life).ended([half], commit=commit, group="gone")


@pytest.mark.parametrize("victim", [None, CHECKER, Role.WRITER])
def test_progress_of_another_broker_never_passes_what_names_an_open_ones_successor(
    life: TxnLife, victim: Role | None
) -> None:
    """HO-40: an op record that names a half behind the first open one has to be read."""
    halves = [lone(life, number) for number in range(3)]
    assert end(life, halves[1], commit=True) == (COMMITTED, "")
    life.run_for(3000)
    if victim is not None:
        life.kill(victim)
    lone(life, 7)
    life.run_for(3000)
    note = read_note(life.storage)
    assert note is not None
    assert (note.half_progress, note.op_progress) == (0, 0)
    assert life.board.word(layout.BOARD_OP_PROGRESS) == 0


@pytest.mark.usefixtures("few_listed")
@pytest.mark.parametrize("victim", [CHECKER, Role.WRITER])
@pytest.mark.parametrize("commit", [False, True])
def test_what_was_decided_stays_so_over_two_starts(
    life: TxnLife, victim: Role, commit: bool
) -> None:
    """P7: though more halves are open by then than a note lists."""
    halves = [lone(life, number) for number in range(2)]
    end(life, halves[1], commit=commit)
    life.run_for(3000)
    life.kill(victim)
    life.run_for(3000)
    for number in range(3):
        lone(life, 7 + number)
    life.run_for(3000)
    life.kill(victim)
    life.run_for(3000)
    assert life.board.word(layout.BOARD_OPEN_HALVES) == 4
    end(life, halves[1], commit=True)
    assert life.committed()[halves[1].position] == commit


@pytest.mark.usefixtures("few_listed")
@pytest.mark.parametrize("action", ACTIONS)
def test_what_was_settled_is_listed_no_more(
    life: TxnLife, action: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P10: of more given-up ones than a note lists, also after a start."""
    monkeypatch.setattr("gantrymq.workers.transactions.restart.BEFORE_NOTE", 0)
    halves = [lone(life, number) for number in range(4)]
    give_up_all(life)
    assert Peer(life).settle(halves[0].position, action).error == ""
    life.run_for(3000)
    if action == RECHECK:
        assert end(life, halves[0], commit=True) == (COMMITTED, "")
    Peer(life).ended([life.half(OTHER)], commit=False)
    life.run_for(8000)
    assert listed(life) == {half.position: GIVEN_UP for half in halves[1:]}
    life.kill(CHECKER)
    life.run_for(3000)
    Peer(life).settle(halves[0].position, COMMIT)
    assert sum(life.committed().values()) == (action != ROLLBACK)
    assert life.board.word(layout.BOARD_GIVEN_UP) == 3


@pytest.mark.parametrize("action", ACTIONS)
def test_no_note_says_otherwise_while_a_settlement_waits_for_the_disk(
    life: TxnLife, action: str
) -> None:
    """P10: what an operator was told holds if the txn-checker dies right after."""
    half = lone(life, 1)
    give_up_all(life)
    peer, flusher = Peer(life), life.agents.pop(Role.FLUSHER)
    serial = peer.put(wire.Settle(peer.next_serial(), half.position, action, "ops@host"))
    for _ in range(40):
        life.clock.advance(100_000_000)
        life.turn()
    peer.hear()
    assert serial not in peer.heard
    life.agents[Role.FLUSHER] = flusher
    answer = peer.answer(serial)
    assert isinstance(answer, wire.Settled)
    assert answer.error == ""
    life.kill(CHECKER)
    life.run_for(3000)
    assert life.board.word(layout.BOARD_GIVEN_UP) == 0
    assert half.position not in listed(life)
    if action == COMMIT:
        Peer(life).settle(half.position, COMMIT)
        assert life.committed() == {half.position: 1}


def test_what_was_checked_anew_and_decided_is_not_listed_without_a_note(life: TxnLife) -> None:
    half = lone(life, 1)
    give_up_all(life)
    assert Peer(life).settle(half.position, RECHECK).error == ""
    life.run_for(3000)
    assert end(life, half, commit=True) == (COMMITTED, "")
    life.run_for(3000)
    life.storage.unlink(FILE)
    life.kill(CHECKER)
    life.run_for(3000)
    assert life.board.word(layout.BOARD_GIVEN_UP) == 0
    Peer(life).settle(half.position, COMMIT)
    assert sum(life.committed().values()) == 1


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("commit", [False, True])
def test_an_end_right_after_a_recheck_decides(life: TxnLife, is_killed: bool, commit: bool) -> None:
    """Before the new record's unit was read."""
    half = lone(life, 1)
    give_up_all(life)
    if is_killed:
        life.kill(CHECKER)
        life.run_for(3000)
    assert Peer(life).settle(half.position, RECHECK).error == ""
    assert end(life, half, commit=commit) == (COMMITTED if commit else ROLLED_BACK, "")
    life.run_for(3000)
    assert listed(life) == {}
    assert sum(life.committed().values()) == commit


@pytest.mark.parametrize("is_killed", [False, True])
def test_an_operators_commit_of_one_half_is_that_of_its_siblings(
    life: TxnLife, is_killed: bool
) -> None:
    """One op record names them all, and each has the note of who it was."""
    first, second = life.half(TX, 1), life.half(TX, 2)
    life.run_for(3000)
    assert Peer(life).settle(first.position, COMMIT).outcome == COMMITTED
    assert listed(life) == {}
    if is_killed:
        life.kill(CHECKER)
    life.run_for(3000)
    assert life.committed() == {first.position: 1, second.position: 1}
    assert (listed(life), life.ops(), len(life.notes())) == ({}, ["0,1,"], 2)


@pytest.mark.usefixtures("few_listed")
def test_more_given_up_than_a_note_lists_hold_what_they_need(life: TxnLife) -> None:
    for number in range(3):
        lone(life, number)
    give_up_all(life)
    for _ in range(3):
        wanted = ask_for(life, life.board.word(layout.BOARD_APPENDED))
    life.run_for(10_000)
    held = HalvesHolder(life.storage, life.board).lowest_position(0)
    assert held is not None
    assert held.position >= wanted


def test_many_given_up_ones_are_known_at_once(life: TxnLife) -> None:
    halves = [lone(life, number, b"x") for number in range(700)]
    life.run_for(2000)
    life.clock.step_wall(100 * HOUR_MS)
    while life.board.word(layout.BOARD_OPEN_HALVES):
        life.run_for(100)
    life.run_for(1500)
    assert life.board.word(layout.BOARD_GIVEN_UP) == len(halves)


def fill_segment(life: TxnLife) -> int:
    """Go on until the log has another one; where that begins."""
    before = last_segment(life)
    while last_segment(life) == before:
        Peer(life).ended([life.half("f" * 32, body=b"y" * 60_000)], commit=False)
    return last_segment(life)


@pytest.mark.parametrize("victim", [None, CHECKER, Role.WRITER])
@pytest.mark.parametrize("times", [1, 3])
def test_a_half_is_known_by_its_first_place_however_often_it_was_appended_again(
    life: TxnLife, victim: Role | None, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though all segments between are gone (HO-41)."""
    half = lone(life, 1)
    life.run_for(2000)
    unlink, exists = life.storage.unlink, life.storage.exists
    monkeypatch.setattr(life.storage, "unlink", lambda name: exists(name) and unlink(name))
    for _ in range(times):
        low = fill_segment(life)
        ask_for(life, low)
        life.run_for(4000)
        remove_below(life, low)
        life.run_for(3000)
    if victim is not None:
        life.kill(victim)
        life.run_for(3000)
    assert end(life, half, commit=True) == (COMMITTED, "")
    newest = life.in_topic(HALF_TOPIC)
    assert Counter(life.committed()).total() == 1
    assert all(record.queue_offset for record in newest)


@mends("S35")
def test_no_property_or_body_that_looks_alike_is_a_first_place(life: TxnLife) -> None:
    looks = f"{'e' * 32},1,64,7"
    body = f"GANTRY_TX\x01{looks}\x02".encode()
    half = life.half("b" * 32, 1, body=body, PGROUP="gone", XGANTRY_TX=looks)
    life.run_for(2000)
    low = fill_segment(life)
    ask_for(life, low)
    life.run_for(4000)
    life.kill(CHECKER)
    life.run_for(3000)
    assert end(life, half, commit=True) == (COMMITTED, "")


def test_age_counts_from_the_first_time(life: TxnLife) -> None:
    """file_reserved_time is 72 hours, and retention asks every ten."""
    half = lone(life, 1)
    for _ in range(8):
        life.run_for(2000)
        life.clock.step_wall(10 * HOUR_MS)
        ask_for(life, life.board.word(layout.BOARD_APPENDED))
    life.run_for(40_000)
    assert len(life.parked()) == 1
    assert end(life, half, commit=True) == (GIVEN_UP, DECIDED)


def test_age_begins_anew_with_a_recheck(life: TxnLife) -> None:
    half = lone(life, 1)
    ask_for(life, life.board.word(layout.BOARD_APPENDED))
    give_up_all(life)
    life.run_for(30_000)
    (parked,) = life.parked()
    assert Peer(life).settle(parked.origin, RECHECK).error == ""
    life.run_for(40_000)
    assert list(listed(life).values()) == ["open"]
    assert end(life, half, commit=False) == (ROLLED_BACK, "")


def test_an_op_record_of_any_length_is_read(life: TxnLife, monkeypatch: pytest.MonkeyPatch) -> None:
    """More names than there is room for: with more room."""
    monkeypatch.setattr(halvesmodule, "OP_ROWS", 4)
    halves = [life.half(TX, number) for number in range(9)]
    assert Peer(life).ended(halves, commit=True) == (COMMITTED, "")
    life.storage.unlink(FILE) if life.storage.exists(FILE) else None
    life.kill(CHECKER)
    life.run_for(3000)
    assert life.board.word(layout.BOARD_OPEN_HALVES) == 0
    assert Peer(life).ended(halves[:1], commit=False) == (COMMITTED, DECIDED)


def test_a_forged_offset_keeps_nobody_from_the_fast_way(life: TxnLife) -> None:
    half = life.half(TX)
    life.run_for(2000)
    forged = wire.Check(half.position, 0, 10**12, TX)
    assert Peer(life).ended([forged, half], commit=True)[1] != ""
    halves = life.agents[CHECKER]._halves  # type: ignore[attr-defined]
    halves.take(10**12)
    assert halves.taken_end > halves.next
