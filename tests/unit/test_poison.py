"""A request that ends its agent again and again is set aside: refused, and its session cut off."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gantrymq.brokerd import agents
from gantrymq.brokerd.appender import Appender
from gantrymq.shm import groupwire, layout, schedulerwire, transactionwire
from gantrymq.shm.codes import Role, Status
from gantrymq.shm.kernels import frames
from gantrymq.shm.limits import INTEREST_MAX
from gantrymq.shm.wire import REQUEST_SET_ASIDE
from gantrymq.workers.groups.ledger import Ledger
from gantrymq.workers.groups.membership import Membership
from gantrymq.workers.inhand import DEATHS_MAX, InHand, forget_hand
from gantrymq.workers.scheduler.recalls import RecallDesk
from gantrymq.workers.transactions.endings import Endings
from tests.crash.test_arena_bits import Machine, Worker
from tests.support.groups_rig import Hand, Rig, only
from tests.support.memory_sessions import MemorySessions, memory_board
from tests.support.parking import Life, at_message
from tests.support.simbell import SimBell
from tests.support.simclock import SimClock
from tests.support.transacting import CHECKER, Peer, TxnLife, txn_life
from tests.support.trials import mends
from tests.unit.test_recalls import Asker, handle_of

TX = "0123456789abcdef" * 2
KILLER = 13


class PlantedError(Exception):
    """A defect of an agent, that one request meets."""


def set_aside(table: MemorySessions) -> list[dict[str, object]]:
    """What an agent has said that it has set aside."""
    return [fields for _level, event, fields in table.notes if event == REQUEST_SET_ASIDE]


# ----------------------------------------------------------------------------------------- groups


def deaths_of(rig: Rig, what: Callable[[], object]) -> int:
    """Do something; `groups` is replaced whenever it dies of it. How often."""
    try:
        what()
    except PlantedError:
        return 1 + deaths_of(rig, rig.replace_agent)
    return 0


@pytest.fixture
def killed_by_13(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed delivery of offset 13 ends `groups`."""
    fail = Membership.fail

    def planted(membership: Membership, session: int, request: groupwire.Failed) -> int:
        if request.offset == KILLER:
            raise PlantedError
        return fail(membership, session, request)

    monkeypatch.setattr(Membership, "fail", planted)


def members() -> tuple[Rig, Hand, Hand]:
    rig = Rig(orders=2)
    rig.fill(0, 100)
    rig.fill(1, 100)
    good, bad = rig.attach(), rig.attach()
    good.join("good")
    bad.join("bad")
    bad.start(q0=20)
    return rig, good, bad


@mends("R3.4")
@pytest.mark.usefixtures("killed_by_13")
def test_groups_sets_aside_what_has_ended_it_twice() -> None:
    rig, good, bad = members()
    killer = groupwire.Failed(7, 0, bad.leases[0], KILLER, 0)
    assert deaths_of(rig, lambda: bad.say(killer)) == 2
    refused = only(bad.listen(), groupwire.Refused)
    assert (refused.serial, refused.error) == (7, "Rejected")
    [(session, why)] = rig.sessions.cut
    assert session == bad.number
    assert "Failed" in why
    assert [note["request"] for note in set_aside(rig.sessions)] == ["Failed"]
    assert good.commit(q0=5).lost == {}


@pytest.mark.usefixtures("killed_by_13")
def test_what_a_session_that_has_ended_had_asked_is_set_aside_too() -> None:
    """Its ring is looked at to its end, by each successor."""
    rig, good, bad = members()
    bad.lane.put(groupwire.encode(groupwire.Failed(7, 0, bad.leases[0], KILLER, 0)))
    assert deaths_of(rig, bad.die) == 2
    rig.settle()
    assert good.commit(q0=5).lost == {}
    assert bad.number not in rig.agent.ledger.holders()


@pytest.mark.usefixtures("killed_by_13")
def test_three_requests_of_one_session_are_enough() -> None:
    """It asks for the same under other numbers."""
    rig, good, bad = members()
    deaths = 0
    for serial in range(10, 20):
        if rig.sessions.cut:
            break
        killer = groupwire.Failed(serial, 0, bad.leases[0], KILLER, 0)
        bad.lane.put(groupwire.encode(killer))
        deaths += deaths_of(rig, rig.settle)
        bad.listen()
    assert deaths <= 3
    assert [session for session, _why in rig.sessions.cut] == [bad.number]
    assert good.commit(q0=5).lost == {}


# -------------------------------------------------------------------------------------- scheduler


