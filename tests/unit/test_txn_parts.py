"""The txn-checker when its own ring is short: parts, refusals, deaths between them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from gantrymq.shm import layout
from gantrymq.shm import transactionwire as wire
from gantrymq.shm.codes import Role
from gantrymq.shm.kernels import frames
from gantrymq.shm.kernels.words import store_half
from gantrymq.shm.properties import SCHEDULE_TOPIC
from gantrymq.shm.transactionwire import COMMITTED, GIVEN_UP, ROLLED_BACK
from gantrymq.workers.transactions.agent import TxnChecker
from tests.support.transacting import (
    CHECKER,
    NO_TOPIC,
    Peer,
    TxnLife,
    listening,
    refuse_next,
    txn_life,
)
from tests.support.trials import mends

TX = "0123456789abcdef" * 2
OTHER = "e" * 32
RING_BYTES = 1 << 15
HALVES = 40  # of 1,500 bytes each: twice what the ring holds
HOUR_S = 3600


@pytest.fixture
def life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TxnLife]:
    monkeypatch.setitem(TxnLife.own_rings, CHECKER, RING_BYTES)
    yield from txn_life(tmp_path / "store", monkeypatch)


def checker_of(life: TxnLife) -> TxnChecker:
    return cast("TxnChecker", life.agents[CHECKER])


def large(life: TxnLife, tx: str = TX) -> list[wire.Check]:
    """The halves of a transaction that does not fit into the ring."""
    return [life.half(tx, number, body=b"x" * 1500) for number in range(1, HALVES + 1)]


def first_part(life: TxnLife, peer: Peer, halves: list[wire.Check], *, alone: bool = False) -> int:
    """Put a commit of which a part is in the ring now, without its op record; its serial."""
    life.settle()
    serial = peer.end(halves, commit=True, alone=alone)
    words = checker_of(life)._outlet.words  # type: ignore[union-attr]
    before = int(words[frames.UP_CURSOR])
    checker_of(life).do_work(life.clock.monotonic_ns())
    assert RING_BYTES // 2 < words[frames.UP_CURSOR] - before <= RING_BYTES
    return serial


def require_ended(peer: Peer, serial: int) -> None:
    """An END is carried out."""
    answer = peer.answer(serial)
    assert isinstance(answer, wire.Ended)
    assert answer.error == ""


def several(life: TxnLife, count: int, body: bytes = b"paid") -> list[wire.Check]:
    """Halves of one transaction, which is new."""
    tx = f"{life.board.word(layout.BOARD_APPENDED):032x}"
    return [life.half(tx, number, body=body) for number in range(1, count + 1)]


def ended_of(life: TxnLife) -> list[int]:
    """All offsets that op records name."""
    return [int(name) for body in life.ops() for name in body.split(",") if name]


def names(halves: list[wire.Check]) -> str:
    """What an op record names."""
    return "".join(f"{half.queue_offset}," for half in halves)


def test_a_transaction_larger_than_the_ring_is_one_decision(life: TxnLife) -> None:
    """TX-21: its copies go up in parts, and one op record ends it; others wait their turn."""
    peer = Peer(life)
    halves, single = large(life), life.half(OTHER)
    serial = first_part(life, peer, halves)
    late = peer.end([single], commit=True)
    for asked in (serial, late):
        require_ended(peer, asked)
    assert life.committed() == {half.position: 1 for half in (*halves, single)}
    assert life.ops() == [names([*halves, single])]


def test_what_shares_the_ring_goes_up_whole(life: TxnLife) -> None:
    """Halves of a transaction that has to wait for room are not mixed with those before it."""
    peer = Peer(life)
    groups = [
        [life.half(f"{tx:032x}", number, body=b"x" * 1500) for number in range(1, 8)]
        for tx in range(1, 6)
    ]
    life.settle()
    serials = [peer.end(halves, commit=True) for halves in groups]
    for serial in serials:
        require_ended(peer, serial)
    assert life.committed() == {half.position: 1 for halves in groups for half in halves}
    assert "".join(life.ops()) == "".join(names(halves) for halves in groups)
    assert len(life.ops()) > 1


@pytest.mark.parametrize("size", [0, 50, 100])
def test_as_many_as_fill_the_ring_are_given_up_in_one_step(life: TxnLife, size: int) -> None:
    """TX-37: what was put always has room for its op record, so that it goes up."""
    halves = [life.half(f"{tx:032x}", PGROUP="gone", body=bytes(size)) for tx in range(1, 101)]
    life.run_for(2000)
    life.clock.step_wall(100 * HOUR_S * 1000)
    life.run_for(40_000)
    assert sorted(record.origin for record in life.parked()) == [it.position for it in halves]
    assert "".join(life.ops()) == names(halves)
    assert Peer(life).ended(halves[:1], commit=True, group="gone") == (GIVEN_UP, wire.DECIDED)


def test_rollbacks_behind_copies_that_fill_the_ring_are_named(life: TxnLife) -> None:
    """What has no copy takes room in the op record as well: it waits until there is some."""
    peer = Peer(life)
    for count in range(22, 30):
        kept = [several(life, 2, body=b"x" * 300) for _ in range(count)]
        dropped = [several(life, 200) for _ in range(2)]
        life.settle()
        serials = [peer.end(halves, commit=True) for halves in kept]
        serials += [peer.end(halves, commit=False) for halves in dropped]
        for serial in serials:
            require_ended(peer, serial)
        life.run_for(100)
        wanted = [half.queue_offset for halves in (*kept, *dropped) for half in halves]
        assert ended_of(life)[-len(wanted) :] == wanted


@pytest.mark.parametrize("victim", [None, CHECKER, Role.WRITER])
def test_a_copy_of_the_first_part_that_was_refused_is_put_again(
    life: TxnLife, victim: Role | None
) -> None:
    """P7: the refusal is the large decision's own, whatever goes up beside it."""
    peer = Peer(life)
    halves = large(life)
    serial = first_part(life, peer, halves)
    refuse_next(life)
    life.agents[Role.WRITER].do_work(life.clock.monotonic_ns())
    if victim is not None:
        life.kill(victim)
        serial = peer.end(halves, commit=True)
    require_ended(peer, serial)
    life.run_for(3000)
    assert life.committed() == {half.position: 1 for half in halves}
    assert sorted("".join(life.ops()).split(",")) == sorted(names(halves).split(","))


