"""What a txn-checker tells that has learned it from the log is on the disk (P10).

Whoever put it may have died before the flusher came, and has told nobody. A power cut must not take
back what its successor tells.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from gantrymq.shm import layout
from gantrymq.shm import transactionwire as wire
from gantrymq.shm.codes import Role
from gantrymq.shm.configfile import write_config
from gantrymq.shm.properties import HALF_TOPIC
from gantrymq.shm.storage import PosixStorage
from gantrymq.shm.transactionwire import COMMIT, COMMITTED, DECIDED, GIVEN_UP, ROLLBACK, ROLLED_BACK
from gantrymq.workers.transactions.agent import TxnChecker
from tests.support.transacting import CHECKER, Peer, TxnLife, refuse_next, txn_life
from tests.support.trials import mends

TX = "0123456789abcdef" * 2
HOUR_MS = 3_600_000


@pytest.fixture
def life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TxnLife]:
    for life in txn_life(tmp_path / "store", monkeypatch):
        life.metadata.create("sure", 2, "durable")
        yield life


def told_from_the_disk(life: TxnLife, peer: Peer, request: wire.AnyRequest) -> tuple[str, str]:
    """Outcome and error, told only once the disk has all of the log that says so."""
    flusher = life.agents.pop(Role.FLUSHER)
    serial = peer.put(request)
    for _ in range(40):
        life.clock.advance(100_000_000)
        life.turn()
    peer.hear()
    assert serial not in peer.heard
    said = life.board.word(layout.BOARD_APPENDED)
    life.agents[Role.FLUSHER] = flusher
    answer = peer.answer(serial)
    assert life.board.word(layout.BOARD_DURABLE) >= said
    assert isinstance(answer, wire.Ended | wire.Settled)
    return answer.outcome, answer.error


def put_amid_a_stall(life: TxnLife, request: wire.AnyRequest, peer: Peer) -> None:
    """It is carried out, and the disk has nothing of it when the txn-checker is killed."""
    life.run_for(2000)
    flusher = life.agents.pop(Role.FLUSHER)
    peer.put(request)
    for _ in range(20):
        life.turn()
        life.clock.advance(100_000)
    life.kill(CHECKER)
    life.agents[Role.FLUSHER] = flusher


def ask(peer: Peer, half: wire.Check, *, commit: bool) -> wire.End:
    """An END as producers put it."""
    named = [(half.position, half.queue_offset)]
    return wire.End(peer.next_serial(), "pay", half.tx, commit, named)


@pytest.mark.parametrize("commit", [True, False])
def test_a_decision_that_a_predecessor_put(life: TxnLife, commit: bool) -> None:
    peer, half = Peer(life), life.half(TX, REAL_TOPIC="sure")
    put_amid_a_stall(life, ask(peer, half, commit=commit), peer)
    outcome = COMMITTED if commit else ROLLED_BACK
    again = Peer(life)
    assert told_from_the_disk(life, again, ask(again, half, commit=commit)) == (outcome, "")
    assert again.ended([half], commit=not commit) == (outcome, DECIDED)
    assert life.committed()[half.position] == commit


def test_an_op_record_that_its_predecessor_owed(life: TxnLife) -> None:
    """The copy is on the disk, and named by nobody."""
    peer, half = Peer(life), life.half(TX, REAL_TOPIC="sure")
    life.run_for(2000)
    peer.put(ask(peer, half, commit=True))
    life.agents[CHECKER].do_work(life.clock.monotonic_ns())
    refuse_next(life, 1)
    life.agents[Role.WRITER].do_work(life.clock.monotonic_ns())
    life.agents[Role.FLUSHER].do_work(life.clock.monotonic_ns() + 10**9)
    life.kill(CHECKER)
    assert (life.committed()[half.position], life.ops()) == (1, [])
    assert life.board.word(layout.BOARD_DURABLE) == life.board.word(layout.BOARD_APPENDED)
    again = Peer(life)
    assert told_from_the_disk(life, again, ask(again, half, commit=True)) == (COMMITTED, "")
    assert life.ops() == ["0,"]


@pytest.mark.parametrize("action", [COMMIT, ROLLBACK])
def test_a_settlement_that_a_predecessor_put(life: TxnLife, action: str) -> None:
    """Whatever the level of the topic: it is an operator's word."""
    half = life.half(TX, PGROUP="gone")
    life.run_for(2000)
    life.clock.step_wall(100 * HOUR_MS)
    life.run_for(8000)
    assert life.board.word(layout.BOARD_GIVEN_UP) == 1
    first = Peer(life)
    put_amid_a_stall(
        life, wire.Settle(first.next_serial(), half.position, action, "ops@host"), first
    )
    again = Peer(life)
    request = wire.Settle(again.next_serial(), half.position, action, "ops@host")
    outcome = COMMITTED if action == COMMIT else ROLLED_BACK
    assert told_from_the_disk(life, again, request)[0] == outcome
    assert life.committed()[half.position] == (action == COMMIT)


