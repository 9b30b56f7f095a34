"""The writer tells who asked for a decision that it is in the log, before the txn-checker does."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from gantrymq.brokerd.listeners import Listeners
from gantrymq.shm import layout
from gantrymq.shm import transactionwire as wire
from gantrymq.shm.codes import ClientState, Role
from gantrymq.shm.kernels import frames
from gantrymq.shm.kernels.words import await_told, load_word, store_half
from gantrymq.shm.properties import OP_TOPIC
from gantrymq.shm.transactionwire import COMMITTED, ROLLED_BACK
from gantrymq.workers.transactions import staging
from gantrymq.workers.transactions.agent import TxnChecker
from gantrymq.workers.transactions.ends import Ends
from gantrymq.workers.transactions.flights import Flight
from tests.support.memory_sessions import memory_session
from tests.support.simbell import SimBell
from tests.support.transacting import CHECKER, NO_TOPIC, Peer, TxnLife, listening, txn_life
from tests.support.trials import mends


@pytest.fixture
def life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TxnLife]:
    yield from txn_life(tmp_path / "store", monkeypatch)


def decide(life: TxnLife, role: Role) -> None:
    """One step of an agent."""
    life.agents[role].do_work(life.clock.monotonic_ns())


def checker(life: TxnLife) -> TxnChecker:
    """The txn-checker."""
    return cast("TxnChecker", life.agents[CHECKER])


def spoil(life: TxnLife, number: int) -> None:
    """Let the writer refuse an entry that the txn-checker has put: counted from the ring's head."""
    outlet = checker(life)._outlet
    assert outlet is not None
    words, arena, at = outlet.words, outlet.session.arena, 0
    head = load_word(arena, int(words[frames.CONTROL]) + layout.LANE_UP_HEAD)
    for _ in range(number + 1):
        at = int(words[frames.UP]) + (head & int(words[frames.UP_MASK]))
        head += int(arena[at : at + 4].view("<u4")[0])
    store_half(arena, at + layout.ENTRY_ROUTE, NO_TOPIC)


def require_the_checkers_answer(life: TxnLife, peer: Peer, serial: int) -> None:
    """The writer takes a commit and tells nobody, then or later: the txn-checker's answer comes."""
    decide(life, Role.WRITER)
    assert not peer.is_told(serial)
    assert peer.answer(serial) == wire.Ended(serial, COMMITTED)
    assert serial in peer.heard
    assert not peer.is_told(serial)


@pytest.mark.parametrize("commit", [True, False])
def test_the_writer_tells_once_it_is_in_the_log(life: TxnLife, commit: bool) -> None:
    """LW-43: not before; the txn-checker has not heard of it yet, and rings come to sleepers."""
    peer, half = listening(life), life.half("1" * 32)
    serial = peer.end([half], commit=commit, alone=True)
    peer.lane.arm(ClientState.ARMED)
    decide(life, CHECKER)
    assert not peer.is_told(serial)
    bell = cast("SimBell", peer.session.bell)
    bell.clear()
    decide(life, Role.WRITER)
    assert peer.is_told(serial)
    assert bell.rung
    assert life.committed()[half.position] == int(commit)
    assert len(life.ops()) == 2
    life.run_for(100)
    peer.hear()
    assert serial not in peer.heard


def test_an_end_of_several_waits_for_all_of_them(life: TxnLife) -> None:
    """P10: one is being decided for somebody else, as by a check: no answer for the rest."""
    peer, second = Peer(life), Peer(life)
    first, other = life.half("1" * 32), life.half("1" * 32, 2)
    life.run_for(3000)  # they are read from their queue
    peer.end([first], commit=True)
    decide(life, CHECKER)
    serial = second.end([first, other], commit=True)
    decide(life, CHECKER)
    assert life.committed() == {}
    assert second.answer(serial) == wire.Ended(serial, COMMITTED)
    assert life.committed() == {first.position: 1, other.position: 1}
    assert life.ops() == ["0,1,"]


def test_the_end_of_the_ring_is_no_other_form(life: TxnLife) -> None:
    """An entry that only fills the ring up is passed over by the kernel."""
    peer = listening(life)
    ring = peer.session.plan.transactions.up_bytes
    lane, number = peer.lane, 0
    while lane.words[frames.UP_CURSOR] < 2 * ring:
        number += 1
        serial = peer.end([life.half(f"{number:032x}")], commit=True, alone=True)
        decide(life, CHECKER)
        assert not checker(life)._decisions.mixed
        decide(life, Role.WRITER)
        assert peer.is_told(serial)
    assert number > 20


