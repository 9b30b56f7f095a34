"""Timers: delivered once, on their millisecond, whatever happens in between (DT-30 to DT-59)."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from gantrymq.brokerd.parkedholder import ParkedHolder
from gantrymq.shm.codes import Role
from gantrymq.shm.record import Record
from gantrymq.shm.storage import PosixFile
from gantrymq.workers.scheduler import timerbuckets, timerfiling, timers
from gantrymq.workers.scheduler.agent import Scheduler
from gantrymq.workers.scheduler.note import read_note
from gantrymq.workers.scheduler.timerbuckets import DIRECTORY, bucket_names
from gantrymq.workers.scheduler.timerfiling import BUCKETS_MAX
from tests.support.parking import Life, after_message, at_message, level_message, origins
from tests.support.simclock import SimClock
from tests.support.trials import mends


@pytest.fixture
def life(tmp_path: Path) -> Life:
    """A broker that has just begun."""
    return Life(tmp_path, SimClock())


def lateness(copies: list[Record]) -> list[int]:
    """Milliseconds from each one's time to its storing."""
    return [copy.store_timestamp - int(copy.property_map()["due"]) for copy in copies]


def test_a_point_in_time_is_met(life: Life) -> None:
    """DT-35, DT-54, DT-58: exactly, though RocketMQ's slot is earlier."""
    now = life.clock.wall_ms()
    times = [now + wait for wait in (1, 2, 999, 1000, 1001, 61_003, 61_003, 3_600_001)]
    positions = life.park(*(at_message(ms) for ms in times))
    life.run_for(62_000)
    copies = life.delivered()
    assert origins(copies) == positions[:-1]
    assert set(lateness(copies)) <= {0, 1}
    life.clock.advance(3_537_000_000_000)
    life.run_for(2_000)
    assert origins(life.delivered()) == positions
    life.stop()


@mends("S11")
def test_it_sleeps_until_the_reader_shows_the_queue(life: Life) -> None:
    """A new scheduler delivers nothing before it has read what was parked: nor does it spin."""
    now = life.clock.wall_ms()
    shown = life.park(at_message(now + 50))
    life.run_for(10)
    reader = life.agents.pop(Role.READER)
    hidden = life.park(at_message(now + 60))
    life.kill(Role.SCHEDULER)
    life.settle()
    life.clock.advance(100_000_000)
    life.settle()
    assert life.sleep() > 0
    life.agents[Role.READER] = reader
    life.run_for(10)
    assert origins(life.delivered()) == shown + hidden


def test_a_delay_waits_by_the_clock_that_nobody_sets(life: Life) -> None:
    """A wall clock set forward or back moves points in time, not delays."""
    now = life.clock.wall_ms()
    [point] = life.park(at_message(now + 10_000))
    [delay] = life.park(after_message(life, 5_000))
    life.run_for(1_000)
    life.clock.step_wall(20_000)
    life.run_for(100)
    assert origins(life.delivered()) == [point]
    life.run_for(3_850)
    assert origins(life.delivered()) == [point]
    life.run_for(100)
    assert origins(life.delivered()) == [point, delay]
    life.clock.step_wall(-3_600_000)
    [late] = life.park(after_message(life, 2_000))
    life.run_for(1_990)
    assert late not in origins(life.delivered())
    life.run_for(20)
    assert origins(life.delivered()) == [point, delay, late]
    life.stop()


def test_a_note_counts_nothing_that_a_power_cut_may_take(life: Life) -> None:
    """F2, P8: a timer that waits is counted as filed once its record is on the disk."""
    life.park(at_message(life.clock.wall_ms() + 86_400_000))
    life.run_for(2_000)
    life.agents.pop(Role.FLUSHER)
    [late] = life.park(at_message(life.clock.wall_ms() + 90_000_000))
    life.run_for(30_000)
    note = read_note(life.storage)
    assert note is not None
    assert note.timers_next == 1
    life.start(Role.FLUSHER)
    life.run_for(30_000)
    note = read_note(life.storage)
    assert note is not None
    assert (note.timers_next, note.timers_position) == (2, late)
    life.stop()