@mends("R3.4")
def test_the_scheduler_sets_aside_what_has_ended_it_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = Life(tmp_path, SimClock())
    good, bad = Asker(life, 50), Asker(life, 51)
    message = at_message(life.clock.wall_ms() + 60_000)
    life.park(message)
    life.settle()
    look = RecallDesk._look_for

    def planted(desk: RecallDesk, asked: object, *times: int) -> int:
        if asked.session == 51:  # type: ignore[attr-defined]
            raise PlantedError
        return look(desk, asked, *times)  # type: ignore[arg-type]

    monkeypatch.setattr(RecallDesk, "_look_for", planted)
    deaths = 0
    for _ in range(4):  # a client repeats what was not answered
        bad.lane.put(schedulerwire.encode(schedulerwire.Recall(7, "later", handle_of(message))))
        deaths += _dies(life, Role.SCHEDULER)
    assert deaths == 2
    table = life.tables[Role.SCHEDULER]
    assert [session for session, _why in table.cut] == [51]
    assert [note["serial"] for note in set_aside(table)] == [7]
    body = bad.lane.take()
    assert body is not None
    assert schedulerwire.decode_notice(body).refusal == schedulerwire.REFUSED
    assert good.recall("x") == schedulerwire.UNKNOWN_HANDLE


def _dies(life: Life, role: Role) -> int:
    """Let all work for a while; an agent that dies is replaced. How often it did."""
    deaths = 0
    for _ in range(600):
        try:
            life.turn()
        except PlantedError:
            deaths += 1
            life.kill(role)
        life.clock.advance(1_000_000)
    return deaths


# ------------------------------------------------------------------------------------ txn-checker


@pytest.fixture
def txn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TxnLife]:
    yield from txn_life(tmp_path / "store", monkeypatch)