def test_who_waits_for_several_hears_it_from_the_txn_checker(life: TxnLife) -> None:
    """The writer's words may be overwritten before such a session has seen them all.

    So the txn-checker has an answer to give, and does not look out for more requests meanwhile.
    """
    peer, half = listening(life), life.half("1" * 32)
    serial = peer.end([half], commit=True)
    decide(life, CHECKER)
    agent = checker(life)
    (served,) = agent._decisions._flights[0].decisions
    assert isinstance(served, Ends)
    assert not served.by_writer
    assert not agent._decisions.are_told
    assert agent._common._lookout.table[1] < peer.lane.words[frames.UP_CURSOR]
    require_the_checkers_answer(life, peer, serial)


def test_whom_the_writer_does_not_know_hears_it_from_the_txn_checker(life: TxnLife) -> None:
    """It meets sessions by itself, and may meet one later than the checker does."""
    peer, half = Peer(life), life.half("1" * 32)
    assert peer.ended([life.half("0" * 32)], commit=True) == (COMMITTED, "")
    serial = peer.end([half], commit=True, alone=True)
    decide(life, CHECKER)
    require_the_checkers_answer(life, peer, serial)


def test_an_end_of_old_is_told_of_as_well(life: TxnLife) -> None:
    """A half that was read from its queue is decided by Python, and told of all the same."""
    peer, half = listening(life), life.half("1" * 32)
    life.run_for(3000)
    serial = peer.end([half], commit=True, alone=True)
    decide(life, CHECKER)
    decide(life, Role.WRITER)
    assert peer.is_told(serial)


@pytest.mark.parametrize("number", [0, 1])
def test_nobody_is_told_of_what_is_not_whole(life: TxnLife, number: int) -> None:
    """The writer refuses the commit copy, or the op record: the txn-checker answers for it."""
    peer, half = listening(life), life.half("1" * 32)
    serial = peer.end([half], commit=True, alone=True)
    decide(life, CHECKER)
    spoil(life, number)
    require_the_checkers_answer(life, peer, serial)
    assert life.committed()[half.position] == 1