def test_a_note_does_not_pass_a_part_that_has_no_op_record(life: TxnLife) -> None:
    """Who comes after a death finds the copies of the first part, and puts none of them again."""
    peer = Peer(life)
    halves = large(life)
    life.run_for(2000)
    first_part(life, peer, halves)
    now_ns = life.clock.monotonic_ns()
    for role in (Role.WRITER, Role.READER, Role.FLUSHER):
        for _ in range(10):
            life.agents[role].do_work(now_ns)
    assert 0 < sum(life.committed().values()) < HALVES
    agent = checker_of(life)
    agent._decisions.take(now_ns)
    agent._note._picture = None
    agent._note._take_picture(*agent._parts)
    begun = min(record.physical_offset for record in life.in_topic("orders"))
    picture = agent._note._picture
    assert picture is not None
    assert picture[0].scanned <= begun
    life.kill(CHECKER)
    assert peer.ended(halves, commit=True) == (COMMITTED, "")
    life.run_for(3000)
    assert life.committed() == {half.position: 1 for half in halves}


@pytest.mark.parametrize("place", [1, 15, 25])
def test_a_delayed_one_amid_parts_goes_up_in_its_turn(life: TxnLife, place: int) -> None:
    """LW-47: what comes behind it is put once, and it is parked."""
    peer = Peer(life)
    wishes = {place: {"GANTRY_TX_DELAY": "level:1"}}
    halves = [
        life.half(TX, number, body=b"x" * 1500, **wishes.get(number, {}))
        for number in range(1, HALVES + 1)
    ]
    life.settle()
    require_ended(peer, peer.end(halves, commit=True))
    assert life.committed() == {half.position: 1 for half in halves}
    (parked,) = life.in_topic(SCHEDULE_TOPIC)
    assert parked.prepared_transaction_offset == halves[place - 1].position


