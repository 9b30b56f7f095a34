"""Timers whose segments are to go are appended again: none is lost, none comes twice (LW-73)."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from gantrymq.brokerd.handover.pending import read_pending
from gantrymq.brokerd.retention import PACE, Decision, Retention, open_retention
from gantrymq.shm import layout
from gantrymq.shm.codes import Role
from gantrymq.shm.properties import TIMER_TOPIC
from gantrymq.shm.ranges import read_ranges
from gantrymq.shm.record import Record
from gantrymq.workers.groups.ledger import open_ledger
from gantrymq.workers.scheduler.note import Note, read_note
from gantrymq.workers.scheduler.waiting import WaitingMessages
from tests.support.parking import Life, after_message, at_message, level_message, origins
from tests.support.simclock import SimClock
from tests.unit.test_recalls import Asker, handle_of

SEGMENT = 1 << 16
FILLER = "x" * 300
LONG = "x" * 800  # few messages fill segments: each has a time of its own to be waited for


@pytest.fixture
def life(tmp_path: Path) -> Life:
    """A broker that has just begun."""
    return new_life(tmp_path, SimClock())


def new_life(directory: Path, clock: SimClock) -> Life:
    """A life with small segments."""
    return Life(directory, clock, {"mapped_file_size_commit_log": SEGMENT})


def wanted_below(life: Life) -> int:
    """Ask for all segments but the last; where that begins."""
    end = life.board.word(layout.BOARD_APPENDED) // SEGMENT * SEGMENT
    life.board.set_word(layout.BOARD_TIMERS_WANTED, end)
    return end


def note_of(life: Life) -> Note:
    """The scheduler's note."""
    return read_note(life.storage) or Note()


def remove_below(life: Life, low: int) -> None:
    """What retention does to the log, once nobody needs it any more."""
    life.board.set_word(layout.BOARD_LOW, low)
    first: dict[tuple[str, int], int] = {}
    for record in life.records():
        if record.physical_offset >= low:
            first.setdefault((record.topic, record.queue_id), record.queue_offset)
    for topic in life.board.topics():
        for queue_id in range(topic.queue_count):
            at = life.board.queue_at(topic.queue_base + queue_id)
            end = life.board.word(at + layout.QUEUE_MAX_OFFSET)
            life.board.set_word(
                at + layout.QUEUE_MIN_OFFSET, first.get((topic.name, queue_id), end)
            )
    for base in range(0, low, SEGMENT):
        life.storage.unlink(f"commitlog/{base:020d}")


def appended_again(life: Life) -> list[Record]:
    """Timers that stand for an older one."""
    return [
        record
        for record in life.records()
        if record.topic == TIMER_TOPIC and record.prepared_transaction_offset < 0
    ]


def pending_positions(life: Life) -> list[int]:
    """What waits by the log alone, as a hand-over sees it."""
    ranges = read_ranges(life.storage)
    assert ranges is not None, "a start writes them"
    found = read_pending(life.storage, SEGMENT, ranges, life.board.word(layout.BOARD_APPENDED))
    return sorted(int(p) for _queue, rows in found.waiting(TIMER_TOPIC) for p in rows["position"])


def test_what_waits_is_appended_again_and_comes_once_in_time(life: Life) -> None:
    """Point in time and delay keep their millisecond; what is delivered is not touched."""
    now = life.clock.wall_ms()
    soon = life.park(*(at_message(now + 200 + n, filler=LONG) for n in range(50)))
    near = life.park(*(at_message(now + 20_000, filler=LONG) for _ in range(50)))
    [delay] = life.park(after_message(life, 400_123))
    far = life.park(
        *(at_message(now + 300_000 + 777 * n, filler=LONG) for n in range(100)),
        at_message(now + 9_000_000_000),
    )
    life.run_for(2_000)
    assert sorted(origins(life.delivered())) == soon
    low = wanted_below(life)
    assert low > far[50]
    life.run_for(90_000)
    assert note_of(life).timers_floor == low
    again = appended_again(life)
    expected = [delay, *(position for position in far if position < low)]
    assert sorted(origins(again)) == sorted(expected)
    assert sorted(origins(life.delivered())) == soon + near
    listed = WaitingMessages(life.storage, life.board, 1000).read()["position"].tolist()
    moved = [record.physical_offset for record in again]
    kept = [position for position in far if position >= low]
    assert sorted(listed) == sorted(moved + kept) == pending_positions(life)
    [left] = [r for r in again if "TIMER_DELAY_MS" in r.property_map()]
    assert origins([left]) == [delay]
    assert 0 < int(left.property_map()["TIMER_DELAY_MS"]) <= 400_123 - 2_000
    remove_below(life, low)
    life.run_for(500_000)
    came = life.delivered()
    lateness = {c.store_timestamp - int(c.property_map()["due"]) for c in came}
    assert lateness <= {0, 1}
    assert sorted(origins(came)[-(len(expected) + len(kept) - 1) :]) == sorted(moved + kept)[:-1]
    life.stop()