@mends("R3.4")
def test_the_txn_checker_sets_aside_what_has_ended_it_twice(
    txn: TxnLife, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, bad = Peer(txn), Peer(txn)
    halves = [txn.half(TX, number) for number in (1, 2)]
    end = Endings.end

    def planted(endings: Endings, session: int, request: transactionwire.End, now: int) -> None:
        if request.serial == KILLER:
            raise PlantedError
        end(endings, session, request, now)

    monkeypatch.setattr(Endings, "end", planted)
    named = [(half.position, half.queue_offset) for half in halves]
    deaths = 0
    for _ in range(4):
        bad.put(transactionwire.End(KILLER, "pay", TX, commit=True, halves=named))
        deaths += _dies(txn, CHECKER)
    assert deaths == 2
    assert [session for session, _why in txn.tables[CHECKER].cut] == [bad.session.session]
    bad.hear()
    answer = bad.heard[KILLER]
    assert isinstance(answer, transactionwire.Ended)
    assert answer.error == transactionwire.REFUSED
    assert good.ended(halves, commit=True) == (transactionwire.COMMITTED, "")


# ------------------------------------------------------------------------------------------ words


def test_a_kill_from_outside_is_no_requests_fault() -> None:
    board = memory_board({})
    for _ in range(5):
        hand = InHand(board, Role.GROUPS)
        assert not hand.is_poison(3, 9)
        hand.take(3, 9)
        forget_hand(board, Role.GROUPS)  # as the supervisor does after a SIGKILL
    assert not InHand(board, Role.GROUPS).is_condemned(3)


def test_two_that_end_it_in_turn_are_both_found() -> None:
    board = memory_board({})
    for session in (3, 4, 3, 4):
        InHand(board, Role.GROUPS).take(session, 9)
    hand = InHand(board, Role.GROUPS)
    assert [hand.is_poison(session, 9) for session in (3, 4, 5)] == [True, True, False]
    assert not hand.is_poison(3, 8)


# ---------------------------------------------------------------- calls that serve several sessions


@pytest.fixture
def killed_in_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    """An offset of 13 in group `bad` ends `groups` when it is written."""
    flush = Ledger.flush

    def planted(ledger: Ledger) -> None:
        if ledger.group("bad").queue(("orders", 0)).committed == KILLER:
            raise PlantedError
        flush(ledger)

    monkeypatch.setattr(Ledger, "flush", planted)


@pytest.mark.usefixtures("killed_in_flush")
def test_what_ends_groups_when_it_is_written_is_set_aside_too() -> None:
    """Several sessions' requests are written by one call: whose it was shows one by one."""
    rig, good, bad = members()
    for hand, offset in ((good, 5), (bad, KILLER)):
        request = groupwire.Commit(7, {0: hand.leases[0]}, {0: offset})
        assert hand.lane.put(groupwire.encode(request))
    deaths = deaths_of(rig, rig.settle)
    assert deaths <= DEATHS_MAX + 1
    assert [session for session, _why in rig.sessions.cut] == [bad.number]
    assert only(good.listen(), groupwire.Committed).serial == 7
    assert good.commit(q0=6).lost == {}
    assert rig.agent.ledger.group("good").queue(("orders", 0)).committed == 6


def test_the_writer_sets_aside_what_has_ended_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It drains all rings by one call: whose entries have ended it shows when it does so singly."""
    machine = Machine(tmp_path)
    good, bad = workers = machine.attach("good"), machine.attach("bad")
    machine.settle()
    drain = Appender._drain

    def planted(appender: Appender, now_ns: int, number: int, end: int, *, may_wait: bool) -> None:
        for lane in appender.lanes.lanes[number:end]:
            if lane.session is bad.session and lane.published() > lane.view[frames.UP_CURSOR]:
                raise PlantedError
        drain(appender, now_ns, number, end, may_wait=may_wait)

    monkeypatch.setattr(Appender, "_drain", planted)
    bad.send()
    good.send()
    deaths = 0
    while not machine.tables[Role.WRITER].cut:
        try:
            machine.settle()
        except PlantedError:
            deaths += 1
            assert deaths <= DEATHS_MAX + 1, "the writer dies of it again and again"
            replace_writer(machine, workers)
    assert deaths == DEATHS_MAX + 1  # of the first one nobody was suspected
    assert [session for session, _why in machine.tables[Role.WRITER].cut] == [bad.session.session]
    assert len(set_aside(machine.tables[Role.WRITER])) == 1
    machine.settle()
    good.send()
    machine.settle()
    assert good.answers() == [Status.OK, Status.OK]
    for agent in machine.agents:
        agent.close()


def replace_writer(machine: Machine, workers: Iterable[Worker]) -> None:
    """Another one takes the lanes over."""
    place = list(machine.tables).index(Role.WRITER)
    machine.agents[place].close()
    table = machine.tables[Role.WRITER] = MemorySessions()
    machine.agents[place] = agents.build(Role.WRITER, replace(machine.env, sessions=table))
    for worker in workers:
        table.attach(worker.session)


# ------------------------------------------------------------------------------------- the reader


@pytest.mark.parametrize("armed", [0, 1, 2**31, 2**32 - 1])
@pytest.mark.parametrize("count", [0, 1, INTEREST_MAX, INTEREST_MAX + 1, 2**31, 2**32 - 1])
def test_whatever_a_sleeper_says_at_most_its_own_bell_rings(
    tmp_path: Path, armed: int, count: int
) -> None:
    """These are all words of a client that the reader reads."""
    machine = Machine(tmp_path)
    good, bad = machine.attach("good"), machine.attach("bad")
    machine.settle()
    junk = [2**32 - 1, 2**31, 2**31 - 1, 65536, machine.board.queues_max, 1]
    sleep(bad, armed, count, (junk * INTEREST_MAX)[:INTEREST_MAX])
    sleep(good, 1, 1, [0])
    good.send()
    agent_of = dict(zip(machine.tables, machine.agents, strict=True))
    machine.clock.advance(1_000_000_000)
    agent_of[Role.WRITER].do_work(machine.clock.monotonic_ns())
    before = [rings_of(worker) for worker in (good, bad)]
    agent_of[Role.READER].do_work(machine.clock.monotonic_ns())
    after = [rings_of(worker) for worker in (good, bad)]
    rung = [now - then for now, then in zip(after, before, strict=True)]
    assert rung == [1, int(armed > 0 and count > INTEREST_MAX)]
    shown = machine.board.word(machine.board.queue_at(0) + layout.QUEUE_MAX_OFFSET)
    assert shown == 1
    for agent in machine.agents:
        agent.close()


def sleep(worker: Worker, armed: int, count: int, queues: list[int]) -> None:
    """As a client does that waits for messages."""
    words = worker.session.arena.view(np.uint32)
    words[layout.ARENA_WAIT_ARMED // 4] = armed
    words[layout.ARENA_INTEREST_COUNT // 4] = count
    at = layout.INTEREST_AT // 4
    words[at : at + len(queues)] = queues


def rings_of(worker: Worker) -> int:
    assert isinstance(worker.session.bell, SimBell)
    return worker.session.bell.rings