def test_a_successor_knows_which_times_stood_still(life: Life) -> None:
    """P8: a wall set back and forward again; in between, records say when it was set."""
    life.park(at_message(life.clock.wall_ms() + 40_000_000))
    life.clock.step_wall(-7_200_000)
    life.run_for(400)
    life.park(level_message(1))
    begun_ns = life.clock.monotonic_ns()
    life.settle()
    life.clock.step_wall(10_800_000)
    life.kill(Role.SCHEDULER)
    life.run_for(900)
    assert not life.delivered(), "before its second is over"
    while not life.delivered():
        life.run_for(1)
    assert life.clock.monotonic_ns() - begun_ns >= 1_000_000_000


@pytest.mark.parametrize("successors", [1, 2])
def test_a_successor_knows_what_it_cannot_know_of_the_wall(life: Life, successors: int) -> None:
    """P8: set back, then forward twice while nobody looks, in between to what it was before."""
    life.run_for(400)
    for role in (Role.SCHEDULER, Role.WRITER):  # whose successor knows of no later time
        life.kill(role)
    life.clock.step_wall(-80_000_000)
    life.run_for(400)
    life.agents.pop(Role.SCHEDULER)
    life.clock.step_wall(7_200_000)
    life.park(level_message(1))
    begun_ns = life.clock.monotonic_ns()
    life.clock.step_wall(7_200_000)
    life.start(Role.SCHEDULER)
    for _ in range(1, successors):
        life.run_for(400)
        life.kill(Role.SCHEDULER)
    life.run_for(990 - 400 * (successors - 1))
    assert not life.delivered(), "before its second is over"
    while not life.delivered():
        life.run_for(1)
    assert 1_000 <= (life.clock.monotonic_ns() - begun_ns) // 1_000_000 <= 1_010


@pytest.mark.parametrize("lost", ["nothing", "note", "buckets", "both"])
def test_a_restart_goes_on(tmp_path: Path, lost: str) -> None:
    """What is derived may be lost; after a stop all that is overdue comes in order of time."""
    clock, dice = SimClock(), random.Random(5)
    life = Life(tmp_path, clock)
    now = clock.wall_ms()
    positions = []
    for _ in range(8):
        times = [now + dice.randrange(1, 120_000) for _ in range(25)]
        positions += life.park(*(at_message(ms) for ms in times))
        life.run_for(2_000)
    life.stop()
    if lost in ("note", "both"):
        (tmp_path / "gantry" / "schedule.json").unlink()
    if lost in ("buckets", "both"):
        shutil.rmtree(tmp_path / "gantry" / "timers")
    before = len(life.delivered())
    assert 0 < before < len(positions)
    clock.advance(80_000_000_000)
    life = Life(tmp_path, clock)
    life.run_for(2_000)
    overdue = [int(c.property_map()["due"]) for c in life.delivered()[before:]]
    assert overdue == sorted(overdue)
    life.run_for(25_000)
    assert sorted(origins(life.delivered())) == sorted(positions)
    life.stop()


@pytest.mark.parametrize("victim", [Role.SCHEDULER, Role.WRITER, Role.READER])
def test_deaths_at_any_time(tmp_path: Path, victim: Role) -> None:
    """P5, P8: one copy each, none early."""
    clock, dice = SimClock(), random.Random(victim)
    life = Life(tmp_path, clock)
    positions = []
    for _ in range(25):
        now = clock.wall_ms()
        for _ in range(dice.randrange(12)):
            wait = dice.choice((1, 5, 300, 12_000, 70_000))
            make = dice.choice((at_message(now + wait), after_message(life, wait)))
            positions += life.park(make)
        for _ in range(dice.randrange(4)):
            life.agents[Role.SCHEDULER].do_work(clock.monotonic_ns())
        life.kill(victim)
        life.run_for(dice.randrange(600))
    life.run_for(75_000)
    copies = life.delivered()
    assert sorted(origins(copies)) == positions
    assert min(lateness(copies)) >= 0
    life.stop()


