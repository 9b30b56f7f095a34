"""Cancelling: it wins or loses, and says which; nothing cancelled is ever delivered."""

from __future__ import annotations

import errno
from base64 import urlsafe_b64encode
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gantrymq.shm import layout, schedulerwire
from gantrymq.shm.arena import plan_arena
from gantrymq.shm.codes import Role
from gantrymq.shm.controllane import ControlLane, End
from gantrymq.shm.schedulerwire import ALREADY_DELIVERED, CANCELLED
from gantrymq.shm.storage import PosixFile
from gantrymq.workers.housekeeper.indexer import Indexer
from gantrymq.workers.scheduler import timers
from gantrymq.workers.scheduler.agent import Scheduler
from gantrymq.workers.scheduler.timerbuckets import DIRECTORY
from gantrymq.workers.scheduler.timerpool import ENTRY
from tests.support.memory_sessions import memory_session
from tests.support.parking import Life, Parked, after_message, at_message, origins
from tests.support.simclock import SimClock
from tests.support.trials import mends

KEY = "0123456789ABCDEF0123456789ABCDEF"


class Asker:
    """A session with the scheduler."""

    def __init__(self, life: Life, number: int = 7) -> None:
        self.life = life
        session = memory_session(number, plan_arena(4096, 4096, 4096, 4096))
        self.session = replace(session, groups=False, scheduler=True)
        life.clients.append(self.session)
        life.tables[Role.SCHEDULER].attach(self.session)
        self.lane = ControlLane(self.session.arena, self.session.plan.scheduler, End.CLIENT)
        self.serial = 0

    def ask(self, handle: str, topic: str = "later") -> None:
        """Put a request."""
        self.serial += 1
        assert self.lane.put(schedulerwire.encode(schedulerwire.Recall(self.serial, topic, handle)))

    def answer(self) -> str:
        """The outcome, or why it was refused; time goes on until it is there."""
        for _ in range(2000):
            self.life.turn()
            if (body := self.lane.take()) is not None:
                notice = schedulerwire.decode_notice(body)
                assert notice.serial == self.serial
                return notice.outcome or notice.refusal
            self.life.clock.advance(1_000_000)
        raise AssertionError("no answer")

    def answer_last(self) -> str:
        """Likewise, where earlier requests may have an answer, or none."""
        for _ in range(2000):
            self.life.turn()
            while (body := self.lane.take()) is not None:
                notice = schedulerwire.decode_notice(body)
                if notice.serial == self.serial:
                    return notice.outcome
            self.life.clock.advance(100_000)
        raise AssertionError("no answer")

    def recall(self, handle: str, topic: str = "later") -> str:
        """Ask and wait."""
        self.ask(handle, topic)
        return self.answer()


@pytest.fixture
def life(tmp_path: Path) -> Life:
    """A broker that has just begun."""
    return Life(tmp_path, SimClock())


def handle_of(message: Parked, topic: str = "later") -> str:
    """DT-70."""
    out_ms = int(message.properties["TIMER_OUT_MS"])
    key = message.properties["UNIQ_KEY"]
    return urlsafe_b64encode(f"v1 {topic} broker {out_ms + 1} {key}".encode()).decode()


@pytest.mark.parametrize("wait_ms", [1_000, 59_000, 400_000])
def test_a_recalled_message_never_comes(life: Life, wait_ms: int) -> None:
    """DT-72: the log tells it to a RocketMQ, too; to ask again says the same."""
    other = at_message(life.clock.wall_ms() + wait_ms)
    message = at_message(life.clock.wall_ms() + wait_ms)
    positions = life.park(message, other)
    asker = Asker(life)
    assert asker.recall(handle_of(message)) == schedulerwire.CANCELLED
    assert asker.recall(handle_of(message)) == schedulerwire.CANCELLED
    [record] = [r for r in life.records() if "TIMER_DEL_UNIQKEY" in r.property_map()]
    assert origins([record]) == [positions[0]]
    assert record.property_map()["TAGS"] == "_RECALL_TAG_"
    life.kill(Role.SCHEDULER)
    life.run_for(wait_ms + 100)
    assert origins(life.delivered()) == positions[1:]
    assert asker.recall(handle_of(other)) == schedulerwire.ALREADY_DELIVERED
    life.stop()