def test_what_was_given_up(life: TxnLife) -> None:
    """A producer that asks amid it hears so once the disk has the copy and the op record."""
    half = life.half(TX, REAL_TOPIC="sure")
    life.run_for(2000)
    peer, flusher = Peer(life), life.agents.pop(Role.FLUSHER)
    life.clock.step_wall(100 * HOUR_MS)
    for _ in range(100):
        life.clock.advance(100_000_000)
        life.turn()
    assert len(life.parked()) == 1
    life.agents[Role.FLUSHER] = flusher
    request = ask(peer, half, commit=True)
    assert told_from_the_disk(life, peer, request) == (GIVEN_UP, DECIDED)


def decide_without_the_disk(life: TxnLife, peer: Peer, half: wire.Check, how: str) -> None:
    """The log has the half's op record; the decision waits for the disk, or for a copy's place."""
    checker, flusher = cast("TxnChecker", life.agents[CHECKER]), life.agents.pop(Role.FLUSHER)
    if how == GIVEN_UP:
        life.clock.step_wall(100 * HOUR_MS)
    else:
        peer.put(ask(peer, half, commit=how != ROLLED_BACK))
    if how == "refused":
        checker.do_work(life.clock.monotonic_ns())
        refuse_next(life)
    for _ in range(100):
        life.clock.advance(100_000_000)
        life.turn()
        if not life.ops():
            flusher.do_work(life.clock.monotonic_ns())  # parked comes before named
        elif checker._decisions.unsettled:
            break
    assert life.ops(), "nothing waits"
    life.agents[Role.FLUSHER] = flusher


@mends("S136")
@pytest.mark.parametrize("how", [COMMITTED, ROLLED_BACK, GIVEN_UP, "refused"])
def test_a_note_amid_a_decision_passes_no_op_record_of_what_it_lists(
    life: TxnLife, how: str
) -> None:
    """Who starts with it must not decide the half again: an op record names it once (P7)."""
    peer, half = Peer(life), life.half(TX, REAL_TOPIC="sure")
    life.run_for(2000)
    decide_without_the_disk(life, peer, half, how)
    note = cast("TxnChecker", life.agents[CHECKER])._note
    note._take_picture(*cast("TxnChecker", life.agents[CHECKER])._parts)
    while note._picture is not None:
        note._write_if_sure()
        life.clock.advance(100_000_000)
        life.agents[Role.FLUSHER].do_work(life.clock.monotonic_ns())
    life.kill(CHECKER)
    life.run_for(2000)
    again, outcome = Peer(life), COMMITTED if how == "refused" else how
    error = DECIDED if how == GIVEN_UP else ""
    assert again.ended([half], commit=how != ROLLED_BACK) == (outcome, error)
    assert "".join(life.ops()) == f"{half.queue_offset},"
    assert life.committed()[half.position] == (outcome == COMMITTED)
    assert len(life.parked()) == (how == GIVEN_UP)


#: Two ids of transactions with one 63-bit hash (shm/kernels/halfrows.py).
ALIKE = ("000000000000000077e513d407af4677", "0000000000000000d777702c21bd4f57")


@mends("H14")
def test_a_transaction_whose_id_only_hashes_alike_is_not_committed(life: TxnLife) -> None:
    """A successor finishes what its predecessor began, siblings too: known by their ids."""
    first, sibling = life.half(ALIKE[0], 1), life.half(ALIKE[0], 2)
    other = life.half(ALIKE[1], 1)
    life.run_for(2000)
    peer = Peer(life)
    peer.put(ask(peer, first, commit=True))
    life.agents[CHECKER].do_work(life.clock.monotonic_ns())
    refuse_next(life, 1)  # the sibling's copy
    refuse_next(life, 2)
    life.agents[Role.WRITER].do_work(life.clock.monotonic_ns())
    life.kill(CHECKER)
    assert (sum(life.committed().values()), life.ops()) == (1, []), "one copy, and nothing more"
    life.run_for(2000)
    counts = [life.committed()[half.position] for half in (first, sibling, other)]
    assert counts == [1, 1, 0]
    assert Peer(life).ended([other], commit=False) == (ROLLED_BACK, "")


@mends("R1")
def test_progress_beyond_the_recovered_queue_passes_over_no_half_that_came_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another broker's file was written, and its log lost; a half comes before this opens."""
    table = {f"{HALF_TOPIC}@CID_RMQ_SYS_TRANS": {"0": 5}}
    storage = PosixStorage(str(tmp_path / "store"))
    write_config(storage, "consumerOffset.json", {"offsetTable": table})
    for life in txn_life(tmp_path / "store", monkeypatch):
        checker = life.agents.pop(CHECKER)
        half = life.half(TX)
        life.agents[CHECKER] = checker
        life.run_for(100)
        assert Peer(life).ended([half], commit=True) == (COMMITTED, "")
        assert life.committed()[half.position] == 1