def test_a_crowded_minute_is_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds of a minute are opened one by one, before and after it has begun."""
    monkeypatch.setattr(timerbuckets, "SPLIT_ENTRIES", 50)
    monkeypatch.setattr(timers, "POOL_MAX", 80)
    clock, dice = SimClock(), random.Random(9)
    life = Life(tmp_path, clock)
    positions = []
    for turn in range(18):
        now = clock.wall_ms()
        times = [now + dice.randrange(1, 90_000) for _ in range(20)]
        positions += life.park(*(at_message(ms) for ms in times))
        life.run_for(700)
        if turn % 7 == 6:
            life.kill(Role.SCHEDULER)
    assert any("." in path.name for path in (tmp_path / "gantry" / "timers").iterdir())
    life.run_for(100_000)
    copies = life.delivered()
    assert sorted(origins(copies)) == sorted(positions)
    assert set(lateness(copies)) <= {0, 1}
    life.stop()


def test_a_flood_for_one_millisecond_holds_nobody_up(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What others send meanwhile is stored at their next turn, all the time that it lasts.

    Turns in which the writer waits for a segment do not count (tests/unit/test_spare_segment.py).
    """
    due_ms, flood = life.clock.wall_ms() + 6_000, 5_000
    positions = life.park(*(at_message(due_ms) for _ in range(flood)))
    life.run_for(5_900)
    turn, turns, waits = life.turn, 0, []

    def counted() -> int:
        nonlocal turns
        done = turn()
        turns += not life.writer_waits
        return done

    monkeypatch.setattr(life, "turn", counted)
    life.clock.advance(101_000_000)
    (queue,) = [topic.queue_base + 1 for topic in life.board.topics() if topic.name == "later"]
    while (done := life.board.queue(queue)["next_offset"]) < flood:
        turns = 0
        life.park(at_message(due_ms + 3_600_000))
        waits.append((done > 0, turns))
    amid = [count for begun, count in waits if begun]
    assert amid, f"it takes longer than the others wait: {waits}"
    assert max(amid) <= 2
    life.settle()
    assert sorted(origins(life.delivered())) == positions
    life.stop()


def test_what_waits_holds_its_part_of_the_log(life: Life) -> None:
    """LW-73: retention asks for the lowest; what a full disk takes nevertheless is counted."""
    now = life.clock.wall_ms()
    holder = ParkedHolder(life.storage, life.board)
    [level] = life.park(level_message(3))
    [near] = life.park(at_message(now + 11_000))
    [far] = life.park(at_message(now + 3_600_000))
    held = []
    for wait_ms in (8_000, 8_000, 70_000, 30_000):
        life.run_for(wait_ms)
        low = holder.lowest_position(0)
        assert low is not None
        held.append(low.position)
    assert level < near < far
    assert (held[0], held[-1]) == (level, far)
    assert held == sorted(held)
    assert [loss.count for loss in holder.losses(far, {})] == []
    assert [loss.count for loss in holder.losses(far + 1, {})] == [1]
    life.stop()


def test_foreign_recalls_are_honoured(life: Life) -> None:
    """DT-73, DT-76: both forms, in the same slot only."""
    now = life.clock.wall_ms() // 1000 * 1000 + 30_000
    keys = [f"{number:032X}" for number in range(4)]
    targets = life.park(*(at_message(now + 500, key=key) for key in keys))
    life.park(
        at_message(now + 1, key=keys[0], TIMER_DEL_UNIQKEY=f"later+{keys[0]}"),
        at_message(now + 1, key=keys[1], TIMER_DEL_UNIQKEY=keys[1]),
        at_message(now + 1, key=keys[2], TIMER_DEL_UNIQKEY=f"other+{keys[2]}"),
        at_message(now + 1001, key=keys[3], TIMER_DEL_UNIQKEY=keys[3]),
    )
    life.run_for(40_000)
    assert origins(life.delivered()) == targets[2:]
    life.stop()