def recalls_of(life: Life) -> int:
    """Recall records in the log."""
    return sum("TIMER_DEL_UNIQKEY" in record.property_map() for record in life.records())


def test_a_scheduler_that_has_not_read_a_recall_makes_no_second_one(life: Life) -> None:
    """P8: it is in the log, but in no queue yet when a successor is asked again."""
    message = at_message(life.clock.wall_ms() + 400_000)
    life.park(message)
    life.settle()
    asker = Asker(life)
    asker.ask(handle_of(message))
    reader = life.agents.pop(Role.READER)
    life.run_for(5_000)  # the note is written, and takes the recall for known
    assert recalls_of(life) == 1
    life.kill(Role.SCHEDULER)
    asker.ask(handle_of(message))
    life.run_for(50)
    life.agents[Role.READER] = reader
    assert asker.answer_last() == schedulerwire.CANCELLED
    life.stop()
    assert recalls_of(life) == 1


@mends("S31")
def test_what_is_due_leaves_room_for_recalls(life: Life) -> None:
    """However much is due, a recall goes up before more of it does."""
    far = at_message(life.clock.wall_ms() + 400_000)
    due = [at_message(life.clock.wall_ms() + 1_000) for _ in range(6_000)]
    life.park(far, *due)
    life.settle()
    writer = life.agents.pop(Role.WRITER)
    scheduler = life.agents[Role.SCHEDULER]
    assert isinstance(scheduler, Scheduler)
    life.run_for(1_500)
    put = scheduler._delivery.put_seq
    assert 0 < put < len(due), "its ring is full"
    asker = Asker(life)
    asker.ask(handle_of(far))
    life.run_for(50)
    assert scheduler._delivery.put_seq == put + 1
    life.agents[Role.WRITER] = writer
    assert asker.answer() == schedulerwire.CANCELLED
    life.run_for(1_000)
    assert len(life.delivered()) == len(due)


def test_unknown_handles_are_told_apart(life: Life) -> None:
    """Another topic, another key, another time, no handle at all."""
    message = at_message(life.clock.wall_ms() + 30_000, key=KEY)
    [position] = life.park(message)
    asker = Asker(life)
    later = at_message(life.clock.wall_ms() + 31_000, key=KEY)
    for handle in (handle_of(later), handle_of(at_message(life.clock.wall_ms() + 30_000)), "x"):
        assert asker.recall(handle) == schedulerwire.UNKNOWN_HANDLE
    assert asker.recall(handle_of(message, "other"), "other") == schedulerwire.UNKNOWN_HANDLE
    life.run_for(31_000)
    assert origins(life.delivered()) == [position]
    life.stop()


@pytest.mark.parametrize("victim", [Role.SCHEDULER, Role.WRITER])
def test_a_race_with_the_time_has_one_winner(life: Life, victim: Role) -> None:
    """Asked around its millisecond, with deaths: cancelled and delivered exclude each other."""
    outcomes = []
    asker = Asker(life)
    for turn in range(25):
        message = at_message(life.clock.wall_ms() + 20)
        [position] = life.park(message)
        life.run_for(10 + turn % 12)
        asker.ask(handle_of(message))
        for _ in range(turn % 4):
            life.agents[Role.SCHEDULER].do_work(life.clock.monotonic_ns())
        if turn % 3 == 0:
            life.kill(victim)
            asker.ask(handle_of(message))
        outcome = asker.answer_last()
        life.run_for(50)
        is_there = position in origins(life.delivered())
        assert is_there == (outcome != schedulerwire.CANCELLED)
        outcomes.append(outcome)
    assert {schedulerwire.CANCELLED, schedulerwire.ALREADY_DELIVERED} == set(outcomes)
    life.stop()


def test_a_recall_stands_in_the_bucket_of_what_it_names(life: Life) -> None:
    """A wall that was set moves no delay: its bucket is another than its handle's time says.

    A successor opens the bucket and has to find both; nothing else tells it of a counted recall.
    """
    life.settle()
    life.clock.step_wall(7_200_000)
    message = after_message(life, 1_500)
    life.park(message)
    life.settle()
    assert Asker(life).recall(handle_of(message)) == CANCELLED
    life.settle()
    buckets = [
        np.fromfile(f"{life.storage.root}/{DIRECTORY}/{name}", ENTRY)
        for name in life.storage.list(DIRECTORY)
    ]
    assert [len(entries) for entries in buckets if len(entries)] == [2]