@pytest.mark.parametrize(("before_ms", "after_ms"), [(-5 * 10**6, 10**7), (0, 10**7)])
def test_a_delay_goes_on_by_no_wall_clock(life: Life, before_ms: int, after_ms: int) -> None:
    """P9: what was appended again passes evenly, wherever the wall is set before and after."""
    begun_ns = life.clock.monotonic_ns()
    [delay] = life.park(after_message(life, 400_000))
    life.park(*(at_message(life.clock.wall_ms() + 10**9, filler=LONG) for _ in range(100)))
    life.run_for(2_000)
    life.clock.step_wall(before_ms)
    low = wanted_below(life)
    life.run_for(50_000)
    assert note_of(life).timers_floor == low
    assert delay in origins(appended_again(life))
    life.clock.step_wall(after_ms)
    passed_ms = (life.clock.monotonic_ns() - begun_ns) // 10**6
    life.run_for(400_000 - 10 - passed_ms)
    assert life.delivered() == []
    life.run_for(60)
    assert len(life.delivered()) == 1
    life.stop()


def test_timers_that_are_removed_before_they_are_read_hold_nothing_up(life: Life) -> None:
    """A start reads all units first: some may go meanwhile, on a full disk."""
    life.agents.pop(Role.READER)
    life.park(*(at_message(life.clock.wall_ms() + 90_000_000, filler=LONG) for _ in range(100)))
    life.park(*(level_message(18, filler=LONG) for _ in range(100)))
    life.run_for(2_000)
    life.kill(Role.SCHEDULER)
    life.run_for(50)
    remove_below(life, life.board.word(layout.BOARD_APPENDED) // SEGMENT * SEGMENT)
    timers = life.board.topic_named(TIMER_TOPIC)
    assert timers is not None
    at = life.board.queue_at(timers.queue_base)
    for word in (layout.QUEUE_MIN_OFFSET, layout.QUEUE_MAX_OFFSET):
        life.board.set_word(at + word, 100)
    assert life.board.word(at + layout.QUEUE_NEXT_OFFSET) == 100
    life.run_for(30_000)
    assert note_of(life).timers_next == 100


def last_standing(life: Life) -> Counter[int]:
    """How many copies each message has that was parked first, whatever stood for it meanwhile."""
    records = {record.physical_offset: record for record in life.records()}
    counts: Counter[int] = Counter()
    for copy in life.delivered():
        at = origins([copy])[0]
        while records[at].prepared_transaction_offset < 0:
            at = origins([records[at]])[0]
        counts[at] += 1
    return counts


@pytest.mark.parametrize("victim", [Role.SCHEDULER, Role.WRITER, None])
def test_deaths_on_the_way_double_nothing(tmp_path: Path, victim: Role | None) -> None:
    """P5: a death between any two steps; None: all die together, again and again."""
    clock, dice = SimClock(), random.Random(3)
    life = new_life(tmp_path, clock)
    now = clock.wall_ms()
    times = [now + dice.randrange(60_000, 400_000) for _ in range(100)]
    positions = life.park(*(at_message(ms, filler=LONG) for ms in times))
    life.run_for(3_000)
    low = wanted_below(life)
    for _ in range(25):
        for _ in range(dice.randrange(5)):
            life.agents[Role.SCHEDULER].do_work(clock.monotonic_ns())
        for _ in range(dice.randrange(2)):
            life.turn()
        life.kill(victim) if victim is not None else life.kill_all()
        if dice.random() < 0.2:
            life.run_for(dice.randrange(20_000))
    life.run_for(100_000)
    assert note_of(life).timers_floor == low
    life.run_for(320_000)
    assert last_standing(life) == Counter(positions)
    life.stop()


def test_a_lost_note_after_a_move_repeats_nothing(tmp_path: Path) -> None:
    """The origins tell which record counts; buckets made anew have both."""
    clock = SimClock()
    life = new_life(tmp_path, clock)
    now = clock.wall_ms()
    messages = [at_message(now + 200_000 + n, filler=LONG) for n in range(100)]
    positions = life.park(*messages, level_message(2))
    life.run_for(1_000)
    low = wanted_below(life)
    life.run_for(20_000)
    assert note_of(life).timers_floor == low
    life.stop()
    (tmp_path / "gantry" / "schedule.json").unlink()
    life = new_life(tmp_path, clock)
    life.run_for(190_000)
    assert last_standing(life) == Counter(positions)
    life.stop()


@pytest.mark.parametrize("steps", [1, 4])
def test_a_recall_amid_a_move_wins(life: Life, steps: int) -> None:
    """DT-70: whichever record stands for the message, it is cancelled and never comes."""
    now = life.clock.wall_ms()
    messages = [
        at_message(now + 150_000 + n // 60 * 60_000, key=f"{n:032X}", filler=FILLER)
        for n in range(120)
    ]
    positions = life.park(*messages)
    life.run_for(1_000)
    asker = Asker(life)
    low = wanted_below(life)
    for _ in range(steps):
        life.agents[Role.SCHEDULER].do_work(life.clock.monotonic_ns())
    asker.ask(handle_of(messages[7]))
    assert asker.answer() == "cancelled"
    life.run_for(15_000)
    assert note_of(life).timers_floor == low
    asker.ask(handle_of(messages[70]))
    assert asker.answer() == "cancelled"
    life.run_for(300_000)
    assert last_standing(life) == Counter(set(positions) - {positions[7], positions[70]})
    life.stop()


def with_retention(life: Life) -> Retention:
    """Retention over what this life has, with the ledger of nobody."""
    env = (life.storage, life.clock, life.board, life.tables[Role.SCHEDULER], life.settings)
    return open_retention(*env, open_ledger(life.storage, life.board.epoch))


def test_retention_asks_and_takes_what_is_free_then(tmp_path: Path) -> None:
    """LW-73: timers alone hold old segments; nothing goes before the note has the floor."""
    hours = ";".join(map(str, range(24)))
    sizes = {"mapped_file_size_commit_log": SEGMENT, "delete_when": hours, "file_reserved_time": 1}
    life = Life(tmp_path, SimClock(), sizes)
    now = life.clock.wall_ms()
    far = life.park(*(at_message(now + 10**10 + n, filler=FILLER) for n in range(250)))
    life.run_for(2_000)
    end = life.board.word(layout.BOARD_APPENDED) // SEGMENT * SEGMENT
    retention = with_retention(life)
    life.clock.step_wall(3 * 3_600_000)

    def look() -> int:
        life.clock.advance(61_000_000_000)
        for _ in range(20):
            retention.do_work(life.clock.monotonic_ns())
        return life.board.word(layout.BOARD_TIMERS_WANTED)

    assert look() == end
    assert life.board.word(layout.BOARD_LOW) == 0
    life.run_for(30_000)
    assert note_of(life).timers_floor == end
    look()
    assert life.board.word(layout.BOARD_LOW) == end
    moved = origins(appended_again(life))
    assert moved == [position for position in far if position < end]
    retention.close()
    life.stop()


def test_a_full_disk_is_patient_with_timers(life: Life) -> None:
    """LW-73, SF-100: for a while, as long as there is room to append them again; then it takes."""
    now = life.clock.wall_ms()
    life.park(*(at_message(now + 10**10 + n, filler=FILLER) for n in range(250)))
    life.run_for(2_000)
    retention = with_retention(life)
    retention._over_bytes, retention._used = 1, 87
    asked = retention._decide()
    assert asked is None
    wanted = life.board.word(layout.BOARD_TIMERS_WANTED)
    assert wanted == SEGMENT
    life.clock.advance(PACE.patience - 1)
    assert retention._decide() is None
    life.clock.advance(1)
    assert retention._decide() == Decision(SEGMENT, forced=True)
    assert retention._decide() is None, "the next segment has its own patience"
    retention._used = 91  # above the warning level nothing can be appended
    assert retention._decide() == Decision(SEGMENT, forced=True)
    retention.close()
    life.stop()