def test_a_wide_spread_is_filed_in_short_steps(life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of their buckets a step writes to a few, the next first; what is due waits for none."""
    life.settle()
    scheduler = life.agents.pop(Role.SCHEDULER)
    assert isinstance(scheduler, Scheduler)
    now = life.clock.wall_ms() + 40
    positions = life.park(*(at_message(now + 60_000 * (n * 7 % 300)) for n in range(300)))
    life.settle()
    written: list[str] = []
    write = PosixFile.write_at

    def note(file: PosixFile, data: memoryview, at: int) -> None:
        written.append(file.name)
        write(file, data, at)

    monkeypatch.setattr(PosixFile, "write_at", note)
    steps, due_step = 0, 0
    while not scheduler._timers.has_read(len(positions)):
        before = len(written)
        scheduler.do_work(life.clock.monotonic_ns())
        assert len([n for n in written[before:] if n.startswith(DIRECTORY)]) <= BUCKETS_MAX
        life.clock.advance(10_000_000)
        steps += 1
        due_step = due_step or steps * (scheduler._delivery.put_seq > 0)
    assert 40 < len({name for name in written if name.startswith(DIRECTORY)}) < 80
    assert 0 < due_step < steps - 3
    life.agents[Role.SCHEDULER] = scheduler
    life.run_for(61_000)
    assert len(origins(life.delivered())) == 2
    life.stop()


@mends("S88")
def test_what_is_filed_late_is_not_delivered_again(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in memory as soon as it is read; its bucket's file stays for it."""
    life.settle()
    scheduler = life.agents.pop(Role.SCHEDULER)

    def go_on(ms: int) -> None:
        for _ in range(ms // 50):
            life.clock.advance(50_000_000)
            scheduler.do_work(life.clock.monotonic_ns())
            life.settle()

    now = life.clock.wall_ms()
    first = life.park(at_message(now + 500))
    go_on(400)
    monkeypatch.setattr(timerfiling, "BUCKETS_MAX", 0)
    late = life.park(at_message(now + 1_000))
    go_on(90_000)
    assert origins(life.delivered()) == first + late
    note = read_note(life.storage)
    assert note is not None
    assert note.timers_next == 1
    assert note.timers_ms > now + 60_000
    monkeypatch.undo()
    go_on(20_000)
    assert origins(life.delivered()) == first + late
    life.agents[Role.SCHEDULER] = scheduler
    life.run_for(20_000)
    assert not bucket_names(life.storage.list(DIRECTORY))
    life.stop()


def boots(directory: Path, clock: SimClock, number: int) -> Life:
    """The machine has been started so many times."""
    return Life(directory, clock, boot=bytes([number] * 16))


@pytest.mark.parametrize("by_ms", [-7_200_000, 7_200_000])
def test_what_is_counted_stays_so_over_boots(tmp_path: Path, by_ms: int) -> None:
    """P9: delays in one bucket, some done, in boots whose walls have been set in between."""
    clock = SimClock()
    life = boots(tmp_path, clock, 1)
    positions = []
    for number in (1, 2, 3):
        waits = [after_message(life, ms) for ms in (100, 20_000, 31_000)]
        positions += life.park(*waits)
        life.run_for(12_000)  # noted
        if number == 1:
            clock.step_wall(by_ms)
        life.run_for(200)
        life.stop()
        life = boots(tmp_path, clock, number + 1)
        life.kill(Role.SCHEDULER)
    assert len(life.delivered()) < len(positions)
    life.run_for(40_000)
    assert sorted(origins(life.delivered())) == sorted(positions)
    life.stop()