def fill(patch: pytest.MonkeyPatch, call: str, under: str) -> None:
    """From now on there is no room for what a call does to files of a folder."""
    true = getattr(PosixFile, call)

    def full(file: PosixFile, *what: object, **more: object) -> None:
        if file.name.startswith(under):
            raise OSError(errno.ENOSPC, "no room", file.name)
        true(file, *what, **more)

    patch.setattr(PosixFile, call, full)


@pytest.mark.parametrize(("has_memory", "told"), [(True, CANCELLED), (False, "DISK_FULL")])
def test_without_room_for_buckets_a_recall_is_refused(
    life: Life, monkeypatch: pytest.MonkeyPatch, has_memory: bool, told: str
) -> None:
    """F7: well within a client's timeout; once there is room it wins.

    What was read is known, and recalled: as much as there is memory for.
    """
    if not has_memory:
        monkeypatch.setattr(timers, "CATCH_UP_UNITS", 0)
    life.settle()
    fill(monkeypatch, "write_at", DIRECTORY)
    known, unread = (at_message(life.clock.wall_ms() + 30_000) for _ in range(2))
    life.park(known)
    life.settle()
    life.park(unread)
    asker = Asker(life)
    assert asker.recall(handle_of(known)) == CANCELLED
    assert asker.recall(handle_of(unread)) == told
    monkeypatch.undo()
    assert asker.recall(handle_of(unread)) == CANCELLED
    life.run_for(31_000)
    assert not life.delivered()
    life.stop()


def test_a_copy_that_waits_for_room_is_not_called_delivered(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P8: it goes up again and again under other numbers, and each time it is none the more."""
    life.settle()
    fill(monkeypatch, "allocate", "")
    now, body = life.clock.wall_ms(), bytes(life.board.segment_bytes // 8)
    room = 7  # such records in a segment; there is no other
    life.park(*[replace(at_message(now + 10**9), body=body)] * (room - 1))
    message = replace(at_message(now + 300), body=body)
    [position] = life.park(message)
    life.run_for(500)
    asker = Asker(life)
    assert asker.recall(handle_of(message)) == "DISK_FULL"
    assert asker.recall(handle_of(message)) == "DISK_FULL"
    assert not life.delivered()
    monkeypatch.undo()
    life.run_for(300)
    assert asker.recall(handle_of(message)) == ALREADY_DELIVERED
    assert origins(life.delivered()) == [position]
    life.stop()


def test_while_the_index_is_behind_nothing_is_called_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P8: it alone can tell of what waits under another time; a client asks again."""
    life = Life(tmp_path, SimClock(), {"message_index_enable": True})
    life.settle()
    with monkeypatch.context() as patch:
        patch.setattr(Indexer, "do_work", lambda _self, _now_ns: 0)
        life.park(at_message(life.clock.wall_ms() + 30_000, key=KEY))
        asker = Asker(life)
        unknown = handle_of(at_message(life.clock.wall_ms() + 31_000, key=KEY))
        assert asker.recall(unknown) == schedulerwire.INDEX_BEHIND
    assert asker.recall(unknown) == schedulerwire.UNKNOWN_HANDLE
    life.stop()


@mends("S183")
def test_a_copy_is_called_delivered_once_it_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P8: one that goes up while it is looked for is not sure as soon as the index has it.

    The wall was set ahead: it waits in another bucket than its handle says, out of sight there.
    """
    life = Life(tmp_path, SimClock(), {"message_index_enable": True}, level="durable")
    life.settle()
    life.clock.step_wall(7_200_000)
    with monkeypatch.context() as patch:
        patch.setattr(Indexer, "do_work", lambda _self, _now_ns: 0)
        life.agents.pop(Role.SCHEDULER)
        message = after_message(life, 20)
        [position] = life.park(message)
        while life.board.word(layout.BOARD_DURABLE) < life.board.word(layout.BOARD_APPENDED):
            life.run_for(1)
        flusher = life.agents.pop(Role.FLUSHER)
        asker = Asker(life)
        life.start(Role.SCHEDULER)
        asker.ask(handle_of(message))
        life.run_for(50)
    life.run_for(2_000)
    assert origins(life.delivered()) == [position]
    assert asker.lane.take() is None
    life.agents[Role.FLUSHER] = flusher
    assert asker.answer() == ALREADY_DELIVERED
    life.stop()
