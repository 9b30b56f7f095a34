"""What one session asks, however much, costs others a turn and no more; steps are counted."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gantrymq.shm import groupwire, layout, schedulerwire, transactionwire
from gantrymq.shm.codes import Role
from gantrymq.shm.kernels.words import load_word
from gantrymq.shm.properties import HALF_TOPIC
from gantrymq.shm.storage import PosixFile
from gantrymq.workers.scheduler import recalls
from gantrymq.workers.scheduler.timerbuckets import DIRECTORY
from tests.support.groups_rig import only
from tests.support.parking import Life, at_message
from tests.support.retry_rig import RetryRig
from tests.support.simclock import SimClock
from tests.support.transacting import CHECKER, Peer, TxnLife, txn_life
from tests.support.trials import mends
from tests.unit.test_recalls import Asker, handle_of

TX = "0123456789abcdef" * 2


@pytest.fixture
def life(tmp_path: Path) -> Life:
    return Life(tmp_path, SimClock())


def unknown(life: Life, number: int, wait_ms: int = 90_000) -> str:
    """A handle of nothing, in the bucket of that time."""
    return handle_of(at_message(life.clock.wall_ms() + wait_ms, key=f"{number + (1 << 64):032x}"))


class Reads:
    """Bytes read of the files of buckets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bytes = 0
        read = PosixFile.read_into

        def counted(file: PosixFile, target: Any, at: int) -> int:  # noqa: ANN401
            count = read(file, target, at)
            if DIRECTORY in file.name:
                self.bytes += count
            return count

        monkeypatch.setattr(PosixFile, "read_into", counted)


