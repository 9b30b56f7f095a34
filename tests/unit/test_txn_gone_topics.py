"""Topics that are deleted while the txn-checker owes them copies: it goes on, and puts none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest

from gantrymq.shm import transactionwire as wire
from gantrymq.shm.codes import Role
from gantrymq.shm.transactionwire import COMMITTED
from gantrymq.workers.transactions import staging
from gantrymq.workers.transactions.agent import TxnChecker
from gantrymq.workers.transactions.decisions import RETRY_NS
from tests.support.transacting import CHECKER, Peer, TxnLife, refuse_next, txn_life
from tests.support.trials import mends

TX = "0123456789abcdef" * 2
TOPICS = ("orders", "gone", "orders")


@pytest.fixture
def life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TxnLife]:
    for made in txn_life(tmp_path / "store", monkeypatch):
        made.metadata.create("gone", 2, "written")
        yield made


def delete(life: TxnLife) -> None:
    """Nobody has it open, but its place is not given back yet."""
    life.metadata.delete("gone")


def replace(life: TxnLife) -> None:
    """Another topic is made in its place."""
    slot = life.metadata.open("gone", create=False).slot
    delete(life)
    life.metadata.leave(life.metadata.begin_leaving(()))
    assert life.metadata.create("other", 2, "written").slot == slot


GOING = pytest.mark.parametrize("go", [delete, replace])


def owing(life: TxnLife, peer: Peer, refused: int) -> int:
    """Ask to commit halves for TOPICS; the writer refuses one copy, and takes the rest."""
    halves = [life.half(TX, number, REAL_TOPIC=name) for number, name in enumerate(TOPICS, 1)]
    life.settle()
    serial = peer.end(halves, commit=True)
    checker = cast("TxnChecker", life.agents[CHECKER])
    checker.do_work(life.clock.monotonic_ns())
    refuse_next(life, refused)
    life.agents[Role.WRITER].do_work(life.clock.monotonic_ns())
    checker._decisions._retry_ns = life.clock.monotonic_ns() + RETRY_NS  # it has just tried
    checker.do_work(life.clock.monotonic_ns())
    assert len(checker._decisions._again) == 1
    return serial


def require_at_work(life: TxnLife) -> None:
    """It decides what others ask, owes nothing, and ends."""
    half = life.half("e" * 32)
    assert Peer(life).ended([half], commit=True) == (COMMITTED, "")
    life.run_for(2000)
    assert not cast("TxnChecker", life.agents[CHECKER])._decisions.waits
    life.stop()


@mends("S214")
@GOING
def test_a_copy_that_is_owed_to_a_topic_that_goes_is_not_put(
    life: TxnLife, go: Callable[[TxnLife], None]
) -> None:
    """Its op record is in the log: it was committed, and went with its topic."""
    peer = Peer(life)
    serial = owing(life, peer, TOPICS.index("gone"))
    go(life)
    assert peer.answer(serial) == wire.Ended(serial, COMMITTED)
    topics = [record.topic for record in life.records() if record.topic in (*TOPICS, "other")]
    assert topics == ["orders", "orders"]
    require_at_work(life)


def test_an_op_record_that_is_owed_is_put_whatever_topic_goes(life: TxnLife) -> None:
    """All copies are in the log."""
    peer = Peer(life)
    serial = owing(life, peer, len(TOPICS))
    delete(life)
    assert peer.answer(serial) == wire.Ended(serial, COMMITTED)
    assert life.ops() == ["0,1,2,"]
    require_at_work(life)


@mends("S214")
@GOING
def test_a_settlement_that_waits_for_room_is_refused_if_its_topic_goes(
    life: TxnLife, go: Callable[[TxnLife], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it is in the log: `gantrymq tx commit` hears that it cannot be stored."""
    peer, first = Peer(life), life.half("d" * 32)
    half = life.half(TX, REAL_TOPIC="gone")
    life.run_for(3000)
    for one in (first, half):
        serial = peer.put(wire.Settle(peer.next_serial(), one.position, wire.COMMIT, "ops@host"))
    checker, rooms = cast("TxnChecker", life.agents[CHECKER]), iter([1, 0])
    with monkeypatch.context() as full:
        full.setattr(staging, "has_room", lambda *_: next(rooms))
        checker.do_work(life.clock.monotonic_ns())
        assert checker._endings.held
    go(life)
    answer = peer.answer(serial)
    assert isinstance(answer, wire.Settled)
    assert (answer.outcome, answer.error) == ("", wire.UNSTORABLE)
    assert life.committed() == {first.position: 1}
    require_at_work(life)


@mends("S214")
def test_a_large_one_of_which_only_a_gone_topic_is_owed_the_rest(
    life: TxnLife, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is owed goes up in parts: the answers to the first are the last ones."""
    peer = Peer(life)
    serial = owing(life, peer, 1)
    decisions = cast("TxnChecker", life.agents[CHECKER])._decisions
    (owed,) = decisions._again
    assert owed.copies is not None
    owed.copies = [owed.copies[0]._replace(topic=decisions.slots["orders"], topic_name="")]
    owed.copies += [owed.copies[0]._replace(topic=decisions.slots["gone"], topic_name="gone")]
    stage_copy, rooms = decisions._stage_copy, iter(["", staging.LATER])
    with monkeypatch.context() as full:
        full.setattr(decisions, "_stage_copy", lambda copy: next(rooms) or stage_copy(copy))
        while decisions._in_parts is None:
            life.clock.advance(1_000_000)
            life.agents[CHECKER].do_work(life.clock.monotonic_ns())
    life.agents[Role.WRITER].do_work(life.clock.monotonic_ns())
    delete(life)
    decisions.follow_topics()
    life.agents[CHECKER].do_work(life.clock.monotonic_ns())
    assert decisions._early is not None
    assert not decisions._again
    assert peer.answer(serial) == wire.Ended(serial, COMMITTED)
    require_at_work(life)