@pytest.mark.parametrize("victim", [None, CHECKER, Role.WRITER])
@pytest.mark.parametrize("refused", [0, 1, 2])
def test_a_refused_copy_is_put_again_as_it_was(
    life: TxnLife, refused: int, victim: Role | None
) -> None:
    """P7: a delayed one with its delay, one beside it without."""
    peer = Peer(life)
    halves = [life.half(TX, 1), life.half(TX, 2, GANTRY_TX_DELAY="level:3"), life.half(TX, 3)]
    life.settle()
    serial = peer.end(halves, commit=True)
    checker_of(life).do_work(life.clock.monotonic_ns())
    refuse_next(life, refused)
    life.agents[Role.WRITER].do_work(life.clock.monotonic_ns())
    if victim is not None:
        life.kill(victim)
        serial = peer.end(halves, commit=True)
    require_ended(peer, serial)
    life.run_for(3000)
    assert life.committed() == {half.position: 1 for half in halves}
    (parked,) = life.in_topic(SCHEDULE_TOPIC)
    assert parked.prepared_transaction_offset == halves[1].position
    assert parked.property_map()["DELAY"] == "3"


def test_what_cannot_be_stored_amid_parts_is_left_out_and_named(
    life: TxnLife, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk takes halves: the others are committed and named, and who asks hears of it."""
    peer = Peer(life)
    halves = large(life)
    serial = first_part(life, peer, halves)
    window = checker_of(life)._decisions.window
    enter, lost = window.enter, halves[30].position
    monkeypatch.setattr(window, "enter", lambda at: at < lost and enter(at))
    answer = peer.answer(serial)
    assert isinstance(answer, wire.Ended)
    assert (answer.outcome, answer.error) == (COMMITTED, wire.NOT_A_HALF)
    stored = [half for half in halves if half.position in life.committed()]
    assert 0 < len(stored) < HALVES
    assert set(life.committed().values()) == {1}
    assert life.ops() == [names(stored)]
    monkeypatch.undo()
    assert peer.ended(halves[:1], commit=False) == (COMMITTED, wire.DECIDED)
    assert peer.ended(halves[-1:], commit=False) == (COMMITTED, wire.DECIDED)
    assert peer.ended(halves[-1:], commit=True) == (COMMITTED, "")
    life.stop()


@mends("S212")
@pytest.mark.parametrize("gone", [False, True])
def test_nobody_is_told_of_a_commit_from_which_one_was_left_out(life: TxnLife, gone: bool) -> None:
    """P7: the topic of one is deleted amid the parts; without that the writer tells."""
    life.metadata.create("gone", 1, "written")
    peer = listening(life)
    halves = [*large(life), life.half(TX, HALVES + 1, REAL_TOPIC="gone")]
    serial = first_part(life, peer, halves, alone=True)
    if gone:
        life.mark_topic("gone", layout.DELETED)
    answer = peer.answer(serial)
    life.run_for(100)
    assert isinstance(answer, wire.Ended)
    assert (answer.outcome, answer.error) == (COMMITTED, wire.UNSTORABLE if gone else "")
    assert peer.is_told(serial) is not gone
    assert life.committed()[halves[-1].position] == int(not gone)
    assert life.committed()[halves[0].position] == 1


def test_whoever_asks_for_one_that_was_left_out_is_not_told_of_the_others(
    life: TxnLife, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P7: its own END waits for the large decision, and hears what became of it alone."""
    peer, other = Peer(life), Peer(life)
    halves = large(life)
    serial = first_part(life, peer, halves)
    window = checker_of(life)._decisions.window
    enter, lost = window.enter, halves[30].position
    late = other.end(halves[-1:], commit=True)
    monkeypatch.setattr(window, "enter", lambda at: at < lost and enter(at))
    assert isinstance(peer.answer(serial), wire.Ended)
    answer = other.answer(late)
    assert isinstance(answer, wire.Ended)
    assert (answer.outcome, answer.error) == ("", wire.NOT_A_HALF)


def test_one_that_is_too_large_by_now_is_found_before_a_part_goes_up(life: TxnLife) -> None:
    """A smaller `max_message_size` than when it was sent: nothing of the transaction is stored."""
    peer = Peer(life)
    halves = [*large(life), life.half(TX, HALVES + 1, body=b"x" * 17_000)]
    life.settle()
    for _ in range(2):
        assert peer.ended(halves, commit=True) == ("", wire.UNSTORABLE)
    assert (life.committed(), life.ops()) == ({}, [])
    assert peer.ended(halves, commit=False) == (ROLLED_BACK, "")


def test_messages_of_nearly_half_the_ring_go_up_one_by_one(life: TxnLife) -> None:
    """Wherever the ring wraps: copy and op record need not lie side by side."""
    peer = Peer(life)
    halves = [life.half(TX, number, body=b"x" * 15_500) for number in range(1, 101)]
    life.settle()
    require_ended(peer, peer.end(halves, commit=True))
    assert life.committed() == {half.position: 1 for half in halves}
    assert life.ops() == [names(halves)]


def test_nobody_waits_for_a_copy_whose_half_is_gone(
    life: TxnLife, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was refused, and before it is put again a full disk takes its half."""
    peer = Peer(life)
    halves = [life.half(TX, number) for number in (1, 2)]
    life.settle()
    serial = peer.end(halves, commit=True)
    checker_of(life).do_work(life.clock.monotonic_ns())
    refuse_next(life)
    window = checker_of(life)._decisions.window
    record, gone = window.record, halves[0].position
    monkeypatch.setattr(window, "record", lambda at: None if at == gone else record(at))
    require_ended(peer, serial)
    assert not checker_of(life)._decisions.waits
    life.stop()


def refuse_most(life: TxnLife) -> None:
    """The writer takes the first large copy and the op record; some others it refuses twice."""
    checker = checker_of(life)
    seen: set[int] = set()
    outlet = checker._outlet
    assert outlet is not None
    arena, words = outlet.session.arena, outlet.words
    is_owed = False
    while not is_owed:
        is_owed = bool(checker._decisions._again)
        cursor, tail = outlet._word(layout.LANE_UP_HEAD), outlet._word(layout.LANE_UP_TAIL)
        while cursor < tail:
            at = int(words[frames.UP]) + (cursor & int(words[frames.UP_MASK]))
            body = int(arena[at + layout.ENTRY_BODY :][:4].view("<u4")[0])
            if body == 1500 and cursor not in seen:
                if seen:
                    store_half(arena, at + layout.ENTRY_ROUTE, NO_TOPIC)
                seen.add(cursor)
            cursor += int(arena[at : at + 4].view("<u4")[0])
        life.agents[Role.WRITER].do_work(life.clock.monotonic_ns())
        if not is_owed:
            checker.do_work(life.clock.monotonic_ns())


def test_owed_copies_that_fill_the_ring_are_answered(life: TxnLife) -> None:
    """P7: they need no room for an op record, which is in the log already."""
    peer = Peer(life)
    halves = large(life)
    life.run_for(2000)
    serial = first_part(life, peer, halves)
    refuse_most(life)
    require_ended(peer, serial)
    life.run_for(2000)
    assert life.committed() == {half.position: 1 for half in halves}
    life.stop()


def test_the_owner_is_not_refused_for_a_stranger(life: TxnLife) -> None:
    """LW-42: an END that waits for another's of the same half is judged by itself."""
    peer, owner = Peer(life), Peer(life)
    halves, half = large(life), life.half(OTHER)
    serial = first_part(life, peer, halves)
    bad = peer.end([half], commit=True, group="wrong")
    good = owner.end([half], commit=True)
    checker = checker_of(life)
    # As a start does, whatever is held; the stranger first.
    for session, request in sorted(checker._desk.requests(), key=lambda heard: heard[0]):
        checker._hear(session, request, life.clock.wall_ms())
    answer = peer.answer(bad)
    assert isinstance(answer, wire.Ended)
    assert answer.error == wire.FOREIGN_GROUP
    for who, asked in ((owner, good), (peer, serial)):
        require_ended(who, asked)