@mends("H12")
def test_a_recall_that_waits_reads_nothing_twice(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For units that the reader has still to show; its bucket has a thousand timers."""
    due_ms = life.clock.wall_ms() + 90_000
    life.park(*(at_message(due_ms) for _ in range(1000)))
    life.settle()
    reader = life.agents.pop(Role.READER)
    life.park(at_message(due_ms))
    asker, reads = Asker(life), Reads(monkeypatch)
    asker.ask(unknown(life, 1))
    for _ in range(100):
        life.turn()
        life.clock.advance(1_000_000)
    assert asker.lane.take() is None, "it waits"
    once = reads.bytes
    assert once >= 24_000
    life.agents[Role.READER] = reader
    assert asker.answer() == schedulerwire.UNKNOWN_HANDLE
    assert reads.bytes - once <= 100, "only what is new"


@mends("R4.1")
def test_a_flood_of_recalls_leaves_turns_to_others(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of unknown handles in full buckets: timers are punctual, another is answered."""
    due_ms = life.clock.wall_ms() + 200_000
    life.park(*(at_message(due_ms) for _ in range(1000)))
    soon = at_message(life.clock.wall_ms() + 200)
    mine = at_message(life.clock.wall_ms() + 150_000)
    life.park(soon, mine)
    life.settle()
    bad, good, reads = Asker(life, 50), Asker(life, 51), Reads(monkeypatch)
    number = 0
    for turn in range(400):
        while bad.lane.put(
            schedulerwire.encode(schedulerwire.Recall(1, "later", unknown(life, number, 200_000)))
        ):
            number += 1
        before = reads.bytes
        life.turn()
        assert reads.bytes - before <= recalls.READS_MAX * 24 * 1200, "a cycle has a budget"
        life.clock.advance(1_000_000)
        if turn == 100:
            good.ask(handle_of(mine))
        while bad.lane.take() is not None:
            pass
        if turn == 130:
            body = good.lane.take()
            assert body is not None
            assert schedulerwire.decode_notice(body).outcome == schedulerwire.CANCELLED
    [record] = life.delivered()
    assert record.store_timestamp - int(record.property_map()["due"]) <= 10


@mends("S246")
def test_a_cycle_takes_and_looks_at_few_recalls(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each costs some 40 µs: more of them together are what others wait for."""
    done: list[str] = []
    for name in ("_decode", "_look_at"):
        work = getattr(recalls.RecallDesk, name)

        def counted(desk: Any, *given: Any, work: Any = work) -> Any:  # noqa: ANN401
            done.append(work.__name__)
            return work(desk, *given)

        monkeypatch.setattr(recalls.RecallDesk, name, counted)
    askers = [Asker(life, session) for session in (50, 51)]
    life.settle()
    most = number = 0
    for _ in range(30):
        for asker in askers:
            while asker.lane.put(
                schedulerwire.encode(schedulerwire.Recall(1, "later", unknown(life, number)))
            ):
                number += 1
        done.clear()
        life.turn()
        most = max(most, len(done))
        assert len(done) <= 64
    assert most == 64, "they were more than one cycle takes"


@mends("R4.1")
def test_what_a_session_has_asked_ends_with_it_and_is_bounded(life: Life) -> None:
    bad, idle = Asker(life, 50), Asker(life, 51)
    life.settle()
    request = schedulerwire.encode(schedulerwire.Recall(1, "later", unknown(life, 0)))
    ring = sum(itertools.takewhile(bool, iter(lambda: idle.lane.put(request), None)))
    life.tables[Role.SCHEDULER].detach(51)
    taken = 0
    for _ in range(400):
        taken += bad.lane.put(request)
        life.turn()
    answers = sum(1 for _ in iter(bad.lane.take, None))
    assert answers, "who takes no answer"
    assert taken - ring - answers <= recalls.ASKED_MAX, "the others wait with whoever asks"
    life.tables[Role.SCHEDULER].detach(50)
    life.turn()
    life.turn()
    assert life.sleep() > 10_000_000, "nobody waits for anything"


@mends("R4.2")
def test_answers_that_nobody_reads_are_bounded(life: Life) -> None:
    """Its next requests wait until it does."""
    bad, good = Asker(life, 50), Asker(life, 51)
    life.settle()
    request = schedulerwire.encode(schedulerwire.Recall(1, "later", "x"))
    put = 0
    for _ in range(3000):
        put += bad.lane.put(request)
        life.turn()
    assert put < 1000
    assert good.recall("x") == schedulerwire.UNKNOWN_HANDLE
    for _ in range(3000):
        life.turn()
        bad.lane.take()
    assert bad.lane.put(request), "it goes on"


# ----------------------------------------------------------------------------------------- groups


def test_failed_messages_of_one_session_leave_turns_to_others() -> None:
    """A ring full of them; another's commit is answered in the next cycle but one."""
    rig = RetryRig()
    for number in range(290):
        rig.send(b"m", queue=int(number >= 289))
        if number % 100 == 99:
            rig.settle()
    bad, good = rig.attach(), rig.attach()
    rig.settle()
    bad.join("g")
    good.join("good")
    bad.note(q0=(0, 289))
    rig.settle()
    bad.listen()
    serial, offset = 10, 0
    lease = bad.leases[0]
    while offset < 288:
        offsets = list(range(offset, offset + 36))
        request = groupwire.SendBack(serial, 0, lease, 17, offsets, [0], ["no"])
        if not bad.lane.put(groupwire.encode(request)):
            break
        serial, offset = serial + 1, offset + 36
    assert offset > 256, "more than a cycle takes"
    rig.step(Role.GROUPS)
    good.lane.put(groupwire.encode(groupwire.Commit(2, good.leases, {1: 1})))
    rig.step(Role.GROUPS)
    assert only(good.listen(), groupwire.Committed).serial == 2
    rig.settle()
    bad.listen()
    told = [notice for notice in bad.heard if isinstance(notice, groupwire.SentBack)]
    assert sum(len(notice.offsets) for notice in told) == offset


@pytest.mark.parametrize("kind", ["Join", "Reset", "Commit"])
def test_a_cycle_of_groups_has_a_budget(kind: str) -> None:
    """What is dear is taken a few at a time, so that a cycle is short."""
    rig = RetryRig()
    rig.send(b"m")
    rig.settle()
    bad, good = rig.attach(), rig.attach()
    rig.settle()
    good.join("good")
    bad.join("g")
    bad.listen()
    requests: dict[str, groupwire.AnyRequest] = {
        "Join": groupwire.Join(1, "g", [0]),
        "Reset": groupwire.Reset(1, "nobody", {0: 0}),
        "Commit": groupwire.Commit(0, {}, dict.fromkeys(range(100), 1)),
    }
    body = groupwire.encode(requests[kind])
    while bad.lane.put(body):
        pass
    before = _taken(bad)
    rig.step(Role.GROUPS)
    size = (len(body) + layout.MESSAGE_BYTES + 7) & ~7
    assert 1 <= (_taken(bad) - before) // size <= 16
    good.lane.put(groupwire.encode(groupwire.Commit(2, good.leases, {1: 0})))
    rig.step(Role.GROUPS)
    assert only(good.listen(), groupwire.Committed).serial == 2


def _taken(hand: Any) -> int:  # noqa: ANN401 - a Hand
    """Bytes of requests that `groups` has taken."""
    control = hand.session.plan.groups.control
    return int(load_word(hand.session.arena, control + layout.LANE_UP_HEAD))


# ------------------------------------------------------------------------------------ txn-checker


@pytest.fixture
def txn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TxnLife]:
    yield from txn_life(tmp_path / "store", monkeypatch)


def test_searches_of_one_session_leave_turns_to_others(
    txn: TxnLife, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was decided long ago is looked for step by step, for each in turn."""
    bad, good = Peer(txn), Peer(txn)
    halves = [txn.half(TX, number) for number in range(1, 60)]
    for half in halves:
        assert good.ended([half], commit=True)[1] == ""
    txn.run_for(2000)
    txn.kill(CHECKER)
    txn.run_for(100)
    assert {record.topic for record in txn.records()} >= {HALF_TOPIC}
    for number, half in enumerate(halves[:50]):
        named = [(half.position, half.queue_offset)]
        bad.put(transactionwire.End(100 + number, "pay", TX, commit=False, halves=named))
    txn.turn()
    last = halves[-1]
    serial = good.end([last], commit=False)
    steps = 0
    while serial not in good.heard:
        txn.turn()
        good.hear()
        steps += 1
    bad.hear()
    assert len([number for number in bad.heard if number >= 100]) <= 40, "not behind all of these"
    assert steps < 200