@mends("S212")
def test_who_waits_for_what_others_decided_is_not_told_of_it(
    life: TxnLife, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P7: a late half follows its transaction, which was rolled back; its producer asks to commit.

    The decision has no room in the ring at first, and the END waits for it.
    """
    peer, other, tx = listening(life), Peer(life), "1" * 32
    first = life.half(tx, 1)
    assert other.ended([first], commit=False) == (ROLLED_BACK, "")
    late = life.half(tx, 2)
    endings = checker(life)._endings
    with monkeypatch.context() as full:
        full.setattr(staging, "has_room", lambda *_: 0)
        life.run_for(3000)
        assert [held[0].halves for held in endings.held] == [[(late.position, late.queue_offset)]]
    serial = peer.end([first, late], commit=True, alone=True)
    decide(life, CHECKER)
    assert not endings.held
    decide(life, Role.WRITER)
    assert not peer.is_told(serial)
    answer = peer.answer(serial)
    assert isinstance(answer, wire.Ended)
    assert (answer.outcome, answer.error) == (ROLLED_BACK, wire.DECIDED)
    assert life.committed()[late.position] == 0


def test_several_at_a_time_hear_it_from_the_txn_checker(life: TxnLife) -> None:
    """They share an op record, which tells nobody."""
    peer = listening(life)
    halves = [life.half(f"{number:032x}") for number in range(1, 4)]
    serials = [peer.end([half], commit=True, alone=True) for half in halves]
    decide(life, CHECKER)
    decide(life, Role.WRITER)
    assert not any(peer.is_told(serial) for serial in serials)
    assert [peer.answer(serial).serial for serial in serials] == serials
    assert life.ops() == ["0,", "1,2,3,"]


def burst(life: TxnLife, peer: Peer, halves: list[wire.Check]) -> list[int]:
    """ENDs of which each has its own op record, as of a call that has looked out for the next."""
    agent, serials = checker(life), []
    for number, half in enumerate(halves):
        serials.append(peer.end([half], commit=number % 2 == 0, alone=True))
        decide(life, CHECKER)
    flights = agent._decisions._flights
    each = [cast("Ends", flight.decisions[0]) for flight in flights]
    assert [len(one.op_seqs) for one in each] == [1] * len(halves)
    words = np.concatenate([one.words for one in each])
    seqs = [seq for one in each for seq in one.op_seqs]
    named = [half for one in each for half in one.halves]
    whole = Ends(COMMITTED, named, [], words=words, op_seqs=seqs, by_writer=True)
    agent._endings.fly_together(whole)
    first, last = flights[0], flights[-1]
    joined = Flight(first.first_seq, last.last_seq, last.op_seq, first.appended, [whole])
    agent._decisions._flights = deque([joined])
    return serials


#: Entry that the writer refuses -> which of the three decisions is not whole then.
BELONGS = {0: 0, 1: 0, 2: 1, 3: 2, 4: 2}


@pytest.mark.parametrize("refused", [None, *BELONGS])
@pytest.mark.parametrize("victim", [None, CHECKER, Role.WRITER])
def test_a_burst_of_which_a_part_is_refused(
    life: TxnLife, refused: int | None, victim: Role | None
) -> None:
    """A commit, a rollback, a commit: each has an op record, and is mended by itself (P7)."""
    peer = listening(life)
    halves = [life.half(f"{number:032x}") for number in range(1, 4)]
    serials = burst(life, peer, halves)
    if refused is not None:
        spoil(life, refused)
    decide(life, Role.WRITER)
    whole = [n for n in range(3) if refused is None or n != BELONGS[refused]]
    assert [n for n in range(3) if peer.is_told(serials[n])] == whole
    if victim is not None:
        life.kill(victim)
        serials = [peer.end([half], commit=n % 2 == 0) for n, half in enumerate(halves)]
    for serial in serials:
        answer = peer.answer(serial)
        assert isinstance(answer, wire.Ended)
        if answer.error == wire.DISK_FULL:  # nothing at all of a rollback was stored
            assert peer.ended([halves[BELONGS[2]]], commit=False) == (ROLLED_BACK, "")
    life.run_for(2000)
    assert [life.committed()[half.position] for half in halves] == [1, 0, 1]
    named = [int(name) for op in life.ops() for name in op.split(",")[:-1]]
    assert sorted(named) == [0, *(half.queue_offset for half in halves)]


def test_answers_that_come_by_and_by(life: TxnLife) -> None:
    """The writer answers a burst in parts, of which the first has a refusal: each op is noted."""
    peer = listening(life)
    halves = [life.half(f"{number:032x}") for number in range(1, 4)]
    burst(life, peer, halves)
    spoil(life, 0)
    writer = life.agents[Role.WRITER]
    writer._appender.view[frames.TAKEN_LIMIT] = 2  # type: ignore[attr-defined]
    for _ in range(4):
        decide(life, Role.WRITER)
        decide(life, CHECKER)
    life.run_for(2000)
    assert [life.committed()[half.position] for half in halves] == [1, 0, 1]
    agent = checker(life)
    assert agent._halves.first_op(agent._halves.first_open()) == len(life.in_topic(OP_TOPIC))
    assert agent._halves.first_open() == 4


def test_a_word_is_awaited_beside_another() -> None:
    """1: told; -1: the other word has moved; 0: neither, in so many rounds."""
    memory = np.zeros(16, np.uint8)
    assert await_told(memory, 0, 7, 8, 0, 5) == 0
    memory[8] = 1
    assert await_told(memory, 0, 7, 8, 0, 5) == -1
    memory[0] = 7
    assert await_told(memory, 0, 7, 8, 0, 5) == 1


def test_more_listeners_than_there_was_room_for() -> None:
    """Those that are gone are told no more; sleepers are rung once."""
    batch = np.zeros(frames.BATCH_WORDS, np.int64).data
    listeners = Listeners(batch)
    sessions = [memory_session(number) for number in range(1, 41)]
    for session in sessions:
        listeners.add(session)
    listeners.remove(1)
    listeners.remove(99)
    assert batch[frames.LISTENERS] == 39
    listeners._table[5 * frames.LISTENER_WORDS + frames.LISTENER_ASLEEP] = 1
    assert [session.session for session in listeners.sleepers()] == [7]
    assert list(listeners.sleepers()) == []
    assert list(listeners) == sessions[1:]
